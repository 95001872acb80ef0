//! Rows of schedules of backups.

use berth_domain::Timestamp;
use berth_domain::ids::{BackupScheduleId, OrgId, Owner, ProjectId};
use berth_domain::vm::DiskKind;
use berth_domain::vm::backup::Target;

use super::Tenant;
use crate::columns;
use crate::db::listing::{Listed, Listing};
use crate::db::record::{self, Columns};
use crate::db::{Db, DbError, FromRow, On, Row, Signal, Tx, due, page_of, sql};

/// The table.
pub const TABLE: &str = "backup_schedules";

/// A schedule as its row has it.
#[derive(Clone, Debug)]
pub struct BackupScheduleRow {
    /// Its id.
    pub id: BackupScheduleId,
    /// The organization.
    pub org: OrgId,
    /// The project.
    pub project: ProjectId,
    /// Its name.
    pub name: String,
    /// Of what it makes backups, which may be gone.
    pub of: Target,
    /// When, as it was written.
    pub every: String,
    /// How many of each disk it keeps.
    pub keep: i64,
    /// Whether it makes any.
    pub enabled: bool,
    /// From when spans are counted.
    pub anchor_at: Timestamp,
    /// When it was time last.
    pub last_at: Option<Timestamp>,
    /// When it is time next; none while it makes none.
    pub next_at: Option<Timestamp>,
    /// Why it made none the last time.
    pub message: Option<String>,
    /// When the worker is to look at it.
    pub work_at: Option<Timestamp>,
    /// Creation.
    pub created_at: Timestamp,
    /// Last change.
    pub updated_at: Timestamp,
    /// Deletion.
    pub deleted_at: Option<Timestamp>,
}

impl FromRow for BackupScheduleRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self {
            id: row.parsed("id")?,
            org: row.parsed("org_id")?,
            project: row.parsed("project_id")?,
            name: row.text("name")?,
            of: target(row)?,
            every: row.text("every")?,
            keep: row.int("keep")?,
            enabled: row.flag("enabled")?,
            anchor_at: row.time("anchor_at")?,
            last_at: row.opt_time("last_at")?,
            next_at: row.opt_time("next_at")?,
            message: row.opt_text("message")?,
            work_at: row.opt_time("work_at")?,
            created_at: row.time("created_at")?,
            updated_at: row.time("updated_at")?,
            deleted_at: row.opt_time("deleted_at")?,
        })
    }
}

impl BackupScheduleRow {
    /// Whether it is time.
    pub fn is_due(&self, now: Timestamp) -> bool {
        self.enabled && self.next_at.is_some_and(|at| at <= now)
    }
}

fn target(row: &Row) -> Result<Target, DbError> {
    let disk = row.opt_parsed("disk_id")?.zip(row.opt_word("kind", DiskKind::parse)?);
    match disk {
        Some((id, kind)) => Ok(Target::Disk { id, kind }),
        None => row.parsed("vm_id").map(Target::Vm),
    }
}

fn columns(schedule: &BackupScheduleRow) -> Columns {
    let (disk, kind, vm) = match schedule.of {
        Target::Disk { id, kind } => (Some(id), Some(kind.as_str()), None),
        Target::Vm(vm) => (None, None, Some(vm)),
    };
    columns! {
        "id": schedule.id, "org_id": schedule.org, "project_id": schedule.project, "name": &schedule.name,
        "disk_id": disk, "kind": kind, "vm_id": vm, "every": &schedule.every, "keep": schedule.keep,
        "enabled": schedule.enabled, "anchor_at": schedule.anchor_at, "last_at": schedule.last_at,
        "next_at": schedule.next_at, "message": schedule.message.clone(), "work_at": schedule.work_at,
        "created_at": schedule.created_at, "updated_at": schedule.updated_at, "deleted_at": schedule.deleted_at,
    }
}

/// Writes a new row.
pub async fn insert(tx: &mut Tx, schedule: &BackupScheduleRow) -> Result<(), DbError> {
    record::insert(TABLE, columns(schedule)).execute(tx).await?;
    tx.signal(Signal::Work(TABLE));
    Ok(())
}

/// Writes a change of a row.
pub async fn update(tx: &mut Tx, before: &BackupScheduleRow, after: &BackupScheduleRow) -> Result<(), DbError> {
    record::update(tx, TABLE, &columns(before), columns(after)).await?;
    tx.signal(Signal::Work(TABLE));
    Ok(())
}

/// A tenant's schedule.
pub async fn find(on: impl On, tenant: Tenant, id: BackupScheduleId) -> Result<Option<BackupScheduleRow>, DbError> {
    sql("SELECT * FROM backup_schedules WHERE id = $1 AND project_id = $2 AND deleted_at IS NULL")
        .bind(id)
        .bind(tenant.project)
        .fetch_optional(on)
        .await
}

/// Any schedule that is not gone: for the worker.
pub async fn load(on: impl On, id: BackupScheduleId) -> Result<Option<BackupScheduleRow>, DbError> {
    sql("SELECT * FROM backup_schedules WHERE id = $1 AND deleted_at IS NULL").bind(id).fetch_optional(on).await
}

/// How many a tenant has.
pub async fn count(tx: &mut Tx, tenant: Tenant) -> Result<i64, DbError> {
    sql("SELECT COUNT(*) FROM backup_schedules WHERE project_id = $1 AND deleted_at IS NULL")
        .bind(tenant.project)
        .fetch_one(tx)
        .await
}

/// Has the worker look at a schedule, one of whose backups is made or gone.
pub async fn wake(tx: &mut Tx, id: BackupScheduleId, now: Timestamp) -> Result<(), DbError> {
    sql("UPDATE backup_schedules SET work_at = $2 WHERE id = $1 AND deleted_at IS NULL")
        .bind(id)
        .bind(now)
        .execute(tx)
        .await?;
    tx.signal(Signal::Work(TABLE));
    Ok(())
}

/// By what a list of schedules can be narrowed and ordered.
pub const LISTED: Listed = Listed {
    id: "backup_schedules.id",
    created: "backup_schedules.created_at",
    name: Some("backup_schedules.name"),
    status: None,
    labels: None,
};

/// A page of a tenant's schedules, and how many there are.
pub async fn list(db: &Db, tenant: Tenant, listing: &Listing) -> Result<(Vec<BackupScheduleRow>, i64), DbError> {
    page_of("*", "backup_schedules WHERE project_id = $1 AND deleted_at IS NULL")
        .bind(tenant.project)
        .list(db, &LISTED, listing)
        .await
}

/// Schedules that want work, organizations in turn, and when the next one does.
pub async fn due(db: &Db, now: Timestamp, limit: usize) -> Result<due::Due<BackupScheduleId>, DbError> {
    due::of_projects(db, TABLE, now, limit).await
}

/// Whose a schedule is.
pub async fn owner(db: &Db, id: BackupScheduleId) -> Result<Option<Owner>, DbError> {
    due::owner(db, TABLE, id).await
}

/// Whether a project has any.
pub async fn any(tx: &mut Tx, project: ProjectId) -> Result<bool, DbError> {
    let n: i64 = sql("SELECT COUNT(*) FROM backup_schedules WHERE project_id = $1 AND deleted_at IS NULL")
        .bind(project)
        .fetch_one(tx)
        .await?;
    Ok(n > 0)
}

/// Whether an organization is suspended, whose schedules stand still then.
pub async fn is_suspended(on: impl On, org: OrgId) -> Result<bool, DbError> {
    let found: i64 =
        sql("SELECT COUNT(*) FROM orgs WHERE id = $1 AND suspended_at IS NOT NULL").bind(org).fetch_one(on).await?;
    Ok(found > 0)
}

/// When the last backup that each schedule has was made, 1970 for those without one. Schedules that make none are left out:
/// those that are off, and those of organizations that are suspended.
pub async fn last_made(db: &Db) -> Result<Vec<(BackupScheduleId, Timestamp)>, DbError> {
    let rows: Vec<LastRow> =
        sql("SELECT s.id AS id, MAX(b.updated_at) AS at FROM backup_schedules s JOIN orgs o ON o.id = s.org_id \
         LEFT JOIN backups b ON b.schedule_id = s.id AND b.deleted_at IS NULL AND b.status = 'ready' \
         WHERE s.deleted_at IS NULL AND s.enabled = 1 AND o.suspended_at IS NULL GROUP BY s.id ORDER BY s.id")
        .fetch_all(db)
        .await?;
    Ok(rows.into_iter().map(|LastRow(id, at)| (id, at)).collect())
}

struct LastRow(BackupScheduleId, Timestamp);

impl FromRow for LastRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self(row.parsed("id")?, row.opt_time("at")?.unwrap_or(Timestamp(0))))
    }
}
