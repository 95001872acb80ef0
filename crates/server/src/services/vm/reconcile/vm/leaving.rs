//! Has a VM leave its host, which is drained: one that runs ends first, one that is off is put onto another host at once.
//!
//! The row names the new host before anything of the VM is there. Its disks are elsewhere then, and their own workers bring
//! them (`disk_travel`); a VM that is to run waits for them. A VM that no other host takes stays, and is asked to leave again
//! later (`reconcile::drain`).

use berth_domain::vm::plan::Step;

use super::record::{apply, still};
use super::{Seen, VmLife};
use crate::db::event;
use crate::services::placement::{Refusal, placed_event};
use crate::services::vm::reconcile::capacity;
use crate::services::vm::reconcile::{StepError, disk_travel, fault};
use crate::services::vm::store::vm::VmRow;

impl VmLife {
    /// Records that a machine has to end, if another host takes it.
    pub(super) async fn leave(&self, seen: &Seen) -> Result<(), StepError> {
        let offers = capacity::offers(&self.vms, &seen.vm, &seen.disks).await?;
        match self.choice(seen, &offers).await? {
            Ok(_) => self.record(seen, |vm| apply(vm, &Step::Leave, seen.now)).await,
            Err(refusal) => self.stay(seen, &refusal).await,
        }
    }

    /// Puts a VM that is off onto another host, and wakes whoever brings its disks.
    pub(super) async fn move_on(&self, seen: &Seen) -> Result<(), StepError> {
        let offers = capacity::offers(&self.vms, &seen.vm, &seen.disks).await?;
        if let Err(refusal) = self.choice(seen, &offers).await? {
            return self.stay(seen, &refusal).await;
        }
        self.let_go(seen).await?;
        self.engine(seen)?.discard(seen.vm.machine.aim()).await?;
        fault("vm", "move", "done").await?;
        let mut tx = self.vms.db().begin().await?;
        let Some(before) = still(&mut tx, seen).await?.filter(|vm| vm.leaves) else { return Ok(()) };
        let Ok(placed) = capacity::place(&mut tx, &before, &offers, &self.vms).await? else { return Ok(()) };
        let mut vm = before.clone();
        vm.leaves = false;
        vm.machine.leave_for(placed.host);
        let data = placed_event(placed.host, &placed.reason);
        event::emit_to_administrators(&mut tx, vm.project, "vm.placed", &vm.id.to_string(), &data, seen.now).await?;
        vm.work_at = Some(seen.now);
        self.write(&mut tx, &before, &vm).await?;
        disk_travel::wake(&mut tx, &vm).await?;
        tracing::info!(vm = %vm.id, from = ?before.machine.host, to = %placed.host, "a VM leaves its host");
        Ok(tx.commit().await?)
    }

    /// Records that a VM stays where it is for now.
    async fn stay(&self, seen: &Seen, refusal: &Refusal) -> Result<(), StepError> {
        tracing::warn!(vm = %seen.vm.id, reason = refusal.owner, hosts = ?refusal.hosts, "no other host takes a VM");
        let mut tx = self.vms.db().begin().await?;
        let Some(before) = still(&mut tx, seen).await? else { return Ok(()) };
        let vm = VmRow { leaves: false, work_at: Some(seen.now), ..before.clone() };
        let (subject, data) = (vm.id.to_string(), refusal.event());
        event::emit_to_administrators(&mut tx, vm.project, "vm.unplaced", &subject, &data, seen.now).await?;
        self.write(&mut tx, &before, &vm).await?;
        Ok(tx.commit().await?)
    }
}
