//! Reads events for watchers.

use berth_domain::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::db::tenant::Tenant;
use crate::db::{Db, DbError, FromRow, Row, sql};

/// An event.
#[derive(Clone, Debug)]
pub struct EventRow {
    /// Its number; grows.
    pub seq: i64,
    /// `vm.status`, `vm.created`, `disk.status`, ….
    pub kind: String,
    /// The id of what it is about.
    pub subject: String,
    /// What happened.
    pub data: String,
    /// When.
    pub created_at: Timestamp,
}

impl FromRow for EventRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self {
            seq: row.int("seq")?,
            kind: row.text("kind")?,
            subject: row.text("subject")?,
            data: row.text("data")?,
            created_at: row.time("created_at")?,
        })
    }
}

/// Whom events are read for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// Members of the project.
    Members,
    /// Those of them who administer the platform.
    Administrators,
}

/// Events of a project after a number, as far as they are for an audience.
pub async fn after(
    db: &Db,
    (tenant, audience): (Tenant, Audience),
    seq: i64,
    limit: usize,
) -> Result<Vec<EventRow>, DbError> {
    sql("SELECT seq, kind, subject, data, created_at FROM events WHERE project_id = $1 AND seq > $2 \
         AND for_administrators <= $3 ORDER BY seq LIMIT $4")
    .bind(tenant.project)
    .bind(seq)
    .bind(i64::from(audience == Audience::Administrators))
    .bind(i64::try_from(limit).unwrap_or(i64::MAX))
    .fetch_all(db)
    .await
}

/// Whether an event of a project still exists.
pub async fn is_kept(db: &Db, tenant: Tenant, seq: i64) -> Result<bool, DbError> {
    let found: Option<i64> = sql("SELECT seq FROM events WHERE project_id = $1 AND seq = $2")
        .bind(tenant.project)
        .bind(seq)
        .fetch_optional(db)
        .await?;
    Ok(found.is_some())
}

/// The number of a project's newest event; 0 where there is none.
pub async fn newest(db: &Db, tenant: Tenant) -> Result<i64, DbError> {
    sql("SELECT COALESCE(MAX(seq), 0) AS seq FROM events WHERE project_id = $1")
        .bind(tenant.project)
        .fetch_one(db)
        .await
}

/// Removes events before a time, until told to stop.
pub async fn forget(db: &Db, before: Timestamp, stop: &CancellationToken) -> Result<(), DbError> {
    let old = "DELETE FROM events WHERE seq IN (SELECT seq FROM events WHERE created_at < $1 ORDER BY seq LIMIT $2)";
    sql(old).bind(before).remove_in_batches(db, stop).await
}
