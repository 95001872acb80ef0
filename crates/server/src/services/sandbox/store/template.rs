//! Rows of templates.

use berth_domain::Timestamp;
use berth_domain::host::placement::Placed;
use berth_domain::ids::{HostId, LayerId, MemoryId, OrgId, ProjectId, TemplateId, UploadId};
use berth_domain::machine::Owner;
use berth_domain::sandbox::request::Env;
use berth_domain::sandbox::{SourceKind, TemplateStatus, Warm};

use super::{Holds, Tenant};
use crate::columns;
use crate::db::listing::{Listed, Listing, Words};
use crate::db::machine::{self, Machine};
use crate::db::record::{self, Columns};
use crate::db::{Db, DbError, FromRow, On, Row, Signal, Tx, due, json, page_of, sql};

/// The table.
pub const TABLE: &str = "sandbox_templates";

/// A template as its row has it.
#[derive(Clone, Debug)]
pub struct TemplateRow {
    /// Its id.
    pub id: TemplateId,
    /// The organization; none for the platform's.
    pub org: Option<OrgId>,
    /// The project.
    pub project: Option<ProjectId>,
    /// Its name.
    pub name: String,
    /// Where it stands.
    pub status: TemplateStatus,
    /// The step, or the reason of a failure.
    pub message: Option<String>,
    /// What kind of thing it is made of.
    pub kind: SourceKind,
    /// The thing.
    pub source: String,
    /// Of the platform's: what its image was made from.
    pub version: Option<String>,
    /// Virtual CPUs.
    pub vcpu: i64,
    /// Memory, in MiB.
    pub memory_mb: i64,
    /// Disk, in GiB.
    pub disk_gb: i64,
    /// Environment of every command.
    pub env: Env,
    /// What its sandboxes find running.
    pub start_command: Option<String>,
    /// What succeeds when that is ready.
    pub ready_command: Option<String>,
    /// Who commands run as.
    pub run_user: String,
    /// The workspace, if it is not the user's home.
    pub workdir: Option<String>,
    /// The disk before the first boot.
    pub base_layer: Option<LayerId>,
    /// What sandboxes build on.
    pub layer: Option<LayerId>,
    /// The disk of the boot under way.
    pub next_layer: Option<LayerId>,
    /// The memory sandboxes begin with.
    pub memory: Option<MemoryId>,
    /// The memory of the boot under way.
    pub next_memory: Option<MemoryId>,
    /// Whether it is to be booted once and its memory kept.
    pub warm: Warm,
    /// The upload that `COPY` takes files from.
    pub context: Option<UploadId>,
    /// Since when it stands there.
    pub status_since: Timestamp,
    /// How often the deadline passed.
    pub attempts: i64,
    /// When the worker is to look again.
    pub work_at: Option<Timestamp>,
    /// Creation.
    pub created_at: Timestamp,
    /// Last change.
    pub updated_at: Timestamp,
    /// Deletion.
    pub deleted_at: Option<Timestamp>,
}

impl FromRow for TemplateRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self {
            id: row.parsed("id")?,
            org: row.opt_parsed("org_id")?,
            project: row.opt_parsed("project_id")?,
            name: row.text("name")?,
            status: row.word("status", TemplateStatus::parse)?,
            message: row.opt_text("message")?,
            kind: row.word("source_kind", SourceKind::parse)?,
            source: row.text("source")?,
            version: row.opt_text("version")?,
            vcpu: row.int("vcpu")?,
            memory_mb: row.int("memory_mb")?,
            disk_gb: row.int("disk_gb")?,
            env: row.json("env")?,
            start_command: row.opt_text("start_command")?,
            ready_command: row.opt_text("ready_command")?,
            run_user: row.text("run_user")?,
            workdir: row.opt_text("workdir")?,
            base_layer: row.opt_parsed("base_layer_id")?,
            layer: row.opt_parsed("layer_id")?,
            next_layer: row.opt_parsed("next_layer_id")?,
            memory: row.opt_parsed("memory_id")?,
            next_memory: row.opt_parsed("next_memory_id")?,
            warm: row.word("warm", Warm::parse)?,
            context: row.opt_parsed("context_id")?,
            status_since: row.time("status_since")?,
            attempts: row.int("attempts")?,
            work_at: row.opt_time("work_at")?,
            created_at: row.time("created_at")?,
            updated_at: row.time("updated_at")?,
            deleted_at: row.opt_time("deleted_at")?,
        })
    }
}

fn columns(t: &TemplateRow) -> Columns {
    columns! {
        "id": t.id, "org_id": t.org, "project_id": t.project, "name": &t.name, "status": t.status.as_str(),
        "message": t.message.clone(), "source_kind": t.kind.as_str(), "source": &t.source,
        "version": t.version.clone(), "vcpu": t.vcpu, "memory_mb": t.memory_mb, "disk_gb": t.disk_gb,
        "env": json::text(&t.env), "start_command": t.start_command.clone(),
        "ready_command": t.ready_command.clone(), "run_user": &t.run_user, "workdir": t.workdir.clone(),
        "base_layer_id": t.base_layer, "layer_id": t.layer, "next_layer_id": t.next_layer,
        "memory_id": t.memory, "next_memory_id": t.next_memory, "warm": t.warm.as_str(),
        "context_id": t.context, "status_since": t.status_since, "attempts": t.attempts,
        "work_at": t.work_at, "created_at": t.created_at, "updated_at": t.updated_at, "deleted_at": t.deleted_at,
    }
}

impl Holds for TemplateRow {
    fn layers(&self) -> Vec<LayerId> {
        self.base_layer.into_iter().chain(self.layer).chain(self.next_layer).collect()
    }

    fn memories(&self) -> Vec<MemoryId> {
        self.memory.into_iter().chain(self.next_memory).collect()
    }
}

/// Writes a new row, and wakes the worker.
pub async fn insert(tx: &mut Tx, template: &TemplateRow) -> Result<(), DbError> {
    record::insert(TABLE, columns(template)).execute(&mut *tx).await?;
    tx.signal(Signal::Work(TABLE));
    Ok(())
}

/// The machines that work for a template.
pub async fn machines(on: impl On, id: TemplateId) -> Result<Vec<Machine>, DbError> {
    machine::of_owner(on, Owner::Template(id)).await
}

/// Reserves machines of a host for a template: as many as were placed there.
pub async fn reserve(tx: &mut Tx, template: &TemplateRow, placed: &Placed) -> Result<Vec<Machine>, DbError> {
    let owner = Owner::Template(template.id);
    let new = |_| Machine::new(machine::new_id(), owner, template.vcpu, template.memory_mb);
    let mut machines: Vec<_> = (0..placed.count).map(new).collect();
    machine::reserve(tx, placed.host, placed.room, &mut machines).await?;
    for machine in &machines {
        machine::insert(tx, machine).await?;
    }
    Ok(machines)
}

/// Removes the rows of machines that worked for a template, all of which have ended.
pub async fn release(tx: &mut Tx, machines: &[Machine]) -> Result<(), DbError> {
    for machine in machines {
        machine::remove(tx, machine.id).await?;
    }
    Ok(())
}

/// Writes a row anew, and has looked at what it does not hold any more.
pub async fn update(tx: &mut Tx, before: &TemplateRow, after: &TemplateRow, now: Timestamp) -> Result<(), DbError> {
    record::update(tx, TABLE, &columns(before), columns(after)).await?;
    super::release(tx, before, after, now).await?;
    tx.signal(Signal::Row(TABLE, after.id.0));
    tx.signal(Signal::Work(TABLE));
    Ok(())
}

/// A template that a tenant can use, by id or name; its own before the platform's.
pub async fn find(on: impl On, tenant: Tenant, name: &str) -> Result<Option<TemplateRow>, DbError> {
    sql("SELECT * FROM sandbox_templates WHERE (id = $2 OR name = $2) AND (project_id = $1 OR project_id IS NULL) \
         AND status <> 'deleting' AND deleted_at IS NULL \
         ORDER BY CASE WHEN project_id IS NULL THEN 1 ELSE 0 END LIMIT 1")
    .bind(tenant.project)
    .bind(name)
    .fetch_optional(on)
    .await
}

/// A template that a tenant can build on by its name: any but one, its own before the platform's.
pub async fn named(on: impl On, tenant: Tenant, name: &str, but: TemplateId) -> Result<Option<TemplateRow>, DbError> {
    sql("SELECT * FROM sandbox_templates WHERE name = $2 AND (project_id = $1 OR project_id IS NULL) AND id <> $3 \
         AND status <> 'deleting' AND deleted_at IS NULL \
         ORDER BY CASE WHEN project_id IS NULL THEN 1 ELSE 0 END LIMIT 1")
    .bind(tenant.project)
    .bind(name)
    .bind(but)
    .fetch_optional(on)
    .await
}

/// A project's template of this name, one that is being deleted among them.
pub async fn of_project(tx: &mut Tx, project: ProjectId, name: &str) -> Result<Option<TemplateRow>, DbError> {
    sql("SELECT * FROM sandbox_templates WHERE project_id = $1 AND name = $2 AND deleted_at IS NULL")
        .bind(project)
        .bind(name)
        .fetch_optional(tx)
        .await
}

/// One of the platform's.
pub async fn of_platform(on: impl On, name: &str) -> Result<Option<TemplateRow>, DbError> {
    sql("SELECT * FROM sandbox_templates WHERE project_id IS NULL AND name = $1 AND deleted_at IS NULL")
        .bind(name)
        .fetch_optional(on)
        .await
}

/// Any template: for the worker.
pub async fn load(on: impl On, id: TemplateId) -> Result<Option<TemplateRow>, DbError> {
    sql("SELECT * FROM sandbox_templates WHERE id = $1").bind(id).fetch_optional(on).await
}

/// The template whose sandboxes begin with a memory, or will a moment later: one that is built has its memory before it is
/// ready.
pub async fn of_memory(on: impl On, memory: MemoryId) -> Result<Option<TemplateRow>, DbError> {
    let of_memory = "SELECT * FROM sandbox_templates \
         WHERE memory_id = $1 AND status IN ('building', 'ready') AND deleted_at IS NULL LIMIT 1";
    sql(of_memory).bind(memory).fetch_optional(on).await
}

/// By what a list of templates can be narrowed and ordered.
pub const LISTED: Listed = Listed {
    id: "sandbox_templates.id",
    created: "sandbox_templates.created_at",
    name: Some("sandbox_templates.name"),
    status: Some(Words {
        param: "status",
        column: "sandbox_templates.status",
        words: &["pending", "building", "ready", "failed", "deleting"],
    }),
    labels: None,
};

/// A page of the templates that a tenant can use, and how many there are.
pub async fn list(db: &Db, tenant: Tenant, listing: &Listing) -> Result<(Vec<TemplateRow>, i64), DbError> {
    let text = "sandbox_templates WHERE (project_id = $1 OR project_id IS NULL) AND status <> 'deleting' \
         AND deleted_at IS NULL";
    page_of("*", text).bind(tenant.project).list(db, &LISTED, listing).await
}

/// Templates that want work, organizations in turn, and when the next one does.
pub async fn due(db: &Db, now: Timestamp, limit: usize) -> Result<due::Due<TemplateId>, DbError> {
    due::of_projects(db, TABLE, now, limit).await
}

/// Ids of templates that are not gone and may be built on a host.
pub async fn living(db: &Db, host: HostId) -> Result<Vec<String>, DbError> {
    sql("SELECT id FROM sandbox_templates WHERE deleted_at IS NULL AND NOT EXISTS (SELECT 1 FROM sandbox_layers l \
         WHERE l.id = sandbox_templates.base_layer_id AND l.host_id <> $1)")
    .bind(host)
    .fetch_all(db)
    .await
}

/// How many templates a project has.
pub async fn count(tx: &mut Tx, project: ProjectId) -> Result<i64, DbError> {
    sql("SELECT COUNT(*) FROM sandbox_templates WHERE project_id = $1 AND deleted_at IS NULL")
        .bind(project)
        .fetch_one(tx)
        .await
}
