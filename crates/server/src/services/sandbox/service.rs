//! The sandbox service as its routes and workers see it: the rows, the engine, and what it was told at its start.

use std::sync::Arc;

use berth_domain::Timestamp;
use berth_domain::host::placement::Overcommit;
use berth_domain::ids::HostId;
use berth_host::clock::Clock;
use berth_host::lost::Lost;
use berth_host::sandbox::SandboxEngine;

use super::under_way::Builds;
use super::warm::WarmPool;
use crate::config::Catalog;
use crate::db::Db;

/// The sandbox service.
#[derive(Clone)]
pub struct Sandboxes {
    pub(super) inner: Arc<Inner>,
}

/// What all copies of the service share.
pub(super) struct Inner {
    pub db: Db,
    pub clock: Clock,
    pub engine: Arc<dyn SandboxEngine>,
    pub config: crate::config::Sandbox,
    pub catalog: Catalog,
    pub overcommit: Overcommit,
    pub host: HostId,
    pub builds: Builds,
    pub warm: WarmPool,
    pub lost: Lost,
    pub began_at: Timestamp,
}

impl Sandboxes {
    pub(crate) fn db(&self) -> &Db {
        &self.inner.db
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    /// When this service began.
    pub(in crate::services::sandbox) fn began_at(&self) -> Timestamp {
        self.inner.began_at
    }

    /// Where what no row owns is set aside.
    pub(in crate::services::sandbox) fn lost(&self) -> &Lost {
        &self.inner.lost
    }

    pub(crate) fn engine(&self) -> &dyn SandboxEngine {
        &*self.inner.engine
    }

    pub(crate) fn builds(&self) -> &Builds {
        &self.inner.builds
    }

    /// What is asked of warm machines.
    pub(in crate::services::sandbox) fn warm(&self) -> &WarmPool {
        &self.inner.warm
    }

    /// Sizes of VMs, which say what GPUs are on offer.
    pub(in crate::services::sandbox) fn catalog(&self) -> &Catalog {
        &self.inner.catalog
    }

    pub(crate) fn overcommit(&self) -> Overcommit {
        self.inner.overcommit
    }

    /// The host that its machines are put onto.
    pub(in crate::services::sandbox) fn host(&self) -> HostId {
        self.inner.host
    }

    pub(crate) fn config(&self) -> &crate::config::Sandbox {
        &self.inner.config
    }
}
