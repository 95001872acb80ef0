//! What a project's machines, disks and snapshots took and cost: read from the ledger that the services' stores keep
//! ([`crate::db::resource_usage`]), summed up by [`berth_domain::resource_usage`].
//!
//! There is nothing to do here but to read, and to square the ledger once, before the workers begin: what runs since
//! before there was a ledger is counted from then on, and so is what has another price now. What ended with its host is
//! counted until a service was last seen there, and from now on again: nobody knows when the host went down, and nobody
//! pays for a machine that was off.

mod api;
mod wire;

use berth_domain::{Result, Timestamp};
use utoipa_axum::router::OpenApiRouter;

use super::Takes;
use crate::clock::Clock;
use crate::config::Config;
use crate::db::{Db, resource_usage};

/// What was taken.
#[derive(Clone)]
pub struct ResourceUsage {
    db: Db,
    clock: Clock,
}

impl ResourceUsage {
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
}
