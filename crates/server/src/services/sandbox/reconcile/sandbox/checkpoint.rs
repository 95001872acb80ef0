//! Checkpoints: the top layer of a disk becomes a snapshot's, and the sandbox goes on in a new one.

use berth_domain::ids::{LayerId, MemoryId, SandboxId};
use berth_domain::sandbox::plan::Look;
use berth_domain::sandbox::{MemoryKind, SnapshotStatus};
use berth_domain::{Error, Timestamp};
use berth_host::EngineError;
use berth_host::sandbox::{Capacity, Checkpoint, CheckpointDone, DISK_FULL};
use uuid::Uuid;

use super::record::drop_checkpoint;
use super::{SandboxLife, Seen};
use crate::db::Tx;
use crate::services::sandbox::ops;
use crate::services::sandbox::reconcile::{StepError, fault};
use crate::services::sandbox::store;
use crate::services::sandbox::store::memory::MemoryRow;
use crate::services::sandbox::store::sandbox::SandboxRow;
use crate::services::sandbox::store::snapshot::SnapshotRow;

impl SandboxLife {
    /// Checkpoints the disk for the next snapshot, of the running machine or without one.
    pub(super) async fn checkpoint(&self, seen: &Seen, cold: bool) -> Result<(), StepError> {
        let step = if cold { "checkpoint_cold" } else { "checkpoint" };
        let engine = self.engine(seen)?;
        let host = engine.capacity().await?;
        let Some(snapshot) = self.begin_checkpoint(seen, cold, host).await? else { return Ok(()) };
        fault("sandbox", step, "intent").await?;
        let checkpoint = self.checkpoint_of(&seen.row, &snapshot).await?;
        let done = if cold { engine.checkpoint_cold(&checkpoint).await } else { engine.checkpoint(&checkpoint).await };
        let done = match done {
            Ok(done) => done,
            Err(error) if error.is_final() && !cold => {
                let mut tx = self.sandboxes.db().begin().await?;
                if let Some(snapshot) = store::snapshot::load(&mut tx, snapshot.id).await? {
                    drop_checkpoint(&mut tx, &snapshot, &error.to_string(), seen.now).await?;
                }
                return Ok(tx.commit().await?);
            }
            // Nobody knows which layer is the newest, so there is no giving up.
            Err(error) if error.is_final() => return Err(EngineError::Transient(error.to_string()).into()),
            Err(error) => return Err(error.into()),
        };
        fault("sandbox", step, "done").await?;
        self.record_checkpoint(seen.row.id, &snapshot, &checkpoint, done).await
    }

    /// Records what the checkpoint leads to, before it is made.
    async fn begin_checkpoint(
        &self,
        seen: &Seen,
        cold: bool,
        host: Capacity,
    ) -> Result<Option<SnapshotRow>, StepError> {
        let Some(before) = &seen.checkpoint else { return Ok(None) };
        let mut tx = self.sandboxes.db().begin().await?;
        let (found, row) =
            (store::snapshot::load(&mut tx, before.id).await?, store::sandbox::load(&mut tx, seen.row.id).await?);
        let Some((before, row)) = found.zip(row) else { return Ok(None) };
        if before.next_layer.is_some() {
            return Ok(Some(before));
        }
        let Some(top) = row.layer.filter(|_| before.status == SnapshotStatus::Pending) else { return Ok(None) };
        let memory_mb = if before.include_memory && !cold { row.memory_mb } else { 0 };
        if !host.has_room(memory_mb) {
            drop_checkpoint(&mut tx, &before, &format!("insufficient_capacity: {DISK_FULL}"), seen.now).await?;
            tx.commit().await?;
            return Ok(None);
        }
        let next = LayerId(Uuid::now_v7());
        store::layer::insert(&mut tx, &store::layer::above(&row, next, top, seen.now)).await?;
        let memory = match (before.include_memory, cold) {
            // A paused sandbox has kept what it would capture.
            (true, true) => row.memory,
            (true, false) => {
                let id = MemoryId(Uuid::now_v7());
                let host = row.machine.host;
                let memory = MemoryRow {
                    id,
                    layer: top,
                    host,
                    other_host: None,
                    copied: false,
                    kind: MemoryKind::Snapshot,
                    bytes: 0,
                    archive: None,
                    created_at: seen.now,
                };
                store::memory::insert(&mut tx, &memory).await?;
                Some(id)
            }
            (false, _) => None,
        };
        let after =
            SnapshotRow { layer: Some(top), next_layer: Some(next), memory, cut_at: Some(seen.now), ..before.clone() };
        store::snapshot::update(&mut tx, &before, &after, seen.now).await?;
        tx.commit().await?;
        Ok(Some(after))
    }

    async fn checkpoint_of(&self, row: &SandboxRow, snapshot: &SnapshotRow) -> Result<Checkpoint, StepError> {
        let (Some(top), Some(next)) = (snapshot.layer, snapshot.next_layer) else {
            return Err(Error::internal("a checkpoint without its layers").into());
        };
        // What a pause kept is there already.
        let memory = match snapshot.memory {
            Some(id) => store::memory::find(self.sandboxes.db(), id).await?,
            None => None,
        };
        let memory = memory.filter(|memory| memory.kind == MemoryKind::Snapshot).map(|memory| memory.id);
        Ok(Checkpoint { machine: row.machine.id, generation: row.machine.generation, top, next, memory })
    }

    async fn record_checkpoint(
        &self,
        sandbox: SandboxId,
        seen: &SnapshotRow,
        checkpoint: &Checkpoint,
        done: CheckpointDone,
    ) -> Result<(), StepError> {
        let now = self.sandboxes.clock().now();
        let mut tx = self.sandboxes.db().begin().await?;
        let Some(before) = store::sandbox::load(&mut tx, sandbox).await? else { return Ok(()) };
        store::layer::made(&mut tx, checkpoint.next).await?;
        store::layer::freeze(&mut tx, checkpoint.top, done.disk_bytes).await?;
        self.write(&mut tx, &before, SandboxRow { layer: Some(checkpoint.next), ..before.clone() }).await?;
        if let Some(before) = store::snapshot::load(&mut tx, seen.id).await? {
            let after = outcome(&mut tx, &before, checkpoint, done, now).await?;
            store::snapshot::update(&mut tx, &before, &after, now).await?;
            if after.status != before.status {
                ops::snapshot::tell(&mut tx, &after, now).await?;
            }
            store::sandbox::wake_those_of_snapshot(&mut tx, after.id, now).await?;
            ops::snapshot::settle(&mut tx, after.id, now).await?;
        }
        Ok(tx.commit().await?)
    }

    /// Tells that a snapshot failed whose checkpoint takes too long; the checkpoint is brought to its end.
    pub(super) async fn give_up_checkpoint(&self, seen: &Seen, look: &Look) -> Result<(), StepError> {
        let Some(checkpoint) = &seen.checkpoint else { return Ok(()) };
        let mut tx = self.sandboxes.db().begin().await?;
        let Some(before) = store::snapshot::load(&mut tx, checkpoint.id).await? else { return Ok(()) };
        let reason = format!("it was not taken within {} seconds", look.deadlines.snapshot);
        let after = SnapshotRow {
            status: SnapshotStatus::Failed,
            message: Some(reason),
            updated_at: seen.now,
            ..before.clone()
        };
        store::snapshot::update(&mut tx, &before, &after, seen.now).await?;
        ops::snapshot::tell(&mut tx, &after, seen.now).await?;
        store::sandbox::wake_those_of_snapshot(&mut tx, after.id, seen.now).await?;
        Ok(tx.commit().await?)
    }
}

/// What a snapshot is after its checkpoint.
async fn outcome(
    tx: &mut Tx,
    before: &SnapshotRow,
    checkpoint: &Checkpoint,
    done: CheckpointDone,
    now: Timestamp,
) -> Result<SnapshotRow, StepError> {
    let mut after = SnapshotRow { next_layer: None, updated_at: now, ..before.clone() };
    if let (Some(id), Some(bytes)) = (checkpoint.memory, done.memory_bytes) {
        store::memory::set_bytes(tx, id, bytes).await?;
    }
    let captured = after.memory.is_some() && (checkpoint.memory.is_none() || done.memory_bytes.is_some());
    if before.status == SnapshotStatus::Pending {
        let missing = before.include_memory && !captured;
        after.status = if missing { SnapshotStatus::Failed } else { SnapshotStatus::Ready };
        after.message = missing.then(|| "the memory could not be captured; leave out include_memory".into());
        after.bytes = done.disk_bytes + done.memory_bytes.unwrap_or_default();
    }
    if !matches!(after.status, SnapshotStatus::Ready) {
        (after.layer, after.memory) = (None, None);
    }
    Ok(after)
}
