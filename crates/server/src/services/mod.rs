//! The services. Each has the same rooms: `mod` is the front door, `api` parses and authorizes, `wire`
//! knows outside formats, `ops` has one function for each verb and owns the transaction, `store` has
//! the only SQL, `reconcile` makes the world agree. Services see each other only through `mod`, and
//! through the questions below, which the composition root connects.

mod chosen_key;
pub mod depot;
mod firewall;
pub mod fleet;
pub mod gateway;
pub mod host;
pub mod identity;
mod membership;
pub mod network;
mod owner;
mod placement;
pub mod project;
pub mod quota;
mod received;
pub mod sandbox;
pub mod ssh_key;
pub mod suspension;
pub mod vm;

use async_trait::async_trait;
use berth_domain::ids::{OrgId, ProjectId};
use berth_domain::resource_usage::Kind;
use berth_domain::{Result, Timestamp};
use uuid::Uuid;

use crate::db::Tx;
use crate::db::resource_usage::Use;

/// A service that keeps things in projects.
#[async_trait]
pub trait Holder: Send + Sync + 'static {
    /// Whether a project holds anything of it, so that it cannot be deleted.
    async fn holds(&self, tx: &mut Tx, project: ProjectId) -> Result<bool>;
}

/// A service that has what is counted and paid for.
#[async_trait]
pub trait Takes: Send + Sync + 'static {
    /// What everything of it takes at present, by its rows.
    async fn taken(&self, tx: &mut Tx) -> Result<Vec<Use>>;

    /// What of that ended with the host, some time after `seen` and before `now`, though its rows do not say so yet.
    async fn ended_with_host(&self, tx: &mut Tx, seen: Timestamp, now: Timestamp) -> Result<Vec<(Kind, Uuid)>>;
}

/// A service that runs machines.
#[async_trait]
pub trait Stops: Send + Sync + 'static {
    /// Asks every machine to stop, those of one organization or all, and answers how many. It is the platform's
    /// own wish, and its reason stands in the message of each.
    async fn stop(&self, org: Option<OrgId>, reason: &str) -> Result<usize>;
}

/// Who knows which organizations are suspended.
#[async_trait]
pub trait Suspensions: Send + Sync + 'static {
    /// Organizations that are suspended, or whose owners all are.
    async fn suspended(&self) -> Result<Vec<OrgId>>;
}
