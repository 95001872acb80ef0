//! What belongs to projects, whatever service it comes from: their events, what they hold and may hold, and what their
//! machines, disks and snapshots took and cost.
//!
//! This service reads rows that other services write in the transactions of what happens: events
//! ([`crate::db::event`]), the things themselves ([`crate::db::usage`]), and the ledger that their stores keep
//! ([`crate::db::resource_usage`]), which [`berth_domain::resource_usage`] sums up.
//!
//! The service squares the ledger once, before the workers begin: a thing that is older than the ledger counts from
//! then on, and so does a new price. A machine that ended with its host counts until a service was last seen there, and
//! from now on again: nobody knows when the host went down, and nobody pays for a machine that was off.

mod api;
mod reconcile;
mod service;
mod store;
mod wire;

use berth_domain::{Result, Timestamp};
use berth_host::clock::Clock;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use utoipa_axum::router::OpenApiRouter;

use super::Takes;
use crate::config::Config;
use crate::db::{Db, resource_usage};

pub use service::Projects;

impl Projects {
    /// Sets the configured prices, and squares the ledger with the services' rows; `seen` is when the last service on
    /// this database was seen.
    pub async fn start(
        db: Db,
        clock: Clock,
        config: &Config,
        services: &[&dyn Takes],
        seen: Option<Timestamp>,
    ) -> Result<Self> {
        let now = clock.now();
        let mut tx = db.begin().await?;
        resource_usage::set_prices(&mut tx, &config.price_list()).await?;
        let mut taken = Vec::new();
        for service in services {
            if let Some(seen) = seen {
                for ended in service.ended_with_host(&mut tx, seen, now).await? {
                    resource_usage::settle(&mut tx, ended, None, seen).await?;
                }
            }
            taken.extend(service.taken(&mut tx).await?);
        }
        resource_usage::square(&mut tx, &taken, now).await?;
        tx.commit().await?;
        Ok(Self { db, clock })
    }

    /// Its routes.
    pub fn routes(&self) -> OpenApiRouter {
        api::routes().with_state(self.clone())
    }

    /// Starts its workers, which run until told to stop.
    pub fn spawn_workers(&self, tasks: &mut JoinSet<()>, stop: &CancellationToken) {
        tasks.spawn(reconcile::event::forget_old(self.clone(), stop.clone()));
    }
}
