//! Who has a disk, and is told that something is wanted of it.

use berth_domain::ids::VmId;
use berth_domain::{Result, Timestamp};

use crate::db::{Signal, Tx};
use crate::services::vm::store;
use crate::services::vm::store::disk::DiskRow;
use crate::services::vm::store::vm::VmRow;

/// Has whoever has a disk look at it: its VM, or else its own worker.
pub(super) async fn wake_owner(tx: &mut Tx, disk: &DiskRow, now: Timestamp) -> Result<()> {
    if disk.vm.is_none() {
        let woken = DiskRow { work_at: Some(now), updated_at: now, ..disk.clone() };
        store::disk::update(tx, disk, &woken).await?;
        tx.signal(Signal::Work("disks"));
    }
    wake_holder(tx, disk.vm, now).await
}

/// Has the worker look at the VM that has a disk.
pub(super) async fn wake_holder(tx: &mut Tx, holder: Option<VmId>, now: Timestamp) -> Result<()> {
    let Some(holder) = holder else { return Ok(()) };
    if let Some(before) = store::vm::load(&mut *tx, holder).await? {
        let vm = VmRow { work_at: Some(now), updated_at: now, ..before.clone() };
        store::vm::update(tx, &before, &vm).await?;
    }
    tx.signal(Signal::Work("vms"));
    tx.signal(Signal::Row("vms", holder.0));
    Ok(())
}
