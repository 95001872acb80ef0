//! What the tasks of one link share: its rules, its way to the guest, and what it may take.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use berth_domain::sandbox::network::Network;
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
    pub(crate) policy: watch::Receiver<Arc<Network>>,
    pub(crate) wire: Wire,
    pub(crate) half_open: Arc<Semaphore>,
    pub(crate) queries: Arc<Semaphore>,
    pub(crate) buffers: Arc<Pool>,
    /// Bytes of datagrams that wait for the outside.
    pub(crate) datagrams: Arc<Pool>,
    /// Those of all links.
    sockets: Arc<Pool>,
    /// Those of this one.
    own: Arc<Pool>,
    names: Mutex<Names>,
}

/// A socket of the service's, until it is dropped.
pub(crate) struct SocketClaim {
    _own: Claim,
    _all: Claim,
}

impl Link {
    /// A link beside those that share the host and the sockets.
    pub(crate) fn new(
        config: &Arc<Config>,
        host: &Arc<Host>,
        sockets: &Arc<Pool>,
        policy: watch::Receiver<Arc<Network>>,
        counters: &Arc<Counters>,
    ) -> Self {
        let limits = &config.limits;
        Self {
            policy,
            wire: Wire::new(Arc::clone(counters)),
            half_open: Arc::new(Semaphore::new(limits.half_open)),
            queries: Arc::new(Semaphore::new(limits.queries)),
            buffers: Pool::new(limits.buffers),
            datagrams: Pool::new(limits.datagrams),
            sockets: Arc::clone(sockets),
            own: Pool::new(config.sockets),
            names: Mutex::new(Names::new(limits.names)),
            host: Arc::clone(host),
            config: Arc::clone(config),
        }
    }

    /// A socket more, if the machine leaves as many to the others as it has.
    pub(crate) fn socket(&self) -> Option<SocketClaim> {
        let own = self.own.claim(1, 0)?;
        let all = self.sockets.claim(1, self.own.used().saturating_sub(1))?;
        Some(SocketClaim { _own: own, _all: all })
    }

    pub(crate) fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
