//! What the tasks of one link share: its rules, its way to the guest, and what it may take.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use berth_domain::firewall::Rules;
use berth_domain::sandbox::network_policy::NetworkPolicy;
use tokio::sync::{Semaphore, watch};

use crate::config::Config;
use crate::counters::Counters;
use crate::host::Host;
use crate::names::Names;
use crate::pool::{Claim, Pool};
use crate::wire::Wire;

/// What the tasks of one link share.
pub(crate) struct Link {
    pub(crate) config: Arc<Config>,
    pub(crate) host: Arc<Host>,
    pub(crate) policy: watch::Receiver<Arc<NetworkPolicy>>,
    /// The machine's firewall rules.
    pub(crate) rules: watch::Receiver<Arc<Rules>>,
    pub(crate) wire: Arc<Wire>,
    pub(crate) half_open: Arc<Semaphore>,
    pub(crate) queries: Arc<Semaphore>,
    pub(crate) buffers: Arc<Pool>,
    /// Bytes of datagrams that wait for the outside.
    pub(crate) datagrams: Arc<Pool>,
    sockets: Arc<Pool>,
    names: Mutex<Names>,
}

impl Link {
    /// A link to a guest.
    pub(crate) fn new(
        config: &Arc<Config>,
        host: &Arc<Host>,
        policy: watch::Receiver<Arc<NetworkPolicy>>,
        counters: &Arc<Counters>,
    ) -> Self {
        let limits = &config.limits;
        Self {
            policy,
            rules: config.networks.rules(),
            wire: Arc::new(Wire::new(Arc::clone(counters))),
            half_open: Arc::new(Semaphore::new(limits.half_open)),
            queries: Arc::new(Semaphore::new(limits.queries)),
            buffers: Pool::new(limits.buffers),
            datagrams: Pool::new(limits.datagrams),
            sockets: Pool::new(config.sockets),
            names: Mutex::new(Names::new(limits.names)),
            host: Arc::clone(host),
            config: Arc::clone(config),
        }
    }

    /// One of the machine's sockets, until it is dropped, if there is one left.
    pub(crate) fn socket(&self) -> Option<Claim> {
        self.sockets.claim(1, 0)
    }

    pub(crate) fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
