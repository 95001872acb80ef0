//! Onto which host a VM goes, and what a host lacks for its disks; sums over rows are the only counters.
//!
//! A disk counts from when it has its place: a worker is to make it by itself, or its VM has reserved. One that merely was
//! asked for takes nothing from anybody, so that a wish that the host cannot hold fails alone.

use berth_domain::host::gpu::Gpu;
use berth_domain::host::placement::{Disk, Kind, Placed, Wish, WishedGpus};
use berth_domain::vm::DiskStatus;
use berth_host::vm::Capacity;

use crate::db::{DbError, Tx};
use crate::services::placement::{self, Now, Refusal};
use crate::services::vm::Vms;
use crate::services::vm::store;
use crate::services::vm::store::vm::VmRow;

/// What the service's own host has at this moment for a VM.
pub(super) struct Own<'a> {
    /// What it has in all.
    pub capacity: Capacity,
    /// Its GPUs, where the VM is to have some.
    pub gpus: &'a [Gpu],
    /// What it lacks of addresses and ports, as a sentence.
    pub lacks_network: Option<&'a str>,
}

/// The host for a VM and for those of its disks that are not made yet, or why none takes it.
pub(super) async fn place(
    tx: &mut Tx,
    vm: &VmRow,
    own: Own<'_>,
    vms: &Vms,
) -> Result<Result<Placed, Refusal>, DbError> {
    let gpus = match gpus(vm, vms) {
        Ok(gpus) => gpus,
        Err(missing) => return Ok(Err(Refusal::everywhere(missing))),
    };
    let disks = store::disk::of_vm(&mut *tx, vm.id).await?;
    let unmade = disks.iter().filter(|disk| disk.status == DiskStatus::Pending).map(|disk| disk.extent.wanted_gb).sum();
    let disk_gb = Some(unmade).filter(|unmade| *unmade > 0);
    let disk = if disk_gb.is_some() { disk_of(&mut *tx, &vm.region_id, own.capacity).await? } else { Disk::default() };
    let wish = Wish {
        kind: Kind::Vm,
        vcpu: vm.vcpu,
        memory_mb: vm.memory_mb,
        most: 1,
        disk_gb,
        gpus,
        region: Some(&vm.region_id),
        labels: None,
        needs_layers: false,
        on: vm.machine.host,
    };
    let now = Now {
        vcpu: Some(own.capacity.vcpu),
        memory_mb: own.capacity.memory_mb,
        most_sandboxes: None,
        disk,
        gpus: own.gpus,
        lacks_network: own.lacks_network,
    };
    placement::place(tx, vms.host(), &wish, &now, vms.overcommit()).await
}

/// What a VM is to have of GPUs, or why it cannot be said any more.
fn gpus<'a>(vm: &VmRow, vms: &'a Vms) -> Result<Option<WishedGpus<'a>>, String> {
    let Some(count) = usize::try_from(vm.gpu_config_count).ok().filter(|count| *count > 0) else {
        return Ok(None);
    };
    match vms.catalog().vm_config(&vm.vm_config_id).and_then(|config| config.gpu_model.as_deref()) {
        Some(model) => Ok(Some(WishedGpus { model, count })),
        None => Err(format!("this region has no GPUs for the size {} any more", vm.vm_config_id)),
    }
}

/// What the host lacks for so many GiB of disks and snapshots that are not made yet. Disks that are there fit, whatever is said of the
/// host by now.
pub(super) async fn shortage_of_disk(
    tx: &mut Tx,
    region: &str,
    unmade_gb: i64,
    capacity: Capacity,
) -> Result<Option<String>, DbError> {
    if unmade_gb == 0 {
        return Ok(None);
    }
    let disk = disk_of(tx, region, capacity).await?;
    Ok(disk.lacks(Kind::Vm, unmade_gb).map(|why| why.for_owner()))
}

/// What there is of the host's disk.
async fn disk_of(tx: &mut Tx, region: &str, capacity: Capacity) -> Result<Disk, DbError> {
    let placed = store::disk::placed_gb(&mut *tx, region).await?
        + store::disk_snapshot::placed_gb(&mut *tx, region).await?
        + store::project_image::placed_gb(&mut *tx, region).await?;
    Ok(Disk { is_full: !capacity.disk_free, sizes: Some((capacity.disk_gb, placed)) })
}
