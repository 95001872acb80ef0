//! Verbs on root disk volumes and data disks.

use berth_domain::ids::DiskId;
use berth_domain::vm::disk::Move;
use berth_domain::vm::request::{AttachDisk, CreateDisk, MAX_DATA_DISKS, ResizeDisk};
use berth_domain::vm::shared_disk::{Refused, on_attach, on_host};
use berth_domain::vm::{DiskKind, DiskStatus, Extent, Status, disk};
use berth_domain::{Code, Error, Result};

use super::disk_snapshot::{not_copied, source_of};
use super::holder::wake_holder;
use super::vm::{available, new_disk};
use super::{vm_not_found, volume_not_found};
use crate::db::audit::Audit;
use crate::db::usage::Held;
use crate::db::{Signal, Tx, event};
use crate::http::auth::Scope;
use crate::http::idempotency::{Idempotency, Outcome};
use crate::services::quota;
use crate::services::vm::store::disk::DiskRow;
use crate::services::vm::store::vm::VmRow;
use crate::services::vm::wire::disk::DiskView;
use crate::services::vm::{Vms, store, told};

/// Records the wish for a data disk.
pub async fn create(vms: &Vms, scope: &Scope, request: CreateDisk, key: Idempotency) -> Result<Outcome<DiskView>> {
    let now = vms.clock().now();
    let mut tx = vms.db().begin_as(scope).await?;
    if let Some(replayed) = key.replay(&mut tx, now).await? {
        return Ok(replayed);
    }
    require_region(vms, &request.region_id)?;
    let wanted = &request.disk;
    let mut disk = new_disk(scope, &request.region_id, wanted.name.as_str(), wanted.kind, wanted.size_gb, now);
    let store = match source_of(&mut tx, scope.into(), wanted, &request.region_id, "").await? {
        Some(snapshot) => snapshot.lies_in().map(str::to_owned),
        None => vms.store_in(&request.region_id).filter(|_| !request.on_host).map(str::to_owned),
    };
    on_host(request.on_host && wanted.snapshot_id.is_some(), store.as_deref())?;
    disk.store = store;
    (disk.snapshot, disk.work_at) = (wanted.snapshot_id, Some(now));
    quota::admit(&mut tx, scope, Held { disks: 1, disk_gb: wanted.size_gb, ..Held::default() }, now).await?;
    store::disk::insert(&mut tx, &disk).await?;
    record(&mut tx, scope, &disk, "create").await?;
    let view = DiskView::from(&disk);
    let outcome = key.created(&mut tx, now, view.location(scope), view).await?;
    tx.commit().await?;
    Ok(outcome)
}

/// Refuses with 404 a region that the platform does not have.
pub(super) fn require_region(vms: &Vms, region: &str) -> Result<()> {
    match vms.catalog().region(region) {
        Some(_) => Ok(()),
        None => Err(Error::new(Code::RegionNotFound, "There is no such region. GET /api/v1/regions lists them.")),
    }
}

/// Records the wish to delete a disk of a kind.
pub async fn delete(vms: &Vms, scope: &Scope, kind: DiskKind, id: DiskId) -> Result<()> {
    let now = vms.clock().now();
    let mut tx = vms.db().begin_as(scope).await?;
    let before = store::disk::find_in(&mut tx, scope.into(), kind, id).await?.ok_or_else(volume_not_found)?;
    if !disk::on_delete(before.status, before.vm.is_some())? {
        return Ok(());
    }
    let row =
        DiskRow { status: DiskStatus::Deleting, message: None, work_at: Some(now), updated_at: now, ..before.clone() };
    store::disk::update(&mut tx, &before, &row).await?;
    store::brought_disk::wake(&mut tx, id, now).await?;
    record(&mut tx, scope, &row, "delete").await?;
    Ok(tx.commit().await?)
}

/// Records the wish that a disk of a kind be larger. Its VM, where one has it, has it grow.
pub async fn resize(vms: &Vms, scope: &Scope, kind: DiskKind, id: DiskId, request: ResizeDisk) -> Result<DiskRow> {
    let now = vms.clock().now();
    let mut tx = vms.db().begin_as(scope).await?;
    let before = store::disk::find_in(&mut tx, scope.into(), kind, id).await?.ok_or_else(volume_not_found)?;
    disk::on_resize(before.status, before.extent.wanted_gb, request.size_gb)?;
    let holder = match before.vm {
        Some(holder) => store::vm::load(&mut tx, holder).await?,
        None => None,
    };
    if holder.as_ref().is_some_and(|vm| !matches!(vm.status, Status::Stopped | Status::Failed)) {
        Refused::Grow.check(before.store.as_deref())?;
    }
    if holder.is_some_and(|vm| matches!(vm.status, Status::Suspending | Status::Suspended)) {
        return Err(Error::new(
            Code::InvalidStatus,
            "The VM of the disk is suspended, and its memory knows the disks as they are. Resume or stop it, then try again.",
        ));
    }
    let disk_gb = request.size_gb - before.extent.wanted_gb;
    quota::admit(&mut tx, scope, Held { disk_gb, ..Held::default() }, now).await?;
    let mut row = before.clone();
    row.extent = Extent { wanted_gb: request.size_gb, ..before.extent };
    row.message = Some(format!("growing to {} GiB", request.size_gb));
    (row.work_at, row.updated_at) = (Some(now), now);
    store::disk::update(&mut tx, &before, &row).await?;
    record(&mut tx, scope, &row, "resize").await?;
    wake_holder(&mut tx, row.vm, now).await?;
    tx.commit().await?;
    Ok(row)
}

/// Attaches a data disk to a VM: to one that is off from the next start on, to one that runs after the answer.
pub async fn attach(vms: &Vms, scope: &Scope, id: DiskId, request: AttachDisk) -> Result<DiskRow> {
    let now = vms.clock().now();
    let mut tx = vms.db().begin_as(scope).await?;
    let before = store::disk::find_in(&mut tx, scope.into(), DiskKind::Data, id).await?.ok_or_else(volume_not_found)?;
    let vm = store::vm::find_in(&mut tx, scope.into(), request.vm_id).await?.ok_or_else(vm_not_found)?;
    if before.vm == Some(vm.id) {
        return if is_leaving(&before) { Err(leaving(&before)) } else { Ok(before) };
    }
    if before.vm.is_none() && before.status != DiskStatus::Ready {
        return Err(Error::field("disk_id", format!("{id} is {}, not ready", before.status)));
    }
    if before.region_id != vm.region_id {
        return Err(Error::field("vm_id", "the VM lies in another region"));
    }
    available(&before)?;
    not_copied(&mut tx, &before).await?;
    let moving = moving(&vm, Move::In)?.map(|way| (way, now));
    let held = store::disk::of_vm(&mut tx, vm.id).await?;
    on_attach(before.store.as_deref(), held.first().and_then(|disk| disk.store.as_deref()))?;
    if held.len() > MAX_DATA_DISKS {
        return Err(Error::new(Code::Conflict, format!("A VM has at most {MAX_DATA_DISKS} data disks.")));
    }
    let slot = held.iter().map(|d| d.slot).max().unwrap_or_default() + 1;
    // Its own worker brings it to the VM's host, if it lies on another.
    let work_at = if before.is_elsewhere(vm.machine.host) { Some(now) } else { before.work_at };
    let row = DiskRow { vm: Some(vm.id), moving, slot, message: None, work_at, updated_at: now, ..before.clone() };
    store::disk::update(&mut tx, &before, &row).await?;
    record(&mut tx, scope, &row, "attach").await?;
    wake_holder(&mut tx, row.vm, now).await?;
    tx.commit().await?;
    Ok(row)
}

/// Detaches a data disk from its VM: at once from one that is off, after the answer from one that runs, if its guest lets
/// go of the disk.
pub async fn detach(vms: &Vms, scope: &Scope, id: DiskId) -> Result<DiskRow> {
    let now = vms.clock().now();
    let mut tx = vms.db().begin_as(scope).await?;
    let before = store::disk::find_in(&mut tx, scope.into(), DiskKind::Data, id).await?.ok_or_else(volume_not_found)?;
    let Some(holder) = before.vm.filter(|_| !is_leaving(&before)) else { return Ok(before) };
    let vm = store::vm::find_in(&mut tx, scope.into(), holder).await?;
    let moving = vm.as_ref().map(|vm| moving(vm, Move::Out)).transpose()?.flatten().map(|way| (way, now));
    let mut row = DiskRow { moving, message: None, updated_at: now, ..before.clone() };
    if moving.is_none() {
        not_copied(&mut tx, &before).await?;
        row.release(now);
    }
    store::disk::update(&mut tx, &before, &row).await?;
    record(&mut tx, scope, &row, "detach").await?;
    wake_holder(&mut tx, Some(holder), now).await?;
    tx.commit().await?;
    Ok(row)
}

fn is_leaving(disk: &DiskRow) -> bool {
    matches!(disk.moving, Some((Move::Out, _)))
}

fn leaving(disk: &DiskRow) -> Error {
    Error::new(Code::DiskInUse, format!("The disk {} is being detached. Wait until it is, then attach it.", disk.id))
}

/// What a disk does that comes to a VM or leaves it: nothing where the VM is off, since its machine begins with what it has.
fn moving(vm: &VmRow, way: Move) -> Result<Option<Move>> {
    match vm.status {
        Status::Stopped | Status::Failed => Ok(None),
        Status::Running if vm.disk_places > 0 => Ok(Some(way)),
        Status::Running => Err(Error::new(
            Code::NotSupported,
            "The VM was started by an older version, which knows no disks that come and go. Restart it, or stop it first.",
        )),
        Status::Suspended => Err(Error::new(
            Code::InvalidStatus,
            "The VM is suspended, and its memory knows the disks that it has. Resume or stop it, then attach or detach disks.",
        )),
        status => Err(Error::new(
            Code::InvalidStatus,
            format!("The VM is {status}. Wait until it runs or is stopped, then attach or detach disks."),
        )),
    }
}

async fn record(tx: &mut Tx, scope: &Scope, disk: &DiskRow, action: &str) -> Result<()> {
    let subject = disk.id.to_string();
    let data = told::data(disk);
    let audited = format!("disk.{action}");
    Audit { data: data.clone(), ..scope.audit(&audited, &subject) }.write(tx, disk.updated_at).await?;
    let kind = if action == "create" { "disk.created" } else { "disk.status" };
    event::emit(tx, scope.project, kind, &subject, &data, disk.updated_at).await?;
    tx.signal(Signal::Work("disks"));
    Ok(())
}
