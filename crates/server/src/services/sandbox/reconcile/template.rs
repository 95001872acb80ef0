//! Builds templates, boots each once and keeps its memory, and removes those that are deleted.
//!
//! A boot writes to a layer of its own, so that one that was interrupted is thrown away and made anew.

mod build;
mod platform;
mod unplaced;

use std::time::Duration;

use berth_domain::ids::{LayerId, MemoryId, TemplateId};
use berth_domain::sandbox::network_policy::NetworkPolicy;
use berth_domain::sandbox::template::{Look, TemplateStep, next};
use berth_domain::sandbox::{MemoryKind, SourceKind, TemplateStatus, Warm};
use berth_domain::{Error, Result, Timestamp};
use berth_host::EngineError;
use berth_host::sandbox::{Capacity, DISK_FULL, From, StartSpec, Warming};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

pub use platform::keep_adopted;

use super::capacity::{Asked, place};
use super::{StepError, fault};
use crate::db::Tx;
use crate::db::machine::{self, Machine};
use crate::services::placement::Refusal;
use crate::services::sandbox::Sandboxes;
use crate::services::sandbox::ops;
use crate::services::sandbox::store;
use crate::services::sandbox::store::layer::LayerRow;
use crate::services::sandbox::store::memory::MemoryRow;
use crate::services::sandbox::store::template::TemplateRow;
use crate::work::Due;
use crate::work::lifecycle::{Life, Next};

/// Tries of a boot before a template goes without its memory.
const BOOTS: i64 = 3;

/// How the first boot of a template begins.
enum Begun {
    /// With this machine, for which there is room.
    Boot(Warming),
    /// Not now: no host takes its machine.
    Lacks(Refusal),
    /// Nobody wants it any more.
    Unwanted,
}

/// The lives of templates.
pub struct TemplateLife {
    sandboxes: Sandboxes,
    stop: CancellationToken,
}

impl Life for TemplateLife {
    type Key = TemplateId;
    type Seen = TemplateRow;
    type Step = TemplateStep;
    const TABLE: &'static str = store::template::TABLE;
    const KIND: &'static str = "template";

    async fn due(&self, now: Timestamp, limit: usize) -> Result<Due<TemplateId>> {
        Ok(store::template::due(self.sandboxes.db(), now, limit).await?)
    }

    async fn look(&self, id: &TemplateId) -> Result<Option<TemplateRow>, StepError> {
        Ok(store::template::load(self.sandboxes.db(), *id).await?)
    }

    async fn plan(&self, template: &TemplateRow) -> Result<Next<TemplateStep>, StepError> {
        let now = self.sandboxes.clock().now();
        let waits = template.work_at.filter(|at| *at > now);
        let step = next(&Look {
            status: template.status,
            gone: template.deleted_at.is_some(),
            has_disk: template.layer.is_some(),
            warm: template.warm,
            too_late: now >= self.deadline(template),
        });
        Ok(match (waits, step) {
            (Some(until), Some(_)) => Next::Rest(Some(until)),
            (_, step) => step.map_or(Next::Rest(None), Next::Take),
        })
    }

    fn name(step: &TemplateStep) -> &'static str {
        step.as_str()
    }

    async fn take(&self, template: &TemplateRow, step: TemplateStep) -> Result<(), StepError> {
        let id = template.id;
        match step {
            TemplateStep::Enter => {
                self.change(id, |t, now| enter(t, TemplateStatus::Building, Some("making its disk".into()), now)).await
            }
            TemplateStep::MakeDisk => self.make_disk(template).await,
            TemplateStep::Warm => self.warm(template).await,
            TemplateStep::Ready => {
                self.change(id, |t, now| {
                    let message = t.message.take().filter(|_| t.warm == Warm::Failed);
                    enter(t, TemplateStatus::Ready, message, now);
                })
                .await
            }
            TemplateStep::Expire => {
                let seconds = self.sandboxes.config().template_seconds;
                self.fail(id, &format!("it was not built within {seconds} seconds")).await
            }
            TemplateStep::Remove => self.remove(template).await,
        }
    }

    async fn catch_up(&self, template: &TemplateRow, generation: i64) -> Result<bool, StepError> {
        let mut tx = self.sandboxes.db().begin().await?;
        let machines = store::template::machines(&mut tx, template.id).await?;
        let behind: Vec<_> = machines.into_iter().filter(|machine| machine.generation < generation).collect();
        for machine in &behind {
            machine::update(&mut tx, machine, &Machine { generation, ..machine.clone() }).await?;
        }
        tx.commit().await?;
        Ok(!behind.is_empty())
    }

    async fn rest(&self, template: &TemplateRow, until: Option<Timestamp>) -> Result<(), StepError> {
        if template.work_at == until {
            return Ok(());
        }
        self.change(template.id, |t, _| {
            if (t.status, t.work_at) == (template.status, template.work_at) {
                t.work_at = until;
            }
        })
        .await
    }

    async fn postpone(&self, template: &TemplateRow, until: Timestamp) -> Result<(), StepError> {
        self.change(template.id, |t, _| t.work_at = t.work_at.map(|_| until)).await
    }

    /// One that is being deleted is tried again.
    async fn give_up(&self, template: &TemplateRow, error: &EngineError) -> Result<bool, StepError> {
        if template.status == TemplateStatus::Deleting {
            return Ok(false);
        }
        self.fail(template.id, &error.to_string()).await?;
        Ok(true)
    }
}

impl TemplateLife {
    /// The lives of the service's templates, until it stops.
    pub const fn new(sandboxes: Sandboxes, stop: CancellationToken) -> Self {
        Self { sandboxes, stop }
    }

    /// When it has to be built. Time in which no service ran counts for no deadline.
    fn deadline(&self, template: &TemplateRow) -> Timestamp {
        let since = template.status_since.max(self.sandboxes.began_at());
        since.plus_seconds(self.sandboxes.config().template_seconds)
    }

    async fn make_disk(&self, template: &TemplateRow) -> Result<(), StepError> {
        let id = template.id;
        let Some(layer) = template.base_layer else {
            let layer = LayerId(Uuid::now_v7());
            let Some(mut change) = self.begin(id).await? else { return Ok(()) };
            store::layer::insert(&mut change.tx, &layer_of(&change.after, layer, None, change.now)).await?;
            change.after.base_layer = Some(layer);
            return change.commit().await;
        };
        fault("template", "make_disk", "intent").await?;
        let engine = self.sandboxes.engine();
        let built = match template.kind {
            SourceKind::Platform => engine.adopt_template(&template.source, layer).await.map(|()| None)?,
            SourceKind::FromSnapshot => None,
            SourceKind::Image | SourceKind::Dockerfile => {
                match self.build_disk(template, layer, self.deadline(template)).await? {
                    Some(built) => Some(built),
                    None => return Ok(()),
                }
            }
        };
        fault("template", "make_disk", "done").await?;
        let bytes = engine.layer_bytes(layer).await?;
        let Some(mut change) = self.begin(id).await? else { return Ok(()) };
        if let Some(parent) = built.as_ref().and_then(|built| built.parent)
            && !store::layer::put_on(&mut change.tx, layer, parent).await?
        {
            return Err(EngineError::Transient("what it was built on was deleted meanwhile".into()).into());
        }
        store::layer::made(&mut change.tx, layer).await?;
        store::layer::freeze(&mut change.tx, layer, bytes).await?;
        let t = &mut change.after;
        (t.layer, t.attempts) = (Some(layer), 0);
        t.message = Some("booting it once".into());
        if let Some(built) = built {
            let own = std::mem::take(&mut t.env);
            t.env = built.env.into_iter().chain(own).collect();
            (t.run_user, t.workdir, t.disk_gb) = (built.user, built.workdir, built.disk_gb);
            t.start_command = t.start_command.take().or(built.start_command);
        }
        // What was sent for the build has served once the disk is recorded, and not before.
        if let Some(context) = change.after.context {
            store::upload::dismiss(&mut change.tx, context, change.now).await?;
        }
        change.commit().await
    }

    /// Boots it once on a layer of its own, and keeps its memory.
    async fn warm(&self, template: &TemplateRow) -> Result<(), StepError> {
        let engine = self.sandboxes.engine();
        // What an interrupted boot left is thrown away.
        self.clear(template.id).await?;
        let warming = match self.begin_warm(template).await? {
            Begun::Boot(warming) => warming,
            Begun::Unwanted => return Ok(()),
            // What is built by now keeps its wish: the host is not full for ever.
            Begun::Lacks(refusal) if template.status == TemplateStatus::Ready => {
                return Err(EngineError::Transient(refusal.owner).into());
            }
            Begun::Lacks(refusal) if refusal.passes => return self.warm_later(template, &refusal).await,
            Begun::Lacks(refusal) => return self.cannot_be_warm(template, &refusal.owner).await,
        };
        fault("template", "warm", "intent").await?;
        let [top, base, ..] = warming.machine.layers[..] else {
            return Err(Error::internal("a boot without its layers").into());
        };
        engine.make_layer(top, base).await?;
        let warmed = tokio::select! {
            warmed = engine.warm_template(&warming) => warmed,
            // What is half done is thrown away with its machine, here or where it begins anew.
            () = self.called_off(template) => return Ok(engine.end(warming.machine.aim()).await?),
        };
        fault("template", "warm", "done").await?;
        match warmed {
            Ok(bytes) => self.record_warm(template.id, &warming, top, bytes).await,
            Err(EngineError::Transient(reason)) if template.attempts + 1 < BOOTS => {
                self.change(template.id, |t, _| t.attempts += 1).await?;
                Err(EngineError::Transient(reason).into())
            }
            Err(error) => self.cannot_be_warm(template, &error.to_string()).await,
        }
    }

    async fn record_warm(&self, id: TemplateId, warming: &Warming, top: LayerId, bytes: i64) -> Result<(), StepError> {
        let disk = self.sandboxes.engine().layer_bytes(top).await?;
        let Some(mut change) = self.begin(id).await? else { return Ok(()) };
        if change.after.next_layer != Some(top) {
            return Ok(());
        }
        store::layer::made(&mut change.tx, top).await?;
        store::layer::freeze(&mut change.tx, top, disk).await?;
        store::memory::set_bytes(&mut change.tx, warming.memory, bytes).await?;
        change.release().await?;
        let t = &mut change.after;
        (t.layer, t.memory) = (t.next_layer.take(), t.next_memory.take());
        (t.warm, t.message) = (Warm::Done, None);
        change.commit().await?;
        self.sandboxes.warm().announce(warming.memory);
        Ok(())
    }

    /// A command that its owner gave has to work; without one, sandboxes may start from the disk.
    async fn cannot_be_warm(&self, template: &TemplateRow, reason: &str) -> Result<(), StepError> {
        if Self::has_to_start(template) {
            return Err(EngineError::Permanent(reason.to_owned()).into());
        }
        self.clear(template.id).await?;
        let Some(mut change) = self.begin(template.id).await? else { return Ok(()) };
        change.release().await?;
        let t = &mut change.after;
        (t.next_layer, t.next_memory) = (None, None);
        t.warm = Warm::Failed;
        t.message = Some(format!("its sandboxes start from the disk: {reason}"));
        change.commit().await
    }

    async fn begin_warm(&self, template: &TemplateRow) -> Result<Begun, StepError> {
        let Some(base) = template.base_layer else {
            return Err(Error::internal("a template without a disk").into());
        };
        let host = self.sandboxes.engine().capacity().await?;
        if !host.has_room(template.memory_mb) {
            return Ok(Begun::Lacks(Refusal::everywhere(DISK_FULL.to_owned())));
        }
        let (layer, memory) = (LayerId(Uuid::now_v7()), MemoryId(Uuid::now_v7()));
        let mut layers = store::layer::chain(self.sandboxes.db(), base).await?;
        layers.insert(0, layer);
        let Some(mut change) = self.begin(template.id).await? else { return Ok(Begun::Unwanted) };
        if !matches!(change.after.status, TemplateStatus::Building | TemplateStatus::Ready) {
            return Ok(Begun::Unwanted);
        }
        let (machine, slot) = match self.machine_of(&mut change, host).await? {
            Ok(own) => own,
            Err(refusal) => return Ok(Begun::Lacks(refusal)),
        };
        store::layer::insert(&mut change.tx, &layer_of(template, layer, Some(base), change.now)).await?;
        let kept = MemoryRow { id: memory, layer, kind: MemoryKind::Template, bytes: 0, created_at: change.now };
        store::memory::insert(&mut change.tx, &kept).await?;
        (change.after.next_layer, change.after.next_memory) = (Some(layer), Some(memory));
        change.commit().await?;
        let machine = StartSpec {
            id: machine.id,
            guest: template.id.to_string(),
            generation: machine.generation,
            slot,
            hostname: template.name.clone(),
            vcpu: template.vcpu,
            memory_mb: template.memory_mb,
            layers,
            from: From::Disk,
            fresh: true,
            env: template.env.clone(),
            user: template.run_user.clone(),
            workdir: template.workdir.clone(),
            network: NetworkPolicy::default(),
            networks: Vec::new(),
            gpus: Vec::new(),
        };
        let (start_command, ready_command) = (template.start_command.clone(), template.ready_command.clone());
        let patience = Duration::from_secs(self.sandboxes.config().ready_seconds.unsigned_abs());
        Ok(Begun::Boot(Warming { machine, memory, start_command, ready_command, patience }))
    }

    /// The one machine that boots it, its start counted, and its slot: one of those that its build had, or a new one;
    /// or why no host takes it.
    async fn machine_of(
        &self,
        change: &mut Change,
        host: Capacity,
    ) -> Result<Result<(Machine, i64), Refusal>, StepError> {
        let (tx, template) = (&mut change.tx, &change.before);
        let mut own = store::template::machines(&mut *tx, template.id).await?;
        if own.is_empty() {
            let asked = Asked::machines((template.vcpu, template.memory_mb), 1);
            let placed = match place(tx, &self.sandboxes, host, asked).await? {
                Ok(placed) => placed,
                Err(refusal) => {
                    Self::log_refusal(template, &refusal);
                    return Ok(Err(refusal));
                }
            };
            own = store::template::reserve(tx, template, &placed).await?;
        }
        let more = own.split_off(1);
        store::template::release(tx, &more).await?;
        let missing = || Error::internal("a boot without a machine");
        let (before, slot) =
            own.pop().and_then(|machine| Some((machine.clone(), machine.slot?))).ok_or_else(missing)?;
        let machine = Machine { generation: before.generation + 1, ..before.clone() };
        machine::update(tx, &before, &machine).await?;
        Ok(Ok((machine, slot)))
    }

    /// Ends its machines, and removes all that they left.
    async fn clear(&self, id: TemplateId) -> Result<(), StepError> {
        let engine = self.sandboxes.engine();
        for machine in store::template::machines(self.sandboxes.db(), id).await? {
            engine.end(machine.aim()).await?;
            engine.discard(machine.aim()).await?;
        }
        Ok(engine.clear_build(id).await?)
    }

    async fn remove(&self, template: &TemplateRow) -> Result<(), StepError> {
        self.clear(template.id).await?;
        fault("template", "remove", "done").await?;
        self.sandboxes.builds().end(template.id);
        let Some(mut change) = self.begin(template.id).await? else { return Ok(()) };
        let waiting = store::sandbox::waiting_for_template(&mut change.tx, template.id).await?;
        let (t, now) = (&mut change.after, change.now);
        if t.layer.is_some() && waiting > 0 {
            t.work_at = Some(now.plus_seconds(1));
            return change.commit().await;
        }
        (t.base_layer, t.layer, t.next_layer) = (None, None, None);
        (t.memory, t.next_memory, t.work_at) = (None, None, None);
        t.deleted_at = Some(now);
        change.release().await?;
        store::build_log::remove(&mut change.tx, template.id).await?;
        change.commit().await
    }

    async fn fail(&self, id: TemplateId, reason: &str) -> Result<(), StepError> {
        self.keep_log(id).await?;
        self.clear(id).await?;
        let Some(mut change) = self.begin(id).await? else { return Ok(()) };
        let (t, now) = (&mut change.after, change.now);
        if t.status == TemplateStatus::Deleting {
            return Ok(());
        }
        (t.base_layer, t.layer, t.next_layer) = (None, None, None);
        (t.memory, t.next_memory) = (None, None);
        enter(t, TemplateStatus::Failed, Some(reason.to_owned()), now);
        if let Some(context) = t.context {
            store::upload::dismiss(&mut change.tx, context, now).await?;
        }
        change.release().await?;
        change.commit().await
    }

    async fn change(&self, id: TemplateId, change: impl FnOnce(&mut TemplateRow, Timestamp)) -> Result<(), StepError> {
        let Some(mut begun) = self.begin(id).await? else { return Ok(()) };
        change(&mut begun.after, begun.now);
        begun.commit().await
    }

    async fn begin(&self, id: TemplateId) -> Result<Option<Change>, StepError> {
        let now = self.sandboxes.clock().now();
        let mut tx = self.sandboxes.db().begin().await?;
        let before = store::template::load(&mut tx, id).await?;
        Ok(before.map(|before| Change { tx, after: before.clone(), before, now }))
    }
}

/// A row about to be changed.
struct Change {
    tx: Tx,
    before: TemplateRow,
    after: TemplateRow,
    now: Timestamp,
}

impl Change {
    /// Gives back what its machines hold, all of which have ended.
    async fn release(&mut self) -> Result<(), StepError> {
        let machines = store::template::machines(&mut self.tx, self.before.id).await?;
        Ok(store::template::release(&mut self.tx, &machines).await?)
    }

    /// Writes it; tells of a new status, and wakes who waits for it. One that is being deleted is not built.
    async fn commit(self) -> Result<(), StepError> {
        let Self { mut tx, before, mut after, now } = self;
        if before.status == TemplateStatus::Deleting {
            after.status = TemplateStatus::Deleting;
            after.work_at = if after.deleted_at.is_some() { None } else { after.work_at.or(Some(now)) };
        }
        if after.status != before.status || after.message != before.message {
            after.updated_at = now;
        }
        store::template::update(&mut tx, &before, &after, now).await?;
        if after.status != before.status {
            ops::template::tell(&mut tx, &after, now).await?;
            store::sandbox::wake_those_of_template(&mut tx, after.id, now).await?;
        }
        Ok(tx.commit().await?)
    }
}

fn enter(template: &mut TemplateRow, status: TemplateStatus, message: Option<String>, now: Timestamp) {
    template.status = status;
    template.message = message;
    template.status_since = now;
    template.attempts = 0;
    template.work_at = Some(now);
}

const fn layer_of(template: &TemplateRow, id: LayerId, parent: Option<LayerId>, now: Timestamp) -> LayerRow {
    LayerRow { id, parent, org: template.org, project: template.project, frozen: false, made: false, created_at: now }
}

/// Before the first request: the templates that the platform brings along become rows, and everything that may be
/// nobody's is looked at.
pub async fn prepare(sandboxes: &Sandboxes) -> Result<()> {
    platform::adopt(sandboxes).await?;
    let now = sandboxes.clock().now();
    let hidden = store::snapshot::hidden(sandboxes.db()).await?;
    let mut measured = Vec::new();
    for layer in store::stored::unmeasured(sandboxes.db()).await? {
        measured.push((layer, sandboxes.engine().layer_bytes(layer).await.map_err(Error::unavailable)?));
    }
    let mut tx = sandboxes.db().begin().await?;
    for (layer, bytes) in measured {
        store::layer::freeze(&mut tx, layer, bytes).await?;
    }
    store::layer::look_at_all(&mut tx, now).await?;
    store::memory::look_at_all(&mut tx, now).await?;
    for snapshot in hidden {
        ops::snapshot::settle(&mut tx, snapshot.id, now).await?;
    }
    Ok(tx.commit().await?)
}
