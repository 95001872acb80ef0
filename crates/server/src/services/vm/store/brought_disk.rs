//! Rows of disks that are brought: made of a backup, or of a file that was sent.

use berth_domain::Timestamp;
use berth_domain::ids::{BackupId, DiskId, OrgId, Owner, ProjectId};
use berth_domain::vm::brought_disk::Origin;

use super::disk::{DiskRow, IdRow};
use crate::columns;
use crate::db::record::{self, Columns};
use crate::db::{Db, DbError, FromRow, On, Row, Signal, Tx, due, sql};

/// The table.
pub const TABLE: &str = "brought_disks";

/// A disk that is being made of something that is brought.
#[derive(Clone, Debug)]
pub struct BroughtDiskRow {
    /// The disk.
    pub id: DiskId,
    /// The organization.
    pub org: OrgId,
    /// The project.
    pub project: ProjectId,
    /// Where it comes from.
    pub origin: Origin,
    /// What the disk is to have whose file is still on its way, in GiB: there is no row of it yet.
    pub claimed_gb: Option<i64>,
    /// When the worker is to look at it.
    pub work_at: Option<Timestamp>,
    /// Creation.
    pub created_at: Timestamp,
    /// When the disk was made, or nobody wanted it any more.
    pub deleted_at: Option<Timestamp>,
}

impl BroughtDiskRow {
    /// A disk that comes from there, which is due at once.
    pub fn of(disk: &DiskRow, origin: Origin, now: Timestamp) -> Self {
        let (org, project) = (disk.org, disk.project);
        let (claimed_gb, work_at, deleted_at) = (None, Some(now), None);
        Self { id: disk.id, org, project, origin, claimed_gb, work_at, created_at: now, deleted_at }
    }

    /// What is claimed for a disk whose file is on its way. Nobody works on it.
    pub fn claim(disk: &DiskRow, now: Timestamp) -> Self {
        Self { claimed_gb: Some(disk.extent.wanted_gb), work_at: None, ..Self::of(disk, Origin::File, now) }
    }
}

impl FromRow for BroughtDiskRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self {
            id: row.parsed("id")?,
            org: row.parsed("org_id")?,
            project: row.parsed("project_id")?,
            origin: row.opt_parsed("backup_id")?.map_or(Origin::File, Origin::Backup),
            claimed_gb: row.opt_int("claimed_gb")?,
            work_at: row.opt_time("work_at")?,
            created_at: row.time("created_at")?,
            deleted_at: row.opt_time("deleted_at")?,
        })
    }
}

fn columns(brought: &BroughtDiskRow) -> Columns {
    let backup = match brought.origin {
        Origin::Backup(id) => Some(id),
        Origin::File => None,
    };
    columns! {
        "id": brought.id, "org_id": brought.org, "project_id": brought.project, "backup_id": backup,
        "claimed_gb": brought.claimed_gb, "work_at": brought.work_at, "created_at": brought.created_at, "deleted_at": brought.deleted_at,
    }
}

/// Writes a new row.
pub async fn insert(tx: &mut Tx, brought: &BroughtDiskRow) -> Result<(), DbError> {
    record::insert(TABLE, columns(brought)).execute(tx).await?;
    tx.signal(Signal::Work(TABLE));
    Ok(())
}

/// Writes a change of a row.
pub async fn update(tx: &mut Tx, before: &BroughtDiskRow, after: &BroughtDiskRow) -> Result<(), DbError> {
    record::update(tx, TABLE, &columns(before), columns(after)).await
}

/// What is under way of a disk that is brought.
pub async fn find(on: impl On, disk: DiskId) -> Result<Option<BroughtDiskRow>, DbError> {
    sql("SELECT * FROM brought_disks WHERE id = $1 AND deleted_at IS NULL").bind(disk).fetch_optional(on).await
}

/// A disk that is being made of a backup. One that is ready, has failed or is to go needs the backup no more, although its row
/// stays until what was fetched is swept.
pub async fn of_backup(tx: &mut Tx, backup: BackupId) -> Result<Option<BroughtDiskRow>, DbError> {
    let text = "SELECT b.* FROM brought_disks b JOIN disks d ON d.id = b.id WHERE b.backup_id = $1 AND b.deleted_at IS NULL \
                AND d.status IN ('pending', 'provisioning') ORDER BY b.id LIMIT 1";
    sql(text).bind(backup).fetch_optional(tx).await
}

/// All disks that are being made of files which were sent.
pub async fn of_files(db: &Db) -> Result<Vec<DiskId>, DbError> {
    let text = "SELECT id FROM brought_disks WHERE backup_id IS NULL AND claimed_gb IS NULL AND deleted_at IS NULL";
    let rows: Vec<IdRow> = sql(text).fetch_all(db).await?;
    Ok(rows.into_iter().map(|row| row.0).collect())
}

/// Gives up what is claimed for a disk whose file is on its way.
pub async fn release(tx: &mut Tx, disk: DiskId) -> Result<(), DbError> {
    sql("DELETE FROM brought_disks WHERE id = $1 AND claimed_gb IS NOT NULL").bind(disk).execute(tx).await.map(drop)
}

/// The same of all: what an earlier service was sent does not come any more.
pub async fn release_all(tx: &mut Tx) -> Result<(), DbError> {
    sql("DELETE FROM brought_disks WHERE claimed_gb IS NOT NULL").execute(tx).await.map(drop)
}

/// Whether any disk of a project is being brought, or its file is on its way.
pub async fn any(tx: &mut Tx, project: ProjectId) -> Result<bool, DbError> {
    let text = "SELECT id FROM brought_disks WHERE project_id = $1 AND deleted_at IS NULL LIMIT 1";
    let found: Option<IdRow> = sql(text).bind(project).fetch_optional(tx).await?;
    Ok(found.is_some())
}

/// Has the worker look at a disk, if it is being brought.
pub async fn wake(tx: &mut Tx, disk: DiskId, now: Timestamp) -> Result<(), DbError> {
    sql("UPDATE brought_disks SET work_at = $2 WHERE id = $1 AND deleted_at IS NULL")
        .bind(disk)
        .bind(now)
        .execute(tx)
        .await?;
    tx.signal(Signal::Work(TABLE));
    Ok(())
}

/// Those that want work, organizations in turn, and when the next one does.
pub async fn due(db: &Db, now: Timestamp, limit: usize) -> Result<due::Due<DiskId>, DbError> {
    due::of_projects(db, TABLE, now, limit).await
}

/// Whose a disk is that is brought.
pub async fn owner(db: &Db, id: DiskId) -> Result<Option<Owner>, DbError> {
    due::owner(db, TABLE, id).await
}
