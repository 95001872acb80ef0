//! Verbs on schedules of backups.

use berth_domain::ids::BackupScheduleId;
use berth_domain::vm::DiskStatus;
use berth_domain::vm::backup::{Target, on_create};
use berth_domain::vm::backup_schedule::{CreateSchedule, Every, MOST, UpdateSchedule};
use berth_domain::{Code, Error, Result, Timestamp};
use uuid::Uuid;

use super::backup::{depot, disks};
use crate::db::audit::{Actor, Audit};
use crate::db::{Tx, event};
use crate::http::auth::{Caller, Scope};
use crate::http::idempotency::{Idempotency, Outcome};
use crate::services::quota::require_project;
use crate::services::vm::store::backup_schedule::BackupScheduleRow;
use crate::services::vm::store::disk::DiskRow;
use crate::services::vm::wire::backup_schedule::BackupScheduleView;
use crate::services::vm::{Vms, store, told};

/// The 404 of a schedule.
pub fn not_found() -> Error {
    Error::new(Code::BackupScheduleNotFound, "There is no such schedule of backups in this project.")
}

/// Makes a schedule.
pub async fn create(
    vms: &Vms,
    scope: &Scope,
    request: CreateSchedule,
    key: Idempotency,
) -> Result<Outcome<BackupScheduleView>> {
    let now = vms.clock().now();
    let mut tx = vms.db().begin_as(scope).await?;
    if let Some(replayed) = key.replay(&mut tx, now).await? {
        return Ok(replayed);
    }
    require_project(&mut tx, scope).await?;
    require_target(&mut tx, scope, request.of).await?;
    depot(vms)?;
    let has = store::backup_schedule::count(&mut tx, scope.into()).await?;
    if usize::try_from(has).unwrap_or(MOST) >= MOST {
        let message = format!("A project has at most {MOST} schedules of backups. Delete one.");
        return Err(Error::new(Code::Conflict, message));
    }
    let next_at = if request.enabled { Some(next(&request.when, now, now)?) } else { None };
    let row = BackupScheduleRow {
        id: BackupScheduleId(Uuid::now_v7()),
        org: scope.org,
        project: scope.project,
        name: request.name.as_str().to_owned(),
        of: request.of,
        every: request.every,
        keep: request.keep,
        enabled: request.enabled,
        anchor_at: now,
        last_at: None,
        next_at,
        message: None,
        work_at: next_at,
        created_at: now,
        updated_at: now,
        deleted_at: None,
    };
    store::backup_schedule::insert(&mut tx, &row).await?;
    record(&mut tx, Some(&scope.caller), &row, "create").await?;
    let view = BackupScheduleView::from(&row);
    let outcome = key.created(&mut tx, now, view.location(scope), view).await?;
    tx.commit().await?;
    Ok(outcome)
}

/// Refuses what is not there, or is about to go; a disk that is not ready yet will be when it is time.
async fn require_target(tx: &mut Tx, scope: &Scope, of: Target) -> Result<()> {
    let disks = disks(tx, scope.into(), of).await?;
    let going = |disk: &&DiskRow| matches!(of, Target::Disk { .. }) && disk.status == DiskStatus::Deleting;
    disks.iter().find(going).map_or(Ok(()), |disk| on_create(disk.status, of.field(), disk.id))
}

/// The time after now.
fn next(when: &Every, anchor: Timestamp, now: Timestamp) -> Result<Timestamp> {
    when.next(anchor, now).ok_or_else(|| Error::field("every", "names a time that never comes"))
}

/// Changes a schedule. New times count from now, and so do those of one that makes backups again.
pub async fn update(
    vms: &Vms,
    scope: &Scope,
    (id, change): (BackupScheduleId, UpdateSchedule),
) -> Result<BackupScheduleRow> {
    let now = vms.clock().now();
    let mut tx = vms.db().begin_as(scope).await?;
    let before = store::backup_schedule::find(&mut tx, scope.into(), id).await?.ok_or_else(not_found)?;
    let mut row = before.clone();
    row.name = change.name.map_or(row.name, |name| name.as_str().to_owned());
    row.keep = change.keep.unwrap_or(row.keep);
    row.enabled = change.enabled.unwrap_or(row.enabled);
    let anew = change.every.is_some() || row.enabled != before.enabled;
    if let Some((every, _)) = change.every {
        row.every = every;
    }
    if anew {
        let when = Every::parse(&row.every).map_err(Error::internal)?;
        (row.anchor_at, row.message) = (now, None);
        row.next_at = if row.enabled { Some(next(&when, now, now)?) } else { None };
    }
    // Fewer may be kept from now on.
    (row.work_at, row.updated_at) = (Some(now), now);
    store::backup_schedule::update(&mut tx, &before, &row).await?;
    record(&mut tx, Some(&scope.caller), &row, "update").await?;
    tx.commit().await?;
    Ok(row)
}

/// Ends a schedule. The backups that it made stay.
pub async fn delete(vms: &Vms, scope: &Scope, id: BackupScheduleId) -> Result<()> {
    let now = vms.clock().now();
    let mut tx = vms.db().begin_as(scope).await?;
    let before = store::backup_schedule::find(&mut tx, scope.into(), id).await?.ok_or_else(not_found)?;
    let row = BackupScheduleRow {
        enabled: false,
        next_at: None,
        work_at: None,
        updated_at: now,
        deleted_at: Some(now),
        ..before.clone()
    };
    store::backup_schedule::update(&mut tx, &before, &row).await?;
    record(&mut tx, Some(&scope.caller), &row, "delete").await?;
    Ok(tx.commit().await?)
}

/// Writes audit record and event of a schedule; without a caller it is the platform's own.
pub(in crate::services::vm) async fn record(
    tx: &mut Tx,
    by: Option<&Caller>,
    schedule: &BackupScheduleRow,
    action: &str,
) -> Result<()> {
    let (subject, data) = (schedule.id.to_string(), told::schedule_data(schedule));
    let audit = Audit {
        org: Some(schedule.org),
        project: Some(schedule.project),
        actor: by.map_or(Actor::Platform, Caller::actor),
        request_id: by.map_or("", |caller| &caller.request_id),
        from: by.and_then(|caller| caller.from),
        action: &format!("backup_schedule.{action}"),
        subject: &subject,
        data: data.clone(),
    };
    audit.write(tx, schedule.updated_at).await?;
    let kind = match action {
        "create" => "backup_schedule.created",
        "delete" => "backup_schedule.deleted",
        _ => "backup_schedule.updated",
    };
    Ok(event::emit(tx, schedule.project, kind, &subject, &data, schedule.updated_at).await?)
}
