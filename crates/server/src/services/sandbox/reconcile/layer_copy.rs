//! Brings layers to other hosts than their own: where sandboxes of a template are to be, and what leaves its host or is to outlive it.
//!
//! A copy is wished by a row before anything of it is on its host, and read on any host that has the layer, or else in the store
//! of backups. What broke off is begun anew, by whichever service comes next; what could not be brought in time, or is refused,
//! fails those who wait for it.

use std::time::Duration;

use berth_domain::host::State;
use berth_domain::ids::{HostId, LayerCopyId};
use berth_domain::sandbox::layer_copy::{CopyState, CopyStep, next};
use berth_domain::{Result, Timestamp};
use berth_host::EngineError;
use berth_host::sandbox::SandboxEngine;
use berth_host::sandbox::travel::carry_layer;

use super::{StepError, archive, fault};
use crate::services::placement::state_of;
use crate::services::sandbox::Sandboxes;
use crate::services::sandbox::store;
use crate::services::sandbox::store::archive::Thing;
use crate::services::sandbox::store::layer_copy::CopyRow;
use crate::work::Due;
use crate::work::lifecycle::{Life, Next};

/// How many are brought at once: each takes what disks and networks of two hosts give.
pub const MOST: usize = 2;
/// Seconds after which one is given up that could not be brought, of those in which its host answered.
const PATIENCE: i64 = 2 * 3600;

/// How long a host may take to say that it is there, and how long one try may last, whatever is said meanwhile.
const ANSWER: Duration = Duration::from_secs(10);
const TRY: Duration = Duration::from_secs(PATIENCE.unsigned_abs());

/// The lives of copies of layers.
pub struct LayerCopyLife {
    sandboxes: Sandboxes,
}

impl LayerCopyLife {
    /// Those of the service.
    pub const fn new(sandboxes: Sandboxes) -> Self {
        Self { sandboxes }
    }

    /// The hosts that have the layer, but for this copy's own.
    async fn sources(&self, copy: &CopyRow) -> Result<Vec<HostId>, StepError> {
        let chain = store::layer_copy::chain(self.sandboxes.db(), copy.layer).await?;
        let hosts = chain.first().map(|layer| layer.hosts(self.sandboxes.host())).unwrap_or_default();
        // The service's own may have lost it, and get it back.
        let is_lacking = self.sandboxes.coming_back().lacks(&[Thing::Layer(copy.layer)]);
        let has = |host: &HostId| *host != copy.host && !(is_lacking && *host == self.sandboxes.host());
        Ok(hosts.into_iter().filter(has).collect())
    }

    /// The first of these that can be asked.
    async fn source(&self, hosts: &[HostId]) -> Option<HostId> {
        for host in hosts {
            if let Ok(engine) = self.sandboxes.engine_of(Some(*host))
                && tokio::time::timeout(ANSWER, engine.capacity()).await.is_ok_and(|said| said.is_ok())
            {
                return Some(*host);
            }
        }
        None
    }

    /// Brings the layer from another host, or from the store of backups where all those that have it are lost; answers how many
    /// bytes that took.
    async fn carry(&self, copy: &CopyRow, target: &dyn SandboxEngine) -> Result<u64, StepError> {
        let hosts = self.sources(copy).await?;
        if let Some(from) = self.source(&hosts).await {
            let source = self.sandboxes.engine_of(Some(from))?;
            return Ok(carry_layer(&*source, target, copy.layer).await?);
        }
        let silent = || EngineError::Transient("no host that has the layer can be reached".into());
        for host in hosts {
            if state_of(self.sandboxes.db(), host).await?.is_some_and(|state| state != State::Lost) {
                // It says nothing for a moment.
                return Err(silent().into());
            }
        }
        let thing = Thing::Layer(copy.layer);
        let file = archive::fetch::whole(&self.sandboxes, thing).await?.ok_or_else(silent)?;
        archive::fetch::fetch(&self.sandboxes, target, (thing, &file)).await
    }

    async fn bring(&self, copy: &CopyRow) -> Result<(), StepError> {
        let target = self.sandboxes.engine_of(Some(copy.host))?;
        let began = std::time::Instant::now();
        let too_long = |_| Err(EngineError::Transient("it took too long".into()).into());
        let carried = tokio::time::timeout(TRY, self.carry(copy, &*target)).await.unwrap_or_else(too_long);
        let answers = async || tokio::time::timeout(ANSWER, target.capacity()).await.is_ok_and(|said| said.is_ok());
        let broke_off = matches!(&carried, Err(StepError::Engine(error)) if !error.is_final());
        if broke_off && !answers().await {
            self.sandboxes.note_silence(copy.host);
        }
        let (bytes, seconds) = (carried?, began.elapsed().as_secs_f64());
        tracing::info!(layer = %copy.layer, to = %copy.host, bytes, seconds, "a layer has come to another host");
        fault("layer_copy", "bring", "done").await?;
        self.settle(copy, CopyState::Present, None).await?;
        let now = store::layer_copy::find(self.sandboxes.db(), copy.id).await?;
        if now.is_none_or(|copy| !copy.is_layer_kept) {
            // The layer went meanwhile, and what was removed with it came afterwards.
            target.remove_layer(copy.layer).await?;
        }
        Ok(())
    }

    async fn settle(&self, copy: &CopyRow, state: CopyState, message: Option<&str>) -> Result<(), StepError> {
        if let Some(reason) = message {
            tracing::warn!(layer = %copy.layer, to = %copy.host, reason, "a layer has not come to another host");
        }
        let mut tx = self.sandboxes.db().begin().await?;
        store::layer_copy::settle(&mut tx, copy, (state, message), self.sandboxes.clock().now()).await?;
        Ok(tx.commit().await?)
    }

    async fn look_at(&self, copy: &CopyRow, at: Option<Timestamp>) -> Result<(), StepError> {
        let mut tx = self.sandboxes.db().begin().await?;
        store::layer_copy::look_at(&mut tx, copy, at).await?;
        Ok(tx.commit().await?)
    }
}

impl Life for LayerCopyLife {
    type Key = LayerCopyId;
    type Seen = CopyRow;
    type Step = CopyStep;
    const TABLE: &'static str = store::layer_copy::TABLE;
    const KIND: &'static str = "layer_copy";
    const DROPPED_BY_A_STOP: bool = true;

    async fn due(&self, now: Timestamp, limit: usize) -> Result<Due<LayerCopyId>> {
        Ok(Due::at(now, store::layer_copy::with_work(self.sandboxes.db(), limit).await?))
    }

    async fn look(&self, id: &LayerCopyId) -> Result<Option<CopyRow>, StepError> {
        Ok(store::layer_copy::find(self.sandboxes.db(), *id).await?)
    }

    async fn plan(&self, copy: &CopyRow) -> Result<Next<CopyStep>, StepError> {
        let since = copy.since.max(self.sandboxes.counts_since(copy.host));
        let is_too_late = self.sandboxes.clock().now() >= since.plus_seconds(PATIENCE);
        Ok(next(copy.state, copy.is_layer_kept, is_too_late).map_or(Next::Rest(None), Next::Take))
    }

    fn name(step: &CopyStep) -> &'static str {
        step.as_str()
    }

    async fn take(&self, copy: &CopyRow, step: CopyStep) -> Result<(), StepError> {
        match step {
            CopyStep::Bring => self.bring(copy).await,
            CopyStep::Expire => {
                let told = format!("what it begins with was not brought to its host within {PATIENCE} seconds");
                self.settle(copy, CopyState::Failed, Some(&told)).await
            }
        }
    }

    async fn rest(&self, copy: &CopyRow, until: Option<Timestamp>) -> Result<(), StepError> {
        self.look_at(copy, until).await
    }

    async fn postpone(&self, copy: &CopyRow, until: Timestamp) -> Result<(), StepError> {
        self.look_at(copy, Some(until)).await
    }

    async fn give_up(&self, copy: &CopyRow, error: &EngineError) -> Result<bool, StepError> {
        self.settle(copy, CopyState::Failed, Some(&error.to_string())).await?;
        Ok(true)
    }
}
