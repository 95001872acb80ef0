//! Verbs on snapshots of disks. Each is a wish, which the owner of the disk carries out.

use berth_domain::ids::DiskSnapshotId;
use berth_domain::vm::disk_snapshot::{CreateDiskSnapshot, Wanted, on_create, on_use};
use berth_domain::vm::request::NewDisk;
use berth_domain::vm::{DiskKind, DiskSnapshotStatus, DiskStatus};
use berth_domain::{Code, Error, Result, Timestamp};
use uuid::Uuid;

use super::holder::wake_owner;
use crate::db::audit::Audit;
use crate::db::usage::Held;
use crate::db::{Signal, Tx, event};
use crate::http::auth::Scope;
use crate::http::idempotency::{Idempotency, Outcome};
use crate::services::quota;
use crate::services::vm::store::Tenant;
use crate::services::vm::store::disk::DiskRow;
use crate::services::vm::store::disk_snapshot::DiskSnapshotRow;
use crate::services::vm::wire::disk_snapshot::DiskSnapshotView;
use crate::services::vm::{Vms, store, told};

/// The 404 of a snapshot.
pub fn not_found() -> Error {
    Error::new(Code::SnapshotNotFound, "There is no such snapshot in this project.")
}

/// Records the wish for a snapshot.
pub async fn create(
    vms: &Vms,
    scope: &Scope,
    request: CreateDiskSnapshot,
    key: Idempotency,
) -> Result<Outcome<DiskSnapshotView>> {
    let now = vms.clock().now();
    let mut tx = vms.db().begin_as(scope).await?;
    if let Some(replayed) = key.replay(&mut tx, now).await? {
        return Ok(replayed);
    }
    let disk = disk(&mut tx, scope, &request).await?;
    let wanted = Held { disks: 1, disk_gb: disk.extent.wanted_gb, ..Held::default() };
    quota::admit(&mut tx, scope, wanted, now).await?;
    let name = request.name.as_ref().map_or(disk.name.as_str(), |name| name.as_str());
    let snapshot = new(&disk, name, now);
    store::disk_snapshot::insert(&mut tx, &snapshot).await?;
    record(&mut tx, scope, &snapshot, "create").await?;
    wake_owner(&mut tx, &disk, now).await?;
    let view = DiskSnapshotView::from(&snapshot);
    let outcome = key.created(&mut tx, now, view.location(scope), view).await?;
    tx.commit().await?;
    Ok(outcome)
}

/// The disk that a request names.
async fn disk(tx: &mut Tx, scope: &Scope, request: &CreateDiskSnapshot) -> Result<DiskRow> {
    let (field, id) = (request.field(), request.disk);
    let disk = store::disk::find_any_in(tx, scope.into(), id).await?.ok_or_else(|| Error {
        code: Code::DiskNotFound,
        ..Error::field(field, format!("there is no disk {id} in this project"))
    })?;
    if (disk.kind == DiskKind::Root) != request.is_root {
        return Err(Error::field(field, format!("{id} is a {} disk", disk.kind)));
    }
    on_create(disk.status, field, id)?;
    Ok(disk)
}

/// A new snapshot of a disk, not yet made.
pub(super) fn new(disk: &DiskRow, name: &str, now: Timestamp) -> DiskSnapshotRow {
    DiskSnapshotRow {
        id: DiskSnapshotId(Uuid::now_v7()),
        org: disk.org,
        project: disk.project,
        hidden: false,
        name: name.to_owned(),
        disk: disk.id,
        kind: disk.kind,
        disk_type: disk.disk_type,
        // A growth may be under way, of which its row does not know yet.
        size_gb: disk.extent.wanted_gb,
        bytes: None,
        region_id: disk.region_id.clone(),
        store: disk.store.clone(),
        host: None,
        image_id: disk.image_id.clone(),
        login_user: disk.login_user.clone(),
        image: None,
        status: DiskSnapshotStatus::Pending,
        message: None,
        begun_at: None,
        look_at: None,
        work_at: None,
        created_at: now,
        updated_at: now,
        deleted_at: None,
    }
}

/// Refuses a disk that is at rest and being copied: who copies it and who has it next would not take turns.
pub(super) async fn not_copied(tx: &mut Tx, disk: &DiskRow) -> Result<()> {
    match store::disk_snapshot::open_of_disk(&mut *tx, disk.id).await?.first() {
        Some(copy) => {
            let backup = if copy.hidden { store::backup::of_copy(&mut *tx, copy.id).await? } else { None };
            let into = match (copy.image, backup) {
                (Some(image), _) => format!("image {image}"),
                (None, Some(backup)) => format!("backup {}", backup.id),
                (None, None) => format!("snapshot {}", copy.id),
            };
            let message = format!("The disk {} is being copied into the {into}. Wait until that is ready.", disk.id);
            Err(Error::new(Code::DiskInUse, message))
        }
        None => Ok(()),
    }
}

/// The snapshot that a disk is to be made of, which may be.
pub(super) async fn source(
    tx: &mut Tx,
    tenant: Tenant,
    id: DiskSnapshotId,
    wanted: Wanted<'_>,
) -> Result<DiskSnapshotRow> {
    let snapshot = store::disk_snapshot::find(tx, tenant, id).await?.ok_or_else(|| Error {
        code: Code::SnapshotNotFound,
        ..Error::field(wanted.fields.0, format!("there is no snapshot {id} in this project"))
    })?;
    on_use(snapshot.source(), wanted)?;
    Ok(snapshot)
}

/// The snapshot that a data disk is to be made of, if it is to be made of one, which may be. `object` is the part of the request
/// that describes the disk, with a dot behind it.
pub(super) async fn source_of(
    tx: &mut Tx,
    tenant: Tenant,
    disk: &NewDisk,
    region: &str,
    object: &str,
) -> Result<Option<DiskSnapshotRow>> {
    let Some(id) = disk.snapshot_id else { return Ok(None) };
    let field = format!("{object}snapshot_id");
    let of = (DiskKind::Data, disk.kind);
    let wanted = Wanted { of, size_gb: disk.size_gb, region, fields: (&field, object) };
    source(tx, tenant, id, wanted).await.map(Some)
}

/// Records the wish to delete a snapshot. One that is being copied is given up.
pub async fn delete(vms: &Vms, scope: &Scope, id: DiskSnapshotId) -> Result<()> {
    let now = vms.clock().now();
    let mut tx = vms.db().begin_as(scope).await?;
    let before = store::disk_snapshot::find(&mut tx, scope.into(), id).await?.ok_or_else(not_found)?;
    if before.status == DiskSnapshotStatus::Deleting {
        return Ok(());
    }
    if let Some(disk) = store::disk::unmade_of(&mut tx, id).await? {
        let message = if disk.status == DiskStatus::Failed {
            format!("The disk {} is made of this snapshot when its VM is started again. Delete the VM first.", disk.id)
        } else {
            format!("The disk {} is being made of this snapshot. Wait until it is, or delete it.", disk.id)
        };
        return Err(Error::new(Code::Conflict, message));
    }
    let row = DiskSnapshotRow {
        status: DiskSnapshotStatus::Deleting,
        message: None,
        look_at: None,
        work_at: Some(now),
        updated_at: now,
        ..before.clone()
    };
    store::disk_snapshot::update(&mut tx, &before, &row).await?;
    record(&mut tx, scope, &row, "delete").await?;
    if row.is_open()
        && let Some(disk) = store::disk::load(&mut tx, row.disk).await?
    {
        wake_owner(&mut tx, &disk, now).await?;
    }
    Ok(tx.commit().await?)
}

/// Has a hidden copy go from which something was made, or was to be; whoever makes it gives it up.
pub(in crate::services::vm) async fn drop_copy(tx: &mut Tx, id: DiskSnapshotId, now: Timestamp) -> Result<()> {
    let found = store::disk_snapshot::load(&mut *tx, id).await?;
    let gone = [DiskSnapshotStatus::Deleting, DiskSnapshotStatus::Deleted];
    let Some(before) = found.filter(|copy| !gone.contains(&copy.status)) else { return Ok(()) };
    let copy = DiskSnapshotRow {
        status: DiskSnapshotStatus::Deleting,
        look_at: None,
        work_at: Some(now),
        updated_at: now,
        ..before.clone()
    };
    store::disk_snapshot::update(tx, &before, &copy).await?;
    tx.signal(Signal::Work("disk_snapshots"));
    if copy.is_open()
        && let Some(disk) = store::disk::load(&mut *tx, copy.disk).await?
    {
        wake_owner(tx, &disk, now).await?;
    }
    Ok(())
}

async fn record(tx: &mut Tx, scope: &Scope, snapshot: &DiskSnapshotRow, action: &str) -> Result<()> {
    let (subject, data) = (snapshot.id.to_string(), told::snapshot_data(snapshot));
    let audited = format!("disk_snapshot.{action}");
    Audit { data: data.clone(), ..scope.audit(&audited, &subject) }.write(tx, snapshot.updated_at).await?;
    let kind = if action == "create" { "disk_snapshot.created" } else { "disk_snapshot.status" };
    event::emit(tx, scope.project, kind, &subject, &data, snapshot.updated_at).await?;
    tx.signal(Signal::Work("disk_snapshots"));
    Ok(())
}
