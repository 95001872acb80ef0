//! What goes into a sandbox while a program runs there: signals, and standard input.

use anyhow::{Context as _, Result};
use berth_client::{Error, Runtime};
use bytes::BytesMut;
use tokio::io::AsyncReadExt;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

/// Most bytes of input under way at once.
const PIECE: usize = 256 * 1024;
/// Interrupts after which this side leaves, whatever the program does.
const PATIENCE: u32 = 3;

/// Signals that this program gets, by name. From the first one on none of them ends it.
pub struct Signals(mpsc::Receiver<&'static str>);

impl Signals {
    /// Those that are forwarded.
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
            // Nobody tells any more.
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

/// Lets a write to a pipe that nobody reads fail, instead of ending this program.
pub fn outlive_broken_pipes() -> Result<()> {
    // That somebody listens is what counts.
    signal(SignalKind::pipe()).map(drop).context("signals cannot be listened to")
}

/// Sends every signal on to a process. Returns when somebody has interrupted it again and again, in vain.
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
        // In a task of its own: one that is not answered must not keep the next one back.
        let runtime = runtime.clone();
        tokio::spawn(async move {
            match runtime.signal(pid, name).await {
                Err(error) if !has_ended(&error) => eprintln!("berth: {name} could not be sent: {error}"),
                _ => {}
            }
        });
    }
}

/// Sends standard input on to a process until either ends.
pub async fn stdin(runtime: &Runtime, pid: i32) -> Result<()> {
    let mut input = tokio::io::stdin();
    loop {
        let mut bytes = BytesMut::with_capacity(PIECE);
        let read = input.read_buf(&mut bytes).await.context("standard input cannot be read")?;
        match runtime.write_stdin(pid, bytes.freeze(), read == 0).await {
            Err(error) if has_ended(&error) => return Ok(()),
            Err(error) => return Err(error).context("input could not be sent on, and how much arrived is not known"),
            Ok(()) if read == 0 => return Ok(()),
            Ok(()) => {}
        }
    }
}

fn has_ended(error: &Error) -> bool {
    matches!(error.code(), Some("process_ended" | "not_found"))
}
