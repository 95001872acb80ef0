//! The network service: networks of a project, in which its VMs and sandboxes reach each other by name.
//!
//! A network is a row; who belongs to it is written by the services of VMs and sandboxes, with their own rows
//! ([`crate::db::network`]). State flows one way: from the rows to the host, which is told all of a network whenever
//! something of it changes, and tells nothing back. Invariants of this house:
//!
//! - Whoever changes what a host is to know counts the row's revision up in the same transaction; the reconciler tells
//!   the host until it was told the last one.
//! - A start of the service tells all of them once more: the host may have begun anew, or forgotten.
//! - A network goes when nobody belongs to it any more: first from the host, then its row.

pub mod api;
pub mod ops;
pub mod reconcile;
mod service;
pub mod store;
pub mod wire;

use std::sync::Arc;

use async_trait::async_trait;
use berth_domain::Result;
use berth_domain::identity::KeyScope;
use berth_domain::ids::ProjectId;
use berth_host::clock::Clock;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use utoipa_axum::router::OpenApiRouter;

use super::Holder;
use super::fleet::Fleet;
use crate::db::{Db, DbError, Tx};
use crate::http::auth::{AnyOf, Right};
use crate::work::lifecycle::Lifecycle;
use service::Inner;

pub use service::Networks;

/// Networks of which the host is told at the same time.
const TELLERS: usize = 4;

impl Networks {
    /// The service over the hosts that machines can be on.
    pub fn new(db: Db, clock: Clock, fleet: Fleet) -> Self {
        Self { inner: Arc::new(Inner { db, clock, fleet }) }
    }

    /// Its routes.
    pub fn routes(&self) -> OpenApiRouter {
        api::routes().with_state(self.clone())
    }

    /// What has to be so before the first request is answered.
    pub async fn prepare(&self) -> Result<()> {
        let mut tx = self.db().begin().await?;
        store::network::tell_all(&mut tx, self.clock().now()).await?;
        Ok(tx.commit().await?)
    }

    /// Its workers, until told to stop.
    pub fn spawn_workers(&self, tasks: &mut JoinSet<()>, stop: &CancellationToken) {
        let life = reconcile::network::NetworkLife::new(self.clone());
        Lifecycle::new(life, self.clock().clone(), stop.clone()).spawn(tasks, self.db(), TELLERS);
        let (engine, ending) = (self.inner.fleet.here().network.clone(), stop.clone());
        tasks.spawn(async move { engine.tend(ending).await });
        tasks.spawn(reconcile::host::watch(self.clone(), stop.clone()));
    }

    /// Metrics in Prometheus' text format.
    pub async fn prometheus(&self) -> std::result::Result<String, DbError> {
        let untold = store::network::untold(self.db()).await?;
        Ok(format!(
            "# HELP berth_networks_untold Networks of which the host did not take the last change yet.\n\
             # TYPE berth_networks_untold gauge\nberth_networks_untold {untold}\n"
        ))
    }
}

/// VMs and sandboxes alike belong to networks, so a key that may make either may make their networks.
impl Right for Networks {
    const SCOPES: AnyOf = AnyOf::of(&[KeyScope::Vm, KeyScope::Sandbox]);
}

#[async_trait]
impl Holder for Networks {
    async fn holds(&self, tx: &mut Tx, project: ProjectId) -> Result<bool> {
        Ok(store::network::any(tx, project).await?)
    }
}
