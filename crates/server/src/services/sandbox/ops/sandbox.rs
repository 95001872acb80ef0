//! Verbs on sandboxes.

use std::collections::BTreeMap;

use berth_domain::ids::{NetworkId, OrgId, SandboxId, SnapshotId};
use berth_domain::machine::Owner;
use berth_domain::names::HostName;
use berth_domain::sandbox::request::{CreateSandbox, Env, Origin, Pause, UpdateSandbox};
use berth_domain::sandbox::state::{Verb, on_verb};
use berth_domain::sandbox::{OnTimeout, Phase, TemplateStatus, Wish};
use berth_domain::{Code, Error, Result, Timestamp};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{durable, gpu, made_up, sandbox_not_found, snapshot, template_not_found};
use crate::db::audit::{Actor, Audit};
use crate::db::machine::{self, Machine};
use crate::db::network::{self, MembershipRow};
use crate::db::usage::Held;
use crate::db::{Db, Signal, Tx, event};
use crate::http::auth::{Caller, Scope};
use crate::http::idempotency::{Idempotency, Outcome};
use crate::services::placement::placed_event;
use crate::services::sandbox::Sandboxes;
use crate::services::sandbox::reconcile::sandbox::enter;
use crate::services::sandbox::store;
use crate::services::sandbox::store::sandbox::SandboxRow;
use crate::services::sandbox::store::snapshot::SnapshotRow;
use crate::services::sandbox::store::template::TemplateRow;
use crate::services::sandbox::wire::sandbox::{SandboxView, Shown};
use crate::services::{membership, quota};

/// Records the wish for a sandbox.
pub async fn create(
    sandboxes: &Sandboxes,
    scope: &Scope,
    request: CreateSandbox,
    base: &str,
    key: Idempotency,
) -> Result<Outcome<SandboxView>> {
    let now = sandboxes.clock().now();
    let mut tx = sandboxes.db().begin_as(scope).await?;
    if let Some(replayed) = key.replay(&mut tx, now).await? {
        return Ok(replayed);
    }
    let gpu_model = gpu::model(sandboxes.catalog(), &request)?;
    let (mut row, adopted) = match &request.origin {
        Origin::Template(name) => {
            let template = template(&mut tx, scope, name).await?;
            let networks = join(&mut tx, scope, request.networks.as_deref(), &[]).await?;
            admit(&mut tx, scope, (1, request.gpu_config_count), now).await?;
            let row = SandboxRow { networks, ..of_template(scope, &template, now) };
            // One that waits was captured, and knows no GPU.
            if gpu_model.is_some() { (row, None) } else { with_warm(&mut tx, sandboxes, row, &template).await? }
        }
        Origin::Snapshot(id) => {
            let snapshot = snapshot::ready(&mut tx, scope, *id).await?;
            let networks = join(&mut tx, scope, request.networks.as_deref(), &snapshot.networks).await?;
            admit(&mut tx, scope, (1, request.gpu_config_count), now).await?;
            (SandboxRow { snapshot: Some(*id), networks, ..of_snapshot(scope, &snapshot, now) }, None)
        }
    };
    fill(&mut row, request);
    row.gpu_model = gpu_model;
    store::sandbox::insert(&mut tx, &row, adopted.as_ref()).await?;
    created(&mut tx, scope, &row, "sandbox.create").await?;
    if let Some(host) = adopted.and_then(|machine| machine.host) {
        let data = placed_event(host, "a machine that waited for an owner is there");
        let subject = row.id.to_string();
        event::emit_to_administrators(&mut tx, row.project, "sandbox.placed", &subject, &data, now).await?;
    }
    let view = SandboxView::new(&row, Shown { base, now, names_hosts: false });
    let outcome = key.created(&mut tx, now, view.location(scope), view).await?;
    tx.commit().await?;
    Ok(outcome)
}

/// The places of a new sandbox in the networks that its owner names, or else in those of what it is made of.
async fn join(
    tx: &mut Tx,
    scope: &Scope,
    named: Option<&[NetworkId]>,
    inherited: &[NetworkId],
) -> Result<Vec<MembershipRow>> {
    let networks = match named {
        Some(ids) => membership::references(tx, scope.into(), ids).await?,
        None => membership::still_open(tx, scope.into(), inherited).await?,
    };
    membership::of_one(tx, &networks).await
}

/// Gives a new sandbox a machine that waits with its template's memory, if there is one: the sandbox, and that machine
/// as it was.
async fn with_warm(
    tx: &mut Tx,
    sandboxes: &Sandboxes,
    row: SandboxRow,
    template: &TemplateRow,
) -> Result<(SandboxRow, Option<Machine>)> {
    let Some(memory) = template.memory else { return Ok((row, None)) };
    let host = store::memory::find(&mut *tx, memory).await?.and_then(|memory| memory.host);
    let pool = sandboxes.warm(host.unwrap_or_else(|| sandboxes.host()));
    // A template has its memory a moment before it is ready.
    if !pool.is_some_and(|pool| pool.asked(memory)) || template.status != TemplateStatus::Ready {
        return Ok((row, None));
    }
    let found = machine::warm(&mut *tx, memory).await?.filter(|machine| !machine.host_is_lost);
    let Some(found) = found else { return Ok((row, None)) };
    let Some(layer) = found.layer else { return Ok((row, None)) };
    let host = found.host.unwrap_or_else(|| sandboxes.host());
    let others = network::hosts_of_others(tx, &row.networks, row.machine.id).await?;
    if others.into_iter().any(|other| other != host) {
        return Ok((row, None));
    }
    store::layer::give(tx, layer, (row.org, row.project)).await?;
    // It reserves for itself, as every sandbox does.
    let machine =
        Machine { owner: Owner::Sandbox(row.id), reserved: false, layer: None, ready: false, ..found.clone() };
    let row = SandboxRow { machine, layer: Some(layer), memory: Some(memory), source_template: None, ..row };
    Ok((row, Some(found)))
}

async fn template(tx: &mut Tx, scope: &Scope, name: &str) -> Result<TemplateRow> {
    let found = store::template::find(tx, scope.into(), name).await?.ok_or_else(|| template_not_found(name))?;
    if found.status == TemplateStatus::Failed {
        let reason = found.message.unwrap_or_default();
        let next = match found.org {
            Some(_) => "Make it anew, under the same name.",
            None => "The service makes it anew in some minutes.",
        };
        return Err(Error::new(Code::Conflict, format!("The template {name} could not be built: {reason}. {next}")));
    }
    Ok(found)
}

/// Refuses with 403 what a quota does not allow: so many, with so many GPUs each.
pub(super) async fn admit(tx: &mut Tx, scope: &Scope, (wanted, gpus): (i64, i64), now: Timestamp) -> Result<()> {
    quota::admit(tx, scope, Held { sandboxes: wanted, gpus: wanted.saturating_mul(gpus), ..Held::default() }, now).await
}

fn fill(row: &mut SandboxRow, request: CreateSandbox) {
    if let Some(name) = request.name {
        name.as_str().clone_into(&mut row.name);
    }
    row.metadata = request.metadata;
    row.env.extend(request.env);
    row.timeout_seconds = request.timeout_seconds;
    row.idle_timeout_seconds = request.idle_timeout_seconds;
    row.on_timeout = request.on_timeout;
    row.auto_resume = request.auto_resume;
    row.network = request.network;
    row.gpu_config_count = request.gpu_config_count;
}

fn of_template(scope: &Scope, template: &TemplateRow, now: Timestamp) -> SandboxRow {
    let blank = blank(scope, now);
    SandboxRow {
        machine: Machine { vcpu: template.vcpu, memory_mb: template.memory_mb, ..blank.machine.clone() },
        template: Some(template.id),
        source_template: Some(template.id),
        env: template.env.clone(),
        vcpu: template.vcpu,
        memory_mb: template.memory_mb,
        disk_gb: template.disk_gb,
        run_user: template.run_user.clone(),
        workdir: template.workdir.clone(),
        ..blank
    }
}

/// A new sandbox made of a snapshot.
pub(super) fn of_snapshot(scope: &Scope, snapshot: &SnapshotRow, now: Timestamp) -> SandboxRow {
    let blank = blank(scope, now);
    SandboxRow {
        machine: Machine { vcpu: snapshot.vcpu, memory_mb: snapshot.memory_mb, ..blank.machine.clone() },
        template: snapshot.template,
        source_snapshot: Some(snapshot.id),
        env: snapshot.env.clone(),
        vcpu: snapshot.vcpu,
        memory_mb: snapshot.memory_mb,
        disk_gb: snapshot.disk_gb,
        run_user: snapshot.run_user.clone(),
        workdir: snapshot.workdir.clone(),
        ..blank
    }
}

fn blank(scope: &Scope, now: Timestamp) -> SandboxRow {
    let id = SandboxId(Uuid::now_v7());
    SandboxRow {
        id,
        org: scope.org,
        project: scope.project,
        name: made_up("sandbox", id.0),
        template: None,
        snapshot: None,
        forked_from: None,
        source_template: None,
        source_snapshot: None,
        phase: Phase::Pending,
        wish: Wish::Ready,
        message: Some("waiting for a worker".into()),
        metadata: BTreeMap::new(),
        env: Env::new(),
        vcpu: 1,
        memory_mb: 0,
        disk_gb: 0,
        gpu_config_count: 0,
        gpu_model: None,
        network: berth_domain::sandbox::network_policy::NetworkPolicy::default(),
        applied_network: None,
        run_user: String::new(),
        workdir: None,
        timeout_seconds: None,
        idle_timeout_seconds: None,
        on_timeout: OnTimeout::Pause,
        auto_resume: false,
        layer: None,
        memory: None,
        keep_memory: true,
        restore: None,
        fresh: true,
        machine: Machine::new(machine::new_id(), Owner::Sandbox(id), 1, 0),
        networks: Vec::new(),
        phase_since: now,
        attempts: 0,
        deaths: 0,
        deaths_since: None,
        again: None,
        first_ready_at: None,
        ready_since: None,
        running_micros: 0,
        expires_at: None,
        life_left: None,
        moves: None,
        durable: false,
        copy: None,
        work_at: Some(now),
        created_at: now,
        updated_at: now,
        deleted_at: None,
    }
}

/// A name for a sandbox, if one is given.
pub(super) fn named(row: &mut SandboxRow, name: Option<HostName>) {
    if let Some(name) = name {
        name.as_str().clone_into(&mut row.name);
    }
}

/// Audit record and event of a new sandbox.
pub(super) async fn created(tx: &mut Tx, scope: &Scope, row: &SandboxRow, action: &str) -> Result<()> {
    let subject = row.id.to_string();
    let data = json!({"name": row.name, "phase": row.phase.as_str(), "forked_from": row.forked_from});
    Audit { data: data.clone(), ..scope.audit(action, &subject) }.write(tx, row.created_at).await?;
    Ok(event::emit(tx, scope.project, "sandbox.created", &subject, &data, row.created_at).await?)
}

/// A sandbox by its id.
pub async fn get(sandboxes: &Sandboxes, scope: &Scope, id: SandboxId, ever: bool) -> Result<SandboxRow> {
    let found = if ever {
        store::sandbox::find_ever(sandboxes.db(), scope.into(), id).await?
    } else {
        store::sandbox::find(sandboxes.db(), scope.into(), id).await?
    };
    found.ok_or_else(sandbox_not_found)
}

/// A row about to be changed by a request.
struct Change<'a> {
    tx: Tx,
    scope: &'a Scope,
    before: SandboxRow,
    now: Timestamp,
}

impl<'a> Change<'a> {
    async fn begin(db: &Db, now: Timestamp, scope: &'a Scope, id: SandboxId) -> Result<Self> {
        let mut tx = db.begin_as(scope).await?;
        let before = store::sandbox::find(&mut tx, scope.into(), id).await?.ok_or_else(sandbox_not_found)?;
        Ok(Self { tx, scope, before, now })
    }

    /// Writes the wish with its audit record and event, and wakes the worker.
    async fn commit(mut self, mut row: SandboxRow, action: &str, data: Value) -> Result<SandboxRow> {
        row.updated_at = self.now;
        row.work_at = Some(self.now);
        write(&mut self.tx, Some(&self.scope.caller), &self.before, &row, action, data).await?;
        self.tx.commit().await?;
        Ok(row)
    }
}

/// What a record tells: whose it is before what was done, because an id tells nobody anything.
fn named_data(row: &SandboxRow, data: &Value) -> Value {
    let mut told = json!({"name": row.name});
    if let (Some(told), Some(data)) = (told.as_object_mut(), data.as_object()) {
        told.extend(data.clone());
    }
    told
}

pub(super) async fn write(
    tx: &mut Tx,
    by: Option<&Caller>,
    before: &SandboxRow,
    row: &SandboxRow,
    action: &str,
    data: Value,
) -> Result<()> {
    let now = row.updated_at;
    store::sandbox::update(tx, before, row, now).await?;
    let subject = row.id.to_string();
    let audit = Audit {
        org: Some(row.org),
        project: Some(row.project),
        actor: by.map_or(Actor::Platform, Caller::actor),
        request_id: by.map_or("", |caller| &caller.request_id),
        from: by.and_then(|caller| caller.from),
        action,
        subject: &subject,
        data: named_data(row, &data),
    };
    audit.write(tx, now).await?;
    let kind = if row.phase == before.phase { "sandbox.updated" } else { "sandbox.phase" };
    let told =
        if row.phase == before.phase { data } else { json!({"phase": row.phase.as_str(), "message": row.message}) };
    event::emit(tx, row.project, kind, &subject, &told, now).await?;
    tx.signal(Signal::Work(store::sandbox::TABLE));
    Ok(())
}

/// Records the wish to pause, with the memory if that can be kept where nobody says whether; says nothing new where that is
/// under way or done.
pub async fn pause(sandboxes: &Sandboxes, scope: &Scope, id: SandboxId, request: Pause) -> Result<SandboxRow> {
    let mut change = Change::begin(sandboxes.db(), sandboxes.clock().now(), scope, id).await?;
    let mut row = change.before.clone();
    let phase = on_verb(Verb::Pause, row.phase)?;
    if request.durable == Some(true) && !row.durable {
        durable::admit(&mut change.tx, sandboxes, scope, row.layer).await?;
    }
    let Some(phase) = phase else {
        return stay_paused(change, request.durable).await;
    };
    row.durable = request.durable.unwrap_or(false);
    let memory = request.include_memory;
    let instead = format!(
        "Pause it without include_memory, as this does: berth sandbox pause {}. It begins from its disk then.",
        row.name
    );
    gpu::refuse_memory(&row, memory == Some(true), &instead)?;
    let memory = memory.unwrap_or_else(|| row.keeps_memory());
    enter(&mut row, phase, Some("waiting for a worker to pause".into()), change.now);
    row.wish = Wish::Paused;
    row.keep_memory = memory;
    let data = json!({"memory": memory, "durable": row.durable});
    change.commit(row, "sandbox.pause", data).await
}

/// What a pause says of one that is paused already, or about to be: that it stays so, and whether it is to outlive its host.
async fn stay_paused(change: Change<'_>, durable: Option<bool>) -> Result<SandboxRow> {
    let mut row = change.before.clone();
    // It was paused to go to another host, and is to stay paused there.
    let stays = row.moves.as_mut().filter(|to| to.resumes).map(|to| to.resumes = false).is_some();
    row.durable = durable.unwrap_or(row.durable);
    if !stays && row.durable == change.before.durable {
        return Ok(row);
    }
    row.copy = row.copy.filter(|_| row.durable);
    let data = json!({"memory": row.keep_memory, "durable": row.durable});
    change.commit(row, "sandbox.pause", data).await
}

/// Records the wish to resume; says nothing new where that is under way or done.
pub async fn resume(sandboxes: &Sandboxes, scope: &Scope, id: SandboxId) -> Result<SandboxRow> {
    resume_at(sandboxes.db(), sandboxes.clock().now(), scope, id).await
}

/// The same for whoever has no more of the service than its rows.
pub async fn resume_at(db: &Db, now: Timestamp, scope: &Scope, id: SandboxId) -> Result<SandboxRow> {
    let mut change = Change::begin(db, now, scope, id).await?;
    let mut row = change.before.clone();
    let Some(phase) = on_verb(Verb::Resume, row.phase)? else { return Ok(row) };
    quota::afford(&mut change.tx, scope, change.now).await?;
    enter(&mut row, phase, Some("waiting for a worker to resume".into()), change.now);
    row.wish = Wish::Ready;
    change.commit(row, "sandbox.resume", json!({})).await
}

/// Records the wish to go back to a snapshot, in place.
pub async fn restore(sandboxes: &Sandboxes, scope: &Scope, id: SandboxId, snapshot: SnapshotId) -> Result<SandboxRow> {
    let mut change = Change::begin(sandboxes.db(), sandboxes.clock().now(), scope, id).await?;
    let mut row = change.before.clone();
    snapshot::ready(&mut change.tx, scope, snapshot).await?;
    let Some(phase) = on_verb(Verb::Restore, row.phase)? else { return Ok(row) };
    if row.phase != Phase::Ready {
        quota::afford(&mut change.tx, scope, change.now).await?;
    }
    enter(&mut row, phase, Some("waiting for a worker to restore".into()), change.now);
    row.wish = Wish::Ready;
    row.restore = Some(snapshot);
    (row.deaths, row.deaths_since) = (0, None);
    change.commit(row, "sandbox.restore", json!({"snapshot_id": snapshot})).await
}

/// Records the wish to delete, in any phase.
pub async fn delete(sandboxes: &Sandboxes, scope: &Scope, id: SandboxId) -> Result<()> {
    let change = Change::begin(sandboxes.db(), sandboxes.clock().now(), scope, id).await?;
    if change.before.phase == Phase::Deleting {
        return Ok(());
    }
    let row = deleting(&change.before, "waiting for a worker to delete", change.now);
    change.commit(row, "sandbox.delete", json!({})).await.map(drop)
}

/// A row with the wish to delete it.
pub(super) fn deleting(before: &SandboxRow, message: &str, now: Timestamp) -> SandboxRow {
    let mut row = before.clone();
    enter(&mut row, Phase::Deleting, Some(message.to_owned()), now);
    row.wish = Wish::Deleted;
    row.updated_at = now;
    row
}

/// Changes timeouts, whether requests resume it, metadata or the rules of the network.
pub async fn update(sandboxes: &Sandboxes, scope: &Scope, id: SandboxId, wanted: UpdateSandbox) -> Result<SandboxRow> {
    let change = Change::begin(sandboxes.db(), sandboxes.clock().now(), scope, id).await?;
    let mut row = change.before.clone();
    if row.wish == Wish::Deleted {
        return Err(Error::new(Code::InvalidPhase, "The sandbox is being deleted."));
    }
    if let Some(seconds) = wanted.timeout_seconds {
        row.timeout_seconds = Some(seconds);
        match (row.first_ready_at, row.phase) {
            // It counts from the first time it is ready.
            (None, _) => {}
            (_, Phase::Paused) => row.life_left = Some(seconds * Timestamp::SECOND),
            _ => row.expires_at = Some(change.now.plus_seconds(seconds)),
        }
    }
    row.idle_timeout_seconds = wanted.idle_timeout_seconds.or(row.idle_timeout_seconds);
    row.on_timeout = wanted.on_timeout.unwrap_or(row.on_timeout);
    row.auto_resume = wanted.auto_resume.unwrap_or(row.auto_resume);
    row.metadata = wanted.metadata.unwrap_or(row.metadata);
    row.network = wanted.network.of(row.network);
    if row == change.before {
        return Ok(row);
    }
    let data = json!({"name": row.name});
    change.commit(row, "sandbox.update", data).await
}

/// Records the platform's own wish to pause what is ready or on its way to be: everything, or what belongs to one
/// organization. How many sandboxes that are.
pub async fn pause_all(sandboxes: &Sandboxes, org: Option<OrgId>, reason: &str) -> Result<usize> {
    let now = sandboxes.clock().now();
    let mut paused = 0;
    // Those that were paused to go to another host stay paused there.
    let mut tx = sandboxes.db().begin().await?;
    store::leaving::stay_paused(&mut tx, org).await?;
    tx.commit().await?;
    for id in store::sandbox::with_machine(sandboxes.db(), org).await? {
        let mut tx = sandboxes.db().begin().await?;
        let found = store::sandbox::load(&mut tx, id).await?;
        let Some(before) = found.filter(|row| row.wish == Wish::Ready) else { continue };
        let mut row = before.clone();
        enter(&mut row, Phase::Pausing, Some(reason.to_owned()), now);
        row.wish = Wish::Paused;
        (row.keep_memory, row.updated_at) = (row.keeps_memory(), now);
        write(&mut tx, None, &before, &row, "sandbox.pause", json!({"message": reason})).await?;
        tx.commit().await?;
        paused += 1;
    }
    Ok(paused)
}
