//! What a step leaves on the row: phase, message, times, events.

use berth_domain::Timestamp;
use berth_domain::sandbox::plan::{self, Look, Over, Step};
use berth_domain::sandbox::{OnTimeout, Phase, SnapshotStatus, Wish};
use serde_json::json;

use super::{SandboxLife, Seen};
use crate::db::audit::{Actor, Audit};
use crate::db::{Tx, event};
use crate::services::placement::Refusal;
use crate::services::sandbox::ops;
use crate::services::sandbox::reconcile::StepError;
use crate::services::sandbox::store;
use crate::services::sandbox::store::sandbox::SandboxRow;
use crate::services::sandbox::store::snapshot::SnapshotRow;

/// What the owner of a sandbox is told that was paused to go to another host.
pub(super) const GOING: &str = "going to another host";

impl SandboxLife {
    /// Writes a change onto the row it was decided for, with its event. A row whose wish changed meanwhile is
    /// left alone.
    pub(super) async fn record(&self, seen: &Seen, change: impl FnOnce(&mut SandboxRow)) -> Result<(), StepError> {
        let mut tx = self.sandboxes.db().begin().await?;
        if let Some(before) = still(&mut tx, seen).await? {
            let mut after = before.clone();
            change(&mut after);
            self.write(&mut tx, &before, after).await?;
            tx.commit().await?;
        }
        Ok(())
    }

    /// Writes a row; tells of it where an owner would see the difference.
    pub(super) async fn write(&self, tx: &mut Tx, before: &SandboxRow, mut after: SandboxRow) -> Result<(), StepError> {
        let now = self.sandboxes.clock().now();
        let lies = |row: &SandboxRow| (row.layer, row.memory, row.machine.host);
        if lies(&after) != lies(before) {
            // A second host has not all of it any more.
            after.copy = None;
        }
        let told = after.phase != before.phase || after.message != before.message;
        if told || after.expires_at != before.expires_at {
            after.updated_at = now;
        }
        store::sandbox::update(tx, before, &after, now).await?;
        if told {
            let data = json!({"phase": after.phase.as_str(), "message": after.message});
            event::emit(tx, after.project, "sandbox.phase", &after.id.to_string(), &data, now).await?;
        }
        for snapshot in [before.source_snapshot, before.restore].into_iter().flatten() {
            if after.source_snapshot != Some(snapshot) && after.restore != Some(snapshot) {
                ops::snapshot::settle(tx, snapshot, now).await?;
            }
        }
        Ok(())
    }

    /// Its time is over: the platform's own wish to pause or delete it.
    pub(super) async fn expire(&self, seen: &Seen, over: Over) -> Result<(), StepError> {
        let mut tx = self.sandboxes.db().begin().await?;
        let Some(before) = still(&mut tx, seen).await? else { return Ok(()) };
        let mut row = before.clone();
        let message = match over {
            Over::Lifetime => "its time is over (timeout_seconds)",
            Over::Idle => "nobody used it (idle_timeout_seconds)",
        };
        let (wish, phase, action) = match row.on_timeout {
            OnTimeout::Pause => (Wish::Paused, Phase::Pausing, "sandbox.pause"),
            OnTimeout::Delete => (Wish::Deleted, Phase::Deleting, "sandbox.delete"),
        };
        if over == Over::Lifetime {
            // Whoever resumes it gives it another life.
            row.expires_at = None;
            row.life_left = row.timeout_seconds.map(|seconds| seconds * Timestamp::SECOND);
        }
        row.keep_memory = row.keeps_memory();
        enter(&mut row, phase, Some(message.to_owned()), seen.now);
        row.wish = wish;
        let subject = row.id.to_string();
        let audit = Audit {
            org: Some(row.org),
            project: Some(row.project),
            actor: Actor::Platform,
            request_id: "",
            from: None,
            action,
            subject: &subject,
            data: json!({"name": row.name, "message": message}),
        };
        audit.write(&mut tx, seen.now).await?;
        self.write(&mut tx, &before, row).await?;
        Ok(tx.commit().await?)
    }

    /// Records a failure: no machine is wanted any more, everything that was made is kept.
    pub(super) async fn fail(&self, seen: &Seen, reason: &str) -> Result<(), StepError> {
        self.fail_telling(seen, reason, None).await
    }

    /// The same where no host takes it, of which administrators are told.
    pub(super) async fn fail_unplaced(&self, seen: &Seen, refusal: &Refusal) -> Result<(), StepError> {
        let reason = format!("insufficient_capacity: {}", refusal.owner);
        self.fail_telling(seen, &reason, Some(refusal)).await
    }

    async fn fail_telling(&self, seen: &Seen, reason: &str, refusal: Option<&Refusal>) -> Result<(), StepError> {
        // A machine that never became the sandbox is not seen, and would run on.
        self.engine(seen)?.end(seen.row.machine.aim()).await?;
        let mut tx = self.sandboxes.db().begin().await?;
        let Some(before) = still(&mut tx, seen).await? else { return Ok(()) };
        let mut row = before.clone();
        enter(&mut row, Phase::Failed, Some(reason.to_owned()), seen.now);
        row.wish = Wish::Paused;
        row.machine.reserved = false;
        (row.restore, row.source_snapshot, row.source_template) = (None, None, None);
        (row.memory, row.again) = (None, None);
        for snapshot in store::snapshot::to_checkpoint(&mut tx, row.id).await? {
            // A checkpoint that has begun is brought to its end.
            if snapshot.next_layer.is_none() {
                drop_checkpoint(&mut tx, &snapshot, reason, seen.now).await?;
            }
        }
        if let Some(refusal) = refusal {
            let (subject, data) = (before.id.to_string(), refusal.event());
            event::emit_to_administrators(&mut tx, row.project, "sandbox.unplaced", &subject, &data, seen.now).await?;
        }
        self.write(&mut tx, &before, row).await?;
        let hosts = refusal.map(|refusal| tracing::field::debug(&refusal.hosts));
        tracing::warn!(sandbox = %before.id, reason, hosts, "sandbox failed");
        Ok(tx.commit().await?)
    }

    /// Releases everything and records that the sandbox is gone.
    pub(super) async fn finish(&self, seen: &Seen) -> Result<(), StepError> {
        let now = seen.now;
        let mut tx = self.sandboxes.db().begin().await?;
        let Some(before) = still(&mut tx, seen).await? else { return Ok(()) };
        for snapshot in store::snapshot::to_checkpoint(&mut tx, before.id).await? {
            drop_checkpoint(&mut tx, &snapshot, "the sandbox was deleted", now).await?;
        }
        let mut row = before.clone();
        enter(&mut row, Phase::Deleted, None, now);
        row.machine.end(now);
        row.networks.clear();
        (row.layer, row.memory, row.restore) = (None, None, None);
        (row.source_snapshot, row.source_template) = (None, None);
        row.env.clear();
        row.expires_at = None;
        row.work_at = None;
        row.deleted_at = Some(now);
        self.write(&mut tx, &before, row).await?;
        Ok(tx.commit().await?)
    }
}

/// Ends a snapshot without its checkpoint.
pub(super) async fn drop_checkpoint(
    tx: &mut Tx,
    snapshot: &SnapshotRow,
    reason: &str,
    now: Timestamp,
) -> Result<(), StepError> {
    let mut after = SnapshotRow { layer: None, next_layer: None, memory: None, updated_at: now, ..snapshot.clone() };
    if snapshot.status == SnapshotStatus::Pending {
        after.status = SnapshotStatus::Failed;
        after.message = Some(reason.to_owned());
    }
    store::snapshot::update(tx, snapshot, &after, now).await?;
    if snapshot.status == SnapshotStatus::Pending {
        ops::snapshot::tell(tx, &after, now).await?;
    }
    store::sandbox::wake_those_of_snapshot(tx, snapshot.id, now).await?;
    ops::snapshot::settle(tx, snapshot.id, now).await?;
    Ok(())
}

/// The row as it is now, if it still wants what it wanted when it was looked at.
pub(super) async fn still(tx: &mut Tx, seen: &Seen) -> Result<Option<SandboxRow>, StepError> {
    still_as(tx, &seen.row).await
}

/// The same of a row that was read.
pub(super) async fn still_as(tx: &mut Tx, seen: &SandboxRow) -> Result<Option<SandboxRow>, StepError> {
    let now = store::sandbox::load(tx, seen.id).await?;
    Ok(now.filter(|row| {
        row.deleted_at.is_none() && (row.wish, row.phase, row.phase_since) == (seen.wish, seen.phase, seen.phase_since)
    }))
}

/// What each step that only records does to the row.
pub(super) fn apply(row: &mut SandboxRow, look: &Look, step: &Step) {
    let now = look.now;
    match step {
        Step::Enter(phase, message) => enter(row, *phase, Some((*message).to_owned()), now),
        Step::StartAgain { reason, died } => {
            if *died {
                let before = plan::deaths(look);
                row.deaths = before + 1;
                row.deaths_since = if before == 0 { Some(now) } else { row.deaths_since };
            }
            enter(row, Phase::Resuming, Some(reason.clone()), now);
            row.again = Some(reason.clone());
            row.memory = None;
        }
        Step::Retry => {
            row.attempts += 1;
            // The machine of before is nobody's now.
            row.machine.generation += 1;
            row.phase_since = now;
            row.work_at = Some(now);
            row.message = Some("it took too long; trying once more".into());
        }
        _ => {}
    }
}

/// Takes a new phase: the clocks of its deadline, of the time it was ready and of its life follow.
pub(in crate::services::sandbox) fn enter(row: &mut SandboxRow, phase: Phase, message: Option<String>, now: Timestamp) {
    if let Some(since) = row.ready_since.take() {
        row.running_micros += (now.0 - since.0).max(0);
    }
    match phase {
        Phase::Ready => {
            row.ready_since = Some(now);
            let whole = row.timeout_seconds.map(|seconds| seconds * Timestamp::SECOND);
            let left = if row.first_ready_at.is_none() { whole } else { row.life_left };
            row.expires_at = row.expires_at.or(left.map(|micros| Timestamp(now.0.saturating_add(micros))));
            row.life_left = None;
            row.first_ready_at = row.first_ready_at.or(Some(now));
            (row.durable, row.copy) = (false, None);
        }
        Phase::Paused => {
            if let Some(at) = row.expires_at.take() {
                row.life_left = Some((at.0 - now.0).max(0));
            }
        }
        _ => {}
    }
    if !matches!(phase, Phase::Pausing | Phase::Paused | Phase::Failed) {
        row.moves = None;
    }
    row.phase = phase;
    row.message = message;
    row.phase_since = now;
    row.attempts = 0;
    row.work_at = Some(now);
}
