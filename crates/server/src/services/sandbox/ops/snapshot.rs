//! Verbs on snapshots.

use berth_domain::ids::{SandboxId, SnapshotId};
use berth_domain::sandbox::SnapshotStatus;
use berth_domain::sandbox::request::NewSnapshot;
use berth_domain::sandbox::state::{Verb, on_verb};
use berth_domain::{Code, Error, Result, Timestamp};
use serde_json::json;
use uuid::Uuid;

use super::{admit_stored, durable, gpu, made_up, sandbox_not_found, snapshot_not_found};
use crate::db::audit::Audit;
use crate::db::{DbError, Tx, event};
use crate::http::auth::Scope;
use crate::http::idempotency::{Idempotency, Outcome};
use crate::services::quota;
use crate::services::sandbox::Sandboxes;
use crate::services::sandbox::store;
use crate::services::sandbox::store::sandbox::SandboxRow;
use crate::services::sandbox::store::snapshot::SnapshotRow;
use crate::services::sandbox::wire::snapshot::SnapshotView;

/// Records the wish for a snapshot of the live state.
pub async fn create(
    sandboxes: &Sandboxes,
    scope: &Scope,
    id: SandboxId,
    request: NewSnapshot,
    key: Idempotency,
) -> Result<Outcome<SnapshotView>> {
    let now = sandboxes.clock().now();
    let mut tx = sandboxes.db().begin_as(scope).await?;
    if let Some(replayed) = key.replay(&mut tx, now).await? {
        return Ok(replayed);
    }
    let sandbox = store::sandbox::find(&mut tx, scope.into(), id).await?.ok_or_else(sandbox_not_found)?;
    on_verb(Verb::Snapshot, sandbox.phase)?;
    gpu::refuse_memory(&sandbox, request.include_memory, "Take the snapshot without include_memory: it has the disk.")?;
    if request.durable {
        durable::admit(&mut tx, sandboxes, scope, sandbox.layer).await?;
    } else {
        admit_stored(&mut tx, sandboxes, scope).await?;
    }
    quota::afford(&mut tx, scope, now).await?;
    let mut row = of(&sandbox, request.include_memory, now);
    row.name = request.name.unwrap_or(row.name);
    row.durable = request.durable;
    store::snapshot::insert(&mut tx, &row).await?;
    store::sandbox::wake(&mut tx, id, now).await?;
    let subject = row.id.to_string();
    let data = json!({"name": row.name, "sandbox_id": id, "include_memory": row.include_memory,
        "durable": row.durable});
    Audit { data, ..scope.audit("snapshot.create", &subject) }.write(&mut tx, now).await?;
    tell(&mut tx, &row, now).await?;
    let view = SnapshotView::from(&row);
    let outcome = key.created(&mut tx, now, view.location(scope), view).await?;
    tx.commit().await?;
    Ok(outcome)
}

/// A new snapshot of a sandbox, not yet checkpointed.
pub(super) fn of(sandbox: &SandboxRow, include_memory: bool, now: Timestamp) -> SnapshotRow {
    let id = SnapshotId(Uuid::now_v7());
    SnapshotRow {
        id,
        org: sandbox.org,
        project: sandbox.project,
        sandbox: sandbox.id,
        name: made_up("snapshot", id.0),
        status: SnapshotStatus::Pending,
        message: None,
        hidden: false,
        include_memory,
        layer: None,
        next_layer: None,
        memory: None,
        cut_at: None,
        template: sandbox.template,
        vcpu: sandbox.vcpu,
        memory_mb: sandbox.memory_mb,
        disk_gb: sandbox.disk_gb,
        env: sandbox.env.clone(),
        run_user: sandbox.run_user.clone(),
        workdir: sandbox.workdir.clone(),
        networks: sandbox.networks.iter().map(|joined| joined.id).collect(),
        bytes: 0,
        durable: false,
        copy: None,
        created_at: now,
        updated_at: now,
        deleted_at: None,
    }
}

/// Records the wish to delete a snapshot: nobody sees it from now on. What is built on it keeps its layers.
pub async fn delete(sandboxes: &Sandboxes, scope: &Scope, id: SnapshotId) -> Result<()> {
    let now = sandboxes.clock().now();
    let mut tx = sandboxes.db().begin_as(scope).await?;
    let before = store::snapshot::find(&mut tx, scope.into(), id).await?.ok_or_else(snapshot_not_found)?;
    let after = SnapshotRow { status: SnapshotStatus::Deleting, updated_at: now, ..before.clone() };
    store::snapshot::update(&mut tx, &before, &after, now).await?;
    let subject = id.to_string();
    let data = json!({"name": before.name, "sandbox_id": before.sandbox});
    Audit { data, ..scope.audit("snapshot.delete", &subject) }.write(&mut tx, now).await?;
    tell(&mut tx, &after, now).await?;
    settle(&mut tx, id, now).await?;
    Ok(tx.commit().await?)
}

/// A snapshot of the project that is ready: for creating, forking, restoring.
pub(super) async fn ready(tx: &mut Tx, scope: &Scope, id: SnapshotId) -> Result<SnapshotRow> {
    let row = store::snapshot::find(tx, scope.into(), id).await?.ok_or_else(snapshot_not_found)?;
    if row.status == SnapshotStatus::Ready && row.next_layer.is_none() {
        return Ok(row);
    }
    Err(Error::new(Code::SnapshotNotReady, format!("The snapshot is {}. It has to be Ready.", row.status)))
}

/// Lets go of a snapshot that is not wanted any more: deleted, or made by a fork whose sandboxes have their own
/// disks. One whose checkpoint is under way, and one that somebody still waits for, stays for now.
pub(in crate::services::sandbox) async fn settle(
    tx: &mut Tx,
    id: SnapshotId,
    now: Timestamp,
) -> std::result::Result<(), DbError> {
    let Some(before) = store::snapshot::load(&mut *tx, id).await? else { return Ok(()) };
    let wanted = !before.hidden && before.status != SnapshotStatus::Deleting;
    if wanted || before.next_layer.is_some() || store::sandbox::waiting_for_snapshot(tx, id).await? > 0 {
        return Ok(());
    }
    let after = SnapshotRow {
        status: SnapshotStatus::Deleting,
        layer: None,
        memory: None,
        updated_at: now,
        deleted_at: Some(now),
        ..before.clone()
    };
    store::snapshot::update(tx, &before, &after, now).await
}

/// Tells who watches the project; nothing of what a fork makes for itself.
pub(in crate::services::sandbox) async fn tell(
    tx: &mut Tx,
    row: &SnapshotRow,
    now: Timestamp,
) -> std::result::Result<(), DbError> {
    if row.hidden {
        return Ok(());
    }
    let data = json!({
        "name": row.name, "sandbox_id": row.sandbox, "status": row.status.as_str(), "message": row.message,
    });
    event::emit(tx, row.project, "snapshot.status", &row.id.to_string(), &data, now).await
}
