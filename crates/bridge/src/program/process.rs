//! The program as a process of the host: making it, knowing it again, ending it.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use berth_process::{Note, Process, folder};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use super::VERB;
use super::serve::READY;

/// Who it is, in the bridge's folder.
const NOTE: &str = "program.json";
/// Of which version it is, in a file beside.
const VERSION_NOTE: &str = "program.version";
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// What it says of itself.
const LOG: &str = "program.log";
/// What people see in a list of processes, and the small program that does nothing else, where it lies beside the service's.
const NAME: &str = "berth-bridge";
/// How long it may take to begin or to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// Starts the program for the bridge of a folder, unless it runs, and returns once it answers guests. One of another version
/// is replaced. As root it becomes `user`, which should be nobody else's.
///
/// # Errors
/// It does not begin; the message is what it said, as of a port that somebody else has.
pub async fn start(program: Option<&Path>, bridge: &Path, user: Option<u32>) -> io::Result<Process> {
    if let Some(running) = find(bridge)? {
        if std::fs::read_to_string(bridge.join(VERSION_NOTE)).is_ok_and(|version| version == VERSION) {
            return Ok(running);
        }
        tracing::info!("the program that answers guests of the bridge is of another version; replacing it");
        end(bridge).await?;
    }
    let (program, verb) = match program {
        Some(program) => (program.to_owned(), None),
        None => installed(),
    };
    let log = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(bridge.join(LOG))?;
    let mut command = Command::new(program);
    command.arg0(NAME).args(verb).args(user.map(|user| user.to_string())).env_clear().current_dir(bridge);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).kill_on_drop(false);
    let mut child = command.spawn()?;
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).ok_or(io::ErrorKind::NotFound)?;
    let said = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    // Until then it is nobody's: it ends by itself where its first line finds no reader.
    Note::of(pid, bridge)?.write(&bridge.join(NOTE))?;
    let mut line = String::new();
    let read = tokio::time::timeout(PATIENCE, BufReader::new(said).read_line(&mut line)).await;
    // Somebody waits for it, so that no zombie stays.
    tokio::spawn(async move {
        let status = child.wait().await;
        tracing::debug!(?status, "the program of the bridge ended");
    });
    if read.is_err() || line.trim() != READY {
        end(bridge).await?;
        let text = folder::tail(&bridge.join(LOG), folder::END_OF_LOG).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        return Err(io::Error::other(
            text.lines().last().unwrap_or("the program of the bridge ended at once").to_owned(),
        ));
    }
    let running = find(bridge)?.ok_or_else(|| io::Error::other("the program of the bridge ended at once"))?;
    // Last: one whose version is not known is replaced once more.
    folder::write(&bridge.join(VERSION_NOTE), VERSION.as_bytes())?;
    Ok(running)
}

fn installed() -> (std::path::PathBuf, Option<&'static str>) {
    match std::env::current_exe().map(|this| this.with_file_name(NAME)) {
        Ok(path) if path.is_file() => (path, None),
        // The file may have been replaced since; this is the one that runs.
        _ => ("/proc/self/exe".into(), Some(VERB)),
    }
}

/// The program of a bridge, if it lives.
///
/// # Errors
/// The note cannot be read, or the process cannot be held: there may be one.
pub fn find(bridge: &Path) -> io::Result<Option<Process>> {
    let note = Note::read(&bridge.join(NOTE))?;
    note.map_or(Ok(None), |note| Process::hold(&note, bridge))
}

/// Ends the program of a bridge. Fine where there is none.
///
/// # Errors
/// It does not end.
pub async fn end(bridge: &Path) -> io::Result<()> {
    let Some(program) = find(bridge)? else { return Ok(()) };
    program.kill()?;
    tokio::time::timeout(PATIENCE, program.ended()).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}
