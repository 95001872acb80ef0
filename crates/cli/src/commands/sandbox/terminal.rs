//! Shows a terminal of a sandbox in this one: `berth sandbox shell`, and `exec --tty`.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use berth_client::{
    Error, Exit, FromServer, OpenTerminal, ProjectClient, Runtime, TerminalEvent, TerminalReader, TerminalWriter,
};
use clap::Args;
use tokio::io::AsyncReadExt;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::exit;
use super::find::find;
use super::forward::Signals;
use super::words::WORDS;
use crate::keyboard::{Raw, window};
use crate::typed::retold;

/// Pause between two pings.
const PING: Duration = Duration::from_secs(15);
/// How long to reconnect after a connection broke off.
const PATIENCE: Duration = Duration::from_mins(10);
/// Shortest and longest pause between two tries.
const PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));
/// Ctrl-C and Ctrl-D, as the keyboard sends them.
const INTERRUPT: u8 = 3;
const END: u8 = 4;

#[derive(Args)]
pub struct ShellArgs {
    /// Name or id
    sandbox: String,
    /// Directory to start in, from the workspace's root
    #[arg(long, short = 'w', value_name = "DIR")]
    cwd: Option<String>,
    /// user or root
    #[arg(long, short)]
    user: Option<String>,
}

pub async fn shell(project: &ProjectClient, args: ShellArgs) -> ExitCode {
    let done = async {
        let sandbox = find(project, &args.sandbox).await?;
        let (cols, rows) = window();
        let open = OpenTerminal { cols, rows, cwd: args.cwd, user: args.user, ..OpenTerminal::default() };
        run(&project.runtime(&sandbox)?, open, Signals::listen()?).await
    };
    done.await.unwrap_or_else(|error| exit::failed(&error, false))
}

/// How a connection to a terminal ended.
enum End {
    /// Its program ended.
    Exit(Exit),
    /// The connection broke off.
    Gone(String),
    /// A signal told this program to end.
    Told(&'static str),
}

/// Shows a terminal until its program ends.
pub async fn run(runtime: &Runtime, open: OpenTerminal, mut signals: Signals) -> Result<ExitCode> {
    let mut connection = tokio::select! {
        connection = runtime.terminal(&open) => connection.map_err(|error| retold(error, WORDS))?,
        name = signals.next() => return Ok(exit::told(name)),
    };
    let mut here = Here::take(signals)?;
    let mut id = None;
    let end = loop {
        let (writer, reader) = &mut connection;
        let end = tokio::select! {
            end = show(reader, &mut id) => end?,
            end = here.type_into(writer) => end,
        };
        match end {
            End::Gone(reason) => match here.again(runtime, id.as_deref(), &reason).await? {
                Some(another) => connection = another,
                None => break End::Told("SIGINT"),
            },
            end => break end,
        }
    };
    drop(here);
    match end {
        End::Exit(exit) => {
            let code =
                exit::code_of(&exit).ok_or_else(|| anyhow!("the program ended, but the service did not say how"))?;
            Ok(ExitCode::from(code))
        }
        End::Told(name) => Ok(exit::told(name)),
        End::Gone(reason) => bail!(reason),
    }
}

/// Shows the terminal's output until the connection ends.
async fn show(reader: &mut TerminalReader, id: &mut Option<String>) -> Result<End> {
    loop {
        match reader.next().await {
            TerminalEvent::Shows(bytes) => {
                let mut out = std::io::stdout().lock();
                out.write_all(&bytes)?;
                out.flush()?;
            }
            TerminalEvent::Says(FromServer::Ready { id: told, .. }) => *id = Some(told),
            TerminalEvent::Says(FromServer::Exit { code, signal }) => {
                return Ok(End::Exit(Exit { code, signal, timed_out: false }));
            }
            TerminalEvent::Says(FromServer::Error { message, .. }) => eprint!("\r\nberth: {message}\r\n"),
            TerminalEvent::Gone(reason) => return Ok(End::Gone(reason)),
        }
    }
}

/// This side: its keyboard, its window, its signals. Dropping it restores the keyboard.
struct Here {
    raw: Option<Raw>,
    keys: mpsc::Receiver<Vec<u8>>,
    open: bool,
    resized: tokio::signal::unix::Signal,
    signals: Signals,
}

impl Here {
    fn take(signals: Signals) -> Result<Self> {
        let resized = signal(SignalKind::window_change())?;
        let raw = std::io::stdin().is_terminal().then(Raw::enter).transpose()?;
        let (sender, keys) = mpsc::channel(16);
        tokio::spawn(read_keys(sender));
        Ok(Self { raw, keys, open: true, resized, signals })
    }

    /// Types until the connection ends.
    async fn type_into(&mut self, writer: &mut TerminalWriter) -> End {
        let mut pings = tokio::time::interval(PING);
        loop {
            let sent = tokio::select! {
                keys = self.keys.recv(), if self.open => {
                    self.open = keys.is_some();
                    writer.write(keys.unwrap_or_else(|| vec![END])).await
                }
                _ = self.resized.recv() => {
                    let (cols, rows) = window();
                    writer.resize(cols, rows).await
                }
                name = self.signals.next() => {
                    // No person is there any more; the program gets the signal that a closed window would send.
                    let _ = writer.signal(if name == "SIGINT" { name } else { "SIGHUP" }).await;
                    if name != "SIGINT" {
                        return End::Told(name);
                    }
                    Ok(())
                }
                _ = pings.tick() => writer.ping().await,
            };
            if let Err(error) = sent {
                return End::Gone(error.to_string());
            }
        }
    }

    /// Connects to a terminal again; nothing if the person would rather leave.
    async fn again(
        &mut self,
        runtime: &Runtime,
        id: Option<&str>,
        reason: &str,
    ) -> Result<Option<(TerminalWriter, TerminalReader)>> {
        let Some(id) = id.filter(|_| self.raw.is_some()) else { bail!("the terminal is gone: {reason}") };
        eprint!("\r\n[{reason}; connecting again, Ctrl-C leaves]\r\n");
        let begun = Instant::now();
        let mut pause = PAUSE.0;
        loop {
            let (cols, rows) = window();
            let open = OpenTerminal { cols, rows, id: Some(id.to_owned()), ..OpenTerminal::default() };
            let tried = tokio::select! {
                tried = runtime.terminal(&open) => tried,
                () = self.leaves() => return Ok(None),
            };
            match tried {
                Ok(another) => {
                    // The terminal will send its last output again.
                    print!("\x1b[H\x1b[2J");
                    return Ok(Some(another));
                }
                Err(error) if may_pass(&error) && begun.elapsed() < PATIENCE => {}
                Err(error) => return Err(error.into()),
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(PAUSE.1),
                () = self.leaves() => return Ok(None),
            }
        }
    }

    /// Returns when the person presses Ctrl-C, or a signal tells this program to end.
    async fn leaves(&mut self) {
        loop {
            tokio::select! {
                keys = self.keys.recv(), if self.open => match keys {
                    Some(keys) if keys.contains(&INTERRUPT) => return,
                    Some(_) => {}
                    None => self.open = false,
                },
                _ = self.signals.next() => return,
            }
        }
    }
}

fn may_pass(error: &Error) -> bool {
    error.status().is_none_or(|status| status == 429 || status >= 500)
}

async fn read_keys(to: mpsc::Sender<Vec<u8>>) {
    let mut stdin = tokio::io::stdin();
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(read @ 1..) = stdin.read(&mut buffer).await {
        if to.send(buffer[..read].to_vec()).await.is_err() {
            return;
        }
    }
}
