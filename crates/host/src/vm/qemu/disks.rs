//! Disks as files, and as drives of machines.

use std::path::{Path, PathBuf};
use std::time::Duration;

use berth_domain::ids::{DiskId, MachineId};
use berth_qemu::disk;
use berth_qemu::machine::{self, Drive};

use super::serving::served_drive;
use super::{QemuEngine, gib};
use crate::error::{qemu_failed, transient};
use crate::vm::{DiskSource, DiskSpec, MachineSpec};
use crate::{EngineError, Result};

/// How long a machine may take to take a disk or to give it back; one that listens takes some 100 ms, and is waited for 2 s.
const PATIENCE: Duration = Duration::from_secs(30);

impl QemuEngine {
    /// Makes a disk, whole or not at all.
    pub(super) async fn make(&self, spec: &DiskSpec) -> Result<()> {
        std::fs::create_dir_all(self.disks()).map_err(transient)?;
        let size = gib(spec.size_gb);
        match &spec.source {
            DiskSource::Image(image) => {
                let is_new = !self.disk_file(spec.id, true).exists();
                self.clone_root(spec, self.base(image).await?).await?;
                if is_new { self.note_fresh(spec.id) } else { Ok(()) }
            }
            DiskSource::Snapshot { id, is_root: true } => self.make_root_of_snapshot(spec, *id).await,
            DiskSource::Snapshot { id, is_root: false } => self.make_data_of_snapshot(spec, *id).await,
            DiskSource::Empty => disk::create_block(&self.disk_file(spec.id, false), size).await.map_err(qemu_failed),
            DiskSource::Filesystem(name) => {
                disk::create_filesystem(&self.disk_file(spec.id, false), size, name).await.map_err(qemu_failed)
            }
        }
    }

    /// Removes the files of a disk.
    pub(super) async fn forget_disk(&self, id: DiskId) -> Result<()> {
        for file in self.files_of_disk(id) {
            disk::remove(&file).await.map_err(qemu_failed)?;
        }
        Ok(())
    }

    /// Where disks lie.
    pub(super) fn disks(&self) -> PathBuf {
        self.settings.host.data.join("disks")
    }

    /// The file of a root or data disk.
    pub(super) fn disk_file(&self, id: DiskId, is_root: bool) -> PathBuf {
        self.disks().join(format!("{id}.{}", if is_root { "qcow2" } else { "raw" }))
    }

    /// A root disk, cloned from what a folder has.
    pub(super) fn root_drive(&self, id: DiskId, base: &Path) -> Result<Drive> {
        let bases = self.chain(base)?;
        Ok(Drive { path: self.disk_file(id, true), format: "qcow2", bases, serial: id.serial() })
    }

    /// A disk of either kind.
    pub(super) fn any_drive(&self, id: DiskId) -> Result<Drive> {
        let is_root = self.disk_file(id, true).exists();
        if is_root { self.root_drive(id, &self.base_of(id)?) } else { Ok(self.data_drive(id)) }
    }

    /// A data disk.
    pub(super) fn data_drive(&self, id: DiskId) -> Drive {
        Drive { path: self.disk_file(id, false), format: "raw", bases: Vec::new(), serial: id.serial() }
    }

    /// A data disk of a machine, which lies where all its disks do.
    pub(super) fn drive_of(&self, spec: &MachineSpec, id: DiskId) -> Drive {
        if spec.store.is_some() { served_drive(id) } else { self.data_drive(id) }
    }

    /// Has a disk grow, by the machine that has it where that runs.
    pub(super) async fn grow(&self, id: DiskId, size_gb: i64, of: Option<MachineId>) -> Result<()> {
        if let Some(of) = of {
            let dir = self.machine(of);
            let runs = machine::find(&dir, of.0).is_some();
            if runs && in_time(machine::grow(&dir, of.0, &id.serial(), gib(size_gb))).await? {
                return Ok(());
            }
        }
        machine::grow_file(&self.any_drive(id)?, gib(size_gb)).await.map_err(qemu_failed)
    }

    /// Makes the root disk of a machine that has ended anew, with nothing of what was on it, not in a memory either.
    pub(super) async fn remake(&self, machine: MachineId, spec: &DiskSpec) -> Result<()> {
        if machine::find(&self.machine(machine), machine.0).is_some() {
            return Err(transient("the machine that has the disk has not ended yet"));
        }
        let DiskSource::Image(image) = &spec.source else {
            return Err(EngineError::Permanent("only a root disk is made anew".into()));
        };
        self.remove_memory(machine)?;
        std::fs::create_dir_all(self.disks()).map_err(transient)?;
        self.clone_root_anew(spec, self.base(image).await?).await
    }

    /// Hands a data disk to a machine, where that runs.
    pub(super) async fn plug(&self, machine: MachineId, disk: DiskId) -> Result<()> {
        let dir = self.machine(machine);
        if machine::find(&dir, machine.0).is_none() {
            return Ok(());
        }
        in_time(machine::attach(&dir, machine.0, &self.data_drive(disk), None)).await
    }

    /// Takes a data disk from a machine, where that runs; whether it is gone.
    pub(super) async fn unplug(&self, machine: MachineId, disk: DiskId) -> Result<bool> {
        let dir = self.machine(machine);
        let is_gone =
            machine::find(&dir, machine.0).is_none() || in_time(machine::detach(&dir, &disk.serial())).await?;
        if is_gone {
            self.end_served(disk).await?;
        }
        Ok(is_gone)
    }
}

/// What a machine does, if it does that in time: a taken-over one may say that it is busy for ever.
pub(super) async fn in_time<T>(work: impl Future<Output = berth_qemu::Result<T>>) -> Result<T> {
    let done = tokio::time::timeout(PATIENCE, work).await;
    done.map_err(|_| transient("the machine does not answer in time"))?.map_err(qemu_failed)
}
