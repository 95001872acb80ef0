//! Another size for a VM that is off.
//!
//! Nothing of it is on the host, and nothing is held there: the next start reserves what the new size takes, or fails for
//! the lack of it, as a first start does.

use berth_domain::ids::VmId;
use berth_domain::vm::request::ResizeVm;
use berth_domain::vm::state::on_resize;
use berth_domain::{Error, Result};
use serde_json::json;

use super::with_disks::VmWithDisks;
use super::{size, vm_not_found};
use crate::db::audit::Audit;
use crate::db::usage::Held;
use crate::db::{Signal, event};
use crate::http::auth::Scope;
use crate::services::quota;
use crate::services::vm::{Vms, store};

/// Gives a VM that is off another size. The size that it has changes nothing.
pub async fn resize(vms: &Vms, scope: &Scope, id: VmId, request: ResizeVm) -> Result<VmWithDisks> {
    let now = vms.clock().now();
    let mut tx = vms.db().begin_as(scope).await?;
    let before = store::vm::find_in(&mut tx, scope.into(), id).await?.ok_or_else(vm_not_found)?;
    let offer = (before.region_id.as_str(), before.plan_id.as_str());
    let config = size::of(vms.catalog(), &request.vm_config_id, offer, before.gpu_config_count).map_err(of_size)?;
    on_resize(before.status)?;
    let disks = store::disk::of_vm(&mut tx, id).await?;
    if config.id == before.vm_config_id {
        return Ok(VmWithDisks { vm: before, disks });
    }
    let vcpu = (config.vcpu - before.vcpu).max(0);
    let memory_mb = (config.memory_mb - before.memory_mb).max(0);
    if vcpu + memory_mb > 0 {
        quota::admit(&mut tx, scope, Held { vcpu, memory_mb, ..Held::default() }, now).await?;
    }
    let mut vm = before.clone();
    vm.vm_config_id.clone_from(&config.id);
    (vm.vcpu, vm.memory_mb) = (config.vcpu, config.memory_mb);
    (vm.machine.vcpu, vm.machine.memory_mb) = (config.vcpu, config.memory_mb);
    vm.updated_at = now;
    store::vm::update(&mut tx, &before, &vm).await?;
    let subject = id.to_string();
    let data = json!({"name": vm.name, "vm_config_id": vm.vm_config_id});
    Audit { data: data.clone(), ..scope.audit("vm.resize", &subject) }.write(&mut tx, now).await?;
    event::emit(&mut tx, scope.project, "vm.updated", &subject, &data, now).await?;
    store::operation::begin(&mut tx, id, "resize", scope.caller.actor(), now).await?;
    store::operation::finish(&mut tx, id, "done", None, now).await?;
    tx.signal(Signal::Row("vms", id.0));
    tx.commit().await?;
    Ok(VmWithDisks { vm, disks })
}

/// Whatever the VM's region, plan or GPUs do not allow is wrong with the size that is asked for.
fn of_size(error: Error) -> Error {
    let wrong = error.details.iter().map(|detail| match detail.field.as_str() {
        "vm_config_id" => detail.message.clone(),
        "gpu_config_count" => "has not as many GPUs as the VM".to_owned(),
        _ => "is not offered with the plan of the VM".to_owned(),
    });
    Error::field("vm_config_id", wrong.collect::<Vec<_>>().join("; "))
}
