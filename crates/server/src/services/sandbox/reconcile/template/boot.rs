//! Boots a template once, on the host that its layers lie on, and keeps its memory.
//!
//! A boot writes to a layer of its own, so that one that was interrupted is thrown away and made anew.

use std::time::Duration;

use berth_domain::Error;
use berth_domain::ids::{HostId, LayerId, MemoryId};
use berth_domain::sandbox::network_policy::NetworkPolicy;
use berth_domain::sandbox::{MemoryKind, TemplateStatus, Warm};
use berth_host::EngineError;
use berth_host::sandbox::{DISK_FULL, From, StartSpec, Warming};
use uuid::Uuid;

use super::{Change, StepError, TemplateLife, layer_of};
use crate::db::machine::{self, Machine};
use crate::services::placement::Refusal;
use crate::services::sandbox::reconcile::capacity::{Asked, Offers, offer, place};
use crate::services::sandbox::reconcile::fault;
use crate::services::sandbox::store;
use crate::services::sandbox::store::memory::MemoryRow;
use crate::services::sandbox::store::template::TemplateRow;

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

impl TemplateLife {
    /// Boots it once on a layer of its own, and keeps its memory.
    pub(super) async fn warm(&self, template: &TemplateRow) -> Result<(), StepError> {
        let engine = self.engine(template).await?;
        // What an interrupted boot left is thrown away.
        self.clear(template).await?;
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
            Ok(bytes) => self.record_warm(template, &warming, top, bytes).await,
            Err(EngineError::Transient(reason)) if template.attempts + 1 < BOOTS => {
                self.change(template.id, |t, _| t.attempts += 1).await?;
                Err(EngineError::Transient(reason).into())
            }
            Err(error) => self.cannot_be_warm(template, &error.to_string()).await,
        }
    }

    async fn record_warm(
        &self,
        template: &TemplateRow,
        warming: &Warming,
        top: LayerId,
        bytes: i64,
    ) -> Result<(), StepError> {
        let host = self.host(template).await?;
        let disk = self.sandboxes.engine_of(Some(host))?.layer_bytes(top).await?;
        let Some(mut change) = self.begin(template.id).await? else { return Ok(()) };
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
        if let Some(pool) = self.sandboxes.warm(host) {
            pool.announce(warming.memory);
        }
        Ok(())
    }

    /// A command that its owner gave has to work; without one, sandboxes may start from the disk.
    async fn cannot_be_warm(&self, template: &TemplateRow, reason: &str) -> Result<(), StepError> {
        if Self::has_to_start(template) {
            return Err(EngineError::Permanent(reason.to_owned()).into());
        }
        self.clear(template).await?;
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
        let host = self.host(template).await?;
        let offers = offer(&self.sandboxes, host, false).await?;
        if offers.values().any(|offer| !offer.capacity.has_room(template.memory_mb)) {
            return Ok(Begun::Lacks(Refusal::everywhere(DISK_FULL.to_owned())));
        }
        let (layer, memory) = (LayerId(Uuid::now_v7()), MemoryId(Uuid::now_v7()));
        let mut layers = store::layer::chain(self.sandboxes.db(), base).await?;
        layers.insert(0, layer);
        let Some(mut change) = self.begin(template.id).await? else { return Ok(Begun::Unwanted) };
        if !matches!(change.after.status, TemplateStatus::Building | TemplateStatus::Ready) {
            return Ok(Begun::Unwanted);
        }
        let (machine, slot) = match self.machine_of(&mut change, host, &offers).await? {
            Ok(own) => own,
            Err(refusal) => return Ok(Begun::Lacks(refusal)),
        };
        let place = (layer, Some(host));
        store::layer::insert(&mut change.tx, &layer_of(template, place, Some(base), change.now)).await?;
        let (kind, created_at) = (MemoryKind::Template, change.now);
        let kept = MemoryRow {
            id: memory,
            layer,
            host: Some(host),
            other_host: None,
            copied: false,
            kind,
            bytes: 0,
            archive: None,
            created_at,
        };
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
            rehearsal: None,
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
        host: HostId,
        offers: &Offers,
    ) -> Result<Result<(Machine, i64), Refusal>, StepError> {
        let (tx, template) = (&mut change.tx, &change.before);
        let mut own = store::template::machines(&mut *tx, template.id).await?;
        if own.is_empty() {
            let asked = Asked { tied: Some(host), ..Asked::machines((template.vcpu, template.memory_mb), 1) };
            let placed = match place(tx, &self.sandboxes, offers, asked).await? {
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
}
