//! Stops what runs of suspended organizations, at once and again and again: somebody may have been about to start
//! something when the suspension came.

use std::sync::Arc;
use std::time::Duration;

use berth_domain::Result;
use tokio_util::sync::CancellationToken;

use super::{Stops, Suspensions};
use crate::db::{Db, Signal};

/// Longest time between two looks: a signal may have been missed.
const LOOK: Duration = Duration::from_secs(30);

/// Runs until told to stop.
pub async fn watch(db: Db, suspensions: Arc<dyn Suspensions>, services: Vec<Arc<dyn Stops>>, stop: CancellationToken) {
    let mut signals = db.watch();
    let mut ticks = tokio::time::interval(LOOK);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = ticks.tick() => {}
            signal = signals.recv() => {
                if matches!(signal, Ok(signal) if signal != Signal::Work("suspensions")) {
                    continue;
                }
            }
        }
        if let Err(error) = stop_suspended(&*suspensions, &services).await {
            tracing::warn!(%error, "machines of suspended organizations cannot be stopped; trying again");
        }
    }
}

async fn stop_suspended(suspensions: &dyn Suspensions, services: &[Arc<dyn Stops>]) -> Result<()> {
    for org in suspensions.suspended().await? {
        for service in services {
            service.stop(Some(org), "the organization is suspended").await?;
        }
    }
    Ok(())
}
