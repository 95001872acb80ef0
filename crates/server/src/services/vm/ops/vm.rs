//! Verbs on VMs.

mod create;
mod record;

use berth_domain::ids::{OrgId, VmId};
use berth_domain::vm::model::{KeysState, Want};
use berth_domain::vm::request::{ReplaceKeys, UpdateVm};
use berth_domain::vm::shared_disk::Refused;
use berth_domain::vm::state::{Verb, on_verb};
use berth_domain::vm::{DiskStatus, Status};
use berth_domain::{Code, Error, Result, Timestamp};
use serde_json::json;

pub use self::create::create;
pub(super) use self::create::{available, image, new_disk, whole_gib};
pub(super) use self::record::record;
use super::vm_not_found;
use super::with_disks::VmWithDisks;
use crate::db::audit::Audit;
use crate::db::{Signal, Tx, event};
use crate::http::auth::Scope;
use crate::services::vm::store::disk::DiskRow;
use crate::services::vm::store::vm::VmRow;
use crate::services::vm::store::{self, Tenant};
use crate::services::vm::{Vms, told};
use crate::services::{chosen_key, quota};

/// Records the wish to start, stop, restart, suspend or resume; says nothing new where that is under way or done.
pub async fn verb(vms: &Vms, scope: &Scope, id: VmId, verb: Verb) -> Result<VmWithDisks> {
    let now = vms.clock().now();
    let mut tx = vms.db().begin_as(scope).await?;
    let before = store::vm::find_in(&mut tx, scope.into(), id).await?.ok_or_else(vm_not_found)?;
    let mut vm = before.clone();
    let mut disks = store::disk::of_vm(&mut tx, id).await?;
    let Some(next) = on_verb(verb, vm.status)? else {
        return Ok(VmWithDisks { vm, disks });
    };
    refuse_in_store(&disks, verb)?;
    if verb == Verb::Suspend && vm.disk_places == 0 {
        let message = "The VM was started by an older version, whose machines are not suspended. Restart it first.";
        return Err(Error::new(Code::NotSupported, message));
    }
    if verb == Verb::Suspend && vm.rescue_user.is_some() {
        let message = "A VM in rescue is not suspended: nothing of it is kept. Restart it first, which leaves rescue.";
        return Err(Error::new(Code::NotSupported, message));
    }
    if verb == Verb::Suspend && vm.gpu_config_count > 0 {
        let message = "A VM with GPUs cannot be suspended: what its GPUs hold cannot be saved. Stop it instead.";
        return Err(Error::new(Code::NotSupported, message));
    }
    if matches!(verb, Verb::Start | Verb::Resume) {
        quota::afford(&mut tx, scope, now).await?;
    }
    vm.want = match verb {
        Verb::Start | Verb::Restart | Verb::Resume | Verb::Reinstall | Verb::Rescue => Want::Run,
        Verb::Stop => Want::Stop,
        Verb::Suspend => Want::Suspend,
    };
    if matches!(verb, Verb::Start | Verb::Restart) {
        vm.rescue_user = None;
    }
    vm.ending = verb == Verb::Restart;
    vm.enter(next, Some(format!("waiting for a worker to {}", verb.as_str())), now);
    if verb == Verb::Start {
        try_disks_again(&mut tx, &mut disks, now).await?;
    }
    record(&mut tx, Some(&scope.caller), (&before, &vm), verb.as_str(), now).await?;
    tx.commit().await?;
    Ok(VmWithDisks { vm, disks })
}

/// Refuses what a VM cannot do whose disks lie in a store.
pub(super) fn refuse_in_store(disks: &[DiskRow], verb: Verb) -> Result<()> {
    let store = disks.iter().find_map(|disk| disk.store.as_deref());
    Refused::of(verb).map_or(Ok(()), |refused| refused.check(store))
}

/// A start is another attempt for disks that could not be made.
pub(super) async fn try_disks_again(tx: &mut Tx, disks: &mut [DiskRow], now: Timestamp) -> Result<()> {
    for disk in disks.iter_mut().filter(|d| d.status == DiskStatus::Failed) {
        let before = disk.clone();
        disk.status = DiskStatus::Pending;
        disk.message = None;
        disk.updated_at = now;
        store::disk::update(tx, &before, disk).await?;
        told::disk(tx, disk, now).await?;
    }
    Ok(())
}

/// Records the wish to delete, in any status.
pub async fn delete(vms: &Vms, scope: &Scope, id: VmId) -> Result<()> {
    let now = vms.clock().now();
    let mut tx = vms.db().begin_as(scope).await?;
    let before = store::vm::find_in(&mut tx, scope.into(), id).await?.ok_or_else(vm_not_found)?;
    let mut vm = before.clone();
    if vm.status == Status::Deleting {
        return Ok(());
    }
    vm.want = Want::Gone;
    vm.enter(Status::Deleting, Some("waiting for a worker to delete".into()), now);
    record(&mut tx, Some(&scope.caller), (&before, &vm), "delete", now).await?;
    Ok(tx.commit().await?)
}

/// Changes name, labels, ports, policy, the time to live or user data.
pub async fn update(vms: &Vms, scope: &Scope, id: VmId, change: UpdateVm) -> Result<VmWithDisks> {
    let now = vms.clock().now();
    let mut tx = vms.db().begin_as(scope).await?;
    let before = store::vm::find_in(&mut tx, scope.into(), id).await?.ok_or_else(vm_not_found)?;
    let mut vm = before.clone();
    let disks = store::disk::of_vm(&mut tx, id).await?;
    if vm.want == Want::Gone {
        return Err(Error::new(Code::InvalidStatus, "The VM is being deleted."));
    }
    if let Some(name) = change.name {
        name.as_str().clone_into(&mut vm.name);
    }
    if let Some(labels) = change.labels {
        vm.labels = labels;
    }
    if let Some(ports) = change.exposed_ports {
        vm.exposed_ports = ports;
    }
    if let Some(policy) = change.restart_policy {
        vm.restart_policy = policy;
    }
    if let Some(seconds) = change.ttl_seconds {
        vm.expires_at = Some(now.plus_seconds(seconds));
    }
    if let Some(user_data) = change.user_data {
        vm.user_data = Some(user_data);
    }
    if vm == before {
        return Ok(VmWithDisks { vm, disks });
    }
    changed(&mut tx, scope, "vm.update", (&before, &mut vm), now).await?;
    tx.commit().await?;
    Ok(VmWithDisks { vm, disks })
}

/// Replaces the keys of a VM's login user: now, where an agent of its guest takes them, and else at its next boot.
pub async fn replace_keys(vms: &Vms, scope: &Scope, id: VmId, wanted: ReplaceKeys) -> Result<VmWithDisks> {
    let now = vms.clock().now();
    let mut tx = vms.db().begin_as(scope).await?;
    let before = store::vm::find_in(&mut tx, scope.into(), id).await?.ok_or_else(vm_not_found)?;
    let mut vm = before.clone();
    let disks = store::disk::of_vm(&mut tx, id).await?;
    vm.ssh_keys = chosen_key::with_chosen(&mut tx, scope, &wanted.ssh_keys, &wanted.ssh_key_ids).await?;
    if vm.want == Want::Gone {
        return Err(Error::new(Code::InvalidStatus, "The VM is being deleted."));
    }
    if vm == before {
        return Ok(VmWithDisks { vm, disks });
    }
    let is_off = matches!(vm.status, Status::Stopped | Status::Failed);
    vm.keys_state = if is_off { KeysState::NextBoot } else { KeysState::Pending };
    changed(&mut tx, scope, "vm.replace_ssh_keys", (&before, &mut vm), now).await?;
    tx.commit().await?;
    Ok(VmWithDisks { vm, disks })
}

/// Writes a change by the owner with its audit record and event, and has the worker look at it.
async fn changed(
    tx: &mut Tx,
    scope: &Scope,
    action: &str,
    (before, vm): (&VmRow, &mut VmRow),
    now: Timestamp,
) -> Result<()> {
    vm.updated_at = now;
    vm.work_at = Some(now);
    store::vm::update(tx, before, vm).await?;
    let subject = vm.id.to_string();
    let data = json!({"name": vm.name});
    Audit { data: data.clone(), ..scope.audit(action, &subject) }.write(tx, now).await?;
    event::emit(tx, scope.project, "vm.updated", &subject, &data, now).await?;
    tx.signal(Signal::Work("vms"));
    tx.signal(Signal::Row("vms", vm.id.0));
    Ok(())
}

/// Records the platform's own wish to stop what runs or is on its way to: all of the service's own host, or what belongs
/// to one organization, wherever that is. How many machines that are.
pub async fn stop_all(vms: &Vms, org: Option<OrgId>, reason: &str) -> Result<usize> {
    let now = vms.clock().now();
    let mut stopped = 0;
    let wanted = match org {
        Some(_) => store::vm::with_machine(vms.db(), org).await?,
        None => store::vm::wanting(vms.db(), vms.host(), true).await?,
    };
    for id in wanted {
        let mut tx = vms.db().begin().await?;
        let found = store::vm::load(&mut tx, id).await?;
        let Some(before) = found.filter(|vm| vm.want == Want::Run) else { continue };
        let mut vm = before.clone();
        if vm.has_memory {
            // It is being resumed; what it goes on with is its owner's to give up.
            vm.enter(Status::Suspending, Some(reason.to_owned()), now);
            vm.want = Want::Suspend;
        } else {
            vm.stop_for(Status::Stopping, reason, now);
        }
        record(&mut tx, None, (&before, &vm), "stop", now).await?;
        tx.commit().await?;
        stopped += 1;
    }
    Ok(stopped)
}

/// Records the platform's own wish to delete a VM whose time is over.
pub async fn expire(tx: &mut Tx, (before, vm): (&VmRow, &mut VmRow), now: Timestamp) -> Result<()> {
    vm.want = Want::Gone;
    vm.enter(Status::Deleting, Some("its time is over (ttl_seconds)".into()), now);
    record(tx, None, (before, vm), "delete", now).await
}

/// A VM by its id.
pub async fn get(vms: &Vms, scope: &Scope, id: VmId, include_deleted: bool) -> Result<VmWithDisks> {
    let tenant = Tenant::from(scope);
    let found = if include_deleted {
        store::vm::find_ever(vms.db(), tenant, id).await?
    } else {
        store::vm::find(vms.db(), tenant, id).await?
    };
    let vm = found.ok_or_else(vm_not_found)?;
    let disks = store::disk::peek_of_vm(vms.db(), id).await?;
    Ok(VmWithDisks { vm, disks })
}
