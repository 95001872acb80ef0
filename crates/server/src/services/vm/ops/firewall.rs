//! Firewall rules of a VM.

use berth_domain::firewall::{Rules, SetRules};
use berth_domain::ids::VmId;
use berth_domain::vm::model::Want;
use berth_domain::{Code, Error, Result};
use serde_json::json;

use super::vm_not_found;
use crate::db::audit::Audit;
use crate::db::{Signal, event, network};
use crate::http::auth::Scope;
use crate::services::firewall::require_few;
use crate::services::vm::{Vms, store};

/// The rules of a VM.
pub async fn get(vms: &Vms, scope: &Scope, id: VmId) -> Result<Rules> {
    let vm = store::vm::find(vms.db(), scope.into(), id).await?;
    Ok(vm.ok_or_else(vm_not_found)?.rules)
}

/// Sets the rules of a VM, and has its machine follow them.
pub async fn set(vms: &Vms, scope: &Scope, id: VmId, request: SetRules) -> Result<Rules> {
    let now = vms.clock().now();
    let mut tx = vms.db().begin_as(scope).await?;
    let before = store::vm::find_in(&mut tx, scope.into(), id).await?.ok_or_else(vm_not_found)?;
    if before.want == Want::Gone {
        return Err(Error::new(Code::InvalidStatus, "The VM is being deleted."));
    }
    let mut vm = before.clone();
    if vm.rules == request.rules {
        return Ok(vm.rules);
    }
    if request.rules.has_groups() {
        require_few(&request.rules, &network::labelled(&mut tx, vm.machine.owner).await?)?;
    }
    (vm.rules, vm.updated_at, vm.work_at) = (request.rules, now, Some(now));
    store::vm::update(&mut tx, &before, &vm).await?;
    let subject = id.to_string();
    let data = json!({"name": vm.name, "rules": vm.rules});
    Audit { data, ..scope.audit("vm.set_rules", &subject) }.write(&mut tx, now).await?;
    event::emit(&mut tx, scope.project, "vm.updated", &subject, &json!({"name": vm.name}), now).await?;
    tx.signal(Signal::Work("vms"));
    tx.signal(Signal::Row("vms", id.0));
    tx.commit().await?;
    Ok(vm.rules)
}
