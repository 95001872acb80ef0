//! The service over a simulated engine, in a process of its own.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use berth_server::app::{App, Doors, Engines};
use berth_server::config::{Config, Secret};
use berth_testkit::{SimulatedEngine, SimulatedNetworks, SimulatedSandboxes};
use tokio_util::sync::CancellationToken;

/// Serves for ever; prints its address, and when it has looked at so many machines.
pub async fn serve(folder: &Path, machines: usize) -> Result<()> {
    let began = Instant::now();
    let data = folder.to_string_lossy().into_owned();
    let said = |name: &str| match name {
        "BERTH_DATA_DIR" => Some(data.clone()),
        // Else it is SQLite in the folder.
        "BERTH_DATABASE_URL" => std::env::var("BERTH_BENCH_POSTGRES").ok(),
        _ => None,
    };
    let mut config = Config::from_sources(None, said)?;
    config.admin_email = "admin@example.com".into();
    config.admin_password = Secret("a quiet harbour at night".into());
    // The hashing is measured, not the limit for guessing.
    config.identity.logins_per_minute_per_address = u32::MAX;
    config.identity.hash_queue = 10_000;
    // A fleet is asked for longer than a token is good for.
    config.identity.access_token_seconds = 86_400;
    let engine = Arc::new(SimulatedEngine::default());
    engine.run_everything(machines > 0);
    let app = App::start_with(
        &config,
        Engines {
            vm: engine.clone(),
            sandbox: Arc::new(SimulatedSandboxes::default()),
            network: Arc::new(SimulatedNetworks::default()),
        },
    )
    .await?;
    let at_any_port = Config { listen: ([127, 0, 0, 1], 0).into(), ..config };
    let doors = Doors::open(&at_any_port, None, &app).await?;
    println!("http://{}", doors.main);
    tokio::spawn(async move {
        while engine.looked_at() < machines {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        println!("{}", began.elapsed().as_secs_f64());
    });
    Ok(doors.serve(CancellationToken::new()).await?)
}
