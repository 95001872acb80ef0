//! The program as a process of the host: making it, knowing it again, ending it.
//!
//! The service that makes it notes in the machine's folder which process it is ([`berth_process`]), and a later service
//! knows it by that note alone.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream as StdStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use berth_process::{Note, Process, folder};
use tokio::net::UnixStream;

use super::control::Control;
use super::{SWITCH, VERB, switch};

/// What people see in a list of processes, and the name of the small program that does nothing else.
const NAME: &str = "berth-egress";
/// The socket that it listens on, in the machine's folder.
const SOCKET: &str = "egress.sock";
/// Who it is.
const NOTE: &str = "egress.json";
/// What it says of itself.
const LOG: &str = "egress.log";
/// Has the C library map each buffer of a connection by itself (mallopt(3), M_MMAP_THRESHOLD), so that the memory goes back
/// with the connection. By itself the library stops doing so after the first one that it gave back.
const MAPPED: (&str, &str) = ("MALLOC_MMAP_THRESHOLD_", "131072");
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

/// What a program is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It carries the network of a machine.
    Machine,
    /// It joins the machines of a network.
    Switch,
}

/// A program to start.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    /// What is executed.
    pub executable: &'a Executable,
    /// What it is for.
    pub kind: Kind,
    /// The machine's folder, or the network's, which must exist.
    pub dir: &'a Path,
    /// The machine's id, or the network's, for people who look at processes.
    pub id: &'a str,
    /// The user and group that it becomes, where the service may choose.
    pub user: Option<u32>,
}

/// A program that was started, and that nobody could find again yet.
#[derive(Debug)]
pub struct Spawned {
    pid: i32,
    stream: UnixStream,
}

/// Starts a program. It has nothing, and ends with this service until it is [linked](Control::set_link).
///
/// # Errors
/// A socket or a process cannot be made.
pub fn spawn(start: Start<'_>) -> io::Result<Spawned> {
    let works_in = start.dir.join(WORKS_IN);
    folder::make_folder(&works_in)?;
    let (ours, theirs) = StdStream::pair()?;
    ours.set_nonblocking(true)?;
    let mut command = Command::new(&start.executable.path);
    let kind = (start.kind == Kind::Switch).then_some(SWITCH);
    command.arg0(NAME).args(start.executable.verb).args(kind).arg(start.id);
    command.args(start.user.map(|user| user.to_string()));
    command.env_clear().current_dir(works_in);
    if start.kind == Kind::Machine {
        command.env(MAPPED.0, MAPPED.1);
    }
    command.stdin(OwnedFd::from(theirs)).stdout(OwnedFd::from(listen(start.dir)?));
    command.stderr(Stdio::from(folder::create(&start.dir.join(LOG))?));
    let mut child = tokio::process::Command::from(command).kill_on_drop(false).spawn()?;
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
    let pid = pid.ok_or_else(|| io::Error::other("the program of the network ended at once"))?;
    // Somebody waits for it, so that no zombie stays.
    tokio::spawn(async move {
        let status = child.wait().await;
        tracing::debug!(?status, "the program of a machine's network ended");
    });
    Ok(Spawned { pid, stream: UnixStream::from_std(ours)? })
}

impl Spawned {
    /// Writes down who it is, so that a later service knows it again.
    ///
    /// # Errors
    /// The note cannot be written, or the program ended.
    pub fn note(self, dir: &Path) -> io::Result<Control> {
        self.write_down(dir).map(Control::over)
    }

    /// The same of a network's switch.
    ///
    /// # Errors
    /// As of [`Self::note`].
    pub fn note_switch(self, dir: &Path) -> io::Result<switch::Control> {
        self.write_down(dir).map(switch::Control::over)
    }

    fn write_down(self, dir: &Path) -> io::Result<UnixStream> {
        Note::of(self.pid, dir).map_err(|_| io::Error::other(said(dir)))?.write(&dir.join(NOTE))?;
        Ok(self.stream)
    }
}

/// The last line that a program wrote.
fn said(dir: &Path) -> String {
    let text = folder::tail(&dir.join(LOG), folder::END_OF_LOG).unwrap_or_default();
    String::from_utf8_lossy(&text).lines().last().unwrap_or("the program of the network ended at once").to_owned()
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
    Ok(Control::over(folder::connect(&dir.join(SOCKET)).await?))
}

/// Connects to the switch of a network.
///
/// # Errors
/// Nobody listens in the folder.
pub async fn connect_switch(dir: &Path) -> io::Result<switch::Control> {
    Ok(switch::Control::over(folder::connect(&dir.join(SOCKET)).await?))
}

/// The program of a machine, or of a network, if it lives.
///
/// # Errors
/// The note cannot be read, or the process cannot be held, as where no descriptor is free: there may be one.
pub fn find(dir: &Path) -> io::Result<Option<Process>> {
    let note = Note::read(&dir.join(NOTE))?;
    note.map_or(Ok(None), |note| Process::hold(&note, dir))
}

/// Ends the program of a machine, or of a network, at once, and with it its connections. Fine where there is none.
///
/// # Errors
/// It does not end.
pub async fn end(dir: &Path) -> io::Result<()> {
    let Some(program) = find(dir)? else { return Ok(()) };
    program.kill()?;
    tokio::time::timeout(ENDING, program.ended()).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}
