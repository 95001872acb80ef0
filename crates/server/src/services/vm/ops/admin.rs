//! What administrators of the platform do with everybody's VMs. They write the same wishes as the owners.

use berth_domain::Result;
use berth_domain::ids::VmId;
use berth_domain::vm::Status;
use berth_domain::vm::model::Want;
use berth_domain::vm::state::{Verb, on_verb};

use super::vm::record;
use super::vm_not_found;
use crate::db::Tx;
use crate::http::auth::Person;
use crate::services::vm::Vms;
use crate::services::vm::store;
use crate::services::vm::store::vm::VmRow;

/// Records the wish to stop.
pub async fn stop(vms: &Vms, admin: &Person, id: VmId) -> Result<VmRow> {
    let now = vms.clock().now();
    let mut tx = vms.db().begin_as(admin).await?;
    let before = find(&mut tx, id).await?;
    let mut vm = before.clone();
    let Some(next) = on_verb(Verb::Stop, vm.status)? else { return Ok(vm) };
    vm.stop_for(next, "an administrator of the platform stops it", now);
    record(&mut tx, Some(&admin.caller), (&before, &vm), Verb::Stop.as_str(), now).await?;
    tx.commit().await?;
    Ok(vm)
}

/// Records the wish to delete, in any status.
pub async fn delete(vms: &Vms, admin: &Person, id: VmId) -> Result<()> {
    let now = vms.clock().now();
    let mut tx = vms.db().begin_as(admin).await?;
    let before = find(&mut tx, id).await?;
    let mut vm = before.clone();
    if vm.status == Status::Deleting {
        return Ok(());
    }
    vm.want = Want::Gone;
    vm.enter(Status::Deleting, Some("an administrator of the platform deletes it".into()), now);
    record(&mut tx, Some(&admin.caller), (&before, &vm), "delete", now).await?;
    Ok(tx.commit().await?)
}

async fn find(tx: &mut Tx, id: VmId) -> Result<VmRow> {
    let found = store::vm::load(tx, id).await?;
    found.filter(|vm| vm.deleted_at.is_none()).ok_or_else(vm_not_found)
}
