//! The program as a process of the host: making it, knowing it again, ending it.
//!
//! It is known by a note in the machine's folder that the service wrote: its number, when it began, in which boot of the
//! host, and for which folder, since folders are copied. Nothing that the process says of itself counts.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream as StdStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal};
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;

use super::VERB;
use super::control::Control;

/// What people see in a list of processes, and the name of the small program that does nothing else.
const NAME: &str = "berth-egress";
/// The socket that it listens on, in the machine's folder.
const SOCKET: &str = "egress.sock";
/// Who it is.
const NOTE: &str = "egress.json";
/// What it says of itself.
const LOG: &str = "egress.log";
/// The folder that it works in, which is empty.
const WORKS_IN: &str = "egress";
/// How long a process may take to end once it was killed.
const ENDING: Duration = Duration::from_secs(10);

/// What is executed.
#[derive(Clone, Debug)]
pub struct Executable {
    path: PathBuf,
    verb: Option<&'static str>,
}

impl Executable {
    /// A program that is this one and nothing else.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), verb: None }
    }

    /// The small program that lies beside the one that runs; where there is none, the one that runs, by its verb.
    pub fn installed() -> Self {
        let beside = std::env::current_exe().map(|this| this.with_file_name(NAME));
        match beside {
            Ok(path) if path.is_file() => Self::at(path),
            // The file may have been replaced since; this is the one that runs.
            _ => Self { path: "/proc/self/exe".into(), verb: Some(VERB) },
        }
    }
}

/// A program to start.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    /// What is executed.
    pub executable: &'a Executable,
    /// The machine's folder, which must exist.
    pub dir: &'a Path,
    /// The machine's id, for people who look at processes.
    pub id: &'a str,
    /// The user and group that it becomes, where the service may choose.
    pub user: Option<u32>,
}

/// A program that was started, and that nobody could find again yet.
#[derive(Debug)]
pub struct Spawned {
    pid: Pid,
    control: Control,
}

/// Starts a program. It has nothing, and ends with this service until it is [linked](Control::set_link).
///
/// # Errors
/// A socket or a process cannot be made.
pub fn spawn(start: Start<'_>) -> io::Result<Spawned> {
    let works_in = start.dir.join(WORKS_IN);
    fs::create_dir_all(&works_in)?;
    let (ours, theirs) = StdStream::pair()?;
    ours.set_nonblocking(true)?;
    let mut command = Command::new(&start.executable.path);
    command.arg0(NAME).args(start.executable.verb).arg(start.id).args(start.user.map(|user| user.to_string()));
    command.env_clear().current_dir(works_in);
    command.stdin(OwnedFd::from(theirs)).stdout(OwnedFd::from(listen(start.dir)?));
    command.stderr(Stdio::from(File::create(start.dir.join(LOG))?));
    let mut child = tokio::process::Command::from(command).kill_on_drop(false).spawn()?;
    let pid = child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
    let pid = pid.ok_or_else(|| io::Error::other("the program of the network ended at once"))?;
    // Somebody waits for it, so that no zombie stays.
    tokio::spawn(async move {
        let status = child.wait().await;
        tracing::debug!(?status, "the program of a machine's network ended");
    });
    Ok(Spawned { pid, control: Control::over(UnixStream::from_std(ours)?) })
}

impl Spawned {
    /// Writes down who it is, so that a later service knows it again.
    ///
    /// # Errors
    /// The note cannot be written, or the program ended.
    pub fn note(self, dir: &Path) -> io::Result<Control> {
        let (started, _) = began(self.pid).ok_or_else(|| io::Error::other(said(dir)))?;
        let note = Note { pid: self.pid.as_raw_nonzero().get(), started, boot: boot()?, folder: folder(dir)? };
        let tmp = dir.join("egress.tmp");
        fs::write(&tmp, serde_json::to_vec(&note)?)?;
        fs::rename(tmp, dir.join(NOTE))?;
        Ok(self.control)
    }
}

/// The last line that a program wrote.
fn said(dir: &Path) -> String {
    let text = fs::read_to_string(dir.join(LOG)).unwrap_or_default();
    text.lines().last().unwrap_or("the program of the network ended at once").to_owned()
}

/// Listens in a folder, however long its path is.
fn listen(dir: &Path) -> io::Result<UnixListener> {
    match fs::remove_file(dir.join(SOCKET)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let folder = File::open(dir)?;
    UnixListener::bind(format!("/proc/self/fd/{}/{SOCKET}", folder.as_raw_fd()))
}

/// Connects to the program of a machine.
///
/// # Errors
/// Nobody listens in the folder.
pub async fn connect(dir: &Path) -> io::Result<Control> {
    let folder = File::open(dir)?;
    let stream = UnixStream::connect(format!("/proc/self/fd/{}/{SOCKET}", folder.as_raw_fd())).await?;
    Ok(Control::over(stream))
}

/// Who a program is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    pid: i32,
    /// Ticks of the kernel's clock from the host's boot.
    started: u64,
    boot: String,
    /// Device and inode.
    folder: (u64, u64),
}

/// A program that lives.
#[derive(Debug)]
pub struct Running {
    pidfd: OwnedFd,
}

/// The program of a machine, if it lives.
pub fn find(dir: &Path) -> Option<Running> {
    let note: Note = serde_json::from_slice(&fs::read(dir.join(NOTE)).ok()?).ok()?;
    let pid = Pid::from_raw(note.pid.max(0))?;
    // What has the number by now is held first and looked at then.
    let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::NONBLOCK).ok()?;
    let (started, is_dead) = began(pid)?;
    let is_noted = !is_dead && started == note.started && boot().ok()? == note.boot && folder(dir).ok()? == note.folder;
    is_noted.then_some(Running { pidfd })
}

impl Running {
    /// Returns when it has ended.
    ///
    /// # Errors
    /// The kernel cannot tell.
    pub async fn ended(&self) -> io::Result<()> {
        let handle = self.pidfd.try_clone()?;
        #[expect(deprecated, reason = "an owned descriptor stays the same and open, which is all its successor asks")]
        let handle = AsyncFd::with_interest(handle, Interest::READABLE)?;
        handle.readable().await.map(drop)
    }

    async fn kill(&self) -> io::Result<()> {
        match rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => return Err(error.into()),
        }
        tokio::time::timeout(ENDING, self.ended()).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    }
}

/// Ends the program of a machine at once, and with it its connections. Fine where there is none.
///
/// # Errors
/// It does not end.
pub async fn end(dir: &Path) -> io::Result<()> {
    match find(dir) {
        Some(running) => running.kill().await,
        None => Ok(()),
    }
}

/// When a process began, and whether it is one that ended and that nobody waited for (proc_pid_stat(5), fields 22 and 3).
fn began(pid: Pid) -> Option<(u64, bool)> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // The name in parentheses may hold anything; what follows it is numbers.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    Some((fields.get(19)?.parse().ok()?, matches!(*fields.first()?, "Z" | "X")))
}

fn folder(dir: &Path) -> io::Result<(u64, u64)> {
    let found = fs::metadata(dir)?;
    Ok((found.dev(), found.ino()))
}

fn boot() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}
