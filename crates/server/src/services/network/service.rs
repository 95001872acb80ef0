//! The network service as its routes and workers see it: the rows, and the hosts.

use std::sync::Arc;

use berth_host::clock::Clock;

use crate::db::Db;
use crate::services::fleet::Fleet;

/// The network service.
#[derive(Clone)]
pub struct Networks {
    pub(super) inner: Arc<Inner>,
}

/// What all copies of the service share.
pub(super) struct Inner {
    pub db: Db,
    pub clock: Clock,
    pub fleet: Fleet,
}

impl Networks {
    pub(super) fn db(&self) -> &Db {
        &self.inner.db
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    /// The hosts that machines can be on.
    pub(super) fn fleet(&self) -> &Fleet {
        &self.inner.fleet
    }
}
