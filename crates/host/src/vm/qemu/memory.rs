//! The memory of a suspended VM: written before its machine ends, and loaded by its next one.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use berth_domain::ids::MachineId;
use berth_qemu::machine::{self, memory, migration, snapshot};
use berth_qemu::{Error, accel, host};

use tokio::time::timeout;

use super::QemuEngine;
use super::boots::Begun;
use super::disks::in_time;
use crate::error::{qemu_failed, transient};
use crate::vm::MachineSpec;
use crate::{EngineError, Result, fault};

/// How long writing or loading a memory may take, whatever QEMU says of it: 64 GiB at 200 MB a second.
const MOVING: Duration = Duration::from_mins(6);

/// Room that a memory may take.
pub(super) struct Room<'a> {
    bytes: u64,
    of: &'a Mutex<u64>,
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        *self.of.lock().unwrap_or_else(PoisonError::into_inner) -= self.bytes;
    }
}

impl QemuEngine {
    /// Writes a machine's memory to the disk, where there is room for it.
    pub(super) async fn save_memory(&self, spec: &MachineSpec) -> Result<()> {
        if spec.store.is_some() {
            let text = "a VM whose disks lie in a store cannot be suspended; stop it instead";
            return Err(EngineError::Permanent(text.into()));
        }
        let id = spec.id;
        let dir = self.machine(id);
        if machine::find(&dir, id.0).is_none() && !memory::is_saved(&dir) {
            return Err(EngineError::Permanent("the machine ended before its memory was on the disk".into()));
        }
        let bytes = machine::usage(&dir, id.0).map_or(0, |usage| usage.rss_bytes);
        let _room = if memory::is_saved(&dir) { None } else { Some(self.room_for(bytes)?) };
        if machine::find(&dir, id.0).is_some() {
            // A machine that copies its disks cannot be saved; what it was copying is copied once it is off.
            self.thaw(id).await;
            in_time(snapshot::give_up_all(&dir)).await?;
        }
        let processor = accel::processor();
        let (root, data) = (self.disk_file(spec.root_disk, true), &spec.data_disks);
        let data: Vec<_> = data.iter().map(|disk| self.disk_file(disk.id, false)).collect();
        let disks: Vec<_> = std::iter::once(&root).chain(&data).map(PathBuf::as_path).collect();
        let saved = timeout(MOVING, memory::save(&dir, &processor, &disks)).await;
        saved.map_err(|_| transient("its memory was not written in time"))?.map_err(qemu_failed)?;
        fault::point("vm.memory.saved").await.map_err(transient)
    }

    /// Room on the disk for a memory of so many bytes, beside those that are being written; it is given back with this.
    pub(super) fn room_for(&self, bytes: u64) -> Result<Room<'_>> {
        let (_, free) = host::disk(&self.settings.host.data).map_err(qemu_failed)?;
        let mut saving = self.saving.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.is_room(free.saturating_sub(saving.saturating_add(bytes))) {
            return Err(EngineError::NoCapacity("the host's disk has no room for its memory".into()));
        }
        *saving += bytes;
        Ok(Room { bytes, of: &self.saving })
    }

    /// Lets a machine go on that stands still. One that waits for a memory that nobody gives it is ended, and started anew.
    pub(super) async fn go_on(&self, id: MachineId) -> Result<()> {
        let dir = self.machine(id);
        self.keep_what_came(id)?;
        // What is left of a way to another host, of which this one was not told that it is over.
        migration::call_off(&dir).await.map_err(qemu_failed)?;
        if !memory::resume(&dir).await.map_err(qemu_failed)? {
            machine::end(&dir, id.0).await.map_err(qemu_failed)?;
        }
        self.attend(id);
        Ok(())
    }

    /// Removes a machine's memory from the disk.
    pub(super) fn remove_memory(&self, id: MachineId) -> Result<()> {
        memory::forget(&self.machine(id)).map_err(qemu_failed)
    }

    /// Has a machine go on with its memory, or begin.
    pub(super) async fn make_machine(&self, spec: &MachineSpec, machine: machine::Spec) -> Result<Begun> {
        let dir = machine.dir.clone();
        if !spec.goes_on {
            memory::forget(&dir).map_err(qemu_failed)?;
            let booted = self.begin(spec, machine).await?;
            return Ok(Begun { booted, ..Begun::default() });
        }
        let reason = if memory::is_saved(&dir) {
            match self.start_with_memory(&machine).await {
                Err(Error::Unloadable(reason)) => reason,
                started => {
                    started.map_err(qemu_failed)?;
                    self.set_guest_clock(spec.id);
                    return Ok(Begun::default());
                }
            }
        } else {
            "it is not there any more".into()
        };
        tracing::warn!(vm = %spec.id, reason, "a suspended machine does not go on with its memory");
        memory::forget(&dir).map_err(qemu_failed)?;
        self.boot(spec, machine).await?;
        Ok(Begun { unloadable: Some(reason), ..Begun::default() })
    }

    async fn start_with_memory(&self, machine: &machine::Spec) -> std::result::Result<(), Error> {
        let fits = memory::fits(&machine.dir)?;
        if fits.processor != processor_of(machine.accel) {
            let text = "its memory was saved on another processor than this host has now";
            return Err(Error::Invalid(format!("{text}: {}", memory::GIVE_UP)));
        }
        let disks: Vec<_> =
            std::iter::once(&machine.root).chain(&machine.drives).map(|drive| drive.path.as_path()).collect();
        if fits.disks != memory::states(&disks)? {
            let text = "its disks are not as they were when its memory was saved";
            return Err(Error::Invalid(format!("{text}: {}", memory::GIVE_UP)));
        }
        let going_on = machine::Spec { memory: Some(fits), ..machine.clone() };
        if let Ok(started) = timeout(MOVING, machine::start(&going_on)).await {
            return started;
        }
        machine::end(&machine.dir, machine.id).await?;
        Err(Error::Timeout("the machine's memory"))
    }
}

/// How the processor of a machine is made, as is noted of a memory.
pub(super) fn processor_of(accel: machine::Accel) -> String {
    match accel {
        machine::Accel::Tcg => "tcg".into(),
        machine::Accel::Kvm => format!("kvm {}", accel::processor()),
    }
}
