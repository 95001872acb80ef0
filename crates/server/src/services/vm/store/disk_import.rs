//! Rows of disks that are being made of a file which was sent.

use berth_domain::Timestamp;
use berth_domain::ids::{DiskId, OrgId, Owner, ProjectId};

use super::disk::{DiskRow, IdRow};
use crate::columns;
use crate::db::record::{self, Columns};
use crate::db::{Db, DbError, FromRow, On, Row, Signal, Tx, due, sql};

/// The table.
pub const TABLE: &str = "disk_imports";

/// A disk that is being made of a file.
#[derive(Clone, Debug)]
pub struct DiskImportRow {
    /// The disk.
    pub id: DiskId,
    /// The organization.
    pub org: OrgId,
    /// The project.
    pub project: ProjectId,
    /// When the worker is to look at it.
    pub work_at: Option<Timestamp>,
    /// Creation.
    pub created_at: Timestamp,
    /// When the disk was made, or nobody wanted it any more.
    pub deleted_at: Option<Timestamp>,
}

impl DiskImportRow {
    /// The import of a disk, which is due at once.
    pub fn of(disk: &DiskRow, now: Timestamp) -> Self {
        let (org, project) = (disk.org, disk.project);
        Self { id: disk.id, org, project, work_at: Some(now), created_at: now, deleted_at: None }
    }
}

impl FromRow for DiskImportRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self {
            id: row.parsed("id")?,
            org: row.parsed("org_id")?,
            project: row.parsed("project_id")?,
            work_at: row.opt_time("work_at")?,
            created_at: row.time("created_at")?,
            deleted_at: row.opt_time("deleted_at")?,
        })
    }
}

fn columns(import: &DiskImportRow) -> Columns {
    columns! {
        "id": import.id, "org_id": import.org, "project_id": import.project, "work_at": import.work_at,
        "created_at": import.created_at, "deleted_at": import.deleted_at,
    }
}

/// Writes a new row.
pub async fn insert(tx: &mut Tx, import: &DiskImportRow) -> Result<(), DbError> {
    record::insert(TABLE, columns(import)).execute(tx).await?;
    tx.signal(Signal::Work(TABLE));
    Ok(())
}

/// Writes a change of a row.
pub async fn update(tx: &mut Tx, before: &DiskImportRow, after: &DiskImportRow) -> Result<(), DbError> {
    record::update(tx, TABLE, &columns(before), columns(after)).await
}

/// The import of a disk that is under way.
pub async fn find(on: impl On, disk: DiskId) -> Result<Option<DiskImportRow>, DbError> {
    sql("SELECT * FROM disk_imports WHERE id = $1 AND deleted_at IS NULL").bind(disk).fetch_optional(on).await
}

/// The disks of all imports that are under way.
pub async fn open(db: &Db) -> Result<Vec<DiskId>, DbError> {
    let rows: Vec<IdRow> = sql("SELECT id FROM disk_imports WHERE deleted_at IS NULL").fetch_all(db).await?;
    Ok(rows.into_iter().map(|row| row.0).collect())
}

/// Has the worker look at the import of a disk, if one is under way.
pub async fn wake(tx: &mut Tx, disk: DiskId, now: Timestamp) -> Result<(), DbError> {
    sql("UPDATE disk_imports SET work_at = $2 WHERE id = $1 AND deleted_at IS NULL")
        .bind(disk)
        .bind(now)
        .execute(tx)
        .await?;
    tx.signal(Signal::Work(TABLE));
    Ok(())
}

/// Imports that want work, organizations in turn, and when the next one does.
pub async fn due(db: &Db, now: Timestamp, limit: usize) -> Result<due::Due<DiskId>, DbError> {
    due::of_projects(db, TABLE, now, limit).await
}

/// Whose an import is.
pub async fn owner(db: &Db, id: DiskId) -> Result<Option<Owner>, DbError> {
    due::owner(db, TABLE, id).await
}
