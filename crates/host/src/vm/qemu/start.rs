//! Starting a machine's process, with its seed and the devices that it has for itself.

use berth_domain::ids::MachineId;
use berth_qemu::machine;
use berth_qemu::seed::{Mac, Mount, Seed, generic_vendor_data};

use super::QemuEngine;
use super::boots::Begun;
use crate::Result;
use crate::error::qemu_failed;
use crate::vm::{DataDisk, MachineSpec};

impl QemuEngine {
    /// Starts a machine's process, with the devices that it has for itself.
    pub(super) async fn start_process(&self, spec: &MachineSpec) -> Result<Begun> {
        let machines = self.settings.host.data.join("machines");
        let lives = move |id: MachineId| machine::find(&machines.join(id.to_string()), id.0).is_some();
        let assigned = self.gpus.take(spec.id, &spec.gpus, lives).await?;
        let own = self.qemu_spec(spec, assigned).await?;
        let takes_keys_once = is_foreign(&own);
        let machine = match &spec.rescue {
            Some(image) => self.rescuing(own, image).await?,
            None => own,
        };
        Ok(Begun { takes_keys_once, ..self.make_machine(spec, machine).await? })
    }

    /// Boots a machine.
    pub(super) async fn boot(&self, spec: &MachineSpec, machine: machine::Spec) -> Result<()> {
        let vendor_data = is_foreign(&machine).then(generic_vendor_data);
        Seed { vendor_data, ..seed_of(spec) }.write(&machine.seed).map_err(qemu_failed)?;
        machine::start(&machine).await.map_err(qemu_failed)
    }
}

/// Whether a machine's image was imported: the platform's own have their kernel beside them.
const fn is_foreign(machine: &machine::Spec) -> bool {
    !matches!(machine.boot, machine::Boot::Kernel { .. })
}

/// What the guest of a machine is told.
pub(super) fn seed_of(spec: &MachineSpec) -> Seed {
    let is_own = spec.rescue.is_none();
    let mount = |disk: &DataDisk| Some(Mount { serial: disk.id.serial(), path: disk.mount.clone()? });
    Seed {
        instance_id: spec.id.0,
        hostname: spec.name.clone(),
        ssh_keys: spec.ssh_keys.clone(),
        user_data: spec.user_data.clone().filter(|_| is_own),
        vendor_data: None,
        mac: Mac::of(spec.id.0),
        mounts: spec.data_disks.iter().filter(|_| is_own).filter_map(mount).collect(),
    }
}
