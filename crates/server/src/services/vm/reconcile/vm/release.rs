//! Has the row of a VM let go of a host that is shut out of its disks, or that somebody said is off: nothing of the VM can write
//! there any more, and it is on no host until it is put onto another one as if it were new.

use berth_domain::Timestamp;
use berth_domain::ids::{HostId, VmId};
use berth_domain::vm::model::Want;
use berth_domain::vm::{DiskStatus, Status};

use super::record::enter;
use super::{Seen, VmLife};
use crate::db::{Tx, event, machine_gpu};
use crate::services::placement::{Refusal, state_of};
use crate::services::vm::reconcile::StepError;
use crate::services::vm::reconcile::capacity::{self, Among};
use crate::services::vm::store;
use crate::services::vm::store::disk::DiskRow;
use crate::services::vm::store::vm::VmRow;

/// What the owner of a VM is told whose host is lost.
const ELSEWHERE: &str = "its host is lost: it starts on another one, from what its disks have";

/// Seconds between two looks at a VM that is about to let go.
const LOOK: i64 = 2;

/// What became of a VM that was to let go of its host.
#[derive(Debug)]
pub(in crate::services::vm::reconcile) enum Released {
    /// It is not there any more.
    Over,
    /// It let go.
    Done,
    /// No other host takes it, so that it stays.
    Stays(Refusal),
}

impl VmLife {
    /// Has a VM's row let go of a host; where it is to run and not all are to, only if another host takes it.
    pub(in crate::services::vm::reconcile) async fn release(
        &self,
        id: VmId,
        (host, store): (HostId, &str),
        all: bool,
    ) -> Result<Released, StepError> {
        let now = self.vms.clock().now();
        let Some(seen) = store::vm::peek(self.vms.db(), id).await? else { return Ok(Released::Over) };
        let disks = store::disk::peek_of_vm(self.vms.db(), id).await?;
        let is_chosen = seen.want == Want::Run && !all;
        let offers = if is_chosen {
            capacity::all_offers(&self.vms, &let_go(&seen, now), &disks).await?
        } else {
            capacity::Offers::new()
        };
        let mut tx = self.vms.db().begin().await?;
        let Some(before) = store::vm::load(&mut tx, id).await? else { return Ok(Released::Over) };
        if before.machine.host != Some(host) || before.deleted_at.is_some() {
            return Ok(Released::Over);
        }
        let vm = let_go(&before, now);
        if is_chosen && let Err(refusal) = capacity::place(&mut tx, &vm, &offers, (&self.vms, Among::All)).await? {
            return Ok(Released::Stays(refusal));
        }
        machine_gpu::release(&mut tx, vm.machine.id).await?;
        store::fence::release(&mut tx, host, store, vm.machine.aim()).await?;
        self.release_disks(&mut tx, &before, now).await?;
        self.write(&mut tx, &before, &vm).await?;
        let (subject, data) = (vm.id.to_string(), serde_json::json!({"host_id": host}));
        event::emit_to_administrators(&mut tx, vm.project, "vm.released", &subject, &data, now).await?;
        tx.commit().await?;
        tracing::warn!(vm = %id, %host, "a VM lets go of its host, which is lost, and goes on elsewhere");
        Ok(Released::Done)
    }

    /// Until when a VM waits whose host was removed, and whose disks are where others reach them: nothing died, and it is about to let
    /// go of that host.
    pub(super) async fn awaits_release(&self, seen: &Seen) -> Result<Option<Timestamp>, StepError> {
        let (Some(host), Some(_)) = (seen.vm.machine.host, capacity::store(&seen.disks)) else { return Ok(None) };
        let is_removed = state_of(self.vms.db(), host).await?.is_none();
        Ok(is_removed.then(|| seen.now.plus_seconds(LOOK)))
    }

    /// Disks that were being made there are made elsewhere; what is made already is in the store.
    async fn release_disks(&self, tx: &mut Tx, vm: &VmRow, now: Timestamp) -> Result<(), StepError> {
        for disk in store::disk::of_vm(&mut *tx, vm.id).await? {
            if disk.status == DiskStatus::Provisioning {
                let unmade = DiskRow { status: DiskStatus::Pending, host: None, updated_at: now, ..disk.clone() };
                store::disk::update(&mut *tx, &disk, &unmade).await?;
            }
        }
        Ok(())
    }
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
