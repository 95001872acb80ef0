//! What is on its way to a second host, or to the store of backups.

use std::fmt;

use berth_domain::ids::HostId;
use tokio::task::AbortHandle;

use crate::services::sandbox::store::archive::Thing;
use crate::services::sandbox::store::durable::AtRest;

/// The way of a memory to a second host, or of something that the store lacks to there.
pub(super) struct Way {
    pub at: AtRest,
    /// The host that it comes from; none where that is lost, and it comes from the store.
    pub from: Option<HostId>,
    pub to: Goal,
    pub carrier: AbortHandle,
}

/// Where something is carried to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Goal {
    /// A memory to a host.
    Host(HostId),
    /// This to the store.
    Store(Thing),
}

impl Goal {
    pub const fn host(self) -> Option<HostId> {
        match self {
            Self::Host(host) => Some(host),
            Self::Store(_) => None,
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(host) => write!(f, "host {host}"),
            Self::Store(_) => f.write_str("the store of backups"),
        }
    }
}
