//! Sandboxes that leave their hosts, as their rows have it.

use berth_domain::ids::{HostId, OrgId, SandboxId};

use crate::db::{DbError, FromRow, On, Row, Tx, sql};
use crate::with_machine;

struct IdRow(SandboxId);

impl FromRow for IdRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        row.parsed("id").map(Self)
    }
}

/// How many sandboxes of a host are on their way to another one.
pub async fn moving_from(on: impl On, host: HostId) -> Result<i64, DbError> {
    sql(concat!(
        "SELECT COUNT(*) FROM ",
        with_machine!("sandboxes", "sandbox"),
        " WHERE m.host_id = $1 AND sandboxes.to_host_id IS NOT NULL AND sandboxes.deleted_at IS NULL"
    ))
    .bind(host)
    .fetch_one(on)
    .await
}

/// Sandboxes that could leave a host now: those that are paused or have failed, and then those that run, if they may.
pub async fn could_leave(on: impl On, host: HostId, or_ready: bool) -> Result<Vec<SandboxId>, DbError> {
    let rows: Vec<IdRow> = sql(concat!(
        "SELECT sandboxes.id FROM ",
        with_machine!("sandboxes", "sandbox"),
        " WHERE m.host_id = $1 AND sandboxes.to_host_id IS NULL AND sandboxes.deleted_at IS NULL \
         AND sandboxes.layer_id IS NOT NULL AND (sandboxes.phase IN ('Paused', 'Failed') AND sandboxes.wish = 'paused' \
         OR sandboxes.phase = 'Ready' AND sandboxes.wish = 'ready' AND $2 = 1) \
         ORDER BY CASE sandboxes.phase WHEN 'Ready' THEN 1 ELSE 0 END, sandboxes.id"
    ))
    .bind(host)
    .bind(or_ready)
    .fetch_all(on)
    .await?;
    Ok(rows.into_iter().map(|row| row.0).collect())
}

/// Has sandboxes that were paused to go to another host stay paused there: all, or those of an organization.
pub async fn stay_paused(tx: &mut Tx, org: Option<OrgId>) -> Result<(), DbError> {
    sql("UPDATE sandboxes SET to_resumes = 0 WHERE to_resumes = 1 AND (CAST($1 AS TEXT) IS NULL OR org_id = $1)")
        .bind(org)
        .execute(tx)
        .await
        .map(drop)
}
