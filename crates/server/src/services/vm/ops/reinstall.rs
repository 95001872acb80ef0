//! A VM's root disk made anew.
//!
//! The disk keeps its id, so that whatever names it stays true, and the VM keeps all but what was on the disk. Its row says
//! that it is made anew until that is done: a worker that dies in between makes it once more, and nothing is started from it
//! before. A guest's identity lies on its root disk, so the guest is a new one: cloud-init begins anew, and so do host keys.

use berth_domain::ids::VmId;
use berth_domain::vm::model::Want;
use berth_domain::vm::request::ReinstallVm;
use berth_domain::vm::state::{Verb, on_verb};
use berth_domain::vm::{DiskKind, DiskStatus};
use berth_domain::{Code, Error, Result};

use super::disk_snapshot::not_copied;
use super::vm::{image, record, refuse_in_store, try_disks_again, whole_gib};
use super::vm_not_found;
use super::with_disks::VmWithDisks;
use crate::http::auth::Scope;
use crate::services::quota;
use crate::services::vm::{Vms, store, told};

/// Records the wish that a VM begins anew from an image. It runs afterwards, whatever it did before.
pub async fn reinstall(vms: &Vms, scope: &Scope, id: VmId, request: ReinstallVm) -> Result<VmWithDisks> {
    let verb = Verb::Reinstall;
    let now = vms.clock().now();
    let mut tx = vms.db().begin_as(scope).await?;
    let before = store::vm::find_in(&mut tx, scope.into(), id).await?.ok_or_else(vm_not_found)?;
    let image = image(&mut tx, scope.into(), &request.image_id, &before.region_id).await?;
    let mut disks = store::disk::of_vm(&mut tx, id).await?;
    refuse_in_store(&disks, verb)?;
    let root = disks.iter_mut().find(|disk| disk.kind == DiskKind::Root);
    let root = root.ok_or_else(|| Error::internal("a VM without a root disk"))?;
    if root.extent.wanted_gb.saturating_mul(1 << 30) < image.virtual_size {
        let (least, has) = (whole_gib(image.virtual_size), root.extent.wanted_gb);
        let rule = format!("needs a root disk of {least} GiB, and the VM's has {has}; resize that first");
        return Err(Error::field("image_id", rule));
    }
    let Some(next) = on_verb(verb, before.status)? else {
        return Ok(VmWithDisks { vm: before, disks });
    };
    if root.grows() {
        let message = "The VM's root disk is growing. Wait until it has its size, then reinstall the VM.";
        return Err(Error::new(Code::Conflict, message));
    }
    quota::afford(&mut tx, scope, now).await?;
    not_copied(&mut tx, root).await?;
    let was = root.clone();
    // What is there has its place on the host.
    root.status = if was.status == DiskStatus::Ready { DiskStatus::Provisioning } else { DiskStatus::Pending };
    (root.anew, root.message, root.updated_at) = (true, None, now);
    // Its VM makes it.
    (root.snapshot, root.backup, root.work_at) = (None, None, None);
    (root.image_id, root.login_user) = (Some(image.id.clone()), Some(image.login_user.clone()));
    store::disk::update(&mut tx, &was, root).await?;
    told::disk(&mut tx, root, now).await?;
    try_disks_again(&mut tx, &mut disks, now).await?;
    let mut vm = before.clone();
    (vm.image_id, vm.login_user) = (image.id, image.login_user);
    (vm.want, vm.ending, vm.has_memory) = (Want::Run, true, false);
    vm.rescue_user = None;
    vm.enter(next, Some(format!("waiting for a worker to {}", verb.as_str())), now);
    record(&mut tx, Some(&scope.caller), (&before, &vm), verb.as_str(), now).await?;
    tx.commit().await?;
    Ok(VmWithDisks { vm, disks })
}
