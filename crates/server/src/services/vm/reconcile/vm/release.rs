//! Has the row of a VM let go of a host that is shut out of its disks, or that somebody said is off: nothing of the VM can write
//! there any more. One that is to run is put onto another host in the same transaction, so that whoever comes next finds the place
//! taken; one that is not is on no host until it starts.

use berth_domain::Timestamp;
use berth_domain::ids::{HostId, ProjectId, VmId};
use berth_domain::vm::model::Want;
use berth_domain::vm::{DiskStatus, Status};
use serde_json::json;

use super::record::enter;
use super::{Seen, VmLife};
use crate::db::{Tx, event, machine_gpu};
use crate::services::placement::{Refusal, state_of};
use crate::services::vm::reconcile::StepError;
use crate::services::vm::reconcile::capacity::{self, Among};
use crate::services::vm::store;
use crate::services::vm::store::disk::DiskRow;
use crate::services::vm::store::vm::VmRow;
use crate::work::lifecycle::Life;

/// What the owner of a VM is told whose host is lost, and of one whose host is back.
const ELSEWHERE: &str = "its host is lost: it starts on another one, from what its disks have";
const ANEW: &str = "its host was lost, and its disks were taken from it meanwhile: it starts anew, from what they have";
/// Seconds between two looks at a VM that is about to let go.
const LOOK: i64 = 2;

/// What became of a VM that was to let go of its host.
#[derive(Debug)]
pub(in crate::services::vm::reconcile) enum Released {
    /// It is not there any more.
    Over,
    /// It let go.
    Done,
    /// It is asked again: what was decided was of an older state.
    Again,
    /// No other host takes it, so that it stays.
    Stays(ProjectId, Refusal),
}

impl VmLife {
    /// Has a VM's row let go of a host; where it is to run, only if another host takes it.
    pub(in crate::services::vm::reconcile) async fn release(
        &self,
        id: VmId,
        (host, store): (HostId, &str),
    ) -> Result<Released, StepError> {
        let Some(mut seen) = self.look(&id).await? else { return Ok(Released::Over) };
        // It is put somewhere as one that leaves: what is on the host it leaves does not tie it.
        seen.vm.leaves = true;
        let runs = seen.vm.want == Want::Run;
        let (offers, reached) = if runs { self.prospect(&seen).await? } else { Default::default() };
        let mut tx = self.vms.db().begin().await?;
        let Some(before) = store::vm::load(&mut tx, id).await? else { return Ok(Released::Over) };
        if before.machine.host != Some(host) || before.deleted_at.is_some() {
            return Ok(Released::Over);
        }
        let mut vm = let_go(&before, seen.now);
        machine_gpu::release(&mut tx, vm.machine.id).await?;
        store::fence::release(&mut tx, host, store, vm.machine.aim()).await?;
        release_disks(&mut tx, &before, seen.now).await?;
        let (subject, data) = (vm.id.to_string(), json!({ "host_id": host }));
        event::emit_to_administrators(&mut tx, vm.project, "vm.released", &subject, &data, seen.now).await?;
        if vm.want == Want::Run {
            let among = if reached.is_some() { Among::Asked } else { Among::All };
            let leaving = VmRow { leaves: true, ..before.clone() };
            let placed = match capacity::place(&mut tx, &leaving, &offers, (&self.vms, among)).await? {
                Ok(placed) => placed,
                Err(refusal) if reached.is_none() && runs => return Ok(Released::Stays(vm.project, refusal)),
                Err(_) => return Ok(Released::Again),
            };
            let Some(reach) = self.still_free(&mut tx, &before, &placed, reached).await? else {
                return Ok(Released::Again);
            };
            vm.machine.host = Some(placed.host);
            self.take_place(&mut tx, &mut vm, &placed, reach).await?;
            self.put(tx, &before, &vm, &placed).await?;
        } else {
            self.write(&mut tx, &before, &vm).await?;
            tx.commit().await?;
        }
        tracing::warn!(vm = %id, from = %host, to = ?vm.machine.host, "a VM lets go of its host, which is lost");
        Ok(Released::Done)
    }

    /// Has a VM begin anew on its host, whose disks were taken from it: its machine cannot read or write them any more.
    pub(in crate::services::vm::reconcile) async fn begin_anew(
        &self,
        tx: &mut Tx,
        id: VmId,
        host: HostId,
    ) -> Result<(), StepError> {
        let now = self.vms.clock().now();
        let Some(before) = store::vm::load(&mut *tx, id).await? else { return Ok(()) };
        if before.machine.host != Some(host) || before.deleted_at.is_some() {
            return Ok(());
        }
        let mut vm = VmRow { work_at: Some(now), ..before.clone() };
        if vm.want == Want::Run && matches!(vm.status, Status::Running | Status::Starting | Status::Restarting) {
            enter(&mut vm, Status::Starting, Some(ANEW.to_owned()), now);
            // Its guest would wait for its disks: it is not asked to shut down.
            (vm.ending, vm.attempts) = (true, 1);
        }
        self.write(tx, &before, &vm).await
    }

    /// Until when a VM waits whose host was removed, and whose disks are where others reach them: nothing died, and it is about to let
    /// go of that host.
    pub(super) async fn awaits_release(&self, seen: &Seen) -> Result<Option<Timestamp>, StepError> {
        let (Some(host), Some(_)) = (seen.vm.machine.host, capacity::store(&seen.disks)) else { return Ok(None) };
        let is_removed = state_of(self.vms.db(), host).await?.is_none();
        Ok(is_removed.then(|| seen.now.plus_seconds(LOOK)))
    }
}

/// Disks that were being made there are made elsewhere; what is made already is in the store.
async fn release_disks(tx: &mut Tx, vm: &VmRow, now: Timestamp) -> Result<(), StepError> {
    for disk in store::disk::of_vm(&mut *tx, vm.id).await? {
        if disk.status == DiskStatus::Provisioning {
            let unmade = DiskRow { status: DiskStatus::Pending, host: None, updated_at: now, ..disk.clone() };
            store::disk::update(&mut *tx, &disk, &unmade).await?;
        }
    }
    Ok(())
}

/// A VM's row once it has let go of its host. What its former host is asked from now on is later than whatever it was asked.
fn let_go(before: &VmRow, now: Timestamp) -> VmRow {
    let mut vm = VmRow { leaves: false, start_after: None, work_at: Some(now), ..before.clone() };
    vm.machine.leave();
    vm.machine.generation += 1;
    match (vm.want, vm.status) {
        (Want::Run, Status::Pending | Status::Provisioning) => {}
        (Want::Run, _) => enter(&mut vm, Status::Starting, Some(ELSEWHERE.to_owned()), now),
        _ => {}
    }
    vm.ending = false;
    vm
}
