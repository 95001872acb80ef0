//! The process of a machine: making, finding, ending.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use berth_process::{Note, Process, Stat, folder};
use tokio::sync::watch;
use uuid::Uuid;

use super::adopt::adopt;
use super::files::QEMU_LOG;
use super::lock::Lock;
use crate::disk::last_line;
use crate::error::at;
use crate::launch::{NOTE, Order, launch};
use crate::{Error, Result};

/// Length of a clock tick, of which the kernel shows every program a hundred a second, in milliseconds.
const TICK_MILLIS: u64 = 10;

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

/// The process of a machine, held, if it lives.
pub(crate) fn hold(dir: &Path, id: Uuid) -> Result<Option<Process>> {
    let Some(note) = noted(dir, id)? else { return Ok(None) };
    Process::hold(&note, dir).map_err(|e| Error::io("cannot hold the machine's process", e))
}

/// Makes the process, which has these descriptors. The receiver tells when it ended.
pub(crate) async fn spawn(
    order: &Order,
    given: &[Arc<OwnedFd>],
    id: Uuid,
    lock: &Lock,
) -> Result<watch::Receiver<bool>> {
    let log = order.dir.join(QEMU_LOG);
    if let Err(error) = launch(order, given, lock.share()?, &log).await {
        // What the host had when it was looked at, it will have again.
        let said = matches!(error, Error::Qemu(_) | Error::Unconfined(_));
        return Err(if said { reason(&order.dir) } else { error });
    }
    let process = hold(&order.dir, id)?;
    let (sender, receiver) = watch::channel(process.is_none());
    if let Some(process) = process {
        tokio::spawn(async move {
            match process.ended().await {
                Ok(()) => drop(sender.send_replace(true)),
                Err(error) => tracing::warn!(%error, "nobody notices when a machine's process ends"),
            }
        });
    }
    Ok(receiver)
}

/// Why QEMU ended at once, from the last line it wrote.
pub(crate) fn reason(dir: &Path) -> Error {
    let line = last_line(&folder::tail(&dir.join(QEMU_LOG), folder::END_OF_LOG).unwrap_or_default());
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
    let path = dir.join(NOTE);
    let note = Note::read(&path).map_err(at("cannot read", &path))?.or_else(|| adopt(dir, id));
    Ok(note.filter(|note| note.lives_for(dir)))
}

/// Returns when a machine's process has ended: at once where there is none.
pub async fn ended(dir: &Path, id: Uuid) -> Result<()> {
    match hold(dir, id)? {
        Some(process) => process.ended().await.map_err(|e| Error::io("cannot wait for the machine's end", e)),
        None => Ok(()),
    }
}

/// What a machine's process used.
pub fn usage(dir: &Path, id: Uuid) -> Option<Usage> {
    let stat = Stat::of(find(dir, id)?).ok()?;
    let page = rustix::param::page_size() as u64;
    let used = Duration::from_millis(stat.cpu_ticks.saturating_mul(TICK_MILLIS));
    Some(Usage { cpu_seconds: used.as_secs_f64(), rss_bytes: stat.resident_pages.saturating_mul(page) })
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
