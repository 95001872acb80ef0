//! This machine as a host of a platform whose service is on another one.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use berth_client::{Client, JoinHost};
use berth_domain::host::join::{JoinToken, PORT};
use berth_domain::host::request::address;
use berth_server::app::{self, Answer, Request, Wanted};
use berth_server::config::Config;
use clap::{Args, Subcommand};

use crate::failure::Failure;

#[derive(Subcommand)]
pub enum HostCommand {
    /// Join a platform, and run machines for it until told to stop
    Join(JoinArgs),
    /// Run machines for the platform that this machine has joined
    Serve(SettingArgs),
}

#[derive(Args)]
pub struct JoinArgs {
    /// Address of the platform's service, as https://berth.example.com
    #[arg(value_name = "URL")]
    platform: String,
    /// What berth admin host add printed
    token: String,
    /// Where to listen for the service [default: 0.0.0.0:8470]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// Where the service finds this machine [default: the address from which it reaches the service]
    #[arg(long, value_name = "HOST:PORT")]
    address: Option<String>,
    /// Send the token over http:// though somebody on the way could read it, and join in this machine's place
    #[arg(long)]
    insecure: bool,
    /// Join although the data folder has joined before
    #[arg(long)]
    again: bool,
    #[command(flatten)]
    settings: SettingArgs,
}

/// The settings of a host; they win over the environment, which wins over the file.
#[derive(Args)]
pub struct SettingArgs {
    /// Configuration file
    #[arg(long, env = "BERTH_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Folder of everything the host keeps [env: BERTH_DATA_DIR]
    #[arg(long, value_name = "FOLDER")]
    data_dir: Option<PathBuf>,
    /// What to log, like info or berth_host=debug,info [env: BERTH_LOG]
    #[arg(long, value_name = "FILTER")]
    log: Option<String>,
    /// How log lines look: auto, json or text [env: BERTH_LOG_FORMAT]
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,
}

impl SettingArgs {
    fn load(self) -> Result<Config> {
        let Self { config, data_dir, log, log_format } = self;
        let typed = |name: &str| match name {
            "BERTH_DATA_DIR" => data_dir.as_ref().map(|dir| dir.to_string_lossy().into_owned()),
            "BERTH_LOG" => log.clone(),
            "BERTH_LOG_FORMAT" => log_format.clone(),
            _ => None,
        };
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        Config::from_sources(config.as_deref(), |name| typed(name).or_else(|| set(name)))
    }
}

/// Runs the host until it is told to stop.
pub async fn run(command: HostCommand) -> Result<ExitCode> {
    match command {
        HostCommand::Join(args) => join(args).await?,
        HostCommand::Serve(settings) => Box::pin(app::serve_host(settings.load()?)).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn join(args: JoinArgs) -> Result<()> {
    let JoinArgs { platform, token, listen, address: chosen, insecure, again, settings } = args;
    let platform = platform.trim_end_matches('/').to_owned();
    let (secure, host, port) = parts(&platform)?;
    if !secure && !insecure && !is_loopback(&host) {
        let told = "Over http:// anybody on the way reads the token, and joins in this machine's place. Give the service \
                    https:// (docs/operating.md), or add --insecure where the way is safe";
        return Err(Failure::usage(told));
    }
    let token: JoinToken =
        token.parse().map_err(|why| Failure::usage(format!("the token {why}: berth admin host add prints one")))?;
    let listen = listen.unwrap_or(SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT)));
    let found = match chosen {
        Some(found) => found,
        None => reached_at(listen, &host, port)?.to_string(),
    };
    let found = address(&found.into()).map_err(|why| Failure::usage(format!("--address {why}")))?;
    let config = settings.load()?;
    let client = Client::new(&platform)?;
    let wanted = Wanted { platform, token, listen, address: found, again };
    let ask = async move |request: Request| -> Result<Answer> {
        let Request { token, csr, address, name, version } = request;
        let joined = client.join_host(&JoinHost { token, csr, address, name, version }).await?;
        let berth_client::JoinedHost { host_id, name, certificate, authority } = joined;
        Ok(Answer { host_id, name, certificate, authority })
    };
    Box::pin(app::join(config, wanted, ask)).await
}

/// Whether an address is https, its host, and its port.
fn parts(url: &str) -> Result<(bool, String, u16)> {
    let read = || {
        let url = reqwest::Url::parse(url).ok()?;
        let secure = match url.scheme() {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        Some((secure, url.host_str()?.trim_matches(['[', ']']).to_owned(), url.port_or_known_default()?))
    };
    read().ok_or_else(|| Failure::usage(format!("'{url}' is no address of a service; it looks like https://HOST:PORT")))
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Where the service finds what listens here: at its own address, or at the one from which the service is reached.
fn reached_at(listen: SocketAddr, host: &str, port: u16) -> Result<SocketAddr> {
    if !listen.ip().is_unspecified() {
        return Ok(listen);
    }
    // A datagram's socket is connected without a packet.
    let found = || {
        let to = (host, port).to_socket_addrs().ok()?.next()?;
        let from: SocketAddr = if to.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0_u16; 8], 0).into() };
        let socket = UdpSocket::bind(from).ok()?;
        socket.connect(to).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    let address = found().filter(|address| !address.is_unspecified());
    let address = address.ok_or_else(|| {
        Failure::usage("Where the service finds this machine is not known; say it: --address HOST:PORT".to_owned())
    })?;
    Ok((address, listen.port()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_service_is_and_where_it_finds_this_machine() {
        let read = |url: &str| parts(url).ok();
        assert_eq!(read("https://berth.example.com"), Some((true, "berth.example.com".into(), 443)));
        assert_eq!(read("http://[::1]:8080"), Some((false, "::1".into(), 8080)));
        for wrong in ["", "berth.example.com", "ftp://x", "https://"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
        for (host, loopback) in
            [("127.0.0.1", true), ("::1", true), ("localhost", true), ("10.0.0.1", false), ("a", false)]
        {
            assert_eq!(is_loopback(host), loopback, "{host}");
        }
        let (any, own) = (SocketAddr::from(([0, 0, 0, 0], 8470)), SocketAddr::from(([127, 0, 0, 9], 1)));
        assert_eq!(reached_at(any, "127.0.0.1", 8080).ok(), Some(([127, 0, 0, 1], 8470).into()));
        assert_eq!(reached_at(own, "nowhere.invalid", 1).ok(), Some(own));
        assert!(reached_at(any, "nowhere.invalid", 1).is_err());
    }
}
