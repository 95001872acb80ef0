//! Stops the machines of suspended organizations, at once and again and again: somebody may have been about
//! to start one when the suspension came.

use std::sync::Arc;
use std::time::Duration;

use berth_domain::Result;
use tokio_util::sync::CancellationToken;

use crate::db::Signal;
use crate::services::Suspensions;
use crate::services::vm::Vms;

/// Longest time between two looks: another service may have been told.
const LOOK: Duration = Duration::from_secs(30);

/// Runs until told to stop.
pub async fn watch(vms: Vms, suspensions: Arc<dyn Suspensions>, stop: CancellationToken) {
    let mut signals = vms.db().watch();
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
        if let Err(error) = stop_suspended(&vms, &*suspensions).await {
            tracing::warn!(%error, "machines of suspended organizations cannot be stopped; trying again");
        }
    }
}

async fn stop_suspended(vms: &Vms, suspensions: &dyn Suspensions) -> Result<()> {
    for org in suspensions.suspended().await? {
        vms.stop_all(Some(org), "the organization is suspended").await?;
    }
    Ok(())
}
