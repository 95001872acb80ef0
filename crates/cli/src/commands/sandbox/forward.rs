//! Forwards signals and standard input to a program in a sandbox.

use anyhow::{Context as _, Result};
use berth_client::{Error, Runtime};
use bytes::BytesMut;
use tokio::io::AsyncReadExt;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

/// Most bytes of input under way at once.
const PIECE: usize = 256 * 1024;
/// Number of interrupts after which this program leaves, whatever the other one does.
const PATIENCE: u32 = 3;

/// Signals that this program gets, by name. Once this listens, none of them ends this program.
pub struct Signals(mpsc::Receiver<&'static str>);

impl Signals {
    /// Listens to the signals that are forwarded.
    pub fn listen() -> Result<Self> {
        let (sender, receiver) = mpsc::channel(16);
        for (name, kind) in [
            ("SIGINT", SignalKind::interrupt()),
            ("SIGTERM", SignalKind::terminate()),
            ("SIGHUP", SignalKind::hangup()),
            ("SIGQUIT", SignalKind::quit()),
            ("SIGUSR1", SignalKind::user_defined1()),
            ("SIGUSR2", SignalKind::user_defined2()),
        ] {
            tokio::spawn(tell(name, signal(kind)?, sender.clone()));
        }
        Ok(Self(receiver))
    }

    /// The next one.
    pub async fn next(&mut self) -> &'static str {
        match self.0.recv().await {
            Some(name) => name,
            // The senders are gone.
            None => std::future::pending().await,
        }
    }
}

async fn tell(name: &'static str, mut signals: Signal, to: mpsc::Sender<&'static str>) {
    while signals.recv().await.is_some() {
        if to.send(name).await.is_err() {
            return;
        }
    }
}

/// Makes a write to a closed pipe fail, instead of ending this program.
pub fn outlive_broken_pipes() -> Result<()> {
    // Listening alone changes the signal's effect.
    signal(SignalKind::pipe()).map(drop).context("signals cannot be listened to")
}

/// Forwards every signal to a process. Returns after repeated interrupts without effect.
pub async fn signals(runtime: &Runtime, pid: i32, mut signals: Signals, first: Option<&'static str>) {
    let mut interrupts = 0;
    let mut next = first;
    loop {
        let name = match next.take() {
            Some(name) => name,
            None => signals.next().await,
        };
        interrupts += u32::from(name == "SIGINT");
        if interrupts >= PATIENCE {
            return;
        }
        // In a task of its own: a slow answer must not delay the next signal.
        let runtime = runtime.clone();
        tokio::spawn(async move {
            match runtime.signal(pid, name).await {
                Err(error) if !has_ended(&error) => eprintln!("berth: {name} could not be sent: {error}"),
                _ => {}
            }
        });
    }
}

/// Forwards standard input to a process until either ends.
pub async fn stdin(runtime: &Runtime, pid: i32) -> Result<()> {
    let mut input = tokio::io::stdin();
    loop {
        let mut bytes = BytesMut::with_capacity(PIECE);
        let read = input.read_buf(&mut bytes).await.context("standard input cannot be read")?;
        match runtime.write_stdin(pid, bytes.freeze(), read == 0).await {
            Err(error) if has_ended(&error) => return Ok(()),
            Err(error) => {
                return Err(error).context("input could not be forwarded, and it is not known how much of it arrived");
            }
            Ok(()) if read == 0 => return Ok(()),
            Ok(()) => {}
        }
    }
}

fn has_ended(error: &Error) -> bool {
    matches!(error.code(), Some("process_ended" | "not_found"))
}
