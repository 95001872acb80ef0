//! The process of a machine: making, finding, ending.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::process::{Pid, PidfdFlags, Signal};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::process::Command;
use tokio::sync::watch;
use uuid::Uuid;

use super::files::{PID, QEMU_LOG};
use crate::disk::last_line;
use crate::error::at;
use crate::host::QEMU_PACKAGE;
use crate::{Error, Result};

/// Clock ticks a second, as the kernel shows them to every program.
const TICKS: f64 = 100.0;

/// A machine found on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its folder.
    pub dir: PathBuf,
    /// Its id: the folder's name.
    pub id: Uuid,
}

/// What a process used since its start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Usage {
    /// Seconds of CPU.
    pub cpu_seconds: f64,
    /// Resident memory, in bytes.
    pub rss_bytes: u64,
}

/// Makes the process, in a session of its own, so that it outlives us and our terminal. The receiver
/// tells when it ended; somebody waits for it, so that no zombie stays.
pub(crate) fn spawn(qemu: &Path, arguments: Vec<OsString>, dir: &Path) -> Result<watch::Receiver<bool>> {
    let log_path = dir.join(QEMU_LOG);
    let log = fs::File::create(&log_path).map_err(at("cannot create", &log_path))?;
    let err = log.try_clone().map_err(at("cannot open", &log_path))?;
    let mut command = std::process::Command::new(qemu);
    command.args(arguments).current_dir(dir).stdin(Stdio::null()).stdout(log).stderr(err);
    // Its threads allocate little, and glibc would give each of them a heap of its own.
    command.env("MALLOC_ARENA_MAX", "1");
    own_session(&mut command);
    let mut child = Command::from(command).kill_on_drop(false).spawn().map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => Error::Missing { tool: qemu.display().to_string(), package: QEMU_PACKAGE },
        _ => Error::io("cannot start QEMU", e),
    })?;
    let (sender, receiver) = watch::channel(false);
    tokio::spawn(async move {
        let status = child.wait().await;
        tracing::debug!(?status, "a machine's process ended");
        sender.send_replace(true);
    });
    Ok(receiver)
}

#[expect(unsafe_code, reason = "the standard library has no stable way into a session of one's own")]
fn own_session(command: &mut std::process::Command) {
    let enter = || rustix::process::setsid().map(drop).map_err(Into::into);
    // SAFETY: between fork and exec only the system call setsid is made; it touches no memory and no lock.
    unsafe { command.pre_exec(enter) };
}

/// Why QEMU ended at once, from the last line it wrote.
pub(crate) fn reason(dir: &Path) -> Error {
    let line = last_line(&fs::read(dir.join(QEMU_LOG)).unwrap_or_default());
    let has = |words: &[&str]| words.iter().any(|word| line.contains(word));
    if has(&["No space left"]) {
        Error::NoSpace
    } else if has(&["set up host forwarding rule", "Address already in use"]) {
        Error::PortTaken(line)
    } else if has(&["Cannot allocate memory", "cannot set up guest memory"]) {
        Error::NoMemory
    } else if has(&["Could not open", "not in qcow2 format", "Image is", "could not load kernel", "corrupt"]) {
        Error::Damaged(line)
    } else {
        Error::Qemu(line)
    }
}

/// The process of a machine, if it lives.
pub fn find(dir: &Path, id: Uuid) -> Option<i32> {
    if !dir.is_dir() {
        return None;
    }
    let noted = fs::read_to_string(dir.join(PID)).ok().and_then(|text| text.trim().parse().ok());
    match noted {
        Some(pid) if is_machine(pid, dir, id) => Some(pid),
        // Started a moment ago, or its note was lost: it is still known by its folder.
        _ => pids().find(|pid| is_machine(*pid, dir, id)),
    }
}

fn pids() -> impl Iterator<Item = i32> {
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Whether a process works in the folder and was started for this machine. A zombie has neither.
fn is_machine(pid: i32, dir: &Path, id: Uuid) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let id = id.to_string();
    line.split(|b| *b == 0).any(|arg| arg == id.as_bytes()) && works_in(pid, dir)
}

/// The folder itself is compared, not its path: a process that was started in another mount namespace, by an earlier
/// run of the service in a unit or a container of its own, may see it elsewhere. Who takes it for dead starts a second
/// machine on its disk.
fn works_in(pid: i32, dir: &Path) -> bool {
    let place = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino()));
    match (place(Path::new(&format!("/proc/{pid}/cwd"))), place(dir)) {
        (Ok(cwd), Ok(dir)) => cwd == dir,
        _ => false,
    }
}

/// Returns when a machine's process has ended: at once where there is none.
pub async fn ended(dir: &Path, id: Uuid) -> Result<()> {
    let Some(pid) = find(dir, id).and_then(Pid::from_raw) else { return Ok(()) };
    let Ok(handle) = rustix::process::pidfd_open(pid, PidfdFlags::NONBLOCK) else { return Ok(()) };
    let failed = |error| Error::io("cannot wait for the machine's end", error);
    #[expect(deprecated, reason = "an owned descriptor stays the same and open, which is all its successor asks")]
    let handle = AsyncFd::with_interest(handle, Interest::READABLE).map_err(failed)?;
    handle.readable().await.map(drop).map_err(failed)
}

/// Ends a process by force, by a handle that cannot mean another one.
pub(crate) fn kill(pid: i32) -> Result<()> {
    let Some(pid) = Pid::from_raw(pid) else {
        return Ok(());
    };
    let Ok(handle) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else {
        return Ok(());
    };
    match rustix::process::pidfd_send_signal(&handle, Signal::KILL) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(Error::io("cannot end the machine's process", error.into())),
    }
}

/// What a machine's process used.
pub fn usage(dir: &Path, id: Uuid) -> Option<Usage> {
    let pid = find(dir, id)?;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything; what follows it is numbers.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u32>().ok();
    let pages: u64 = fields.get(21)?.parse().ok()?;
    Some(Usage {
        cpu_seconds: (f64::from(number(11)?) + f64::from(number(12)?)) / TICKS,
        rss_bytes: pages * rustix::param::page_size() as u64,
    })
}

/// Machines below a folder, whether they run or not.
pub fn scan(machines: &Path) -> Vec<Found> {
    let entries = fs::read_dir(machines).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let id = entry.file_name().to_str()?.parse().ok()?;
            Some(Found { dir: entry.path(), id })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// A process in a folder of a mount namespace of its own, where `dir` is mounted; it ends with its input.
    fn process_elsewhere(dir: &Path, other: &Path, id: Uuid) -> Child {
        let script = r#"mount --bind "$1" "$2" && cd "$2" && echo there && exec sh -c "read x" "$3""#;
        let mut command = Command::new("unshare");
        if !rustix::process::geteuid().is_root() {
            command.args(["--user", "--map-root-user"]);
        }
        command.args(["--mount", "sh", "-c", script, "sh"]).args([dir, other]).arg(id.to_string());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("unshare");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "there\n", "no mount namespace could be made");
        child
    }

    #[test]
    fn a_process_that_sees_its_folder_elsewhere_is_found() {
        let root = tempfile::tempdir().unwrap();
        let (dir, other) = (root.path().join("machine"), root.path().join("other"));
        fs::create_dir(&dir).unwrap();
        fs::create_dir(&other).unwrap();
        let id = Uuid::from_u128(7);
        let mut child = process_elsewhere(&dir, &other, id);
        let pid = i32::try_from(child.id()).unwrap();
        assert_ne!(fs::read_link(format!("/proc/{pid}/cwd")).unwrap(), dir);
        assert_eq!(find(&dir, id), Some(pid));
        assert_eq!((find(&other, id), find(&dir, Uuid::from_u128(8))), (None, None));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(find(&dir, id), None);
    }
}
