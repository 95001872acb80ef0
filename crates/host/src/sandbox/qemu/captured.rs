//! Captured machines in their folders: memories of sandboxes, and boot snapshots.
//!
//! A boot snapshot is a machine that has booted and knows no disk yet. Whatever a sandbox's disk holds, it begins
//! as a copy of the boot snapshot of its size, and mounts the disk then: some 60 ms instead of the seconds of a boot.

use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use berth_domain::Timestamp;
use berth_domain::ids::{LayerId, MemoryId};
use berth_qemu::machine::Assigned;
use berth_qemu::sandbox::{self, Begin, Capture, Layer};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::QemuSandboxes;
use super::machine::Part;
use super::places::Captured;
use crate::error::{qemu_failed, transient};
use crate::sandbox::agent;
use crate::{EngineError, Result};

/// How long a guest may take to boot, emulated on a busy host. Measured: 1.4 s.
const BOOT: Duration = Duration::from_mins(1);
/// What the agent needs to notice that its host left, before it is captured.
const SETTLE: Duration = Duration::from_millis(200);
/// Boot snapshots that are kept; each takes some 50 MiB.
const MOST_BOOT_SNAPSHOTS: usize = 32;
/// Boot snapshots are nobody's: they run as the first user of the range.
const NOBODY: i64 = 0;

/// What a machine was captured with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct About {
    /// The machines it loads into.
    pub fingerprint: String,
    /// Virtual CPUs.
    pub vcpu: i64,
    /// Memory, in MiB.
    pub memory_mb: i64,
    /// The size of its disk, in bytes.
    pub disk_bytes: u64,
    /// The layer that its disk was on top of, unless it knew none.
    pub layer: Option<LayerId>,
}

impl About {
    /// What a capture in a folder fits, if the capture is whole.
    pub(super) fn read(captured: &Captured) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(captured.about()).ok()?).ok()
    }

    /// Declares a capture whole.
    pub(super) fn write(&self, captured: &Captured) -> Result<()> {
        let tmp = captured.dir.join("about.tmp");
        let bytes = serde_json::to_vec(self).map_err(transient)?;
        std::fs::write(&tmp, bytes).and_then(|()| std::fs::rename(tmp, captured.about())).map_err(transient)
    }
}

/// What a capture takes on the host, in bytes.
pub(super) fn bytes_of(captured: &Captured) -> i64 {
    use std::os::unix::fs::MetadataExt;
    let blocks = |path: &Path| std::fs::metadata(path).map_or(0, |meta| meta.blocks());
    i64::try_from((blocks(&captured.memory()) + blocks(&captured.state())) * 512).unwrap_or(i64::MAX)
}

/// Notes that a boot snapshot was used.
fn used(boot_snapshot: &Captured, now: Timestamp) {
    let about = std::fs::File::options().append(true).open(boot_snapshot.about());
    // A boot snapshot that is taken for seldom used is made anew.
    let _ = about.and_then(|about| about.set_modified(UNIX_EPOCH + Duration::from_micros(now.0.unsigned_abs())));
}

impl QemuSandboxes {
    /// The memory of a sandbox or template, if it is whole and fits a machine.
    pub(super) fn fitting(&self, id: MemoryId, wanted: &About) -> Option<Captured> {
        let captured = self.places.memory(id);
        (About::read(&captured)? == *wanted).then_some(captured)
    }

    /// The boot snapshot of a size, made where there is none.
    pub(super) async fn boot_snapshot(&self, about: &About) -> Result<Captured> {
        let key = format!("{}-{}x{}-{}", about.fingerprint, about.vcpu, about.memory_mb, about.disk_bytes >> 20);
        let boot_snapshot = self.places.boot_snapshot(&key);
        let is_there = || About::read(&boot_snapshot).is_some();
        if is_there() {
            used(&boot_snapshot, self.clock.now());
            return Ok(boot_snapshot);
        }
        // One at a time: whoever waited finds it there.
        let _making = self.making_boot_snapshot.lock().await;
        if !is_there() {
            tracing::info!(key, "booting a guest, to begin sandboxes from");
            self.make_boot_snapshot(about, &boot_snapshot).await?;
            self.forget_seldom_used().map_err(transient)?;
        }
        Ok(boot_snapshot)
    }

    /// Removes the boot snapshots that were not used for longest: sizes are anybody's choice, and each takes room.
    fn forget_seldom_used(&self) -> std::io::Result<()> {
        let mut boot_snapshots = Vec::new();
        for entry in std::fs::read_dir(self.places.boot_snapshots())?.flatten() {
            let boot_snapshot = Captured { dir: entry.path() };
            if let Ok(used) = std::fs::metadata(boot_snapshot.about()).and_then(|about| about.modified()) {
                boot_snapshots.push((used, boot_snapshot.dir));
            }
        }
        boot_snapshots.sort();
        for (_, dir) in boot_snapshots.iter().take(boot_snapshots.len().saturating_sub(MOST_BOOT_SNAPSHOTS)) {
            std::fs::remove_dir_all(dir)?;
        }
        Ok(())
    }

    async fn make_boot_snapshot(&self, about: &About, boot_snapshot: &Captured) -> Result<()> {
        let id = Uuid::now_v7();
        let dir = workplace(&self.places.boot_snapshots(), id);
        let made = self.boot_and_capture(id, &dir, about, boot_snapshot).await;
        // Ended or not, whole or not: nothing of it is needed any more.
        let _ = sandbox::stop(&dir, id).await;
        let _ = tokio::fs::remove_dir_all(&dir).await;
        made
    }

    async fn boot_and_capture(&self, id: Uuid, dir: &Path, about: &About, boot_snapshot: &Captured) -> Result<()> {
        for folder in [dir, &boot_snapshot.dir] {
            std::fs::create_dir_all(folder).map_err(transient)?;
        }
        let disk = Layer { path: dir.join("disk.qcow2"), id };
        sandbox::create_layer(&disk.path, "", about.disk_bytes).map_err(qemu_failed)?;
        let stays = self.guests.stays().await;
        let begin = self.guest()?.begin(self.accel().await?);
        let part = Part { id, dir, disk: vec![disk], begin, assigned: Assigned::default(), slot: NOBODY };
        sandbox::start(&self.machine_of(part, about).await?, || Ok(())).await.map_err(qemu_failed)?;
        drop(stays);
        booted(dir).await?;
        tokio::time::sleep(SETTLE).await;
        let memory = Some((boot_snapshot.memory(), boot_snapshot.state()));
        let memory_mb = u32::try_from(about.memory_mb).unwrap_or(0);
        let capture = Capture { next: None, memory, memory_mb, resume: false };
        sandbox::capture(dir, id, &capture).await.map_err(qemu_failed)?;
        about.write(boot_snapshot)
    }

    /// Removes boot snapshots that no machine of today fits; running ones keep what they map.
    pub(super) async fn forget_boot_snapshots(&self) {
        let Ok(fingerprint) = self.fingerprint().await else {
            return;
        };
        // One that is being made has a name of its own.
        let _making = self.making_boot_snapshot.lock().await;
        let entries = std::fs::read_dir(self.places.boot_snapshots()).into_iter().flatten().flatten();
        for entry in entries.filter(|entry| !entry.file_name().to_string_lossy().starts_with(&fingerprint)) {
            // What stays is tried again with the next search.
            if end_half_made(&entry.path()).await.is_ok() {
                let _ = tokio::fs::remove_dir_all(entry.path()).await;
            }
        }
    }
}

/// Waits until the agent of a guest that boots answers.
pub(super) async fn booted(dir: &Path) -> Result<()> {
    let stream = sandbox::connect_agent(dir).await.map_err(qemu_failed)?;
    agent::connect(stream, BOOT).await.map(drop).map_err(transient)
}

/// The folder in which a boot snapshot is made.
fn workplace(boot_snapshots: &Path, id: Uuid) -> PathBuf {
    boot_snapshots.join(format!(".{id}"))
}

/// Ends the machine that a service which died left half made in a folder, if it is one of those.
async fn end_half_made(dir: &Path) -> Result<()> {
    let name = dir.file_name().and_then(|name| name.to_str()?.strip_prefix('.'));
    match name.and_then(|name| name.parse().ok()) {
        Some(id) => sandbox::stop(dir, id).await.map_err(qemu_failed),
        None => Ok(()),
    }
}

/// How a machine of some sizes is captured.
pub(super) fn begin(captured: &Captured) -> Begin {
    Begin::Load { memory: captured.memory(), state: captured.state() }
}

/// An agent's refusal, as the engine tells it.
pub(super) fn agent_failed(error: agent::AgentError) -> EngineError {
    EngineError::Transient(error.to_string())
}
