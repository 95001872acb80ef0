//! The memory of a suspended VM: written before its machine ends, and loaded by its next one.

use berth_domain::ids::MachineId;
use berth_qemu::machine::{self, memory};
use berth_qemu::{Error, accel, host};

use super::QemuEngine;
use crate::error::{qemu_failed, transient};
use crate::vm::MachineSpec;
use crate::{EngineError, Result, fault};

impl QemuEngine {
    /// Writes a machine's memory to the disk, where there is room for it.
    pub(super) async fn save_memory(&self, id: MachineId) -> Result<()> {
        let dir = self.machine(id);
        if machine::find(&dir, id.0).is_none() && !memory::is_saved(&dir) {
            return Err(EngineError::Permanent("the machine ended before its memory was on the disk".into()));
        }
        let (_, free) = host::disk(&self.settings.host.data).map_err(qemu_failed)?;
        let bytes = machine::usage(&dir, id.0).map_or(0, |usage| usage.rss_bytes);
        if !memory::is_saved(&dir) && !self.is_room(free.saturating_sub(bytes)) {
            return Err(EngineError::NoCapacity("the host's disk has no room for its memory".into()));
        }
        let processor = self.processor().await?;
        memory::save(&dir, &processor).await.map_err(qemu_failed)?;
        fault::point("vm.memory.saved").await.map_err(transient)
    }

    /// Lets a machine go on that stands still. One that waits for a memory that nobody gives it is ended, and started anew.
    pub(super) async fn go_on(&self, id: MachineId) -> Result<()> {
        let dir = self.machine(id);
        if !memory::resume(&dir).await.map_err(qemu_failed)? {
            machine::end(&dir, id.0).await.map_err(qemu_failed)?;
        }
        Ok(())
    }

    /// Removes a machine's memory from the disk.
    pub(super) fn remove_memory(&self, id: MachineId) -> Result<()> {
        memory::forget(&self.machine(id)).map_err(qemu_failed)
    }

    /// Has a machine go on with its memory, or boots it; why it was booted, where it was to go on.
    pub(super) async fn make_machine(&self, spec: &MachineSpec, machine: machine::Spec) -> Result<Option<String>> {
        let dir = machine.dir.clone();
        if !spec.goes_on {
            memory::forget(&dir).map_err(qemu_failed)?;
            return self.boot(spec, machine).await.map(|()| None);
        }
        let reason = if memory::is_saved(&dir) {
            match self.start_with_memory(&machine).await {
                Err(Error::Unloadable(reason)) => reason,
                started => return started.map(|()| None).map_err(qemu_failed),
            }
        } else {
            "it is not there any more".into()
        };
        tracing::warn!(vm = %spec.id, reason, "a suspended machine does not go on with its memory");
        memory::forget(&dir).map_err(qemu_failed)?;
        self.boot(spec, machine).await?;
        Ok(Some(reason))
    }

    async fn start_with_memory(&self, machine: &machine::Spec) -> std::result::Result<(), Error> {
        let fits = memory::fits(&machine.dir)?;
        let processor = self.processor().await.map_err(|error| Error::Unloadable(error.to_string()))?;
        if fits.processor != processor {
            return Err(Error::Unloadable("the host has another processor than it was saved on".into()));
        }
        machine::start(&machine::Spec { memory: Some(fits), ..machine.clone() }).await
    }

    /// The processor of a machine of today, and how that is made.
    async fn processor(&self) -> Result<String> {
        let qemu = self.settings.host.find_qemu()?;
        let accel = self.acceleration(None, &qemu).await.accel;
        // An emulated processor is the same everywhere.
        let processor = if accel == machine::Accel::Kvm { accel::processor() } else { String::new() };
        Ok(format!("{accel:?} {processor}"))
    }
}
