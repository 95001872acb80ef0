//! The network service as its routes and workers see it: the rows, and the engine of networks.

use std::sync::Arc;

use berth_host::clock::Clock;
use berth_host::network::NetworkEngine;

use crate::db::Db;

/// The network service.
#[derive(Clone)]
pub struct Networks {
    pub(super) inner: Arc<Inner>,
}

/// What all copies of the service share.
pub(super) struct Inner {
    pub db: Db,
    pub clock: Clock,
    pub engine: Arc<dyn NetworkEngine>,
}

impl Networks {
    pub(super) fn db(&self) -> &Db {
        &self.inner.db
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    pub(super) fn engine(&self) -> &dyn NetworkEngine {
        &*self.inner.engine
    }
}
