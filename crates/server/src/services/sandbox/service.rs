//! The sandbox service as its routes and workers see it: the rows, the engine, and what it was told at its start.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use berth_domain::Timestamp;
use berth_domain::host::placement::Overcommit;
use berth_domain::ids::{HostId, MemoryId};
use berth_host::EngineError;
use berth_host::clock::Clock;
use berth_host::lost::Lost;
use berth_host::sandbox::SandboxEngine;
use tokio::sync::Semaphore;

use super::coming_back::ComingBack;
use super::store::archive::Thing;
use super::travels::Travels;
use super::under_way::{Builds, Carried, Carrying};
use super::warm::WarmPool;
use crate::config::Catalog;
use crate::db::Db;
use crate::services::depot::Depot;
use crate::services::fleet::Fleet;

/// The sandbox service.
#[derive(Clone)]
pub struct Sandboxes {
    pub(super) inner: Arc<Inner>,
}

/// What all copies of the service share.
pub(super) struct Inner {
    pub db: Db,
    pub clock: Clock,
    pub fleet: Fleet,
    pub config: crate::config::Sandbox,
    pub catalog: Catalog,
    pub overcommit: Overcommit,
    pub builds: Builds,
    pub carried: Carried,
    /// What is wanted of warm machines, on each host that can be asked.
    pub warm: Mutex<HashMap<HostId, Arc<WarmPool>>>,
    pub lost: Lost,
    pub began_at: Timestamp,
    /// When each host that did not answer was asked last.
    pub silent: Mutex<HashMap<HostId, Timestamp>>,
    /// What became of guests on their way to hosts.
    pub travels: Travels,
    /// Where what is to outlive its host may be kept; none where the operator named no place.
    pub depot: Option<Depot<Thing>>,
    /// Turns of those who remove something from there.
    pub clearing: Semaphore,
    /// What the service's own host lacks, and gets from there.
    pub coming_back: ComingBack,
}

impl Sandboxes {
    pub(crate) fn db(&self) -> &Db {
        &self.inner.db
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    /// Since when time counts for deadlines of what is on a host: not while no service ran, nor while that host did not answer, or
    /// got back what it lacked.
    pub(in crate::services::sandbox) fn counts_since(&self, host: HostId) -> Timestamp {
        if host == self.host() && !self.coming_back().is_empty() {
            return self.clock().now();
        }
        let silent = self.inner.silent.lock().unwrap_or_else(PoisonError::into_inner).get(&host).copied();
        let came_back = self.coming_back().ended().filter(|_| host == self.host());
        [silent, came_back].into_iter().flatten().fold(self.inner.began_at, Timestamp::max)
    }

    /// When the service began.
    pub(in crate::services::sandbox) fn began_at(&self) -> Timestamp {
        self.inner.began_at
    }

    /// Notes that a host other than the service's own does not answer.
    pub(in crate::services::sandbox) fn note_silence(&self, host: HostId) {
        if host != self.host() {
            let now = self.clock().now();
            self.inner.silent.lock().unwrap_or_else(PoisonError::into_inner).insert(host, now);
        }
    }

    /// Where what no row owns is set aside.
    pub(in crate::services::sandbox) fn lost(&self) -> &Lost {
        &self.inner.lost
    }

    /// The store of backups; none where the operator named no place.
    pub(in crate::services::sandbox) fn depot(&self) -> Option<&Depot<Thing>> {
        self.inner.depot.as_ref()
    }

    /// Turns of those who remove something from the store.
    pub(in crate::services::sandbox) fn clearing(&self) -> &Semaphore {
        &self.inner.clearing
    }

    /// What the service's own host lacks, and gets from the store.
    pub(in crate::services::sandbox) fn coming_back(&self) -> &ComingBack {
        &self.inner.coming_back
    }

    /// The hosts that machines can be on.
    pub(in crate::services::sandbox) fn fleet(&self) -> &Fleet {
        &self.inner.fleet
    }

    /// The engine of the host that something is on. What is on none yet is asked of the service's own, which has nothing of it.
    ///
    /// # Errors
    /// That host cannot be asked now.
    pub(in crate::services::sandbox) fn engine_of(
        &self,
        host: Option<HostId>,
    ) -> Result<Arc<dyn SandboxEngine>, EngineError> {
        Ok(self.fleet().of(host.unwrap_or_else(|| self.host()))?.sandbox)
    }

    /// The engine of the service's own host, which receives uploads and has the platform's templates.
    pub(crate) fn engine(&self) -> &dyn SandboxEngine {
        &*self.inner.fleet.here().sandbox
    }

    /// What became of guests on their way to hosts.
    pub(in crate::services::sandbox) fn travels(&self) -> &Travels {
        &self.inner.travels
    }

    /// Says that a memory is on its way to another host, for as long as what this returns lives; none where it is already.
    pub(in crate::services::sandbox) fn begin_carrying(&self, id: MemoryId) -> Option<Carrying> {
        self.inner.carried.begin(id)
    }

    pub(crate) fn builds(&self) -> &Builds {
        &self.inner.builds
    }

    /// What is asked of warm machines of a host; none where it cannot be asked.
    pub(in crate::services::sandbox) fn warm(&self, host: HostId) -> Option<Arc<WarmPool>> {
        self.inner.warm.lock().unwrap_or_else(PoisonError::into_inner).get(&host).cloned()
    }

    /// The same of all hosts that can be asked.
    pub(in crate::services::sandbox) fn all_warm(&self) -> Vec<Arc<WarmPool>> {
        self.inner.warm.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// From now on warm machines of a host can be asked for.
    pub(in crate::services::sandbox) fn set_warm(&self, host: HostId, pool: Arc<WarmPool>) {
        self.inner.warm.lock().unwrap_or_else(PoisonError::into_inner).insert(host, pool);
    }

    /// Nobody keeps warm machines of a host any more, if this was what was asked of them.
    pub(in crate::services::sandbox) fn forget_warm(&self, host: HostId, pool: &Arc<WarmPool>) {
        let mut pools = self.inner.warm.lock().unwrap_or_else(PoisonError::into_inner);
        if pools.get(&host).is_some_and(|known| Arc::ptr_eq(known, pool)) {
            pools.remove(&host);
        }
    }

    /// Sizes of VMs, which say what GPUs are on offer.
    pub(in crate::services::sandbox) fn catalog(&self) -> &Catalog {
        &self.inner.catalog
    }

    pub(crate) fn overcommit(&self) -> Overcommit {
        self.inner.overcommit
    }

    /// The service's own host.
    pub(in crate::services::sandbox) fn host(&self) -> HostId {
        self.inner.fleet.own()
    }

    pub(crate) fn config(&self) -> &crate::config::Sandbox {
        &self.inner.config
    }
}
