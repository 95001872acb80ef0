//! Snapshots of disks as files, and what is made from them.
//!
//! A snapshot of a root disk is a file on the base of its disk; what is cloned from it holds it by a hard link
//! ([`super::bases`]), so that it can be removed at any time. A snapshot of a data disk is a file that lies on none, and what
//! is made from it is a copy: data disks stay raw, with nothing below.

use std::path::{Path, PathBuf};

use berth_domain::ids::{DiskSnapshotId, MachineId};
use berth_qemu::disk;
use berth_qemu::image::Manifest;
use berth_qemu::machine::{self, Drive, snapshot};
use futures::FutureExt;

use super::disks::in_time;
use super::{DiskSnapshotSpec, DiskSpec, QemuEngine, gib, notes, room};
use crate::error::{qemu_failed, transient};
use crate::{EngineError, Result, fault, lost};

impl QemuEngine {
    /// Where snapshots lie.
    pub(super) fn snapshots(&self) -> PathBuf {
        self.settings.host.data.join("snapshots")
    }

    /// The file of a snapshot.
    pub(super) fn snapshot_file(&self, id: DiskSnapshotId) -> PathBuf {
        self.snapshots().join(format!("{id}.qcow2"))
    }

    /// The file that names the base of a root disk's snapshot.
    pub(super) fn snapshot_note(&self, id: DiskSnapshotId) -> PathBuf {
        self.snapshots().join(format!("{id}.base"))
    }

    /// A snapshot with all that it lies on.
    pub(super) fn snapshot_drive(&self, id: DiskSnapshotId) -> Result<Drive> {
        let path = self.snapshot_file(id);
        if !path.is_file() {
            return Err(gone());
        }
        let below = notes::read(&self.snapshot_note(id)).map_err(transient)?;
        let bases = below.map_or_else(|| Ok(Vec::new()), |below| self.chain(&self.bases().join(below)))?;
        Ok(Drive { path, format: "qcow2", bases, serial: String::new() })
    }

    /// The base of a root disk's snapshot.
    pub(super) fn base_below(&self, id: DiskSnapshotId) -> Result<PathBuf> {
        let below = notes::read(&self.snapshot_note(id)).map_err(transient)?;
        Ok(self.bases().join(below.ok_or_else(gone)?))
    }

    pub(super) fn half_made(&self, id: DiskSnapshotId) -> PathBuf {
        self.snapshots().join(format!("{id}.qcow2.tmp"))
    }

    /// Copies a disk as it is at one moment, or looks how far that is; the bytes that it takes once it is whole.
    pub(super) async fn snapshot(&self, spec: &DiskSnapshotSpec, of: Option<MachineId>) -> Result<Option<u64>> {
        let (file, half) = (self.snapshot_file(spec.id), self.half_made(spec.id));
        let runs = of.filter(|id| machine::find(&self.machine(*id), id.0).is_some());
        if !file.exists() {
            let drive = self.any_drive(spec.disk)?;
            std::fs::create_dir_all(self.snapshots()).map_err(transient)?;
            if !drive.bases.is_empty() {
                let base = self.base_of(spec.disk)?;
                let name = base.file_name().unwrap_or_default();
                notes::write(&self.snapshot_note(spec.id), name.as_encoded_bytes()).map_err(transient)?;
            }
            let is_new = !half.exists();
            if is_new {
                self.require_room(&drive)?;
            }
            let progress = match runs {
                Some(id) => self.take_snapshot(spec, &drive, id, is_new).await?,
                None => snapshot::Progress::NotHeld,
            };
            match progress {
                snapshot::Progress::Underway => {
                    fault::point("disk.snapshot.underway").await.map_err(transient)?;
                    return Ok(None);
                }
                snapshot::Progress::Whole => {}
                snapshot::Progress::NotHeld => {
                    disk::remove(&half).await.map_err(qemu_failed)?;
                    snapshot::copy(&drive, &half).await.map_err(qemu_failed)?;
                }
            }
            fault::point("disk.snapshot.copied").await.map_err(transient)?;
            sync(&half).await?;
            tokio::fs::rename(&half, &file).await.map_err(transient)?;
            fault::point("disk.snapshot.whole").await.map_err(transient)?;
        }
        if let Some(id) = runs {
            in_time(snapshot::forget(&self.machine(id), &spec.id.serial())).await?;
        }
        disk::info(&file, "qcow2").await.map(|info| Some(info.actual_size)).map_err(qemu_failed)
    }

    /// Has a machine copy a disk, whose guest stands still for the moment at which that begins, or looks how far it is.
    async fn take_snapshot(
        &self,
        spec: &DiskSnapshotSpec,
        drive: &Drive,
        machine: MachineId,
        is_new: bool,
    ) -> Result<snapshot::Progress> {
        let take = async {
            if is_new {
                fault::point("disk.snapshot.frozen").await.map_err(transient)?;
            }
            let (dir, half) = (self.machine(machine), self.half_made(spec.id));
            in_time(snapshot::take(&dir, drive, &spec.id.serial(), &half)).await
        };
        self.while_still(machine, is_new, take.boxed()).await
    }

    /// Refuses to copy a disk for which the host has no room at this moment.
    pub(super) fn require_room(&self, drive: &Drive) -> Result<()> {
        self.require_room_for(room::taken(&drive.path)?)
    }

    /// Refuses a copy of a disk of so many bytes for which the host has no room at this moment.
    pub(super) fn require_room_for(&self, bytes: u64) -> Result<()> {
        if room::is_left(&self.settings.host.data, bytes, self.reserve())? {
            return Ok(());
        }
        Err(EngineError::NoCapacity("the host's disk has no room for a copy of the disk".into()))
    }

    /// Removes a snapshot, and has a machine give it up that may be making it.
    pub(super) async fn forget_snapshot(&self, id: DiskSnapshotId, of: Option<MachineId>) -> Result<()> {
        if let Some(of) = of {
            let dir = self.machine(of);
            if machine::find(&dir, of.0).is_some() {
                self.thaw_in_turn(of).await;
                in_time(snapshot::forget(&dir, &id.serial())).await?;
            }
        }
        // The note goes last: without it what is there would be nobody's root disk.
        for file in [self.half_made(id), self.snapshot_file(id), self.snapshot_note(id)] {
            disk::remove(&file).await.map_err(qemu_failed)?;
        }
        Ok(())
    }

    /// Moves the files of a snapshot into a folder. What is half made serves nobody.
    pub(super) async fn set_aside_files(&self, id: DiskSnapshotId, into: &Path) -> Result<()> {
        disk::remove(&self.half_made(id)).await.map_err(qemu_failed)?;
        for file in [self.snapshot_file(id), self.snapshot_note(id)] {
            lost::put(&file, into).await.map_err(transient)?;
        }
        Ok(())
    }

    /// Makes a root disk of what a snapshot has.
    pub(super) async fn make_root_of_snapshot(&self, spec: &DiskSpec, id: DiskSnapshotId) -> Result<()> {
        let base = self.base_of_snapshot(id).await?;
        require_size(spec, Manifest::load(&base).map_err(qemu_failed)?.virtual_size_bytes)?;
        self.clone_root(spec, base).await
    }

    /// Makes a data disk of what a snapshot has.
    pub(super) async fn make_data_of_snapshot(&self, spec: &DiskSpec, id: DiskSnapshotId) -> Result<()> {
        let file = self.disk_file(spec.id, false);
        if file.exists() {
            return Ok(());
        }
        let half = self.disks().join(format!("{}.raw.tmp", spec.id));
        let drive = Drive { path: self.snapshot_file(id), format: "qcow2", bases: Vec::new(), serial: String::new() };
        if !drive.path.exists() {
            return Err(gone());
        }
        require_size(spec, snapshot::size(&drive).map_err(qemu_failed)?)?;
        self.require_room(&drive)?;
        disk::remove(&half).await.map_err(qemu_failed)?;
        snapshot::unpack(&drive, &half).await.map_err(qemu_failed)?;
        let raw = Drive { path: half.clone(), format: "raw", ..drive };
        machine::grow_file(&raw, gib(spec.size_gb)).await.map_err(qemu_failed)?;
        fault::point("disk.of_snapshot.unpacked").await.map_err(transient)?;
        tokio::fs::rename(&half, &file).await.map_err(transient)
    }
}

/// What is told where there is no file of a snapshot.
pub(super) fn gone() -> EngineError {
    EngineError::Permanent("the snapshot is not there any more".into())
}

/// Refuses a disk that is smaller than what it is made of.
pub(super) fn require_size(spec: &DiskSpec, bytes: u64) -> Result<()> {
    if gib(spec.size_gb) >= bytes {
        return Ok(());
    }
    let least = bytes.div_ceil(gib(1));
    Err(EngineError::Permanent(format!("the snapshot has {least} GiB; create a disk that is at least as large")))
}

/// Has a file or what a folder lists outlive a loss of power.
pub(super) async fn sync(path: &Path) -> Result<()> {
    let file = tokio::fs::File::open(path).await.map_err(transient)?;
    file.sync_all().await.map_err(transient)
}

#[cfg(test)]
mod tests {
    use berth_domain::ids::DiskId;

    use super::*;
    use crate::vm::DiskSource;

    #[test]
    fn a_disk_is_at_least_as_large_as_what_it_is_made_of() {
        let spec = DiskSpec { id: DiskId(uuid::Uuid::nil()), source: DiskSource::Empty, size_gb: 10 };
        assert!(require_size(&spec, gib(10)).is_ok());
        let error = require_size(&spec, gib(10) + 1).unwrap_err();
        assert!(error.is_final() && error.to_string().contains("11 GiB"), "{error}");
    }
}
