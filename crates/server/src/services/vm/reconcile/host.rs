//! The host as a whole: adoption at start, what no row owns, logs, old events.

use std::collections::HashSet;
use std::time::Duration;

use berth_domain::ids::{DiskId, MachineId, VmId};
use berth_domain::machine::Owner;
use berth_domain::{Error, Timestamp};
use berth_host::EngineError;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

use super::StepError;
use crate::db::{DbError, machine};
use crate::services::vm::{Vms, store};
use crate::work::Poker;

/// Between two looks at the size of logs.
const TIDY: Duration = Duration::from_secs(5);
/// Between two searches for what no row owns.
const SWEEP: Duration = Duration::from_mins(10);
/// Wait after a search that failed.
const RETRY: Duration = Duration::from_secs(2);

/// Runs until told to stop. At first every machine that should exist, or has a folder, is looked at: that adopts those that
/// are alive, finds those that died while nobody looked, and ends those that a database from a backup wants no more.
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
                Ok(id) => poke_owner(&vms, &poke, id).await,
                Err(RecvError::Lagged(_)) => adopt(&vms, &poke, &stop).await,
                Err(RecvError::Closed) => return,
            }
        }
    }
}

/// Has the VM looked at whose machine something happened to.
async fn poke_owner(vms: &Vms, poke: &Poker<VmId>, id: MachineId) {
    match machine::owner(vms.db(), id).await {
        Ok(Some(Owner::Vm(vm))) => poke.poke(vm),
        // What is nobody's, or another service's, is found by a search of the host.
        Ok(_) => {}
        Err(error) => tracing::warn!(machine = %id, %error, "nobody is told what happened to a machine"),
    }
}

/// Has every machine that should exist looked at.
async fn adopt(vms: &Vms, poke: &Poker<VmId>, stop: &CancellationToken) {
    loop {
        match wanted(vms).await {
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

/// VMs that should have a machine, and those that have a folder.
async fn wanted(vms: &Vms) -> Result<HashSet<VmId>, DbError> {
    let wanted = store::vm::with_machine(vms.db(), None).await?;
    let there: HashSet<_> =
        vms.engine().scan().await.map(|found| found.machines).unwrap_or_default().into_iter().collect();
    let owners = machine::living(vms.db()).await?.into_iter().filter(|owned| there.contains(&owned.0));
    let theirs = owners.filter_map(|owned| if let Owner::Vm(vm) = owned.1 { Some(vm) } else { None });
    Ok(wanted.into_iter().chain(theirs).collect())
}

/// Ends machines that no row owns, and sets their disks aside: a row is older than its thing, so a
/// thing without a row is nobody's, or the database is an older copy. What cannot be ended or moved keeps nothing else.
async fn clean(vms: &Vms) -> Result<(), StepError> {
    let now = vms.clock().now();
    vms.lost().purge(now).await;
    let found = vms.engine().scan().await?;
    let machines: HashSet<_> = machine::living(vms.db()).await?.into_iter().map(|owned| owned.0).collect();
    for id in found.machines.into_iter().filter(|id| !machines.contains(id)) {
        tracing::warn!(machine = %id, "removing a machine that no row owns");
        if let Err(error) = remove(vms, id).await {
            tracing::warn!(machine = %id, %error, "a machine that no row owns cannot be removed; trying again later");
        }
    }
    let disks: HashSet<_> = store::disk::living(vms.db()).await?.into_iter().collect();
    for id in found.disks.into_iter().filter(|id| !disks.contains(id)) {
        if let Err(error) = set_aside(vms, id, now).await {
            tracing::warn!(disk = %id, ?error, "a disk that no row owns cannot be set aside; trying again later");
        }
    }
    Ok(())
}

async fn remove(vms: &Vms, id: MachineId) -> Result<(), EngineError> {
    vms.engine().power_off(id).await?;
    vms.engine().discard(id).await
}

async fn set_aside(vms: &Vms, id: DiskId, now: Timestamp) -> Result<(), StepError> {
    let into = vms.lost().folder("disks", now).await.map_err(Error::internal)?;
    tracing::warn!(disk = %id, into = %into.display(), "setting a disk aside that no row owns");
    Ok(vms.engine().set_aside_disk(id, &into).await?)
}
