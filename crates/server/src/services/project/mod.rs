//! What belongs to projects, whatever service it comes from: their events, what they have and may have, and what their
//! machines, disks and snapshots took and cost.
//!
//! All of it is read from rows that the services write in the transactions of what happens: events ([`crate::db::event`]),
//! the things themselves ([`crate::db::usage`]), and the ledger that their stores keep ([`crate::db::resource_usage`]),
//! summed up by [`berth_domain::resource_usage`].
//!
//! The ledger is squared once, before the workers begin: what runs since before there was a ledger is counted from then
//! on, and so is what has another price now. What ended with its host is counted until a service was last seen there, and
//! from now on again: nobody knows when the host went down, and nobody pays for a machine that was off.

mod api;
mod reconcile;
mod service;
mod store;
mod wire;

use berth_domain::{Result, Timestamp};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use utoipa_axum::router::OpenApiRouter;

use super::Takes;
use crate::clock::Clock;
use crate::config::Config;
use crate::db::{Db, resource_usage};

pub use service::Projects;

impl Projects {
    /// Sets the prices of the configuration, and squares the ledger with what the services' rows say; `seen` is when the
    /// last service on this database was seen.
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

    /// Its workers, until told to stop.
    pub fn spawn_workers(&self, tasks: &mut JoinSet<()>, stop: &CancellationToken) {
        tasks.spawn(reconcile::event::forget_old(self.clone(), stop.clone()));
    }
}
