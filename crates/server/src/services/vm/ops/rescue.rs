//! A VM that runs a rescue system, from which its owner repairs its own.
//!
//! That it does so is a fact of its row until it is stopped or starts again: a restart and a start lead to its own system, a
//! machine that dies begins with the rescue system again. The user of that is kept with it, since it is another one's.

use berth_domain::ids::VmId;
use berth_domain::vm::model::Want;
use berth_domain::vm::state::{Verb, on_verb};
use berth_domain::vm::{ImageStatus, Status};
use berth_domain::{Code, Error, Result};

use super::vm::{record, refuse_in_store, try_disks_again};
use super::vm_not_found;
use super::with_disks::VmWithDisks;
use crate::http::auth::Scope;
use crate::services::quota;
use crate::services::vm::{Vms, store};

/// The image that is the rescue system: the smallest of the platform's own.
pub const IMAGE: &str = "micro";

/// Records the wish for a rescue system; one that is there or on its way stays.
pub async fn rescue(vms: &Vms, scope: &Scope, id: VmId) -> Result<VmWithDisks> {
    let verb = Verb::Rescue;
    let now = vms.clock().now();
    let mut tx = vms.db().begin_as(scope).await?;
    let before = store::vm::find_in(&mut tx, scope.into(), id).await?.ok_or_else(vm_not_found)?;
    let mut disks = store::disk::of_vm(&mut tx, id).await?;
    refuse_in_store(&disks, verb)?;
    let is_up = matches!(before.status, Status::Running | Status::Starting | Status::Restarting);
    if before.rescue_user.is_some() && is_up {
        return Ok(VmWithDisks { vm: before, disks });
    }
    let Some(next) = on_verb(verb, before.status)? else {
        return Ok(VmWithDisks { vm: before, disks });
    };
    if disks.iter().any(|disk| disk.anew) {
        let message = "The VM's root disk is to be made anew, and a rescue system would find nothing of what comes. Start the \
                       VM, which ends its reinstallation, or reinstall it once more; then try again.";
        return Err(Error::new(Code::Conflict, message));
    }
    let image = store::image::find(&mut tx, IMAGE).await?.filter(|image| image.status == ImageStatus::Ready);
    let missing = || {
        let text = format!("This host has no rescue system: that is the image '{IMAGE}', which its operator builds.");
        Error::new(Code::NotSupported, text)
    };
    let image = image.ok_or_else(missing)?;
    quota::afford(&mut tx, scope, now).await?;
    try_disks_again(&mut tx, &mut disks, now).await?;
    let mut vm = before.clone();
    vm.rescue_user = Some(image.login_user);
    (vm.want, vm.ending) = (Want::Run, true);
    vm.enter(next, Some(format!("waiting for a worker to {}", verb.as_str())), now);
    record(&mut tx, Some(&scope.caller), (&before, &vm), verb.as_str(), now).await?;
    tx.commit().await?;
    Ok(VmWithDisks { vm, disks })
}
