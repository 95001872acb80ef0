//! Rows of uploads: archives that templates are built of. A row is older than its file, and goes after it.

use berth_domain::Timestamp;
use berth_domain::ids::{OrgId, ProjectId, UploadId};

use super::Tenant;
use crate::columns;
use crate::db::listing::{Listed, Listing};
use crate::db::{Db, DbError, FromRow, On, Row, Signal, Tx, page_of, record, sql};

/// The table.
pub const TABLE: &str = "sandbox_uploads";

/// An upload as its row has it.
#[derive(Clone, Copy, Debug)]
pub struct UploadRow {
    /// Its id.
    pub id: UploadId,
    /// The organization.
    pub org: OrgId,
    /// The project.
    pub project: ProjectId,
    /// Its bytes.
    pub bytes: i64,
    /// Whether all of it was received.
    pub present: bool,
    /// Creation.
    pub created_at: Timestamp,
    /// When it is removed.
    pub expires_at: Timestamp,
}

impl FromRow for UploadRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self {
            id: row.parsed("id")?,
            org: row.parsed("org_id")?,
            project: row.parsed("project_id")?,
            bytes: row.int("bytes")?,
            present: row.text("state")? == "present",
            created_at: row.time("created_at")?,
            expires_at: row.time("expires_at")?,
        })
    }
}

/// Writes a new row.
pub async fn insert(tx: &mut Tx, upload: &UploadRow) -> Result<(), DbError> {
    let state = if upload.present { "present" } else { "receiving" };
    let columns = columns! {
        "id": upload.id, "org_id": upload.org, "project_id": upload.project, "bytes": upload.bytes,
        "state": state, "created_at": upload.created_at, "expires_at": upload.expires_at,
    };
    record::insert(TABLE, columns).execute(tx).await.map(drop)
}

/// Records that all of it was received. Whether it is still wanted.
pub async fn received(tx: &mut Tx, id: UploadId, bytes: i64, expires_at: Timestamp) -> Result<bool, DbError> {
    let changed = sql("UPDATE sandbox_uploads SET state = 'present', bytes = $2, expires_at = $3 \
         WHERE id = $1 AND state = 'receiving'")
    .bind(id)
    .bind(bytes)
    .bind(expires_at)
    .execute(tx)
    .await?;
    Ok(changed > 0)
}

/// An upload of a tenant that is there.
pub async fn find(on: impl On, tenant: Tenant, id: UploadId) -> Result<Option<UploadRow>, DbError> {
    sql("SELECT * FROM sandbox_uploads WHERE id = $2 AND project_id = $1 AND state = 'present'")
        .bind(tenant.project)
        .bind(id)
        .fetch_optional(on)
        .await
}

/// By what a list of uploads can be ordered.
pub const LISTED: Listed =
    Listed { id: "sandbox_uploads.id", created: "sandbox_uploads.created_at", name: None, status: None, labels: None };

/// A page of a tenant's uploads, and how many there are.
pub async fn list(db: &Db, tenant: Tenant, listing: &Listing) -> Result<(Vec<UploadRow>, i64), DbError> {
    let text = "sandbox_uploads WHERE project_id = $1 AND state = 'present'";
    page_of("*", text).bind(tenant.project).list(db, &LISTED, listing).await
}

/// How many uploads a tenant has, those on their way among them.
pub async fn count(tx: &mut Tx, tenant: Tenant) -> Result<i64, DbError> {
    sql("SELECT COUNT(*) FROM sandbox_uploads WHERE project_id = $1 AND state <> 'removing'")
        .bind(tenant.project)
        .fetch_one(tx)
        .await
}

/// Has one removed now. Nobody sees it any more.
pub async fn dismiss(tx: &mut Tx, id: UploadId, now: Timestamp) -> Result<(), DbError> {
    tx.signal(Signal::Work(TABLE));
    sql("UPDATE sandbox_uploads SET state = 'removing', expires_at = $2 WHERE id = $1")
        .bind(id)
        .bind(now)
        .execute(tx)
        .await
        .map(drop)
}

/// Has it looked at again at a time.
pub async fn look_at(tx: &mut Tx, id: UploadId, at: Timestamp) -> Result<(), DbError> {
    sql("UPDATE sandbox_uploads SET expires_at = $2 WHERE id = $1").bind(id).bind(at).execute(tx).await.map(drop)
}

/// Uploads in the order in which their time is over, with that time.
pub async fn with_work(db: &Db, limit: usize) -> Result<Vec<(UploadId, Timestamp)>, DbError> {
    sql("SELECT id, expires_at AS work_at FROM sandbox_uploads ORDER BY expires_at LIMIT $1")
        .bind(i64::try_from(limit).unwrap_or(i64::MAX))
        .fetch_all(db)
        .await
}

/// Whether an upload is there whose time is over.
pub async fn is_over(db: &Db, id: UploadId, now: Timestamp) -> Result<bool, DbError> {
    let over: i64 = sql("SELECT COUNT(*) FROM sandbox_uploads WHERE id = $1 AND expires_at <= $2")
        .bind(id)
        .bind(now)
        .fetch_one(db)
        .await?;
    Ok(over > 0)
}

/// Removes the row of one that is gone.
pub async fn remove(tx: &mut Tx, id: UploadId) -> Result<(), DbError> {
    sql("DELETE FROM sandbox_uploads WHERE id = $1").bind(id).execute(tx).await.map(drop)
}

/// Ids of every upload.
pub async fn ids(db: &Db) -> Result<Vec<String>, DbError> {
    sql("SELECT id FROM sandbox_uploads").fetch_all(db).await
}
