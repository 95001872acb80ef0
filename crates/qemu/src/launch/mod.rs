//! Making a machine's process: a launcher between the service and QEMU.
//!
//! ```text
//!   service ── order, locked folder ──► launcher ── fork ──► process ── note ── exec ──► QEMU
//!                                          └── ends: 0, or 1 (2: the host has no such part) and a line in the log
//! ```
//!
//! What a process is confined to has to hold before its first instruction, and much of it can only be set up by a process
//! that has one thread. So the service starts itself once more under another verb: small, told everything at once, gone
//! when QEMU is there. The steps between fork and exec would be an alternative, without memory and with an error number
//! for words.
//!
//! The launcher's standard output is the machine's folder, locked by who started it. While it lives nobody else starts
//! or ends that machine, whatever becomes of the service, and when it ended there is a note or no machine.

mod calls;
mod failure;
mod given;
mod launcher;
mod lend;
mod namespaces;
mod order;
mod rights;
mod seal;
mod tree;

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use berth_process::folder;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::process::Command;

pub(crate) use given::FIRST;
pub(crate) use order::NOTE;
pub use order::{Order, Part};

use crate::error::at;
use crate::{Error, Result};

/// How long a launcher may take: longer than it waits for a program to open what is lent.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a launcher may take to end once it was killed.
const KILLED: Duration = Duration::from_secs(1);

/// The argument by which a program is asked to be the launcher.
const VERB: &str = "launch-machine";

/// The program that knows the verb.
static LAUNCHER: OnceLock<PathBuf> = OnceLock::new();

/// Has the program be the launcher, if it is asked to by its first argument; else it knows from then on that it can be.
/// The first thing that a program does which starts machines, before it has a second thread; it ends with the code that
/// this gives it, if there is one.
pub fn answer() -> Option<ExitCode> {
    if std::env::args_os().nth(1).as_deref() == Some(OsStr::new(VERB)) {
        return Some(launcher::run());
    }
    use_program(Path::new("/proc/self/exe"));
    None
}

/// Has another program, which calls [`answer`], launch machines.
pub fn use_program(path: &Path) {
    // Whoever was first stays.
    let _ = LAUNCHER.set(path.to_path_buf());
}

/// Starts a program as ordered, with the descriptors that it is given: as many as the order says. What it and the launcher
/// have to say goes to `log`. When this returns, the process is noted in its folder and has become the program.
/// [`Error::Unconfined`] is what the host lacks, and lacks later, too.
pub(crate) async fn launch(order: &Order, given: &[Arc<OwnedFd>], folder: OwnedFd, log: &Path) -> Result<()> {
    let unable = || Error::Invalid("this program starts no machines; type: berth serve".into());
    let program = LAUNCHER.get().ok_or_else(unable)?;
    let err = folder::create(log).map_err(at("cannot create", log))?;
    let text = serde_json::to_vec(order).map_err(|e| Error::Invalid(format!("an order cannot be written: {e}")))?;
    let mut command = Command::new(program);
    // Nothing of the service's environment, which may hold secrets.
    command.arg(VERB).env_clear().current_dir(&order.dir);
    let failed = |e| Error::io("cannot start the launcher of machines", e);
    let (mut input, theirs) = input(given).map_err(failed)?;
    command.stdin(theirs).stdout(Stdio::from(folder)).stderr(err).kill_on_drop(false);
    let mut child = command.spawn().map_err(failed)?;
    // The launcher's end stays with it alone: it hears when everything was said.
    drop(command);
    let done = async {
        // One that ended early says why in the log.
        let told = input.write_all(&text).await;
        drop(input);
        (told, child.wait().await)
    };
    let Ok((told, status)) = tokio::time::timeout(PATIENCE, done).await else {
        // With it goes its hold of the folder, so that whoever comes next can end what it began.
        child.start_kill().map_err(failed)?;
        // One that waits for a file system that does not answer ends when that does.
        let _ = tokio::time::timeout(KILLED, child.wait()).await;
        return Err(Error::Timeout("the launcher of the machine"));
    };
    let status = status.map_err(failed)?;
    match told {
        Ok(()) if status.success() => Ok(()),
        _ if status.code() == Some(failure::HOST_LACKS.into()) => Err(Error::Unconfined(last_line(log))),
        _ => Err(Error::Qemu(last_line(log))),
    }
}

/// What is said to a launcher, with the descriptors in it, and its end of that.
fn input(given: &[Arc<OwnedFd>]) -> std::io::Result<(UnixStream, Stdio)> {
    let (ours, theirs) = StdStream::pair()?;
    let given: Vec<_> = given.iter().map(|one| one.as_fd()).collect();
    given::send(&ours, &given)?;
    ours.set_nonblocking(true)?;
    Ok((UnixStream::from_std(ours)?, OwnedFd::from(theirs).into()))
}

fn last_line(log: &Path) -> String {
    let line = crate::disk::last_line(&folder::tail(log, folder::END_OF_LOG).unwrap_or_default());
    if line.is_empty() { "its launcher ended without a word".into() } else { line }
}
