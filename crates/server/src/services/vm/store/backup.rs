//! Rows of backups.

use berth_domain::Timestamp;
use berth_domain::ids::{BackupId, BackupScheduleId, DiskId, DiskSnapshotId, OrgId, Owner, ProjectId};
use berth_domain::resource_usage::{Kind, Measure};
use berth_domain::vm::backup_schedule::Made;
use berth_domain::vm::{BackupStatus, DiskKind, DiskType};

use super::Tenant;
use super::vm::StatusCount;
use crate::columns;
use crate::db::listing::{Listed, Listing, Words};
use crate::db::record::{self, Columns};
use crate::db::resource_usage::{self, Use};
use crate::db::{Db, DbError, FromRow, On, Row, Signal, Tx, due, page_of, sql};

/// The table.
pub const TABLE: &str = "backups";

/// A backup as its row has it.
#[derive(Clone, Debug)]
pub struct BackupRow {
    /// Its id.
    pub id: BackupId,
    /// The organization.
    pub org: OrgId,
    /// The project.
    pub project: ProjectId,
    /// Its name.
    pub name: String,
    /// The disk that it is of, which may be gone.
    pub disk: DiskId,
    /// Of a root or a data disk.
    pub kind: DiskKind,
    /// How that disk is handed to a guest.
    pub disk_type: DiskType,
    /// How large the disk was, in GiB.
    pub size_gb: i64,
    /// Region.
    pub region_id: String,
    /// The image that a root disk was cloned from.
    pub image_id: Option<String>,
    /// The user that this image installs SSH keys for.
    pub login_user: Option<String>,
    /// Plan of a root disk.
    pub plan_id: Option<String>,
    /// The schedule that wished it, which may be gone.
    pub schedule: Option<BackupScheduleId>,
    /// The hidden snapshot that it is made from, until it is.
    pub snapshot: Option<DiskSnapshotId>,
    /// Where it is, as its store calls itself.
    pub store: Option<String>,
    /// In how many parts it is there.
    pub parts: Option<i64>,
    /// What it takes there, in bytes, once it is ready.
    pub size_bytes: Option<i64>,
    /// What that hashes to, in hexadecimal.
    pub sha256: Option<String>,
    /// Where it stands.
    pub status: BackupStatus,
    /// How far it is, or the reason of a failure.
    pub message: Option<String>,
    /// Since when the store may have something of it.
    pub begun_at: Option<Timestamp>,
    /// When the worker is to look at it.
    pub work_at: Option<Timestamp>,
    /// Creation.
    pub created_at: Timestamp,
    /// Last change.
    pub updated_at: Timestamp,
    /// Deletion.
    pub deleted_at: Option<Timestamp>,
}

impl FromRow for BackupRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self {
            id: row.parsed("id")?,
            org: row.parsed("org_id")?,
            project: row.parsed("project_id")?,
            name: row.text("name")?,
            disk: row.parsed("disk_id")?,
            kind: row.word("kind", DiskKind::parse)?,
            disk_type: row.word("type", DiskType::parse)?,
            size_gb: row.int("size_gb")?,
            region_id: row.text("region_id")?,
            image_id: row.opt_text("image_id")?,
            login_user: row.opt_text("login_user")?,
            plan_id: row.opt_text("plan_id")?,
            schedule: row.opt_parsed("schedule_id")?,
            snapshot: row.opt_parsed("snapshot_id")?,
            store: row.opt_text("store")?,
            parts: row.opt_int("parts")?,
            size_bytes: row.opt_int("size_bytes")?,
            sha256: row.opt_text("sha256")?,
            status: row.word("status", BackupStatus::parse)?,
            message: row.opt_text("message")?,
            begun_at: row.opt_time("begun_at")?,
            work_at: row.opt_time("work_at")?,
            created_at: row.time("created_at")?,
            updated_at: row.time("updated_at")?,
            deleted_at: row.opt_time("deleted_at")?,
        })
    }
}

fn columns(backup: &BackupRow) -> Columns {
    columns! {
        "id": backup.id, "org_id": backup.org, "project_id": backup.project, "name": &backup.name,
        "disk_id": backup.disk, "kind": backup.kind.as_str(), "type": backup.disk_type.as_str(),
        "size_gb": backup.size_gb, "region_id": &backup.region_id, "image_id": backup.image_id.clone(),
        "login_user": backup.login_user.clone(), "plan_id": backup.plan_id.clone(), "schedule_id": backup.schedule,
        "snapshot_id": backup.snapshot, "store": backup.store.clone(), "parts": backup.parts,
        "size_bytes": backup.size_bytes, "sha256": backup.sha256.clone(), "status": backup.status.as_str(),
        "message": backup.message.clone(), "begun_at": backup.begun_at, "work_at": backup.work_at,
        "created_at": backup.created_at, "updated_at": backup.updated_at, "deleted_at": backup.deleted_at,
    }
}

/// Writes a new row, of a backup that is not made yet.
pub async fn insert(tx: &mut Tx, backup: &BackupRow) -> Result<(), DbError> {
    record::insert(TABLE, columns(backup)).execute(tx).await.map(drop)
}

/// Writes a change of a row, and notes what it takes from then on, where that is not what it took before.
pub async fn update(tx: &mut Tx, before: &BackupRow, after: &BackupRow) -> Result<(), DbError> {
    record::update(tx, TABLE, &columns(before), columns(after)).await?;
    let taken = after.takes();
    if taken != before.takes() {
        resource_usage::settle(tx, (Kind::Backup, after.id.0), taken.as_ref(), after.updated_at).await?;
    }
    Ok(())
}

impl BackupRow {
    /// What is counted of it: what the store has, from when it is ready until its owner has it deleted.
    fn takes(&self) -> Option<Use> {
        (self.status == BackupStatus::Ready && self.deleted_at.is_none()).then(|| Use {
            org: self.org,
            project: self.project,
            kind: Kind::Backup,
            resource: self.id.0,
            name: self.name.clone(),
            size: None,
            measure: Measure { bytes: self.size_bytes.unwrap_or_default(), ..Measure::default() },
            tariff: resource_usage::DISK.to_owned(),
        })
    }
}

/// What all backups take at present.
pub async fn taken(tx: &mut Tx) -> Result<Vec<Use>, DbError> {
    let rows: Vec<BackupRow> = sql("SELECT * FROM backups WHERE deleted_at IS NULL").fetch_all(tx).await?;
    Ok(rows.iter().filter_map(BackupRow::takes).collect())
}

/// A tenant's backup.
pub async fn find(on: impl On, tenant: Tenant, id: BackupId) -> Result<Option<BackupRow>, DbError> {
    sql("SELECT * FROM backups WHERE id = $1 AND project_id = $2 AND deleted_at IS NULL")
        .bind(id)
        .bind(tenant.project)
        .fetch_optional(on)
        .await
}

/// Any backup: for the worker.
pub async fn load(on: impl On, id: BackupId) -> Result<Option<BackupRow>, DbError> {
    sql("SELECT * FROM backups WHERE id = $1").bind(id).fetch_optional(on).await
}

/// The backup that is made from a hidden snapshot.
pub async fn of_copy(on: impl On, snapshot: DiskSnapshotId) -> Result<Option<BackupRow>, DbError> {
    sql("SELECT * FROM backups WHERE snapshot_id = $1 AND deleted_at IS NULL").bind(snapshot).fetch_optional(on).await
}

/// By what a list of backups can be narrowed and ordered.
pub const LISTED: Listed = Listed {
    id: "backups.id",
    created: "backups.created_at",
    name: Some("backups.name"),
    status: Some(Words {
        param: "status",
        column: "backups.status",
        words: &["pending", "running", "ready", "failed", "deleting"],
    }),
    labels: None,
};

/// Of what a list of backups shows alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct Of {
    /// Of this disk.
    pub disk: Option<DiskId>,
    /// Of this schedule.
    pub schedule: Option<BackupScheduleId>,
}

/// A page of a tenant's backups, and how many there are.
pub async fn list(db: &Db, tenant: Tenant, of: Of, listing: &Listing) -> Result<(Vec<BackupRow>, i64), DbError> {
    let these = "backups WHERE project_id = $1 AND deleted_at IS NULL AND (CAST($2 AS TEXT) IS NULL OR disk_id = $2) \
                 AND (CAST($3 AS TEXT) IS NULL OR schedule_id = $3)";
    page_of("*", these).bind(tenant.project).bind(of.disk).bind(of.schedule).list(db, &LISTED, listing).await
}

struct MadeRow(Made);

impl FromRow for MadeRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self(Made {
            id: row.parsed("id")?,
            disk: row.parsed("disk_id")?,
            status: row.word("status", BackupStatus::parse)?,
            at: row.time("created_at")?,
            is_needed: row.int("needed")? > 0,
        }))
    }
}

/// Those that a schedule made.
pub async fn of_schedule(on: impl On, schedule: BackupScheduleId) -> Result<Vec<Made>, DbError> {
    let rows: Vec<MadeRow> = sql(
        "SELECT id, disk_id, status, created_at, (SELECT COUNT(*) FROM brought_disks WHERE backup_id = backups.id \
         AND deleted_at IS NULL) AS needed FROM backups WHERE schedule_id = $1 AND deleted_at IS NULL",
    )
    .bind(schedule)
    .fetch_all(on)
    .await?;
    Ok(rows.into_iter().map(|MadeRow(made)| made).collect())
}

/// Has the worker look at whatever is made from a snapshot that changed.
pub async fn wake(tx: &mut Tx, snapshot: DiskSnapshotId, now: Timestamp) -> Result<(), DbError> {
    sql("UPDATE backups SET work_at = $2 WHERE snapshot_id = $1 AND deleted_at IS NULL")
        .bind(snapshot)
        .bind(now)
        .execute(tx)
        .await?;
    tx.signal(Signal::Work(TABLE));
    Ok(())
}

/// Has the worker look at all that wait for something.
pub async fn wake_all(db: &Db, now: Timestamp) -> Result<(), DbError> {
    let mut tx = db.begin().await?;
    sql("UPDATE backups SET work_at = $1 WHERE work_at > $1 AND deleted_at IS NULL").bind(now).execute(&mut tx).await?;
    tx.signal(Signal::Work(TABLE));
    tx.commit().await
}

/// Backups that want work, organizations in turn, and when the next one does.
pub async fn due(db: &Db, now: Timestamp, limit: usize) -> Result<due::Due<BackupId>, DbError> {
    due::of_projects(db, TABLE, now, limit).await
}

/// How many backups stand where.
pub async fn by_status(db: &Db) -> Result<Vec<(String, i64)>, DbError> {
    let rows: Vec<StatusCount> =
        sql("SELECT status, COUNT(*) AS n FROM backups WHERE deleted_at IS NULL GROUP BY status ORDER BY status")
            .fetch_all(db)
            .await?;
    Ok(rows.into_iter().map(|row| (row.0, row.1)).collect())
}

/// Whose a backup is.
pub async fn owner(db: &Db, id: BackupId) -> Result<Option<Owner>, DbError> {
    due::owner(db, TABLE, id).await
}

/// How many backups need an image to be restored.
pub async fn of_image(tx: &mut Tx, image: &str) -> Result<i64, DbError> {
    sql("SELECT COUNT(*) FROM backups WHERE image_id = $1 AND deleted_at IS NULL").bind(image).fetch_one(tx).await
}

struct IdRow(BackupId);

impl FromRow for IdRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        row.parsed("id").map(Self)
    }
}

/// Backups that are not gone.
pub async fn living(db: &Db) -> Result<Vec<BackupId>, DbError> {
    let rows: Vec<IdRow> = sql("SELECT id FROM backups WHERE deleted_at IS NULL").fetch_all(db).await?;
    Ok(rows.into_iter().map(|row| row.0).collect())
}

/// Whether something lies in a store, as far as rows know.
pub async fn lies_in(db: &Db, store: &str) -> Result<bool, DbError> {
    let n: i64 = sql("SELECT COUNT(*) FROM backups WHERE store = $1 AND status = 'ready' AND deleted_at IS NULL")
        .bind(store)
        .fetch_one(db)
        .await?;
    Ok(n > 0)
}

/// Whether a project has any.
pub async fn any(tx: &mut Tx, project: ProjectId) -> Result<bool, DbError> {
    let n: i64 = sql("SELECT COUNT(*) FROM backups WHERE project_id = $1 AND deleted_at IS NULL")
        .bind(project)
        .fetch_one(tx)
        .await?;
    Ok(n > 0)
}
