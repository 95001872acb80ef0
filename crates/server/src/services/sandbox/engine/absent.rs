//! What stands where a host cannot run sandboxes: everything is refused with the reason.

use std::path::PathBuf;

use async_trait::async_trait;
use berth_domain::ids::{LayerId, MemoryId, SandboxId, UploadId};
use berth_domain::sandbox::network::Network;
use tokio::sync::broadcast;

use super::super::agent::Connection;
use super::{
    Activity, Build, Built, Capacity, Cut, CutDone, EngineError, Found, Observed, Paused, PlatformTemplate, Result,
    Sample, SandboxEngine, StartSpec, Started, Warming,
};

/// No engine, and why.
pub struct NoEngine {
    reason: String,
    nothing: broadcast::Sender<SandboxId>,
}

impl NoEngine {
    /// No engine for this reason.
    pub fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), nothing: broadcast::channel(1).0 }
    }

    fn refuse<T>(&self) -> Result<T> {
        Err(EngineError::Permanent(format!("this host runs no sandboxes: {}", self.reason)))
    }
}

#[async_trait]
impl SandboxEngine for NoEngine {
    fn ready(&self) -> std::result::Result<(), String> {
        Ok(())
    }

    async fn capacity(&self) -> Result<Capacity> {
        self.refuse()
    }

    async fn host_boot(&self) -> String {
        String::new()
    }

    async fn templates(&self) -> Result<Vec<PlatformTemplate>> {
        Ok(Vec::new())
    }

    async fn adopt_template(&self, _: &str, _: LayerId) -> Result<()> {
        self.refuse()
    }

    async fn make_layer(&self, _: LayerId, _: LayerId) -> Result<()> {
        self.refuse()
    }

    async fn remove_layer(&self, _: LayerId) -> Result<()> {
        Ok(())
    }

    async fn layer_bytes(&self, _: LayerId) -> Result<i64> {
        Ok(0)
    }

    async fn remove_memory(&self, _: MemoryId) -> Result<()> {
        Ok(())
    }

    async fn observe(&self, _: SandboxId) -> Result<Observed> {
        Ok(Observed::Absent)
    }

    async fn start(&self, _: &StartSpec) -> Result<Started> {
        self.refuse()
    }

    async fn cut(&self, _: &Cut) -> Result<CutDone> {
        self.refuse()
    }

    async fn cut_cold(&self, _: &Cut) -> Result<CutDone> {
        self.refuse()
    }

    async fn pause(&self, _: SandboxId, _: Option<MemoryId>) -> Result<Paused> {
        Ok(Paused::default())
    }

    async fn end(&self, _: SandboxId) -> Result<()> {
        Ok(())
    }

    async fn discard(&self, _: SandboxId) -> Result<()> {
        Ok(())
    }

    async fn set_network(&self, _: SandboxId, _: &Network) -> Result<()> {
        self.refuse()
    }

    async fn upload(&self, _: UploadId) -> Result<PathBuf> {
        self.refuse()
    }

    async fn remove_upload(&self, _: UploadId) -> Result<()> {
        Ok(())
    }

    async fn build_template(&self, _: &Build) -> Result<Built> {
        self.refuse()
    }

    async fn warm_template(&self, _: &Warming) -> Result<i64> {
        self.refuse()
    }

    async fn connect(&self, _: SandboxId) -> Result<Connection> {
        self.refuse()
    }

    async fn activity(&self, _: SandboxId) -> Activity {
        Activity::default()
    }

    async fn sample(&self, _: SandboxId) -> Option<Sample> {
        None
    }

    async fn scan(&self) -> Result<Found> {
        Ok(Found::default())
    }

    fn watch(&self) -> broadcast::Receiver<SandboxId> {
        self.nothing.subscribe()
    }
}
