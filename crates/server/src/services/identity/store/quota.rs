//! Rows of quotas: what an administrator lets a project have.

use berth_domain::Timestamp;
use berth_domain::ids::ProjectId;

use crate::db::{DbError, FromRow, On, Row, Tx, sql};
use crate::http::auth::Limits;

impl FromRow for Limits {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self {
            vms: row.opt_int("vms")?,
            vcpu: row.opt_int("vcpu")?,
            memory_mb: row.opt_int("memory_mb")?,
            disks: row.opt_int("disks")?,
            disk_gb: row.opt_int("disk_gb")?,
            sandboxes: row.opt_int("sandboxes")?,
            requests_per_minute: row.opt_int("requests_per_minute")?,
            tokens_per_minute: row.opt_int("tokens_per_minute")?,
            spend_per_month: row.opt_int("spend_per_month")?,
        })
    }
}

/// What a project may have.
pub async fn find(on: impl On, project: ProjectId) -> Result<Limits, DbError> {
    let found: Option<Limits> =
        sql("SELECT * FROM quotas WHERE project_id = $1").bind(project).fetch_optional(on).await?;
    Ok(found.unwrap_or_default())
}

/// Sets what a project may have.
pub async fn put(tx: &mut Tx, project: ProjectId, limits: &Limits, now: Timestamp) -> Result<(), DbError> {
    sql("INSERT INTO quotas (project_id, vms, vcpu, memory_mb, disks, disk_gb, sandboxes, requests_per_minute, \
         tokens_per_minute, spend_per_month, updated_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) \
         ON CONFLICT (project_id) DO UPDATE SET vms = $2, vcpu = $3, memory_mb = $4, disks = $5, disk_gb = $6, \
         sandboxes = $7, requests_per_minute = $8, tokens_per_minute = $9, spend_per_month = $10, updated_at = $11")
    .bind(project)
    .bind(limits.vms)
    .bind(limits.vcpu)
    .bind(limits.memory_mb)
    .bind(limits.disks)
    .bind(limits.disk_gb)
    .bind(limits.sandboxes)
    .bind(limits.requests_per_minute)
    .bind(limits.tokens_per_minute)
    .bind(limits.spend_per_month)
    .bind(now)
    .execute(tx)
    .await
    .map(drop)
}
