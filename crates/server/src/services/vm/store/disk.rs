//! Rows of disks: root disk volumes and data disks.

use berth_domain::Timestamp;
use berth_domain::ids::{DiskId, OrgId, ProjectId, VmId};
use berth_domain::page::Page;
use berth_domain::vm::{DiskKind, DiskStatus, DiskType};

use super::Tenant;
use crate::db::{Db, DbError, FromRow, On, Query, Row, Tx, Value, page_of, sql};

/// A disk as its row has it.
#[derive(Clone, Debug)]
pub struct DiskRow {
    /// Its id.
    pub id: DiskId,
    /// The organization.
    pub org: OrgId,
    /// The project.
    pub project: ProjectId,
    /// Root or data.
    pub kind: DiskKind,
    /// Its name.
    pub name: String,
    /// How it is handed to the guest.
    pub disk_type: DiskType,
    /// Its size, in GiB.
    pub size_gb: i64,
    /// Region.
    pub region_id: String,
    /// The image a root disk was cloned from.
    pub image_id: Option<String>,
    /// Plan of a root disk.
    pub plan_id: Option<String>,
    /// Where it stands.
    pub status: DiskStatus,
    /// The step, or the reason of a failure.
    pub message: Option<String>,
    /// The VM it is attached to or reserved by.
    pub vm: Option<VmId>,
    /// Its place in the guest.
    pub slot: i64,
    /// The VM it was created with.
    pub created_with: Option<VmId>,
    /// When the worker is to look at it.
    pub work_at: Option<Timestamp>,
    /// Creation.
    pub created_at: Timestamp,
    /// Last change.
    pub updated_at: Timestamp,
    /// Deletion.
    pub deleted_at: Option<Timestamp>,
}

impl FromRow for DiskRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self {
            id: row.parsed("id")?,
            org: row.parsed("org_id")?,
            project: row.parsed("project_id")?,
            kind: row.word("kind", DiskKind::parse)?,
            name: row.text("name")?,
            disk_type: row.word("type", DiskType::parse)?,
            size_gb: row.int("size_gb")?,
            region_id: row.text("region_id")?,
            image_id: row.opt_text("image_id")?,
            plan_id: row.opt_text("plan_id")?,
            status: row.word("status", DiskStatus::parse)?,
            message: row.opt_text("message")?,
            vm: row.opt_parsed("vm_id")?,
            slot: row.opt_int("slot")?.unwrap_or_default(),
            created_with: row.opt_parsed("created_with")?,
            work_at: row.opt_time("work_at")?,
            created_at: row.time("created_at")?,
            updated_at: row.time("updated_at")?,
            deleted_at: row.opt_time("deleted_at")?,
        })
    }
}

/// Writes a new row.
pub async fn insert(tx: &mut Tx, disk: &DiskRow) -> Result<(), DbError> {
    sql("INSERT INTO disks (id, org_id, project_id, kind, name, type, size_gb, region_id, image_id, plan_id, status, \
         message, vm_id, slot, created_with, work_at, created_at, updated_at) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)")
    .bind(disk.id)
    .bind(disk.org)
    .bind(disk.project)
    .bind(disk.kind.as_str())
    .bind(&disk.name)
    .bind(disk.disk_type.as_str())
    .bind(disk.size_gb)
    .bind(&disk.region_id)
    .bind(disk.image_id.clone())
    .bind(disk.plan_id.clone())
    .bind(disk.status.as_str())
    .bind(disk.message.clone())
    .bind(disk.vm)
    .bind(disk.slot)
    .bind(disk.created_with)
    .bind(disk.work_at)
    .bind(disk.created_at)
    .bind(disk.updated_at)
    .execute(tx)
    .await
    .map(drop)
}

/// Writes everything of a row that changes during its life.
pub async fn update(tx: &mut Tx, disk: &DiskRow) -> Result<(), DbError> {
    sql("UPDATE disks SET status = $2, message = $3, vm_id = $4, slot = $5, work_at = $6, updated_at = $7, \
         deleted_at = $8 WHERE id = $1")
    .bind(disk.id)
    .bind(disk.status.as_str())
    .bind(disk.message.clone())
    .bind(disk.vm)
    .bind(disk.slot)
    .bind(disk.work_at)
    .bind(disk.updated_at)
    .bind(disk.deleted_at)
    .execute(tx)
    .await
    .map(drop)
}

fn by_id(tenant: Tenant, kind: DiskKind, id: DiskId) -> Query {
    sql("SELECT * FROM disks WHERE id = $1 AND project_id = $2 AND kind = $3 AND deleted_at IS NULL")
        .bind(id)
        .bind(tenant.project)
        .bind(kind.as_str())
}

/// A tenant's disk of this kind.
pub async fn find(db: &Db, tenant: Tenant, kind: DiskKind, id: DiskId) -> Result<Option<DiskRow>, DbError> {
    by_id(tenant, kind, id).fetch_optional(db).await
}

/// A tenant's disk of this kind within a transaction.
pub async fn find_in(tx: &mut Tx, tenant: Tenant, kind: DiskKind, id: DiskId) -> Result<Option<DiskRow>, DbError> {
    by_id(tenant, kind, id).fetch_optional(tx).await
}

/// A tenant's disk of any kind within a transaction.
pub async fn find_any_in(tx: &mut Tx, tenant: Tenant, id: DiskId) -> Result<Option<DiskRow>, DbError> {
    sql("SELECT * FROM disks WHERE id = $1 AND project_id = $2 AND deleted_at IS NULL")
        .bind(id)
        .bind(tenant.project)
        .fetch_optional(tx)
        .await
}

/// Any disk: for the worker.
pub async fn load(tx: &mut Tx, id: DiskId) -> Result<Option<DiskRow>, DbError> {
    sql("SELECT * FROM disks WHERE id = $1").bind(id).fetch_optional(tx).await
}

/// A page of a tenant's disks of a kind, and how many there are.
pub async fn list(db: &Db, tenant: Tenant, kind: DiskKind, page: Page) -> Result<(Vec<DiskRow>, i64), DbError> {
    page_of("*", "disks WHERE project_id = $1 AND kind = $2 AND deleted_at IS NULL", "created_at DESC, id DESC")
        .bind(tenant.project)
        .bind(kind.as_str())
        .fetch(db, page)
        .await
}

/// The disks of a VM, root first.
pub async fn of_vm(tx: &mut Tx, vm: VmId) -> Result<Vec<DiskRow>, DbError> {
    of_vm_query(vm).fetch_all(tx).await
}

/// The disks of a VM, root first, outside of a transaction.
pub async fn peek_of_vm(db: &Db, vm: VmId) -> Result<Vec<DiskRow>, DbError> {
    of_vm_query(vm).fetch_all(db).await
}

fn of_vm_query(vm: VmId) -> Query {
    sql("SELECT * FROM disks WHERE vm_id = $1 AND deleted_at IS NULL ORDER BY slot, id").bind(vm)
}

/// The disks of several VMs, in the order of their slots.
pub async fn of_vms(db: &Db, vms: &[VmId]) -> Result<Vec<DiskRow>, DbError> {
    if vms.is_empty() {
        return Ok(Vec::new());
    }
    let marks: Vec<_> = (1..=vms.len()).map(|n| format!("${n}")).collect();
    let text =
        format!("SELECT * FROM disks WHERE vm_id IN ({}) AND deleted_at IS NULL ORDER BY slot, id", marks.join(", "));
    vms.iter().fold(sql(text), |query, &id| query.bind(Value::from(id))).fetch_all(db).await
}

/// Disks that want work, in order, with the time.
pub async fn with_work(db: &Db, limit: usize) -> Result<Vec<(DiskId, Timestamp)>, DbError> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    sql("SELECT id, work_at FROM disks WHERE work_at IS NOT NULL ORDER BY work_at LIMIT $1")
        .bind(limit)
        .fetch_all(db)
        .await
}

/// The sizes of all disks of a region, summed, in GiB.
pub async fn total_gb(tx: &mut Tx, region: &str) -> Result<i64, DbError> {
    sql("SELECT CAST(COALESCE(SUM(size_gb), 0) AS BIGINT) AS gb FROM disks \
         WHERE region_id = $1 AND deleted_at IS NULL AND status <> 'failed'")
    .bind(region)
    .fetch_one(tx)
    .await
}

struct Totals(i64, i64);

impl FromRow for Totals {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self(row.int("disks")?, row.int("gb")?))
    }
}

/// How many disks a project has, and their sizes summed, in GiB.
pub async fn totals(on: impl On, tenant: Tenant) -> Result<(i64, i64), DbError> {
    let Totals(disks, gb) =
        sql("SELECT COUNT(*) AS disks, CAST(COALESCE(SUM(size_gb), 0) AS BIGINT) AS gb FROM disks \
         WHERE project_id = $1 AND deleted_at IS NULL")
        .bind(tenant.project)
        .fetch_one(on)
        .await?;
    Ok((disks, gb))
}

/// How many disks were cloned from an image.
pub async fn of_image(tx: &mut Tx, image: &str) -> Result<i64, DbError> {
    sql("SELECT COUNT(*) FROM disks WHERE image_id = $1 AND deleted_at IS NULL").bind(image).fetch_one(tx).await
}

struct IdRow(DiskId);

impl FromRow for IdRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        row.parsed("id").map(Self)
    }
}

/// Disks that are not gone.
pub async fn living(db: &Db) -> Result<Vec<DiskId>, DbError> {
    let rows: Vec<IdRow> = sql("SELECT id FROM disks WHERE deleted_at IS NULL").fetch_all(db).await?;
    Ok(rows.into_iter().map(|r| r.0).collect())
}

/// Whether a project has any.
pub async fn any(tx: &mut Tx, project: ProjectId) -> Result<bool, DbError> {
    let n: i64 = sql("SELECT COUNT(*) FROM disks WHERE project_id = $1 AND deleted_at IS NULL")
        .bind(project)
        .fetch_one(tx)
        .await?;
    Ok(n > 0)
}
