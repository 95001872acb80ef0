//! The `berth` binary.
#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let config = berth_server::config::Config::load(None)?;
    if std::env::args().nth(1).as_deref() == Some("doctor") {
        println!("{}", berth_server::app::doctor(&config).await);
        return Ok(());
    }
    berth_server::app::serve(config).await
}
