//! What joins the machines of a project, behind a trait: switches on this host.
//!
//! An engine is told all of a network at once and makes it so; whatever it is told may be told again after a crash. It
//! knows machines by their ids and asks nobody whether they exist: those that do not run here are somewhere else, or
//! nowhere.

mod local;
mod switches;

use async_trait::async_trait;
use berth_domain::ids::NetworkId;
use tokio_util::sync::CancellationToken;

pub use berth_domain::host::network::{Found, Member, Membership, NetworkSpec};
pub use switches::Switches;
pub(crate) use switches::announce;

use crate::Result;

/// What joins machines.
#[async_trait]
pub trait NetworkEngine: Send + Sync + 'static {
    /// Makes a network what it is told to be. Those of its members that run here reach each other from then on; who is
    /// no member any more reaches nobody. Repeatable.
    async fn set(&self, network: &NetworkSpec) -> Result<()>;

    /// Removes a network; fine where there is none. Its members reach each other no more.
    async fn remove(&self, id: NetworkId) -> Result<()>;

    /// What the host has of networks.
    async fn scan(&self) -> Result<Found>;

    /// What it does of its own accord, until told to stop.
    async fn tend(&self, stop: CancellationToken) {
        stop.cancelled().await;
    }
}
