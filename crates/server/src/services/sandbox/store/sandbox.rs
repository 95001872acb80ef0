//! Rows of sandboxes.

use berth_domain::Timestamp;
use berth_domain::host::Aim;
use berth_domain::ids::{
    HostId, LayerId, MachineId, MemoryId, OrgId, Owner, ProjectId, SandboxId, SnapshotId, TemplateId,
};
use berth_domain::resource_usage::{Kind, Measure};
use berth_domain::sandbox::network_policy::NetworkPolicy;
use berth_domain::sandbox::request::{Env, Metadata};
use berth_domain::sandbox::{OnTimeout, Phase, Wish};

use super::copied::Copied;
use super::{Holds, Tenant};
use crate::db::listing::{Listed, Listing, Words};
use crate::db::machine::{self, Machine};
use crate::db::machine_gpu;
use crate::db::network::{self, MembershipRow};
use crate::db::owned::{self, Owned, OwnerFilter};
use crate::db::record::{self, Columns};
use crate::db::resource_usage::{self, Use};
use crate::db::{Db, DbError, FromRow, On, PageQuery, Row, Signal, Tx, Value, due, json, page_of, sql};
use crate::{columns, joined_networks, machine_columns, machine_join, with_machine};

/// The table.
pub const TABLE: &str = "sandboxes";

/// Sandboxes with their machines, and which.
macro_rules! select {
    ($which:literal) => {
        concat!(
            "SELECT sandboxes.*, ",
            machine_columns!(),
            ", ",
            joined_networks!("sandboxes", "sandbox"),
            " FROM ",
            with_machine!("sandboxes", "sandbox"),
            $which
        )
    };
}

/// How a sandbox leaves its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The host that it goes to.
    pub host: HostId,
    /// Since when.
    pub since: Timestamp,
    /// Whether it ran, and is to run there.
    pub resumes: bool,
}

/// A sandbox as its row has it.
#[derive(Clone, Debug, PartialEq)]
pub struct SandboxRow {
    /// Its id.
    pub id: SandboxId,
    /// The organization.
    pub org: OrgId,
    /// The project.
    pub project: ProjectId,
    /// Its name, and its host name inside.
    pub name: String,
    /// What it, or its origin, was made of.
    pub template: Option<TemplateId>,
    /// The snapshot it was made of, as its owner named it.
    pub snapshot: Option<SnapshotId>,
    /// The sandbox it was forked from.
    pub forked_from: Option<SandboxId>,
    /// The template it is made of, until it has a disk.
    pub source_template: Option<TemplateId>,
    /// The snapshot it is made of, until it has a disk.
    pub source_snapshot: Option<SnapshotId>,
    /// Where it stands.
    pub phase: Phase,
    /// What is wanted.
    pub wish: Wish,
    /// The step, or the reason of a failure.
    pub message: Option<String>,
    /// Free pairs.
    pub metadata: Metadata,
    /// Environment of every command.
    pub env: Env,
    /// Virtual CPUs.
    pub vcpu: i64,
    /// Memory, in MiB.
    pub memory_mb: i64,
    /// Disk, in GiB.
    pub disk_gb: i64,
    /// How many GPUs it has.
    pub gpu_config_count: i64,
    /// Of which model, as a size names it; none of one without GPUs.
    pub gpu_model: Option<String>,
    /// What it may reach.
    pub network: NetworkPolicy,
    /// What the running machine may reach.
    pub applied_network: Option<NetworkPolicy>,
    /// Who commands run as.
    pub run_user: String,
    /// The workspace, if it is not the user's home.
    pub workdir: Option<String>,
    /// Seconds it lives while not paused.
    pub timeout_seconds: Option<i64>,
    /// Seconds it may be idle.
    pub idle_timeout_seconds: Option<i64>,
    /// What happens then.
    pub on_timeout: OnTimeout,
    /// Whether requests to it resume it while it is paused.
    pub auto_resume: bool,
    /// The top of its disk.
    pub layer: Option<LayerId>,
    /// What the next machine begins with.
    pub memory: Option<MemoryId>,
    /// Whether the pause under way keeps the memory.
    pub keep_memory: bool,
    /// The snapshot that is restored, until its disk is on it.
    pub restore: Option<SnapshotId>,
    /// Whether the next machine is somebody new.
    pub fresh: bool,
    /// Its machine: what that holds, and how often it was started.
    pub machine: Machine,
    /// The networks of its project that it belongs to, in the order in which its owner named them.
    pub networks: Vec<MembershipRow>,
    /// Since when it stands there.
    pub phase_since: Timestamp,
    /// How often the deadline passed in a row.
    pub attempts: i64,
    /// Deaths since the first that counts.
    pub deaths: i64,
    /// The first death that counts.
    pub deaths_since: Option<Timestamp>,
    /// Why it is started again.
    pub again: Option<String>,
    /// When it was ready for the first time.
    pub first_ready_at: Option<Timestamp>,
    /// Since when it is ready.
    pub ready_since: Option<Timestamp>,
    /// Microseconds it was ready before.
    pub running_micros: i64,
    /// End of its life time.
    pub expires_at: Option<Timestamp>,
    /// Microseconds left of its life time, while it is paused.
    pub life_left: Option<i64>,
    /// Where it goes from its host, which is drained.
    pub moves: Option<Move>,
    /// Whether it is to outlive its host while it is paused.
    pub durable: bool,
    /// Who else has all of it.
    pub copy: Option<Copied>,
    /// When the worker is to look again.
    pub work_at: Option<Timestamp>,
    /// Creation.
    pub created_at: Timestamp,
    /// Last change.
    pub updated_at: Timestamp,
    /// Deletion.
    pub deleted_at: Option<Timestamp>,
}

impl FromRow for SandboxRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        let applied = row.opt_text("applied_network")?;
        Ok(Self {
            id: row.parsed("id")?,
            org: row.parsed("org_id")?,
            project: row.parsed("project_id")?,
            name: row.text("name")?,
            template: row.opt_parsed("template_id")?,
            snapshot: row.opt_parsed("snapshot_id")?,
            forked_from: row.opt_parsed("forked_from")?,
            source_template: row.opt_parsed("source_template_id")?,
            source_snapshot: row.opt_parsed("source_snapshot_id")?,
            phase: row.word("phase", Phase::parse)?,
            wish: row.word("wish", Wish::parse)?,
            message: row.opt_text("message")?,
            metadata: row.json("metadata")?,
            env: row.json("env")?,
            vcpu: row.int("vcpu")?,
            memory_mb: row.int("memory_mb")?,
            disk_gb: row.int("disk_gb")?,
            gpu_config_count: row.int("gpu_config_count")?,
            gpu_model: row.opt_text("gpu_model")?,
            network: row.json("network")?,
            applied_network: applied.map(|_| row.json("applied_network")).transpose()?,
            run_user: row.text("run_user")?,
            workdir: row.opt_text("workdir")?,
            timeout_seconds: row.opt_int("timeout_seconds")?,
            idle_timeout_seconds: row.opt_int("idle_timeout_seconds")?,
            on_timeout: row.word("on_timeout", OnTimeout::parse)?,
            auto_resume: row.flag("auto_resume")?,
            layer: row.opt_parsed("layer_id")?,
            memory: row.opt_parsed("memory_id")?,
            keep_memory: row.flag("keep_memory")?,
            restore: row.opt_parsed("restore_snapshot_id")?,
            fresh: row.flag("fresh")?,
            machine: Machine::from_row(row)?,
            networks: MembershipRow::of(row)?,
            phase_since: row.time("phase_since")?,
            attempts: row.int("attempts")?,
            deaths: row.int("deaths")?,
            deaths_since: row.opt_time("deaths_since")?,
            again: row.opt_text("again")?,
            first_ready_at: row.opt_time("first_ready_at")?,
            ready_since: row.opt_time("ready_since")?,
            running_micros: row.int("running_micros")?,
            expires_at: row.opt_time("expires_at")?,
            life_left: row.opt_int("life_left")?,
            moves: match row.opt_parsed("to_host_id")? {
                Some(host) => Some(Move { host, since: row.time("to_since")?, resumes: row.flag("to_resumes")? }),
                None => None,
            },
            durable: row.flag("durable")?,
            copy: Copied::of(row)?,
            work_at: row.opt_time("work_at")?,
            created_at: row.time("created_at")?,
            updated_at: row.time("updated_at")?,
            deleted_at: row.opt_time("deleted_at")?,
        })
    }
}

fn columns(s: &SandboxRow) -> Columns {
    columns! {
        "id": s.id, "org_id": s.org, "project_id": s.project, "name": &s.name, "template_id": s.template,
        "snapshot_id": s.snapshot, "forked_from": s.forked_from, "source_template_id": s.source_template,
        "source_snapshot_id": s.source_snapshot, "phase": s.phase.as_str(), "wish": s.wish.as_str(),
        "message": s.message.clone(), "metadata": json::text(&s.metadata), "env": json::text(&s.env),
        "vcpu": s.vcpu, "memory_mb": s.memory_mb, "disk_gb": s.disk_gb,
        "gpu_config_count": s.gpu_config_count, "gpu_model": s.gpu_model.clone(), "network": json::text(&s.network),
        "applied_network": s.applied_network.as_ref().map(json::text), "run_user": &s.run_user,
        "workdir": s.workdir.clone(), "timeout_seconds": s.timeout_seconds,
        "idle_timeout_seconds": s.idle_timeout_seconds, "on_timeout": s.on_timeout.as_str(),
        "auto_resume": s.auto_resume, "layer_id": s.layer, "memory_id": s.memory, "keep_memory": s.keep_memory, "restore_snapshot_id": s.restore, "fresh": s.fresh,
        "phase_since": s.phase_since, "attempts": s.attempts, "deaths": s.deaths, "deaths_since": s.deaths_since,
        "again": s.again.clone(), "first_ready_at": s.first_ready_at, "ready_since": s.ready_since,
        "running_micros": s.running_micros, "expires_at": s.expires_at, "life_left": s.life_left,
        "to_host_id": s.moves.map(|to| to.host), "to_since": s.moves.map(|to| to.since),
        "to_resumes": s.moves.is_some_and(|to| to.resumes),
        "durable": s.durable, "copy_host_id": s.copy.and_then(|copy| copy.host), "copied_at": s.copy.map(|copy| copy.since),
        "work_at": s.work_at, "created_at": s.created_at, "updated_at": s.updated_at, "deleted_at": s.deleted_at,
    }
}

impl Holds for SandboxRow {
    fn layers(&self) -> Vec<LayerId> {
        self.layer.into_iter().collect()
    }

    fn memories(&self) -> Vec<MemoryId> {
        self.memory.into_iter().collect()
    }
}

impl SandboxRow {
    /// What is counted of it: its size, while it is ready.
    fn takes(&self) -> Option<Use> {
        let measure = Measure { vcpu: self.vcpu, memory_mb: self.memory_mb, gpus: self.gpu_config_count, bytes: 0 };
        (self.ready_since.is_some() && self.deleted_at.is_none()).then(|| Use {
            org: self.org,
            project: self.project,
            kind: Kind::Sandbox,
            resource: self.id.0,
            name: self.name.clone(),
            size: Some(format!("{} vCPU, {} MiB", self.vcpu, self.memory_mb)),
            measure,
            tariff: resource_usage::SANDBOX.to_owned(),
        })
    }

    /// Whether its memory can be kept: what GPUs hold cannot.
    pub const fn keeps_memory(&self) -> bool {
        self.gpu_config_count == 0
    }

    /// Whole seconds it was ready.
    pub const fn running_seconds(&self, now: Timestamp) -> i64 {
        let current = match self.ready_since {
            Some(since) if now.0 > since.0 => now.0 - since.0,
            _ => 0,
        };
        (self.running_micros + current) / Timestamp::SECOND
    }
}

/// Writes a new row, and wakes the worker; `adopted` is its machine, where that was there before.
pub async fn insert(tx: &mut Tx, sandbox: &SandboxRow, adopted: Option<&Machine>) -> Result<(), DbError> {
    record::insert(TABLE, columns(sandbox)).execute(&mut *tx).await?;
    match adopted {
        Some(before) => {
            machine::update(tx, before, &sandbox.machine).await?;
            // Another one is wanted now, and not before this is seen.
            if let Some(host) = before.host {
                tx.signal(Signal::Warm(host));
            }
        }
        None => machine::insert(tx, &sandbox.machine).await?,
    }
    network::join(tx, sandbox.machine.owner, &sandbox.networks, sandbox.created_at).await?;
    tx.signal(Signal::Work(TABLE));
    Ok(())
}

/// Writes a row anew, notes what it takes, has looked at what it does not hold any more, and tells who waits for it.
pub async fn update(tx: &mut Tx, before: &SandboxRow, after: &SandboxRow, now: Timestamp) -> Result<(), DbError> {
    record::update(tx, TABLE, &columns(before), columns(after)).await?;
    machine::update(tx, &before.machine, &after.machine).await?;
    if before.gpu_config_count > 0 && before.machine.reserved && !after.machine.reserved {
        machine_gpu::release(tx, after.machine.id).await?;
    }
    let networks = (before.networks.as_slice(), after.networks.as_slice());
    let begins = after.ready_since.is_some() && before.ready_since.is_none();
    network::keep_up(tx, after.machine.owner, networks, begins, now).await?;
    let taken = after.takes();
    if taken != before.takes() {
        // The time that it was ready, to the microsecond.
        let at = if after.phase == before.phase { now } else { after.phase_since };
        resource_usage::settle(tx, (Kind::Sandbox, after.id.0), taken.as_ref(), at).await?;
    }
    super::release(tx, before, after, now).await?;
    tx.signal(Signal::Row(TABLE, after.id.0));
    Ok(())
}

/// What all sandboxes take at present.
pub async fn taken(tx: &mut Tx) -> Result<Vec<Use>, DbError> {
    let ready = sql(select!(" WHERE sandboxes.ready_since IS NOT NULL AND sandboxes.deleted_at IS NULL"));
    let rows: Vec<SandboxRow> = ready.fetch_all(tx).await?;
    Ok(rows.iter().filter_map(SandboxRow::takes).collect())
}

/// Sandboxes of a host whose machine began in another boot of it, and so has ended.
pub async fn of_another_boot(tx: &mut Tx, host: HostId, boot: &str) -> Result<Vec<SandboxId>, DbError> {
    let ended = sql(concat!(
        "SELECT sandboxes.id FROM ",
        with_machine!("sandboxes", "sandbox"),
        " WHERE sandboxes.ready_since IS NOT NULL AND m.host_boot <> $1 AND m.host_id = $2"
    ));
    let rows: Vec<IdRow> = ended.bind(boot).bind(host).fetch_all(tx).await?;
    Ok(rows.into_iter().map(|row| row.0).collect())
}

/// Takes the time from `seen` to `now` out of the time in which those were ready.
pub async fn take_out(
    tx: &mut Tx,
    (host, boot): (HostId, &str),
    seen: Timestamp,
    now: Timestamp,
) -> Result<(), DbError> {
    sql("UPDATE sandboxes SET ready_since = CASE WHEN ready_since < $2 THEN ready_since + $3 - $2 ELSE $3 END \
         WHERE ready_since IS NOT NULL AND EXISTS (SELECT 1 FROM machines WHERE owner_id = sandboxes.id \
         AND owner_kind = 'sandbox' AND host_boot <> $1 AND host_id = $4)")
    .bind(boot)
    .bind(seen)
    .bind(now)
    .bind(host)
    .execute(tx)
    .await
    .map(drop)
}

/// A tenant's sandbox.
pub async fn find(on: impl On, tenant: Tenant, id: SandboxId) -> Result<Option<SandboxRow>, DbError> {
    let living =
        sql(select!(" WHERE sandboxes.id = $1 AND sandboxes.project_id = $2 AND sandboxes.deleted_at IS NULL"));
    living.bind(id).bind(tenant.project).fetch_optional(on).await
}

/// A tenant's sandbox, also when it is gone.
pub async fn find_ever(on: impl On, tenant: Tenant, id: SandboxId) -> Result<Option<SandboxRow>, DbError> {
    let ever = sql(select!(" WHERE sandboxes.id = $1 AND sandboxes.project_id = $2"));
    ever.bind(id).bind(tenant.project).fetch_optional(on).await
}

/// Any sandbox: for the worker.
pub async fn load(on: impl On, id: SandboxId) -> Result<Option<SandboxRow>, DbError> {
    sql(select!(" WHERE sandboxes.id = $1")).bind(id).fetch_optional(on).await
}

/// Whose a sandbox is, also when it is gone: for the worker.
pub async fn owner(db: &Db, id: SandboxId) -> Result<Option<Owner>, DbError> {
    due::owner(db, TABLE, id).await
}

/// By what a list of sandboxes can be narrowed and ordered.
pub const LISTED: Listed = Listed {
    id: "sandboxes.id",
    created: "sandboxes.created_at",
    name: Some("sandboxes.name"),
    status: Some(Words { param: "phase", column: "sandboxes.phase", words: Phase::WORDS }),
    labels: None,
};

/// What a list of sandboxes is narrowed to beside what every list can be.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Only those of a template, by id or name.
    pub template: Option<String>,
    /// Only those with these pairs.
    pub metadata: Vec<(String, String)>,
}

/// A page of a tenant's sandboxes, and how many there are.
pub async fn list(
    db: &Db,
    tenant: Tenant,
    filter: &Filter,
    listing: &Listing,
) -> Result<(Vec<SandboxRow>, i64), DbError> {
    const LIVING: &str = "sandboxes WHERE sandboxes.project_id = $1 AND sandboxes.deleted_at IS NULL";
    let mut text = String::from(LIVING);
    let mut args: Vec<Value> = vec![tenant.project.into()];
    if let Some(template) = &filter.template {
        args.push(template.into());
        let n = args.len();
        text.push_str(&format!(
            " AND (template_id = ${n} OR template_id IN (SELECT id FROM sandbox_templates \
             WHERE name = ${n} AND (project_id = $1 OR project_id IS NULL)))"
        ));
    }
    for (key, value) in &filter.metadata {
        let clause = json::has_pair("metadata", key, Some(value), &mut args);
        text.push_str(&format!(" AND {clause}"));
    }
    let columns = concat!("sandboxes.*, ", machine_columns!(), ", ", joined_networks!("sandboxes", "sandbox"));
    let page = page_of(columns, text).joining(machine_join!("sandboxes", "sandbox"));
    args.into_iter().fold(page, PageQuery::bind).list(db, &LISTED, listing).await
}

/// Sandboxes that want work, organizations in turn, and when the next one does.
pub async fn due(db: &Db, now: Timestamp, limit: usize) -> Result<due::Due<SandboxId>, DbError> {
    due::of_projects(db, TABLE, now, limit).await
}

struct IdRow(SandboxId);

impl FromRow for IdRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        row.parsed("id").map(Self)
    }
}

/// Sandboxes that have a machine, or should have one: all, or those of an organization.
pub async fn with_machine(db: &Db, org: Option<OrgId>) -> Result<Vec<SandboxId>, DbError> {
    let rows: Vec<IdRow> = sql("SELECT id FROM sandboxes WHERE wish = 'ready' AND deleted_at IS NULL \
         AND (CAST($1 AS TEXT) IS NULL OR org_id = $1)")
    .bind(org)
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().map(|row| row.0).collect())
}

/// Sandboxes that should have a machine on a host, and where that is asked those that are on none yet.
pub async fn wanting(db: &Db, host: HostId, or_nowhere: bool) -> Result<Vec<SandboxId>, DbError> {
    let wanted = sql(concat!(
        "SELECT sandboxes.id FROM ",
        with_machine!("sandboxes", "sandbox"),
        " WHERE sandboxes.wish = 'ready' AND sandboxes.deleted_at IS NULL \
         AND (m.host_id = $1 OR ($2 = 1 AND m.host_id IS NULL))"
    ));
    let rows: Vec<IdRow> = wanted.bind(host).bind(or_nowhere).fetch_all(db).await?;
    Ok(rows.into_iter().map(|row| row.0).collect())
}

/// The machines of a host whose sandboxes have failed.
pub async fn failed_on(db: &Db, host: HostId) -> Result<Vec<Aim>, DbError> {
    let failed = sql(concat!(
        "SELECT m.id, m.generation FROM ",
        with_machine!("sandboxes", "sandbox"),
        " WHERE sandboxes.phase = 'Failed' AND sandboxes.deleted_at IS NULL AND m.host_id = $1"
    ));
    machine::aims(failed.bind(host), db).await
}

/// How many sandboxes of a host are being put away.
pub async fn pausing_on(db: &Db, host: HostId) -> Result<i64, DbError> {
    let pausing = sql(concat!(
        "SELECT COUNT(*) FROM ",
        with_machine!("sandboxes", "sandbox"),
        " WHERE sandboxes.phase = 'Pausing' AND sandboxes.deleted_at IS NULL AND m.host_id = $1"
    ));
    pausing.bind(host).fetch_one(db).await
}

/// A sandbox that can be used, with the machine it has.
#[derive(Clone, Copy, Debug)]
pub struct Running {
    /// The sandbox.
    pub id: SandboxId,
    /// Its machine.
    pub machine: MachineId,
    /// The host of that.
    pub host: Option<HostId>,
    /// Counts the starts of that.
    pub generation: i64,
    /// Virtual CPUs of it.
    pub vcpu: i64,
    /// Whether its host does not answer.
    pub host_is_lost: bool,
}

impl FromRow for Running {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self {
            id: row.parsed("id")?,
            machine: row.parsed("machine_id")?,
            host: row.opt_parsed("host_id")?,
            generation: row.int("generation")?,
            vcpu: row.int("vcpu")?,
            host_is_lost: row.flag("host_is_lost")?,
        })
    }
}

/// Sandboxes that can be used, as far as their hosts are there.
pub async fn ready(db: &Db) -> Result<Vec<Running>, DbError> {
    sql(concat!(
        "SELECT sandboxes.id, m.id AS machine_id, m.host_id, m.generation, m.vcpu, CAST(CASE WHEN EXISTS \
         (SELECT 1 FROM hosts h WHERE h.id = m.host_id AND h.state = 'lost') THEN 1 ELSE 0 END AS BIGINT) AS host_is_lost FROM ",
        with_machine!("sandboxes", "sandbox"),
        " WHERE sandboxes.phase = 'Ready' AND sandboxes.deleted_at IS NULL"
    ))
    .fetch_all(db)
    .await
}

/// Wakes who waits for a snapshot.
pub async fn wake_those_of_snapshot(tx: &mut Tx, id: SnapshotId, now: Timestamp) -> Result<(), DbError> {
    tx.signal(Signal::Work(TABLE));
    sql("UPDATE sandboxes SET work_at = $2 WHERE source_snapshot_id = $1 AND deleted_at IS NULL")
        .bind(id)
        .bind(now)
        .execute(tx)
        .await
        .map(drop)
}

/// Wakes who waits for a template.
pub async fn wake_those_of_template(tx: &mut Tx, id: TemplateId, now: Timestamp) -> Result<(), DbError> {
    tx.signal(Signal::Work(TABLE));
    sql("UPDATE sandboxes SET work_at = $2 WHERE source_template_id = $1 AND deleted_at IS NULL")
        .bind(id)
        .bind(now)
        .execute(tx)
        .await
        .map(drop)
}

/// Wakes one.
pub async fn wake(tx: &mut Tx, id: SandboxId, now: Timestamp) -> Result<(), DbError> {
    tx.signal(Signal::Work(TABLE));
    sql("UPDATE sandboxes SET work_at = $2 WHERE id = $1 AND deleted_at IS NULL")
        .bind(id)
        .bind(now)
        .execute(tx)
        .await
        .map(drop)
}

/// How many sandboxes are made of a template and have no disk yet.
pub async fn waiting_for_template(tx: &mut Tx, id: TemplateId) -> Result<i64, DbError> {
    sql("SELECT COUNT(*) FROM sandboxes WHERE source_template_id = $1 AND deleted_at IS NULL")
        .bind(id)
        .fetch_one(tx)
        .await
}

/// How many sandboxes are made of a snapshot, or go back to it, and are not on its disk yet.
pub async fn waiting_for_snapshot(tx: &mut Tx, id: SnapshotId) -> Result<i64, DbError> {
    sql("SELECT COUNT(*) FROM sandboxes \
         WHERE (source_snapshot_id = $1 OR restore_snapshot_id = $1) AND deleted_at IS NULL")
    .bind(id)
    .fetch_one(tx)
    .await
}

/// How many sandboxes stand where.
pub async fn by_phase(db: &Db) -> Result<Vec<(String, i64)>, DbError> {
    struct PhaseCount(String, i64);
    impl FromRow for PhaseCount {
        fn from_row(row: &Row) -> Result<Self, DbError> {
            Ok(Self(row.text("phase")?, row.int("n")?))
        }
    }
    let rows: Vec<PhaseCount> =
        sql("SELECT phase, COUNT(*) AS n FROM sandboxes WHERE deleted_at IS NULL GROUP BY phase ORDER BY phase")
            .fetch_all(db)
            .await?;
    Ok(rows.into_iter().map(|row| (row.0, row.1)).collect())
}

/// A page of everybody's sandboxes with their owners, and how many there are.
pub async fn list_all(
    db: &Db,
    whose: &OwnerFilter,
    listing: &Listing,
) -> Result<(Vec<Owned<SandboxRow>>, i64), DbError> {
    owned::list(db, owned::SANDBOXES, whose, &LISTED, listing).await
}
