//! Berth's agent: the first process of a sandbox, and its runtime.
//!
//! As the first process (`/init` of an initramfs) it mounts the kernel's file systems, loads the modules beside it and
//! serves the port `berth.agent`; the host then tells it which root file system to enter and which sandbox it is. For
//! tests it serves a unix socket, in a directory of the developer's machine and as the account that started it:
//!
//! ```text
//! berth-agent --socket PATH --root DIR --user NAME [--cgroup DIR]
//! ```

mod accounts;
mod acting;
mod actor;
mod agent;
mod body;
mod boot;
mod build;
mod call;
mod channel;
mod clock;
mod error;
mod events;
mod files;
mod freeze;
mod freezer;
mod grow;
mod identity;
mod kernel;
mod lock;
mod metrics;
mod network;
mod options;
mod place;
mod port;
mod process;
mod query;
mod routes;
mod server;
mod terminal;
mod tunnel;
mod watch;

use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};

use crate::accounts::Account;
use crate::agent::Agent;
use crate::channel::{End, Wire, serve};
use crate::options::Options;
use crate::port::Port;

/// The port's name.
const PORT: &str = "berth.agent";
const PORT_PATIENCE: Duration = Duration::from_secs(10);
/// Threads for work that blocks and must be root: starting programs, syncing.
const BLOCKING_THREADS: usize = 16;
const KEEP_THREADS: Duration = Duration::from_hours(24);

fn main() -> ExitCode {
    let served = if kernel::is_init() { as_init() } else { as_test() };
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("berth-agent: {error}");
            if kernel::is_init() {
                // Without its first process the kernel panics; switching off is the clearer end.
                let _ = kernel::power_off();
            }
            ExitCode::FAILURE
        }
    }
}

fn as_init() -> io::Result<()> {
    boot::mount_kernel_file_systems()?;
    kernel::load_modules()?;
    if kernel::has_word("berth.probe") {
        println!("BERTH-PROBE-OK");
        return kernel::power_off();
    }
    runtime()?.block_on(async {
        let agent = Arc::new(Agent::new(true));
        spawn_reaper(&agent)?;
        serve_port(&agent).await
    })
}

fn as_test() -> io::Result<()> {
    let options = Options::parse(std::env::args_os().skip(1)).map_err(io::Error::other)?;
    let missing = || io::Error::other(format!("there is no account {:?}; name one of /etc/passwd", options.user));
    let account = Account::lookup(Path::new("/"), &options.user).ok_or_else(missing)?;
    let own = rustix::process::geteuid();
    if !own.is_root() && own != account.uid() {
        let present = Account::by_uid(own.as_raw()).map_or_else(|| own.as_raw().to_string(), |account| account.name);
        return Err(io::Error::other(format!("only root may work as another account; say --user {present}")));
    }
    runtime()?.block_on(async {
        let agent = Arc::new(Agent::new(false));
        let _ = agent.place.set(Arc::new(boot::place(account, options.root)?));
        if let Some(cgroup) = &options.cgroup {
            agent.freezer.set_up(cgroup)?;
        }
        // Orphans become children of this process, as they do of a first process.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        spawn_reaper(&agent)?;
        let served = serve_socket(&agent, &options.socket).await;
        agent.reaper.kill_all();
        served
    })
}

fn runtime() -> io::Result<tokio::runtime::Runtime> {
    kernel::raise_limits();
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_stack_size(512 * 1024)
        // A captured machine should have these threads ready.
        .thread_keep_alive(KEEP_THREADS)
        .build()
}

fn spawn_reaper(agent: &Arc<Agent>) -> io::Result<()> {
    let mut ended = signal(SignalKind::child())?;
    let reaper = agent.reaper.clone();
    tokio::spawn(async move {
        while ended.recv().await.is_some() {
            reaper.collect();
        }
    });
    Ok(())
}

/// Serves the port for ever.
async fn serve_port(agent: &Arc<Agent>) -> io::Result<()> {
    let device = port::find(PORT, PORT_PATIENCE).await?;
    loop {
        let port = Arc::new(Port::open(&device)?);
        // A port that ends without a session has no host connected, and needs no new start.
        while let Ok(End::Closed) = serve(agent, Wire::Port(port.clone())).await {
            port.changed().await?;
        }
    }
}

/// Serves a unix socket until SIGTERM or SIGINT.
async fn serve_socket(agent: &Arc<Agent>, path: &Path) -> io::Result<()> {
    let listener = UnixListener::bind(path)?;
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
        };
        tokio::spawn(serve_stream(agent.clone(), accepted?.0));
    }
}

async fn serve_stream(agent: Arc<Agent>, stream: UnixStream) {
    let stream = Arc::new(stream);
    // As on a port, one session may follow another one.
    while let Ok(End::Session) = serve(&agent, Wire::Socket(stream.clone())).await {}
}
