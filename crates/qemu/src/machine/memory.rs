//! The memory of a suspended machine: written while the machine stands still, and loaded once.
//!
//! ```text
//!   running ── stop, save ──► suspended.new ── whole, on the disk ──► suspended ── (the process ends)
//!   start ── load ── memory is removed ── the guest goes on
//! ```
//!
//! It fits the disks as they were when the machine stopped. So it counts only once all of it is there, and is removed
//! before the guest goes on, whichever way: from then on the disks are another machine's.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use berth_process::folder;
use serde_json::{Value, json};

use super::files::{self, COMMANDS};
use super::spec::Fits;
use super::{card, filled, guest, plug};
use crate::error::at;
use crate::host::Release;
use crate::qmp::Qmp;
use crate::{Error, Result};

/// What an owner may do about a memory that nothing here loads.
pub const GIVE_UP: &str = "stop the VM, which gives the memory up, and start it";
/// How long QEMU may be busy with a memory without getting on.
const SILENCE: Duration = Duration::from_mins(1);
/// Between two looks at it.
const TICK: Duration = Duration::from_millis(20);
/// More bytes a second than any disk takes: QEMU's own bound is for networks.
pub(super) const UNBOUNDED: u64 = 1 << 40;
/// The name and the set in which QEMU gets the file.
const NAME: &str = "memory";
const SET: u32 = 103;
/// The first release that takes a file only by a set (QEMU, docs/about/deprecated.rst, "fd: URI when used for file
/// migration").
const BY_SET: Release = (9, 1);
/// Most bytes of what is noted of a memory.
const NOTE_BYTES: u64 = 64 << 10;

/// Writes the memory of a machine with such a processor into its folder, with what else a machine has to be like that loads
/// it, these disks among it. The machine stands still afterwards. One that was written before is left as it is.
///
/// # Errors
/// The machine is gone, or its memory cannot be written; then the machine goes on.
pub async fn save(dir: &Path, processor: &str, disks: &[&Path]) -> Result<()> {
    if is_saved(dir) {
        return Ok(());
    }
    let mut qmp = Qmp::connect(dir, COMMANDS).await?;
    match save_with(&mut qmp, dir).await {
        Ok(()) => {
            let (qemu, places) = (release(&mut qmp).await?, plug::places(&mut qmp).await?);
            let has_screen = plug::has(&mut qmp, card::CARD).await?;
            let has_guest_port = plug::has(&mut qmp, guest::CARD).await?;
            let (disks, processor) = (states(disks)?, made(&mut qmp, processor).await?);
            keep(dir, &Fits { processor, qemu, places, has_screen, has_guest_port, disks }).await
        }
        Err(error) => {
            go_on(&mut qmp, dir).await?;
            Err(error)
        }
    }
}

async fn save_with(qmp: &mut Qmp, dir: &Path) -> Result<()> {
    match run_state(qmp).await?.as_str() {
        "running" => {
            qmp.execute("stop", json!({})).await?;
            begin(qmp, dir).await?;
        }
        // An earlier try, or the end of it, was interrupted.
        "postmigrate" => {}
        "paused" | "finish-migrate" if is_busy(qmp).await? => {}
        "paused" => begin(qmp, dir).await?,
        state => return Err(Error::Qemu(format!("its memory cannot be saved in the state {state}"))),
    }
    wait(qmp, "postmigrate").await?;
    take_back(qmp).await;
    Ok(())
}

async fn begin(qmp: &mut Qmp, dir: &Path) -> Result<()> {
    let path = dir.join(files::NEW_MEMORY);
    let file = folder::create_blank(&path).map_err(at("cannot create", &path))?;
    qmp.execute("migrate-set-parameters", json!({"max-bandwidth": UNBOUNDED})).await?;
    let uri = give(qmp, &file).await?;
    qmp.execute("migrate", json!({"uri": uri})).await.map(drop)
}

/// Gives QEMU a memory's file; what it calls it then.
pub(super) async fn give(qmp: &mut Qmp, file: &File) -> Result<String> {
    if release(qmp).await? >= BY_SET {
        qmp.give_set(SET, file).await?;
        return Ok(format!("file:/dev/fdset/{SET}"));
    }
    qmp.give(NAME, file).await?;
    Ok(format!("fd:{NAME}"))
}

/// Has QEMU let go of the file: what it holds takes room, though its name is gone. One that it got under a name it closed.
pub(super) async fn take_back(qmp: &mut Qmp) {
    let _ = qmp.execute("remove-fd", json!({"fdset-id": SET})).await;
}

pub(super) async fn release(qmp: &mut Qmp) -> Result<Release> {
    let version = qmp.execute("query-version", json!({})).await?;
    let number = |name| version.pointer(name).and_then(Value::as_u64).and_then(|number| u32::try_from(number).ok());
    number("/qemu/major").zip(number("/qemu/minor")).ok_or_else(|| Error::Qemu("it does not say its version".into()))
}

/// Waits until QEMU is in a state, as long as it gets on with the memory.
pub(super) async fn wait(qmp: &mut Qmp, wanted: &str) -> Result<()> {
    let (mut last, mut since) = (None, Instant::now());
    loop {
        if run_state(qmp).await? == wanted {
            return Ok(());
        }
        let status = qmp.execute("query-migrate", json!({})).await?;
        if let Some("failed" | "cancelled") = status.get("status").and_then(Value::as_str) {
            let reason = status.get("error-desc").and_then(Value::as_str).unwrap_or("no reason was given");
            return Err(if reason.contains("No space left") {
                Error::NoSpace
            } else {
                Error::Qemu(format!("its memory could not be moved: {reason}"))
            });
        }
        let done = status.pointer("/ram/transferred").cloned();
        if done != last {
            (last, since) = (done, Instant::now());
        }
        if since.elapsed() > SILENCE {
            return Err(Error::Timeout("the machine's memory"));
        }
        tokio::time::sleep(TICK).await;
    }
}

pub(super) async fn run_state(qmp: &mut Qmp) -> Result<String> {
    let status = qmp.execute("query-status", json!({})).await?;
    Ok(status.get("status").and_then(Value::as_str).unwrap_or_default().to_owned())
}

/// Whether QEMU is writing the memory. One that was loaded says so of that.
pub(super) async fn is_busy(qmp: &mut Qmp) -> Result<bool> {
    let status = qmp.execute("query-migrate", json!({})).await?;
    let status = status.get("status").and_then(Value::as_str).unwrap_or("none");
    Ok(!matches!(status, "none" | "completed" | "failed" | "cancelled"))
}

/// Has what was written count.
async fn keep(dir: &Path, fits: &Fits) -> Result<()> {
    let (note, new, memory) = (dir.join(files::MEMORY_NOTE), dir.join(files::NEW_MEMORY), dir.join(files::MEMORY));
    let file = folder::open(&new).map_err(at("cannot open", &new))?;
    let synced = tokio::task::spawn_blocking(move || file.sync_all()).await;
    let synced = synced.map_err(|_| Error::Invalid("the memory was not waited for".into()))?;
    synced.map_err(at("cannot write", &new))?;
    let fits = serde_json::to_vec(fits).map_err(|e| Error::Invalid(e.to_string()))?;
    write_synced(&note, &fits).map_err(at("cannot write", &note))?;
    std::fs::rename(&new, &memory).map_err(at("cannot rename", &new))?;
    let folder = File::open(dir).and_then(|folder| folder.sync_all());
    folder.map_err(at("cannot write", dir))
}

/// Whether there is a memory that counts.
pub fn is_saved(dir: &Path) -> bool {
    std::fs::symlink_metadata(dir.join(files::MEMORY)).is_ok_and(|about| about.is_file())
}

/// Removes a machine's memory; fine where there is none.
pub fn forget(dir: &Path) -> Result<()> {
    for name in [files::MEMORY, files::NEW_MEMORY, files::MEMORY_NOTE] {
        let path = dir.join(name);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(at("cannot remove", &path)(error)),
            _ => {}
        }
    }
    // After a crash of the host it must not be there again.
    match File::open(dir).and_then(|folder| folder.sync_all()) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(at("cannot write", dir)(error)),
        _ => Ok(()),
    }
}

fn write_synced(path: &Path, content: &[u8]) -> std::io::Result<()> {
    folder::write(path, content)?;
    folder::open(path)?.sync_all()
}

/// Lets a machine go on that stands still; whether it does. One that waits for the memory that it was to load does not, nor
/// one that has it and not yet its disks: whoever started it is gone.
pub async fn resume(dir: &Path) -> Result<bool> {
    let mut qmp = Qmp::connect(dir, COMMANDS).await?;
    let waits = dir.join(files::MAPPED).exists() || run_state(&mut qmp).await? == "inmigrate";
    if !waits {
        go_on(&mut qmp, dir).await?;
    }
    Ok(!waits)
}

async fn go_on(qmp: &mut Qmp, dir: &Path) -> Result<()> {
    if is_busy(qmp).await? {
        qmp.execute("migrate_cancel", json!({})).await?;
        let deadline = Instant::now() + SILENCE;
        while is_busy(qmp).await? {
            if Instant::now() > deadline {
                return Err(Error::Timeout("the machine's memory"));
            }
            tokio::time::sleep(TICK).await;
        }
    }
    take_back(qmp).await;
    forget(dir)?;
    filled::settle(dir)?;
    qmp.execute("cont", json!({})).await.map(drop)
}

/// How the processor of a machine is made, and by which one of the host: an emulated one is the same everywhere.
pub(super) async fn made(qmp: &mut Qmp, processor: &str) -> Result<String> {
    let kvm = qmp.execute("query-kvm", json!({})).await?;
    let is_real = kvm.get("enabled").and_then(Value::as_bool).unwrap_or_default();
    Ok(if is_real { format!("kvm {processor}") } else { "tcg".to_owned() })
}

/// Disks as they are: bytes, and when each was changed last.
pub fn states(disks: &[&Path]) -> Result<BTreeMap<String, (u64, i128)>> {
    let state = |path: &&Path| {
        let about = std::fs::metadata(path).map_err(at("cannot look at", path))?;
        let changed = i128::from(about.mtime()) * 1_000_000_000 + i128::from(about.mtime_nsec());
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        Ok((name, (about.len(), changed)))
    };
    disks.iter().map(state).collect()
}

/// What a machine has to be like that loads the memory in a folder.
///
/// # Errors
/// [`Error::Unloadable`] where nothing is noted of it.
pub fn fits(dir: &Path) -> Result<Fits> {
    let noted = folder::read(&dir.join(files::MEMORY_NOTE), NOTE_BYTES).ok();
    let fits = noted.and_then(|noted| serde_json::from_slice(&noted).ok());
    fits.ok_or_else(|| Error::Unloadable("what it fits is not noted".into()))
}

/// Has a machine that waits for it go on with its memory.
///
/// # Errors
/// [`Error::Unloadable`] where the memory is none of such a machine.
pub(super) async fn load(qmp: &mut Qmp, dir: &Path, fits: &Fits) -> Result<()> {
    let path = dir.join(files::MEMORY);
    let (kept, now) = (fits.qemu, release(qmp).await?);
    if kept != now {
        let text = format!("its memory was saved by QEMU {}.{}, and the host has {}.{}", kept.0, kept.1, now.0, now.1);
        return Err(Error::Invalid(format!("{text}: {GIVE_UP}")));
    }
    let file = folder::open(&path).map_err(at("cannot open", &path))?;
    let uri = give(qmp, &file).await?;
    qmp.wait_longer(SILENCE);
    qmp.execute("migrate-incoming", json!({"uri": uri})).await?;
    wait(qmp, "paused").await?;
    take_back(qmp).await;
    forget(dir)?;
    qmp.execute("cont", json!({})).await.map(drop)
}
