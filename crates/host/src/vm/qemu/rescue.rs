//! Machines that boot a rescue system: one of the host's images, on a disk that goes with the machine.
//!
//! The machine's own disks stand beside it, as they would beside its own system, and nothing of them is mounted. The disk of
//! the rescue system is made at each start and lies in the machine's folder, so that whatever removes that removes it; an
//! end and the next start do, too.

use berth_domain::ids::MachineId;
use berth_qemu::image::Manifest;
use berth_qemu::machine::{self, Drive};
use berth_qemu::{disk, host};

use super::QemuEngine;
use crate::error::{qemu_failed, transient};
use crate::{EngineError, Result, fault};

/// The disk of the rescue system, in the machine's folder.
const DISK: &str = "rescue.qcow2";
/// What the guest knows it by.
const SERIAL: &str = "rescue";

impl QemuEngine {
    /// A machine that boots an image instead of its own system, which stands beside it.
    pub(super) async fn rescuing(&self, own: machine::Spec, image: &str) -> Result<machine::Spec> {
        let (_, free) = host::disk(&self.settings.host.data).map_err(qemu_failed)?;
        if !self.is_room(free) {
            return Err(EngineError::NoCapacity("the host's disk has no room for a rescue system".into()));
        }
        let base = self.base(image).await?;
        // No note says that a disk builds on it; it stays until QEMU has it.
        self.touch(&base)?;
        let manifest = Manifest::load(&base).map_err(qemu_failed)?;
        let (path, below) = (own.dir.join(DISK), base.join(&manifest.disk));
        disk::clone_image_anew(&below, &path, manifest.virtual_size_bytes).await.map_err(qemu_failed)?;
        fault::point("vm.rescue.cloned").await.map_err(transient)?;
        Ok(machine::Spec {
            boot: manifest.boot(&base),
            root: Drive { path, format: "qcow2", bases: vec![below], serial: SERIAL.into() },
            drives: std::iter::once(own.root).chain(own.drives).collect(),
            places: own.places + 1,
            ..own
        })
    }

    /// Removes what a rescue left.
    pub(super) async fn end_rescue(&self, id: MachineId) -> Result<()> {
        disk::remove(&self.machine(id).join(DISK)).await.map_err(qemu_failed)
    }
}
