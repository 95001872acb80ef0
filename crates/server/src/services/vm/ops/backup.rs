//! Verbs on backups. Each is a wish: a backup begins with a hidden snapshot, which the owner of the disk makes.

use berth_domain::ids::{BackupId, BackupScheduleId};
use berth_domain::vm::backup::{CreateBackup, RestoreBackup, Target, on_create, on_restore};
use berth_domain::vm::brought_disk::Origin;
use berth_domain::vm::{BackupStatus, DiskStatus};
use berth_domain::{Code, Error, Result, Timestamp};
use uuid::Uuid;

use super::disk_snapshot;
use super::holder::wake_owner;
use super::vm::new_disk;
use super::vm_not_found;
use crate::db::audit::{Actor, Audit};
use crate::db::usage::Held;
use crate::db::{Signal, Tx, event};
use crate::http::auth::{Caller, Scope, Who, administrators_only};
use crate::http::idempotency::{Idempotency, Outcome};
use crate::services::depot::Depot;
use crate::services::quota;
use crate::services::vm::store::Tenant;
use crate::services::vm::store::backup::BackupRow;
use crate::services::vm::store::brought_disk::BroughtDiskRow;
use crate::services::vm::store::disk::DiskRow;
use crate::services::vm::store::disk_snapshot::DiskSnapshotRow;
use crate::services::vm::wire::backup::{BackupView, MadeBackupsView, RestoredView};
use crate::services::vm::{Vms, store, told};

/// The 404 of a backup.
pub fn not_found() -> Error {
    Error::new(Code::BackupNotFound, "There is no such backup in this project.")
}

/// Where backups are kept; 409 on a platform that keeps none.
pub(super) fn depot(vms: &Vms) -> Result<&Depot<BackupId>> {
    let depot = vms.depot().ok_or_else(|| {
        Error::new(
            Code::NotSupported,
            "This platform keeps no backups. Its operator names a place for them in the configuration, as \
             [backups] folder = \"/srv/backups\", or a bucket of S3, and starts the service again.",
        )
    })?;
    if depot.is_gone() {
        return Err(Error::new(
            Code::NotSupported,
            "The store of backups is not in its place, as a share that is not mounted. Its operator mounts it; where the \
             place is to be used as it is, the log of the service says what to type.",
        ));
    }
    Ok(depot)
}

/// Records the wish for a backup of a disk, or of each disk of a VM.
pub async fn create(
    vms: &Vms,
    scope: &Scope,
    request: CreateBackup,
    key: Idempotency,
) -> Result<Outcome<MadeBackupsView>> {
    let now = vms.clock().now();
    let mut tx = vms.db().begin_as(scope).await?;
    if let Some(replayed) = key.replay(&mut tx, now).await? {
        return Ok(replayed);
    }
    let disks = disks(&mut tx, scope.into(), request.of).await?;
    for disk in &disks {
        on_create(disk.status, request.of.field(), disk.id)?;
    }
    depot(vms)?;
    quota::admit(&mut tx, scope, held(&disks), now).await?;
    let mut views = Vec::new();
    for disk in &disks {
        let name = request.name.as_ref().map_or(disk.name.as_str(), |name| name.as_str());
        let backup = make(&mut tx, disk, (name, None), now).await?;
        record(&mut tx, Some(&scope.caller), &backup, "create").await?;
        views.push(BackupView::from(&backup));
    }
    let location = views.first().map(|view| view.location(scope)).unwrap_or_default();
    let view = MadeBackupsView::of(views, matches!(request.of, Target::Vm(_)));
    let view = view.ok_or_else(|| Error::internal("no backup was made"))?;
    let outcome = key.created(&mut tx, now, location, view).await?;
    tx.commit().await?;
    Ok(outcome)
}

/// What backups of these disks add to a project, at most.
pub(in crate::services::vm) fn held(disks: &[DiskRow]) -> Held {
    let disk_gb = disks.iter().map(|disk| disk.extent.wanted_gb).sum();
    Held { disks: i64::try_from(disks.len()).unwrap_or(i64::MAX), disk_gb, ..Held::default() }
}

/// The disks that a request names.
pub(super) async fn disks(tx: &mut Tx, tenant: Tenant, of: Target) -> Result<Vec<DiskRow>> {
    let Target::Disk { id, kind } = of else {
        let disks = disks_of(tx, tenant, of).await?;
        return if disks.is_empty() { Err(vm_not_found()) } else { Ok(disks) };
    };
    let disk = store::disk::find_any_in(tx, tenant, id).await?.ok_or_else(|| Error {
        code: Code::DiskNotFound,
        ..Error::field(of.field(), format!("there is no disk {id} in this project"))
    })?;
    if disk.kind != kind {
        return Err(Error::field(of.field(), format!("{id} is a {} disk", disk.kind)));
    }
    Ok(vec![disk])
}

/// The disks of a target as far as they are there: none of one that is gone.
pub(in crate::services::vm) async fn disks_of(tx: &mut Tx, tenant: Tenant, of: Target) -> Result<Vec<DiskRow>> {
    match of {
        Target::Disk { id, kind } => {
            let disk = store::disk::find_any_in(tx, tenant, id).await?;
            let is_there = |disk: &DiskRow| disk.kind == kind && disk.status != DiskStatus::Deleting;
            Ok(disk.filter(is_there).into_iter().collect())
        }
        Target::Vm(id) => match store::vm::find_in(tx, tenant, id).await? {
            Some(vm) => Ok(store::disk::of_vm(tx, vm.id).await?),
            None => Ok(Vec::new()),
        },
    }
}

/// Writes a backup of a disk, called so and wished by a schedule or nobody's, and the hidden snapshot that it is made from.
pub(in crate::services::vm) async fn make(
    tx: &mut Tx,
    disk: &DiskRow,
    (name, schedule): (&str, Option<BackupScheduleId>),
    now: Timestamp,
) -> Result<BackupRow> {
    let snapshot = DiskSnapshotRow { hidden: true, ..disk_snapshot::new(disk, name, now) };
    store::disk_snapshot::insert(tx, &snapshot).await?;
    tx.signal(Signal::Work("disk_snapshots"));
    let backup = BackupRow {
        id: BackupId(Uuid::now_v7()),
        org: disk.org,
        project: disk.project,
        name: name.to_owned(),
        disk: disk.id,
        kind: disk.kind,
        disk_type: disk.disk_type,
        size_gb: snapshot.size_gb,
        region_id: disk.region_id.clone(),
        image_id: disk.image_id.clone(),
        login_user: disk.login_user.clone(),
        plan_id: disk.plan_id.clone(),
        schedule,
        snapshot: Some(snapshot.id),
        store: None,
        parts: None,
        size_bytes: None,
        sha256: None,
        status: BackupStatus::Pending,
        message: Some("waiting for the disk to be copied".into()),
        begun_at: None,
        work_at: Some(now),
        created_at: now,
        updated_at: now,
        deleted_at: None,
    };
    store::backup::insert(tx, &backup).await?;
    // What was written of it just now is what another backup of the same VM begins with.
    let fresh = store::disk::load(&mut *tx, disk.id).await?;
    wake_owner(tx, fresh.as_ref().unwrap_or(disk), now).await?;
    Ok(backup)
}

/// Records the wish to delete a backup. One that is being made is given up. One that an administrator has forgotten goes without
/// its store, where whatever lies there stays.
pub async fn delete(vms: &Vms, scope: &Scope, id: BackupId, forget: bool) -> Result<()> {
    if forget && !matches!(scope.caller.who, Who::Person { is_admin: true, .. }) {
        return Err(administrators_only());
    }
    let now = vms.clock().now();
    let mut tx = vms.db().begin_as(scope).await?;
    let before = store::backup::find(&mut tx, scope.into(), id).await?.ok_or_else(not_found)?;
    if before.status == BackupStatus::Deleting && !forget {
        return Ok(());
    }
    if let Some(brought) = store::brought_disk::of_backup(&mut tx, id).await? {
        let message = format!("The disk {} is being made of this backup. Wait until it is, or delete it.", brought.id);
        return Err(Error::new(Code::Conflict, message));
    }
    let mut row = doomed(&before, now);
    if forget {
        row.begun_at = None;
    }
    store::backup::update(&mut tx, &before, &row).await?;
    record(&mut tx, Some(&scope.caller), &row, "delete").await?;
    Ok(tx.commit().await?)
}

/// A backup that is to go from now on.
pub(in crate::services::vm) fn doomed(backup: &BackupRow, now: Timestamp) -> BackupRow {
    let status = BackupStatus::Deleting;
    BackupRow { status, message: None, work_at: Some(now), updated_at: now, ..backup.clone() }
}

/// Records the wish for a new disk with what a backup has. No disk that is there changes.
pub async fn restore(
    vms: &Vms,
    scope: &Scope,
    (id, request): (BackupId, RestoreBackup),
    key: Idempotency,
) -> Result<Outcome<RestoredView>> {
    let now = vms.clock().now();
    let mut tx = vms.db().begin_as(scope).await?;
    if let Some(replayed) = key.replay(&mut tx, now).await? {
        return Ok(replayed);
    }
    let backup = store::backup::find(&mut tx, scope.into(), id).await?.ok_or_else(not_found)?;
    on_restore(backup.status, id)?;
    if backup.store.as_deref() != Some(depot(vms)?.name()) {
        let message = "The backup lies in another store than the one that the platform has now. Ask its operator.";
        return Err(Error::new(Code::NotSupported, message));
    }
    let name = request.name.as_ref().map_or(backup.name.as_str(), |name| name.as_str());
    let disk = restored(scope, &backup, name, now);
    quota::admit(&mut tx, scope, Held { disks: 1, disk_gb: backup.size_gb, ..Held::default() }, now).await?;
    store::disk::insert(&mut tx, &disk).await?;
    store::brought_disk::insert(&mut tx, &BroughtDiskRow::of(&disk, Origin::Backup(id), now)).await?;
    created(&mut tx, scope, (&disk, id)).await?;
    let view = RestoredView::from(&disk);
    let outcome = key.created(&mut tx, now, view.location(scope, disk.id), view).await?;
    tx.commit().await?;
    Ok(outcome)
}

/// The disk that is to be made of a backup.
fn restored(scope: &Scope, backup: &BackupRow, name: &str, now: Timestamp) -> DiskRow {
    DiskRow {
        kind: backup.kind,
        image_id: backup.image_id.clone(),
        login_user: backup.login_user.clone(),
        plan_id: backup.plan_id.clone(),
        backup: Some(backup.id),
        message: Some("waiting for a worker".into()),
        ..new_disk(scope, &backup.region_id, name, backup.disk_type, backup.size_gb, now)
    }
}

async fn created(tx: &mut Tx, scope: &Scope, (disk, backup): (&DiskRow, BackupId)) -> Result<()> {
    let (disk_id, backup_id, mut data) = (disk.id.to_string(), backup.to_string(), told::data(disk));
    data["disk_id"] = disk_id.as_str().into();
    data["backup_id"] = backup_id.as_str().into();
    let audit = scope.audit("backup.restore", &backup_id);
    Audit { data: data.clone(), ..audit }.write(tx, disk.created_at).await?;
    Ok(event::emit(tx, disk.project, "disk.created", &disk_id, &data, disk.created_at).await?)
}

/// Writes audit record and event of a backup, and wakes the worker; without a caller it is the platform's own.
pub(in crate::services::vm) async fn record(
    tx: &mut Tx,
    by: Option<&Caller>,
    backup: &BackupRow,
    action: &str,
) -> Result<()> {
    let (subject, data) = (backup.id.to_string(), told::backup_data(backup));
    let audit = Audit {
        org: Some(backup.org),
        project: Some(backup.project),
        actor: by.map_or(Actor::Platform, Caller::actor),
        request_id: by.map_or("", |caller| &caller.request_id),
        from: by.and_then(|caller| caller.from),
        action: &format!("backup.{action}"),
        subject: &subject,
        data: data.clone(),
    };
    audit.write(tx, backup.updated_at).await?;
    let kind = if action == "create" { "backup.created" } else { "backup.status" };
    event::emit(tx, backup.project, kind, &subject, &data, backup.updated_at).await?;
    tx.signal(Signal::Work(store::backup::TABLE));
    Ok(())
}
