//! Rows of snapshots.

use berth_domain::Timestamp;
use berth_domain::ids::{HostId, LayerId, MemoryId, NetworkId, OrgId, ProjectId, SandboxId, SnapshotId, TemplateId};
use berth_domain::resource_usage::{Kind, Measure};
use berth_domain::sandbox::SnapshotStatus;
use berth_domain::sandbox::request::Env;

use super::copied::Copied;
use super::layer::LayerRow;
use super::{Holds, Tenant};
use crate::columns;
use crate::db::listing::{Listed, Listing, Words};
use crate::db::record::{self, Columns};
use crate::db::resource_usage::{self, Use};
use crate::db::{Db, DbError, FromRow, On, Row, Signal, Tx, json, page_of, sql};

/// The table.
pub const TABLE: &str = "sandbox_snapshots";

/// A snapshot as its row has it.
#[derive(Clone, Debug)]
pub struct SnapshotRow {
    /// Its id.
    pub id: SnapshotId,
    /// The organization.
    pub org: OrgId,
    /// The project.
    pub project: ProjectId,
    /// The sandbox it was taken of.
    pub sandbox: SandboxId,
    /// Its name.
    pub name: String,
    /// Where it stands.
    pub status: SnapshotStatus,
    /// Why it failed.
    pub message: Option<String>,
    /// Whether a fork made it for itself.
    pub hidden: bool,
    /// Whether the memory is wanted.
    pub include_memory: bool,
    /// The disk.
    pub layer: Option<LayerId>,
    /// While a checkpoint is under way: the sandbox's next top layer.
    pub next_layer: Option<LayerId>,
    /// The memory.
    pub memory: Option<MemoryId>,
    /// When the checkpoint began.
    pub cut_at: Option<Timestamp>,
    /// What the sandbox, or its origin, was made of.
    pub template: Option<TemplateId>,
    /// Virtual CPUs.
    pub vcpu: i64,
    /// Memory, in MiB.
    pub memory_mb: i64,
    /// Disk, in GiB.
    pub disk_gb: i64,
    /// Environment of every command.
    pub env: Env,
    /// Who commands run as.
    pub run_user: String,
    /// The workspace, if it is not the user's home.
    pub workdir: Option<String>,
    /// The networks that the sandbox belonged to.
    pub networks: Vec<NetworkId>,
    /// What it takes on the host.
    pub bytes: i64,
    /// Whether it is to outlive its host.
    pub durable: bool,
    /// Who else has all of it.
    pub copy: Option<Copied>,
    /// Creation.
    pub created_at: Timestamp,
    /// Last change.
    pub updated_at: Timestamp,
    /// Deletion.
    pub deleted_at: Option<Timestamp>,
}

impl FromRow for SnapshotRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self {
            id: row.parsed("id")?,
            org: row.parsed("org_id")?,
            project: row.parsed("project_id")?,
            sandbox: row.parsed("sandbox_id")?,
            name: row.text("name")?,
            status: row.word("status", SnapshotStatus::parse)?,
            message: row.opt_text("message")?,
            hidden: row.flag("hidden")?,
            include_memory: row.flag("include_memory")?,
            layer: row.opt_parsed("layer_id")?,
            next_layer: row.opt_parsed("next_layer_id")?,
            memory: row.opt_parsed("memory_id")?,
            cut_at: row.opt_time("cut_at")?,
            template: row.opt_parsed("template_id")?,
            vcpu: row.int("vcpu")?,
            memory_mb: row.int("memory_mb")?,
            disk_gb: row.int("disk_gb")?,
            env: row.json("env")?,
            run_user: row.text("run_user")?,
            workdir: row.opt_text("workdir")?,
            networks: row.json("network_ids")?,
            bytes: row.int("bytes")?,
            durable: row.flag("durable")?,
            copy: Copied::of(row)?,
            created_at: row.time("created_at")?,
            updated_at: row.time("updated_at")?,
            deleted_at: row.opt_time("deleted_at")?,
        })
    }
}

fn columns(s: &SnapshotRow) -> Columns {
    columns! {
        "id": s.id, "org_id": s.org, "project_id": s.project, "sandbox_id": s.sandbox, "name": &s.name,
        "status": s.status.as_str(), "message": s.message.clone(), "hidden": s.hidden,
        "include_memory": s.include_memory, "layer_id": s.layer, "next_layer_id": s.next_layer,
        "memory_id": s.memory, "cut_at": s.cut_at, "template_id": s.template, "vcpu": s.vcpu,
        "memory_mb": s.memory_mb, "disk_gb": s.disk_gb, "env": json::text(&s.env), "run_user": &s.run_user,
        "workdir": s.workdir.clone(), "network_ids": json::text(&s.networks), "bytes": s.bytes, "durable": s.durable,
        "copy_host_id": s.copy.and_then(|copy| copy.host), "copied_at": s.copy.map(|copy| copy.since),
        "created_at": s.created_at, "updated_at": s.updated_at,
        "deleted_at": s.deleted_at,
    }
}

impl Holds for SnapshotRow {
    fn layers(&self) -> Vec<LayerId> {
        self.layer.into_iter().chain(self.next_layer).collect()
    }

    fn memories(&self) -> Vec<MemoryId> {
        self.memory.into_iter().collect()
    }
}

/// Writes a new row.
pub async fn insert(tx: &mut Tx, snapshot: &SnapshotRow) -> Result<(), DbError> {
    record::insert(TABLE, columns(snapshot)).execute(tx).await.map(drop)
}

impl SnapshotRow {
    /// What is counted of it: what it takes on the host, from when it was made until its owner has it deleted. One that
    /// a fork made for itself is not its owner's.
    fn takes(&self) -> Option<Use> {
        let there = self.status == SnapshotStatus::Ready && !self.hidden && self.deleted_at.is_none();
        there.then(|| Use {
            org: self.org,
            project: self.project,
            kind: Kind::Snapshot,
            resource: self.id.0,
            name: self.name.clone(),
            size: None,
            measure: Measure { bytes: self.bytes, ..Measure::default() },
            tariff: resource_usage::SNAPSHOT.to_owned(),
        })
    }
}

/// What all snapshots take at present.
pub async fn taken(tx: &mut Tx) -> Result<Vec<Use>, DbError> {
    let ready = sql("SELECT * FROM sandbox_snapshots WHERE status = 'Ready' AND deleted_at IS NULL");
    let rows: Vec<SnapshotRow> = ready.fetch_all(tx).await?;
    Ok(rows.iter().filter_map(SnapshotRow::takes).collect())
}

/// Writes a row anew, notes what it takes, and has looked at what it does not hold any more.
pub async fn update(tx: &mut Tx, before: &SnapshotRow, after: &SnapshotRow, now: Timestamp) -> Result<(), DbError> {
    record::update(tx, TABLE, &columns(before), columns(after)).await?;
    let taken = after.takes();
    if taken != before.takes() {
        resource_usage::settle(tx, (Kind::Snapshot, after.id.0), taken.as_ref(), now).await?;
    }
    super::release(tx, before, after, now).await?;
    tx.signal(Signal::Row(TABLE, after.id.0));
    Ok(())
}

/// A tenant's snapshot that it can see.
pub async fn find(on: impl On, tenant: Tenant, id: SnapshotId) -> Result<Option<SnapshotRow>, DbError> {
    sql("SELECT * FROM sandbox_snapshots \
         WHERE id = $1 AND project_id = $2 AND hidden = 0 AND status <> 'Deleting' AND deleted_at IS NULL")
    .bind(id)
    .bind(tenant.project)
    .fetch_optional(on)
    .await
}

/// Any snapshot that is not gone: for the worker.
pub async fn load(on: impl On, id: SnapshotId) -> Result<Option<SnapshotRow>, DbError> {
    sql("SELECT * FROM sandbox_snapshots WHERE id = $1 AND deleted_at IS NULL").bind(id).fetch_optional(on).await
}

/// The host that a snapshot's layers lie on.
pub async fn host(on: impl On, id: SnapshotId) -> Result<Option<HostId>, DbError> {
    let layer = sql("SELECT l.* FROM sandbox_layers l JOIN sandbox_snapshots s ON s.layer_id = l.id \
         WHERE s.id = $1 AND s.deleted_at IS NULL");
    let layer: Option<LayerRow> = layer.bind(id).fetch_optional(on).await?;
    Ok(layer.and_then(|layer| layer.host))
}

/// By what a list of snapshots can be narrowed and ordered.
pub const LISTED: Listed = Listed {
    id: "sandbox_snapshots.id",
    created: "sandbox_snapshots.created_at",
    name: Some("sandbox_snapshots.name"),
    status: Some(Words { param: "status", column: "sandbox_snapshots.status", words: &["Pending", "Ready", "Failed"] }),
    labels: None,
};

/// A page of a tenant's snapshots, of one sandbox or of all, and how many there are.
pub async fn list(
    db: &Db,
    tenant: Tenant,
    sandbox: Option<SandboxId>,
    listing: &Listing,
) -> Result<(Vec<SnapshotRow>, i64), DbError> {
    let text = "sandbox_snapshots WHERE project_id = $1 AND hidden = 0 AND status <> 'Deleting' \
         AND deleted_at IS NULL AND ($2 IS NULL OR sandbox_id = $2)";
    page_of("*", text).bind(tenant.project).bind(sandbox).list(db, &LISTED, listing).await
}

/// The snapshots of a sandbox whose checkpoint is under way or to be made, in the order they have to be made in.
pub async fn to_checkpoint(on: impl On, sandbox: SandboxId) -> Result<Vec<SnapshotRow>, DbError> {
    sql("SELECT * FROM sandbox_snapshots WHERE sandbox_id = $1 AND deleted_at IS NULL \
         AND (status = 'Pending' OR next_layer_id IS NOT NULL) \
         ORDER BY CASE WHEN next_layer_id IS NULL THEN 1 ELSE 0 END, created_at, id")
    .bind(sandbox)
    .fetch_all(on)
    .await
}

/// How many snapshots a project has.
pub async fn count(tx: &mut Tx, project: ProjectId) -> Result<i64, DbError> {
    sql("SELECT COUNT(*) FROM sandbox_snapshots \
         WHERE project_id = $1 AND hidden = 0 AND status <> 'Deleting' AND deleted_at IS NULL")
    .bind(project)
    .fetch_one(tx)
    .await
}

/// The oldest fork's snapshots that nobody waits for any more: for the start.
pub async fn hidden(db: &Db) -> Result<Vec<SnapshotRow>, DbError> {
    sql("SELECT * FROM sandbox_snapshots WHERE hidden = 1 AND deleted_at IS NULL").fetch_all(db).await
}
