//! The steps that touch the host: disk, start, pause.

use berth_domain::ids::{LayerId, MemoryId, SnapshotId};
use berth_domain::sandbox::plan::{Look, Machine};
use berth_domain::sandbox::{MemoryKind, Phase, Warm};
use berth_domain::{Error, Timestamp};
use berth_host::sandbox::{From, StartSpec, Started};
use uuid::Uuid;

use super::record::{GOING, enter, still};
use super::{SandboxLife, Seen};
use crate::db::network::MembershipRow;
use crate::db::{Tx, machine_gpu};
use crate::services::sandbox::reconcile::{StepError, fault};
use crate::services::sandbox::store;
use crate::services::sandbox::store::memory::MemoryRow;
use crate::services::sandbox::store::sandbox::SandboxRow;
use crate::services::sandbox::store::template::TemplateRow;

/// What the disk of a sandbox is put on.
pub(super) struct Ground {
    pub layer: LayerId,
    memory: Option<MemoryId>,
    /// Memory in MiB and virtual CPUs that the memory was captured with.
    size: (i64, i64),
    /// GiB of a snapshot's disk.
    pub disk_gb: Option<i64>,
}

impl SandboxLife {
    pub(super) async fn make_disk(&self, seen: &Seen) -> Result<(), StepError> {
        let Some(id) = self.name_disk(seen).await? else { return Ok(()) };
        fault("sandbox", "make_disk", "intent").await?;
        let layer = store::layer::find(self.sandboxes.db(), id).await?;
        let parent = layer.and_then(|layer| layer.parent).ok_or_else(|| Error::internal("a layer on nothing"))?;
        self.engine(seen)?.make_layer(id, parent).await?;
        fault("sandbox", "make_disk", "done").await?;
        let mut tx = self.sandboxes.db().begin().await?;
        // It may have gone to another host meanwhile, since its own was lost: there it is still to be made.
        let row = store::sandbox::load(&mut tx, seen.row.id).await?;
        if row.is_some_and(|row| (row.machine.host, row.layer) == (seen.row.machine.host, Some(id))) {
            store::layer::made(&mut tx, id).await?;
            tx.commit().await?;
        }
        Ok(())
    }

    /// The top layer, whose row is written before it is made.
    async fn name_disk(&self, seen: &Seen) -> Result<Option<LayerId>, StepError> {
        let mut tx = self.sandboxes.db().begin().await?;
        let Some(before) = still(&mut tx, seen).await? else { return Ok(None) };
        if before.layer.is_some() {
            return Ok(before.layer);
        }
        let mut row = before.clone();
        let ground = match (before.source_snapshot, before.source_template) {
            (Some(id), _) => snapshot_ground(&mut tx, id).await?,
            (None, Some(id)) => {
                let template = store::template::load(&mut tx, id).await?;
                template.and_then(|template| inherit(&mut row, template))
            }
            (None, None) => None,
        };
        let Some(ground) = ground else { return Ok(None) };
        let Some(brought) = self.has_ground(&mut tx, &before, ground.layer, seen.now).await? else {
            let message = Some("bringing what it begins with to its host".into());
            self.write(&mut tx, &before, SandboxRow { message, ..before.clone() }).await?;
            tx.commit().await?;
            return Ok(None);
        };
        // The time in which that came is not its own.
        row.phase_since = row.phase_since.max(brought).min(seen.now);
        let id = put_on(&mut tx, &mut row, &ground, seen.now).await?;
        (row.source_snapshot, row.source_template) = (None, None);
        row.message = Some("making its disk".into());
        self.write(&mut tx, &before, row).await?;
        tx.commit().await?;
        Ok(Some(id))
    }

    pub(super) async fn start(&self, seen: &Seen, look: &Look) -> Result<(), StepError> {
        let engine = self.engine(seen)?;
        let host = engine.host_boot();
        if look.machine == Machine::Absent {
            let now = seen.now;
            self.record(seen, |row| {
                row.machine.generation = seen.row.machine.generation + 1;
                row.machine.host_boot = Some(host);
                // A worker that dies here must find the row again.
                row.work_at = Some(now);
            })
            .await?;
        }
        fault("sandbox", "start", "intent").await?;
        let mut tx = self.sandboxes.db().begin().await?;
        let Some(row) = still(&mut tx, seen).await? else { return Ok(()) };
        // What is started is what is committed.
        tx.commit().await?;
        let spec = self.spec(&row).await?;
        let started = match engine.start(&spec).await {
            Err(error) if error.is_final() && row.memory.is_some() => {
                let message = format!("its memory could not be loaded ({error}); it is started from its disk");
                return self
                    .record(seen, |row| {
                        row.memory = None;
                        row.again = Some(message.clone());
                        row.message = Some(message);
                    })
                    .await;
            }
            other => other?,
        };
        fault("sandbox", "start", "done").await?;
        self.record_start(seen, &started, spec).await
    }

    async fn record_start(&self, seen: &Seen, started: &Started, spec: StartSpec) -> Result<(), StepError> {
        let now = self.sandboxes.clock().now();
        let mut tx = self.sandboxes.db().begin().await?;
        let Some(before) = still(&mut tx, seen).await? else { return Ok(()) };
        let memory = match before.memory {
            Some(id) if !started.from_memory => store::memory::find(&mut tx, id).await?,
            _ => None,
        };
        let lost = memory
            .as_ref()
            .filter(|memory| memory.kind != MemoryKind::Template)
            .map(|_| "its memory could not be loaded; it was started from its disk".to_owned());
        let unloadable = memory.filter(|memory| memory.kind == MemoryKind::Template && started.unloadable);
        if let (Some(memory), Some(id)) = (unloadable, before.template) {
            warm_again(&mut tx, id, memory.id, now).await?;
        }
        let mut row = before.clone();
        let again = row.again.take();
        enter(&mut row, Phase::Ready, started.note.clone().or(lost).or(again), now);
        row.applied_network = Some(spec.network);
        row.memory = None;
        row.fresh = false;
        self.write(&mut tx, &before, row).await?;
        Ok(tx.commit().await?)
    }

    async fn spec(&self, row: &SandboxRow) -> Result<StartSpec, StepError> {
        let (Some(top), Some(slot)) = (row.layer, row.machine.slot) else {
            return Err(Error::internal("a start without a disk or a slot").into());
        };
        Ok(StartSpec {
            id: row.machine.id,
            guest: row.id.to_string(),
            generation: row.machine.generation,
            slot,
            hostname: row.name.clone(),
            vcpu: row.vcpu,
            memory_mb: row.memory_mb,
            layers: store::layer::chain(self.sandboxes.db(), top).await?,
            from: row.memory.map_or(From::Disk, From::Memory),
            fresh: row.fresh,
            env: row.env.clone(),
            user: row.run_user.clone(),
            workdir: row.workdir.clone(),
            network: row.network.clone(),
            networks: row.networks.iter().map(MembershipRow::membership).collect(),
            rehearsal: None,
            gpus: if row.gpu_config_count > 0 {
                machine_gpu::of_machine(self.sandboxes.db(), row.machine.id).await?
            } else {
                Vec::new()
            },
        })
    }

    pub(super) async fn pause(&self, seen: &Seen, look: &Look) -> Result<(), StepError> {
        let memory = self.name_memory(seen, look).await?;
        fault("sandbox", "pause", "intent").await?;
        let paused = self.engine(seen)?.pause(seen.row.machine.aim(), memory).await?;
        fault("sandbox", "pause", "done").await?;
        let now = self.sandboxes.clock().now();
        let mut tx = self.sandboxes.db().begin().await?;
        let Some(before) = still(&mut tx, seen).await? else { return Ok(()) };
        let mut row = before.clone();
        match (memory, paused.memory_bytes) {
            (Some(id), Some(bytes)) => store::memory::set_bytes(&mut tx, id, bytes).await?,
            _ => row.memory = None,
        }
        let lost = row.keep_memory && row.memory.is_none();
        let reason = row.message.take().filter(|_| row.again.take().is_some());
        let going = row.moves.filter(|to| to.resumes).map(|_| GOING.to_owned());
        let message = lost.then(|| "its memory could not be kept; it will start from its disk".to_owned());
        let message = message.or(reason).or(going);
        enter(&mut row, Phase::Paused, message, now);
        row.machine.reserved = false;
        row.applied_network = None;
        self.write(&mut tx, &before, row).await?;
        Ok(tx.commit().await?)
    }

    /// Where the memory goes, if it is to be kept: its row is written first. On a host without room for it the sandbox
    /// is put away without, because putting one away must always be possible.
    async fn name_memory(&self, seen: &Seen, look: &Look) -> Result<Option<MemoryId>, StepError> {
        let host = self.engine(seen)?.capacity().await?;
        let mut tx = self.sandboxes.db().begin().await?;
        let Some(before) = still(&mut tx, seen).await? else { return Ok(None) };
        let running = matches!(look.machine, Machine::Running { .. });
        let keeps = before.keep_memory && before.keeps_memory() && host.has_room(before.memory_mb);
        let (Some(layer), true, true, None) = (before.layer, keeps, running, before.memory) else {
            return Ok(before.memory);
        };
        let id = MemoryId(Uuid::now_v7());
        let host = before.machine.host;
        let (kind, created_at) = (MemoryKind::Pause, seen.now);
        let memory =
            MemoryRow { id, layer, host, other_host: None, copied: false, kind, bytes: 0, archive: None, created_at };
        store::memory::insert(&mut tx, &memory).await?;
        self.write(&mut tx, &before, SandboxRow { memory: Some(id), ..before.clone() }).await?;
        tx.commit().await?;
        Ok(Some(id))
    }
}

/// What a sandbox has of its template: some of it is known only when that is built.
fn inherit(row: &mut SandboxRow, template: TemplateRow) -> Option<Ground> {
    let own = std::mem::take(&mut row.env);
    row.env = template.env.into_iter().chain(own).collect();
    row.run_user = template.run_user;
    row.workdir = template.workdir;
    let size = (template.memory_mb, template.vcpu);
    Some(Ground { layer: template.layer?, memory: template.memory, size, disk_gb: None })
}

pub(super) async fn snapshot_ground(tx: &mut Tx, id: SnapshotId) -> Result<Option<Ground>, StepError> {
    let found = store::snapshot::load(tx, id).await?.filter(|snapshot| snapshot.next_layer.is_none());
    Ok(found.and_then(|s| {
        Some(Ground { layer: s.layer?, memory: s.memory, size: (s.memory_mb, s.vcpu), disk_gb: Some(s.disk_gb) })
    }))
}

/// A new top layer on somebody else's; the memory comes along where the machine has the same size.
pub(super) async fn put_on(
    tx: &mut Tx,
    row: &mut SandboxRow,
    ground: &Ground,
    now: Timestamp,
) -> Result<LayerId, StepError> {
    let id = LayerId(Uuid::now_v7());
    store::layer::insert(&mut *tx, &store::layer::above(row, id, ground.layer, now)).await?;
    row.layer = Some(id);
    // A memory lies on a host, or on two where somebody took it along, and is of no use elsewhere.
    let memory = match ground.memory {
        Some(id) => store::memory::find(tx, id).await?,
        None => None,
    };
    let is_here = memory.as_ref().is_some_and(|memory| memory.is_on(row.machine.host));
    let fits = ground.size == (row.memory_mb, row.vcpu) && row.keeps_memory();
    row.memory = ground.memory.filter(|_| is_here && fits);
    if fits && !is_here && memory.is_some_and(|memory| memory.kind != MemoryKind::Template) {
        row.again = Some("what it begins with has its memory on another host; it was started from its disk".into());
    }
    Ok(id)
}

/// A template whose memory does not load any more is booted once more, in the background.
pub(in crate::services::sandbox::reconcile) async fn warm_again(
    tx: &mut Tx,
    id: berth_domain::ids::TemplateId,
    memory: MemoryId,
    now: Timestamp,
) -> Result<(), StepError> {
    let found = store::template::load(&mut *tx, id).await?;
    if let Some(before) = found.filter(|t| t.memory == Some(memory) && t.warm == Warm::Done) {
        let after = TemplateRow { memory: None, warm: Warm::Wanted, attempts: 0, work_at: Some(now), ..before.clone() };
        store::template::update(tx, &before, &after, now).await?;
    }
    Ok(())
}
