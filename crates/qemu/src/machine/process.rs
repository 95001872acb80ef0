//! The process of a machine: making, finding, ending.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, waitid};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use uuid::Uuid;

use super::adopt::adopt;
use super::files::QEMU_LOG;
use super::lock::Lock;
use crate::disk::last_line;
use crate::launch::{Order, launch};
use crate::note::Note;
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

/// A machine's process, held: the handle means this process and none that has its number later.
#[derive(Debug)]
pub(crate) struct Held {
    handle: OwnedFd,
}

impl Held {
    /// The process of a machine, if it lives.
    pub(crate) fn of(dir: &Path, id: Uuid) -> Result<Option<Self>> {
        let Some(note) = noted(dir, id)? else { return Ok(None) };
        let Some(pid) = Pid::from_raw(note.pid) else { return Ok(None) };
        match rustix::process::pidfd_open(pid, PidfdFlags::NONBLOCK) {
            // Its number may have become another one's before it was held.
            Ok(handle) => Ok(note.lives().then_some(Self { handle })),
            Err(Errno::SRCH) => Ok(None),
            Err(error) => Err(Error::io("cannot hold the machine's process", error.into())),
        }
    }

    /// Ends it by force.
    pub(crate) fn kill(&self) -> Result<()> {
        match rustix::process::pidfd_send_signal(&self.handle, Signal::KILL) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(Error::io("cannot end the machine's process", error.into())),
        }
    }

    /// Returns when all of its threads have ended.
    pub(crate) async fn ended(self) -> Result<()> {
        let failed = |error| Error::io("cannot wait for the machine's end", error);
        #[expect(deprecated, reason = "an owned descriptor stays the same and open, which is all its successor asks")]
        let handle = AsyncFd::with_interest(self.handle, Interest::READABLE).map_err(failed)?;
        handle.readable().await.map(drop).map_err(failed)?;
        // Where it was left to this process, as to the first one of a container, no zombie stays.
        let _ = waitid(WaitId::PidFd(handle.get_ref().as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
        Ok(())
    }
}

/// Makes the process. The receiver tells when it ended.
pub(crate) async fn spawn(order: &Order, id: Uuid, lock: &Lock) -> Result<watch::Receiver<bool>> {
    let log = order.dir.join(QEMU_LOG);
    if let Err(error) = launch(order, lock.share()?, &log).await {
        return Err(if matches!(error, Error::Qemu(_)) { reason(&order.dir) } else { error });
    }
    let held = Held::of(&order.dir, id)?;
    let (sender, receiver) = watch::channel(held.is_none());
    if let Some(held) = held {
        tokio::spawn(async move {
            match held.ended().await {
                Ok(()) => drop(sender.send_replace(true)),
                Err(error) => tracing::warn!(%error, "nobody notices when a machine's process ends"),
            }
        });
    }
    Ok(receiver)
}

/// Why QEMU ended at once, from the last line it wrote.
pub(crate) fn reason(dir: &Path) -> Error {
    let line = last_line(&fs::read(dir.join(QEMU_LOG)).unwrap_or_default());
    let has = |words: &[&str]| words.iter().any(|word| line.contains(word));
    if has(&["No space left"]) {
        Error::NoSpace
    } else if has(&["Cannot allocate memory", "cannot set up guest memory"]) {
        Error::NoMemory
    } else if has(&["Could not open", "not in qcow2 format", "Image is", "could not load kernel", "corrupt"]) {
        Error::Damaged(line)
    } else {
        Error::Qemu(line)
    }
}

/// The number of a machine's process, if it lives. It is for looking: whoever acts on the process holds it.
pub fn find(dir: &Path, id: Uuid) -> Option<i32> {
    noted(dir, id).ok().flatten().map(|note| note.pid)
}

/// The living process of a machine.
pub(super) fn noted(dir: &Path, id: Uuid) -> Result<Option<Note>> {
    let note = Note::read(dir)?.or_else(|| adopt(dir, id));
    Ok(note.filter(Note::lives))
}

/// Returns when a machine's process has ended: at once where there is none.
pub async fn ended(dir: &Path, id: Uuid) -> Result<()> {
    match Held::of(dir, id)? {
        Some(held) => held.ended().await,
        None => Ok(()),
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
