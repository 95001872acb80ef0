//! Builds templates, boots each once and keeps its memory, and removes those that are deleted.

mod boot;
mod build;
mod platform;
mod sent;
mod unplaced;
mod uploads;

use std::sync::Arc;

use berth_domain::ids::{HostId, LayerId, TemplateId};
use berth_domain::sandbox::template::{Look, TemplateStep, next};
use berth_domain::sandbox::{SourceKind, TemplateStatus, Warm};
use berth_domain::{Error, Result, Timestamp};
use berth_host::EngineError;
use berth_host::sandbox::SandboxEngine;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

pub use platform::keep_adopted;

use super::{StepError, fault};
use crate::db::Tx;
use crate::db::machine::{self, Machine};
use crate::services::sandbox::Sandboxes;
use crate::services::sandbox::ops;
use crate::services::sandbox::store;
use crate::services::sandbox::store::layer::LayerRow;
use crate::services::sandbox::store::template::TemplateRow;
use crate::work::Due;
use crate::work::lifecycle::{Life, Next};

/// The lives of templates.
pub struct TemplateLife {
    sandboxes: Sandboxes,
    stop: CancellationToken,
    sent: sent::Sent,
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
            too_late: now >= self.deadline(template).await?,
        });
        if step == Some(TemplateStep::Expire) {
            self.answers(template).await?;
        }
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
                self.fail(template, &format!("it was not built within {seconds} seconds")).await
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
        self.fail(template, &error.to_string()).await?;
        Ok(true)
    }
}

impl TemplateLife {
    /// The lives of the service's templates, until it stops.
    pub fn new(sandboxes: Sandboxes, stop: CancellationToken) -> Self {
        Self { sandboxes, stop, sent: sent::Sent::default() }
    }

    /// When it has to be built.
    async fn deadline(&self, template: &TemplateRow) -> Result<Timestamp, StepError> {
        let counts_since = self.sandboxes.counts_since(self.host(template).await?);
        let since = template.status_since.max(counts_since);
        Ok(since.plus_seconds(self.sandboxes.config().template_seconds))
    }

    /// Makes sure that its host answers: while it does not, no deadline passes.
    async fn answers(&self, template: &TemplateRow) -> Result<(), StepError> {
        let host = self.host(template).await?;
        let asked = async { self.sandboxes.engine_of(Some(host))?.capacity().await.map(drop) };
        let answered = asked.await;
        if answered.as_ref().is_err_and(|error| !error.is_final()) {
            self.sandboxes.note_silence(host);
        }
        Ok(answered?)
    }

    /// The host that a template's layers lie on: the service's own until they have a place.
    async fn host(&self, template: &TemplateRow) -> Result<HostId, StepError> {
        let placed = match template.base_layer {
            Some(layer) => store::layer::host(self.sandboxes.db(), layer).await?,
            None => None,
        };
        Ok(placed.unwrap_or_else(|| self.sandboxes.host()))
    }

    /// The engine of that host.
    async fn engine(&self, template: &TemplateRow) -> Result<Arc<dyn SandboxEngine>, StepError> {
        Ok(self.sandboxes.engine_of(Some(self.host(template).await?))?)
    }

    async fn make_disk(&self, template: &TemplateRow) -> Result<(), StepError> {
        let id = template.id;
        let Some(layer) = template.base_layer else {
            let layer = LayerId(Uuid::now_v7());
            let Some(mut change) = self.begin(id).await? else { return Ok(()) };
            // One that is built has its place with the machines that build it.
            let host = (template.kind == SourceKind::Platform).then(|| self.sandboxes.host());
            store::layer::insert(&mut change.tx, &layer_of(&change.after, (layer, host), None, change.now)).await?;
            change.after.base_layer = Some(layer);
            return change.commit().await;
        };
        fault("template", "make_disk", "intent").await?;
        let built = match template.kind {
            SourceKind::Platform => {
                self.sandboxes.engine().adopt_template(&template.source, layer).await.map(|()| None)?
            }
            SourceKind::FromSnapshot => None,
            SourceKind::Image | SourceKind::Dockerfile => {
                match self.build_disk(template, layer, self.deadline(template).await?).await? {
                    Some(built) => Some(built),
                    None => return Ok(()),
                }
            }
        };
        fault("template", "make_disk", "done").await?;
        let bytes = self.engine(template).await?.layer_bytes(layer).await?;
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

    /// Ends its machines, and removes all that they left.
    async fn clear(&self, template: &TemplateRow) -> Result<(), StepError> {
        for machine in store::template::machines(self.sandboxes.db(), template.id).await? {
            let engine = self.sandboxes.engine_of(machine.host)?;
            engine.end(machine.aim()).await?;
            engine.discard(machine.aim()).await?;
        }
        Ok(self.engine(template).await?.clear_build(template.id).await?)
    }

    async fn remove(&self, template: &TemplateRow) -> Result<(), StepError> {
        self.clear(template).await?;
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

    async fn fail(&self, template: &TemplateRow, reason: &str) -> Result<(), StepError> {
        self.keep_log(template.id).await?;
        self.clear(template).await?;
        let Some(mut change) = self.begin(template.id).await? else { return Ok(()) };
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

/// A layer of a template, not yet made, and its place.
const fn layer_of(
    template: &TemplateRow,
    (id, host): (LayerId, Option<HostId>),
    parent: Option<LayerId>,
    now: Timestamp,
) -> LayerRow {
    let (org, project) = (template.org, template.project);
    LayerRow { id, parent, org, project, host, frozen: false, made: false, created_at: now }
}

/// Before the first request: the templates that the platform brings along become rows, and everything that may be
/// nobody's is looked at.
pub async fn prepare(sandboxes: &Sandboxes) -> Result<()> {
    platform::adopt(sandboxes).await?;
    let now = sandboxes.clock().now();
    let hidden = store::snapshot::hidden(sandboxes.db()).await?;
    let mut measured = Vec::new();
    for layer in store::stored::unmeasured(sandboxes.db(), sandboxes.host()).await? {
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
