//! Rows of disks that are being made of backups.

use berth_domain::Timestamp;
use berth_domain::ids::{BackupId, DiskId, OrgId, Owner, ProjectId};

use crate::columns;
use crate::db::record::{self, Columns};
use crate::db::{Db, DbError, FromRow, On, Row, Signal, Tx, due, sql};

/// The table.
pub const TABLE: &str = "disk_restores";

/// A disk that is being made of a backup.
#[derive(Clone, Debug)]
pub struct DiskRestoreRow {
    /// The disk.
    pub id: DiskId,
    /// The organization.
    pub org: OrgId,
    /// The project.
    pub project: ProjectId,
    /// The backup.
    pub backup: BackupId,
    /// When the worker is to look at it.
    pub work_at: Option<Timestamp>,
    /// Creation.
    pub created_at: Timestamp,
    /// When the disk was made, or nobody wanted it any more.
    pub deleted_at: Option<Timestamp>,
}

impl FromRow for DiskRestoreRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self {
            id: row.parsed("id")?,
            org: row.parsed("org_id")?,
            project: row.parsed("project_id")?,
            backup: row.parsed("backup_id")?,
            work_at: row.opt_time("work_at")?,
            created_at: row.time("created_at")?,
            deleted_at: row.opt_time("deleted_at")?,
        })
    }
}

fn columns(restore: &DiskRestoreRow) -> Columns {
    columns! {
        "id": restore.id, "org_id": restore.org, "project_id": restore.project, "backup_id": restore.backup,
        "work_at": restore.work_at, "created_at": restore.created_at, "deleted_at": restore.deleted_at,
    }
}

/// Writes a new row.
pub async fn insert(tx: &mut Tx, restore: &DiskRestoreRow) -> Result<(), DbError> {
    record::insert(TABLE, columns(restore)).execute(tx).await?;
    tx.signal(Signal::Work(TABLE));
    Ok(())
}

/// Writes a change of a row.
pub async fn update(tx: &mut Tx, before: &DiskRestoreRow, after: &DiskRestoreRow) -> Result<(), DbError> {
    record::update(tx, TABLE, &columns(before), columns(after)).await
}

/// The restore of a disk that is under way.
pub async fn find(on: impl On, disk: DiskId) -> Result<Option<DiskRestoreRow>, DbError> {
    sql("SELECT * FROM disk_restores WHERE id = $1 AND deleted_at IS NULL").bind(disk).fetch_optional(on).await
}

/// A restore of a backup that is under way.
pub async fn of_backup(tx: &mut Tx, backup: BackupId) -> Result<Option<DiskRestoreRow>, DbError> {
    sql("SELECT * FROM disk_restores WHERE backup_id = $1 AND deleted_at IS NULL ORDER BY id LIMIT 1")
        .bind(backup)
        .fetch_optional(tx)
        .await
}

/// Has the worker look at the restore of a disk, if one is under way.
pub async fn wake(tx: &mut Tx, disk: DiskId, now: Timestamp) -> Result<(), DbError> {
    sql("UPDATE disk_restores SET work_at = $2 WHERE id = $1 AND deleted_at IS NULL")
        .bind(disk)
        .bind(now)
        .execute(tx)
        .await?;
    tx.signal(Signal::Work(TABLE));
    Ok(())
}

/// Restores that want work, organizations in turn, and when the next one does.
pub async fn due(db: &Db, now: Timestamp, limit: usize) -> Result<due::Due<DiskId>, DbError> {
    due::of_projects(db, TABLE, now, limit).await
}

/// Whose a restore is.
pub async fn owner(db: &Db, id: DiskId) -> Result<Option<Owner>, DbError> {
    due::owner(db, TABLE, id).await
}
