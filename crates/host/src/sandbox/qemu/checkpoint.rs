//! Checkpoints: what snapshots, forks and pauses are made of.
//!
//! The guest is made to stand still first, so that what is captured is consistent by itself: its file
//! system has nothing half written, and with its memory no program of the user runs before the copy has
//! its own identity. However a checkpoint ends, the guest is let go again.

use std::path::Path;

use berth_domain::ids::{LayerId, MachineId, MemoryId};
use berth_qemu::machine;
use berth_qemu::sandbox::{self, Capture, Layer, Report};

use super::QemuSandboxes;
use super::captured::{About, agent_failed, bytes_of};
use super::live::Incarnation;
use super::places::{Captured, layer_file};
use crate::error::{qemu_failed, transient};
use crate::fault;
use crate::sandbox::{Checkpoint, CheckpointDone, Paused};
use crate::{EngineError, Result};

impl QemuSandboxes {
    pub(super) async fn checkpoint_live(&self, checkpoint: &Checkpoint) -> Result<CheckpointDone> {
        self.make_layer_file(checkpoint.next, checkpoint.top)?;
        let next = Layer { path: self.places.layer(checkpoint.next), id: checkpoint.next.0 };
        self.capture(checkpoint.machine, Some(next), checkpoint.memory, checkpoint.top, true).await?;
        self.done(checkpoint).await.map_err(not_final)
    }

    pub(super) async fn checkpoint_without_machine(&self, checkpoint: &Checkpoint) -> Result<CheckpointDone> {
        self.make_layer_file(checkpoint.next, checkpoint.top)?;
        self.done(checkpoint).await
    }

    /// What a checkpoint left, made to survive the death of the host.
    async fn done(&self, checkpoint: &Checkpoint) -> Result<CheckpointDone> {
        let layer = self.places.layer(checkpoint.top);
        let memory = checkpoint.memory.map(|id| self.places.memory(id)).filter(|memory| About::read(memory).is_some());
        let memory_bytes = memory.as_ref().map(bytes_of);
        let files = memory.map(|captured| [captured.memory(), captured.state()]);
        let disk_bytes = blocking(move || {
            sandbox::sync_layer(&layer)?;
            for file in files.into_iter().flatten() {
                sandbox::sync_layer(&file)?;
            }
            Ok(taken(&layer))
        })
        .await?;
        Ok(CheckpointDone { disk_bytes, memory_bytes })
    }

    pub(super) async fn pause_machine(&self, id: MachineId, memory: Option<MemoryId>) -> Result<Paused> {
        let dir = self.places.machine(id);
        if machine::find(&dir, id.0).is_some() {
            // One that was captured whole stands still since; another capture could only spoil it.
            let is_kept = memory.is_some_and(|id| About::read(&self.places.memory(id)).is_some());
            if !is_kept {
                let top = self.top_of(&dir).await?;
                if let Err(error) = self.capture(id, None, memory, top, false).await {
                    // Its disk is worth more than its memory: without that it begins anew from its disk.
                    tracing::warn!(%id, %error, "a machine was paused without its memory");
                }
            }
            fault::point("sandbox.pause.captured").await.map_err(transient)?;
            self.end_machine(id).await?;
        } else {
            // One that ended by itself may still have a GPU.
            self.gpus.give_back(id).await?;
        }
        let kept = memory.map(|id| self.places.memory(id)).filter(|memory| About::read(memory).is_some());
        Ok(Paused { memory_bytes: kept.as_ref().map(bytes_of) })
    }

    async fn top_of(&self, dir: &Path) -> Result<LayerId> {
        let node = sandbox::top(dir).await.map_err(qemu_failed)?;
        let ids = self.layers_found()?;
        ids.into_iter().find(|id| sandbox::layer_node(id.0) == node).ok_or_else(|| transient("its layer is gone"))
    }

    /// Captures a running machine while its guest stands still.
    async fn capture(
        &self,
        id: MachineId,
        next: Option<Layer>,
        memory: Option<MemoryId>,
        top: LayerId,
        resume: bool,
    ) -> Result<()> {
        let dir = self.places.machine(id);
        let to = memory.map(|id| self.places.memory(id));
        if let Some(captured) = &to {
            std::fs::create_dir_all(&captured.dir).map_err(transient)?;
        }
        // A service that died in the middle of a capture left the machine standing.
        machine::resume(&dir).await.map_err(qemu_failed)?;
        let live = self.live(id).ok_or_else(|| transient("the machine is gone"))?;
        let session = live.session().await.map_err(agent_failed)?;
        let frozen = session.freeze(memory.is_some()).await.map_err(agent_failed);
        fault::point("sandbox.capture.frozen").await.map_err(transient)?;
        let files = to.as_ref().map(|captured| (captured.memory(), captured.state()));
        let outcome = match frozen {
            Ok(_) if next.is_none() && files.is_none() => Ok(Report::default()),
            Ok(_) => {
                let memory_mb = Incarnation::read(&dir).map_or(0, |known| u32::try_from(known.memory_mb).unwrap_or(0));
                let capture = Capture { next, memory: files, memory_mb, resume };
                sandbox::capture(&dir, id.0, &capture).await.map_err(qemu_failed)
            }
            Err(error) => Err(error),
        };
        fault::point("sandbox.capture.done").await.map_err(transient)?;
        if resume {
            // A guest that stays frozen is worse than a checkpoint that failed; an ended session ends with its machine.
            session.thaw().await.map_err(agent_failed)?;
        }
        let report = outcome?;
        tracing::debug!(%id, ?report, "captured a machine");
        match to {
            Some(captured) => self.declare(id, &captured, top).await.map_err(not_final),
            None => Ok(()),
        }
    }

    async fn declare(&self, id: MachineId, captured: &Captured, top: LayerId) -> Result<()> {
        fault::point("sandbox.capture.declare").await.map_err(EngineError::Permanent)?;
        let known = Incarnation::read(&self.places.machine(id)).ok_or_else(|| transient("the machine is gone"))?;
        let about = About {
            fingerprint: self.fingerprint().await?,
            vcpu: known.vcpu,
            memory_mb: known.memory_mb,
            disk_bytes: sandbox::layer_size(&self.places.layer(top)).map_err(qemu_failed)?,
            layer: Some(top),
        };
        about.write(captured)
    }

    pub(super) fn make_layer_file(&self, id: LayerId, parent: LayerId) -> Result<()> {
        let size = sandbox::layer_size(&self.places.layer(parent)).map_err(qemu_failed)?;
        sandbox::create_layer(&self.places.layer(id), &layer_file(parent), size).map_err(qemu_failed)
    }
}

/// A failure behind the checkpoint itself. The machine has gone over to the new layer, so that there is no giving up:
/// the checkpoint is repeated until all that follows it is done.
fn not_final(error: EngineError) -> EngineError {
    transient(error)
}

/// What a file takes on the host, in bytes.
pub(super) fn taken(path: &Path) -> i64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).map_or(0, |meta| i64::try_from(meta.blocks() * 512).unwrap_or(i64::MAX))
}

pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> berth_qemu::Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(transient)?.map_err(qemu_failed)
}
