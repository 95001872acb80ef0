//! What the host lacks for what is wanted, as a sentence; sums over rows are the only counters.
//!
//! A disk counts from when it has its place: a worker is to make it by itself, or its VM has reserved. One that merely was
//! asked for takes nothing from anybody, so that a wish that the host cannot hold fails alone.

use berth_domain::host::gpu::{Device, Gpu, choose, shortage};
use berth_domain::host::overcommit::withheld_mb;
use berth_domain::vm::DiskStatus;
use berth_host::vm::Capacity;
use uuid::Uuid;

use crate::db::machine::{self, Room};
use crate::db::machine_gpu;
use crate::db::{DbError, Tx};
use crate::services::vm::Vms;
use crate::services::vm::store;
use crate::services::vm::store::vm::VmRow;

/// Where the host has room for a VM and for those of its disks that are not made yet, or what it lacks. Sandboxes have of
/// the same memory.
pub(super) async fn room(
    tx: &mut Tx,
    vm: &VmRow,
    capacity: Capacity,
    vms: &Vms,
) -> Result<Result<Room, String>, DbError> {
    let overcommit = vms.overcommit();
    let all = machine::held(&mut *tx, vms.host()).await?;
    let (held, others) = (all.vms, all.sandboxes.memory_mb + all.templates.memory_mb);
    let memory_mb = (capacity.memory_mb - withheld_mb(others, overcommit.sandbox, overcommit.vm)).max(0);
    let lacks = [
        lacking(held.vcpu + vm.vcpu, capacity.vcpu, "virtual CPUs", ""),
        lacking(held.memory_mb + vm.memory_mb, memory_mb, "memory", " MiB"),
    ];
    if let Some(missing) = lacks.into_iter().flatten().next() {
        return Ok(Err(missing));
    }
    let beside = capacity.memory_mb - withheld_mb(others + all.warm.memory_mb, overcommit.sandbox, overcommit.vm);
    let room = if held.memory_mb + vm.memory_mb > beside { Room::Instead } else { Room::Beside };
    let disks = store::disk::of_vm(tx, vm.id).await?;
    let unmade = disks.iter().filter(|disk| disk.status == DiskStatus::Pending).map(|disk| disk.extent.wanted_gb).sum();
    let missing = shortage_of_disk(tx, &vm.region_id, unmade, capacity).await?;
    Ok(missing.map_or(Ok(room), Err))
}

/// What a VM is to have of GPUs, or what the host lacks.
pub(super) async fn gpus(
    tx: &mut Tx,
    vm: &VmRow,
    found: &[Gpu],
    vms: &Vms,
) -> Result<Result<Vec<Device>, String>, DbError> {
    let Some(count) = usize::try_from(vm.gpu_config_count).ok().filter(|count| *count > 0) else {
        return Ok(Ok(Vec::new()));
    };
    let Some(model) = vms.catalog().vm_config(&vm.vm_config_id).and_then(|config| config.gpu_model.as_deref()) else {
        return Ok(Err(format!("this region has no GPUs for the size {} any more", vm.vm_config_id)));
    };
    let held = machine_gpu::held(tx, vms.host()).await?;
    Ok(choose(found, &held, model, count, Uuid::now_v7).ok_or_else(|| shortage(found, &held, model, count)))
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
    if !capacity.disk_free {
        return Ok(Some("the host's disk is almost full".to_owned()));
    }
    let placed = store::disk::placed_gb(tx, region).await?
        + store::disk_snapshot::placed_gb(tx, region).await?
        + store::project_image::placed_gb(tx, region).await?;
    Ok(lacking(placed + unmade_gb, capacity.disk_gb, "disk", " GiB"))
}

fn lacking(need: i64, have: i64, what: &str, unit: &str) -> Option<String> {
    (need > have).then(|| format!("this region has {have}{unit} of {what}, and {need}{unit} would be needed"))
}
