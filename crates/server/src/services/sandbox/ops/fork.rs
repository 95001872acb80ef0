//! Forks: others that begin where one is now.
//!
//! The live state is checkpointed once, into a snapshot that nobody sees; the sandboxes are made of it and wait for it.
//! It goes when each of them has a disk of its own.

use berth_domain::ids::SandboxId;
use berth_domain::sandbox::request::{Fork, numbered};
use berth_domain::sandbox::state::{Verb, on_verb};
use berth_domain::{Error, Result, Timestamp};
use serde_json::json;

use super::sandbox::{admit, created, named, of_snapshot};
use super::{admit_stored, gpu, sandbox_not_found, snapshot};
use crate::db::Tx;
use crate::db::audit::Audit;
use crate::http::auth::Scope;
use crate::http::idempotency::{Idempotency, Outcome};
use crate::services::membership;
use crate::services::sandbox::Sandboxes;
use crate::services::sandbox::store;
use crate::services::sandbox::store::sandbox::SandboxRow;
use crate::services::sandbox::store::snapshot::SnapshotRow;
use crate::services::sandbox::wire::sandbox::{Forked, SandboxView, Shown};

/// Records the wish for sandboxes that begin where this one is.
pub async fn fork(
    sandboxes: &Sandboxes,
    scope: &Scope,
    id: SandboxId,
    request: Fork,
    base: &str,
    key: Idempotency,
) -> Result<Outcome<Forked>> {
    let now = sandboxes.clock().now();
    let mut tx = sandboxes.db().begin_as(scope).await?;
    if let Some(replayed) = key.replay(&mut tx, now).await? {
        return Ok(replayed);
    }
    let source = store::sandbox::find(&mut tx, scope.into(), id).await?.ok_or_else(sandbox_not_found)?;
    let named_one = match request.snapshot_id {
        Some(id) => Some(snapshot::ready(&mut tx, scope, id).await?),
        None => None,
    };
    on_verb(Verb::Fork, source.phase)?;
    gpu::refuse_memory(
        &source,
        request.include_memory,
        "Fork it without include_memory: the new ones boot from its disk.",
    )?;
    let inherited: Vec<_> = source.networks.iter().map(|joined| joined.id).collect();
    let networks = membership::still_open(&mut tx, scope.into(), &inherited).await?;
    let members = usize::try_from(request.count).map_err(Error::internal)?;
    let mut places = membership::of_several(&mut tx, &networks, members).await?.into_iter();
    admit(&mut tx, scope, (request.count, source.gpu_config_count), now).await?;
    let origin = if let Some(snapshot) = &named_one {
        snapshot.clone()
    } else {
        admit_stored(&mut tx, sandboxes, scope).await?;
        live(&mut tx, &source, request.include_memory, now).await?
    };
    let mut views = Vec::new();
    for number in 1..=request.count {
        let networks = places.next().unwrap_or_default();
        let mut row = SandboxRow { networks, ..child(scope, &source, &origin, now) };
        let name = request.name.as_ref().map(|name| numbered(name, number, request.count)).transpose();
        named(&mut row, name.map_err(Error::internal)?);
        store::sandbox::insert(&mut tx, &row, None).await?;
        created(&mut tx, scope, &row, "sandbox.create").await?;
        views.push(SandboxView::new(&row, Shown { base, now, names_hosts: false }));
    }
    let data = json!({"count": request.count, "snapshot_id": request.snapshot_id});
    Audit { data, ..scope.audit("sandbox.fork", &id.to_string()) }.write(&mut tx, now).await?;
    let location = views.first().map(|view| view.location(scope)).unwrap_or_default();
    let outcome = key.created(&mut tx, now, location, Forked { data: views }).await?;
    tx.commit().await?;
    Ok(outcome)
}

/// The snapshot of the live state that nobody sees.
async fn live(tx: &mut Tx, source: &SandboxRow, include_memory: bool, now: Timestamp) -> Result<SnapshotRow> {
    let row = SnapshotRow { hidden: true, ..snapshot::of(source, include_memory, now) };
    store::snapshot::insert(tx, &row).await?;
    store::sandbox::wake(tx, source.id, now).await?;
    Ok(row)
}

/// A sandbox that begins where its source is, with the same rules and a life of its own.
fn child(scope: &Scope, source: &SandboxRow, origin: &SnapshotRow, now: Timestamp) -> SandboxRow {
    SandboxRow {
        snapshot: (!origin.hidden).then_some(origin.id),
        forked_from: Some(source.id),
        metadata: source.metadata.clone(),
        network: source.network.clone(),
        timeout_seconds: source.timeout_seconds,
        idle_timeout_seconds: source.idle_timeout_seconds,
        on_timeout: source.on_timeout,
        auto_resume: source.auto_resume,
        gpu_config_count: source.gpu_config_count,
        gpu_model: source.gpu_model.clone(),
        ..of_snapshot(scope, origin, now)
    }
}
