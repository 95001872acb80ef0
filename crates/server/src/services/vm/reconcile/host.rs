//! The host as a whole: adoption at start, what no row owns, logs, old events.

use std::collections::HashSet;
use std::time::Duration;

use berth_domain::Error;
use berth_domain::ids::VmId;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

use super::StepError;
use crate::services::vm::{Vms, store};
use crate::work::Poker;

/// Between two looks at the size of logs.
const TIDY: Duration = Duration::from_secs(5);
/// Between two searches for what no row owns.
const SWEEP: Duration = Duration::from_mins(10);
/// Seconds for which events are kept.
const EVENTS_KEPT: i64 = 7 * 86_400;
/// Wait after a search that failed.
const RETRY: Duration = Duration::from_secs(2);

/// Runs until told to stop. At first every machine that should exist is looked at, which adopts those
/// that are alive and finds those that died while nobody looked.
pub async fn watch(vms: Vms, poke: Poker<VmId>, stop: CancellationToken) {
    let mut events = vms.engine().watch();
    let mut tidy = tokio::time::interval(TIDY);
    let mut sweep = tokio::time::interval(SWEEP);
    adopt(&vms, &poke, &stop).await;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = tidy.tick() => vms.engine().tidy().await,
            _ = sweep.tick() => {
                if let Err(error) = clean(&vms).await {
                    tracing::warn!(?error, "the host could not be searched; trying again later");
                    sweep.reset_after(RETRY * 30);
                }
            }
            event = events.recv() => match event {
                Ok(id) => poke.poke(id),
                Err(RecvError::Lagged(_)) => adopt(&vms, &poke, &stop).await,
                Err(RecvError::Closed) => return,
            }
        }
    }
}

/// Has every machine that should exist looked at.
async fn adopt(vms: &Vms, poke: &Poker<VmId>, stop: &CancellationToken) {
    loop {
        match store::vm::with_machine(vms.db()).await {
            Ok(ids) => {
                tracing::info!(machines = ids.len(), "looking at every machine that should exist");
                return ids.into_iter().for_each(|id| poke.poke(id));
            }
            Err(error) => tracing::error!(%error, "the machines cannot be listed; trying again"),
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(RETRY) => {}
        }
    }
}

/// Ends machines that no row owns, and sets their disks aside: a row is older than its thing, so a thing without a row
/// is nobody's, or the database is an older copy.
async fn clean(vms: &Vms) -> Result<(), StepError> {
    let (now, lost) = (vms.clock().now(), vms.lost());
    lost.purge(now).await;
    let found = vms.engine().scan().await?;
    let machines: HashSet<_> = store::vm::living(vms.db()).await?.into_iter().collect();
    for id in found.machines.into_iter().filter(|id| !machines.contains(id)) {
        tracing::warn!(vm = %id, "removing a machine that no row owns");
        vms.engine().power_off(id).await?;
        vms.engine().discard(id).await?;
    }
    let disks: HashSet<_> = store::disk::living(vms.db()).await?.into_iter().collect();
    for id in found.disks.into_iter().filter(|id| !disks.contains(id)) {
        let into = lost.folder("disks", now).await.map_err(Error::internal)?;
        tracing::warn!(disk = %id, into = %into.display(), "setting a disk aside that no row owns");
        vms.engine().set_aside_disk(id, &into).await?;
    }
    let mut tx = vms.db().begin().await?;
    store::event::forget(&mut tx, now.plus_seconds(-EVENTS_KEPT)).await?;
    Ok(tx.commit().await?)
}
