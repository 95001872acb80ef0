//! The host as a whole: adoption at start, and what no row owns.

use std::collections::HashSet;
use std::time::Duration;

use berth_domain::Error;
use berth_domain::ids::{MachineId, SandboxId};
use berth_domain::machine::Owner;
use berth_host::EngineError;
use berth_host::sandbox::{Kept, SandboxEngine};
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

use super::{StepError, template};
use crate::db::{DbError, Signal, machine};
use crate::services::sandbox::Sandboxes;
use crate::services::sandbox::store;
use crate::work::Poker;

/// Between two looks at the templates that the platform brings along.
const LOOK: Duration = Duration::from_secs(2);
/// Between two searches for what no row owns.
const SWEEP: Duration = Duration::from_mins(10);
/// Wait after a search that failed.
const RETRY: Duration = Duration::from_secs(2);

/// Runs until told to stop. At first every sandbox that should have a machine, or has a folder, is looked at: that adopts
/// those that are alive, finds those that died while nobody looked, and ends those that a database from a backup wants no
/// more.
pub async fn watch(sandboxes: Sandboxes, poke: Poker<SandboxId>, stop: CancellationToken) {
    let mut events = sandboxes.engine().watch();
    let mut sweep = tokio::time::interval(SWEEP);
    let mut look = tokio::time::interval(LOOK);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    adopt(&sandboxes, &poke, &stop).await;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = look.tick() => {
                if let Err(error) = template::adopt(&sandboxes).await {
                    tracing::debug!(%error, "the platform's templates cannot be looked at; trying again");
                }
            }
            _ = sweep.tick() => {
                if let Err(error) = clean(&sandboxes).await {
                    tracing::warn!(?error, "the host could not be searched for sandboxes; trying again later");
                    sweep.reset_after(RETRY * 30);
                }
            }
            event = events.recv() => match event {
                Ok(id) => poke_owner(&sandboxes, &poke, id).await,
                Err(RecvError::Lagged(_)) => adopt(&sandboxes, &poke, &stop).await,
                Err(RecvError::Closed) => return,
            }
        }
    }
}

/// Has the sandbox looked at whose machine something happened to, or the warm machines, where it is one of them.
async fn poke_owner(sandboxes: &Sandboxes, poke: &Poker<SandboxId>, id: MachineId) {
    match machine::owner(sandboxes.db(), id).await {
        Ok(Some(Owner::Sandbox(sandbox))) => poke.poke(sandbox),
        Ok(Some(Owner::Warm(_))) => sandboxes.db().signal(Signal::Work(machine::TABLE)),
        // Who made a machine that is no sandbox's waits for it; what is nobody's is found by a search of the host.
        Ok(_) => {}
        Err(error) => tracing::warn!(machine = %id, %error, "nobody is told what happened to a machine"),
    }
}

/// Sandboxes that should have a machine, and those that have a folder.
async fn wanted(sandboxes: &Sandboxes) -> Result<HashSet<SandboxId>, DbError> {
    let wanted = store::sandbox::with_machine(sandboxes.db(), None).await?;
    let there = sandboxes.engine().scan().await.map(|found| found.machines).unwrap_or_default();
    let there: HashSet<_> = there.into_iter().collect();
    let owners = machine::living(sandboxes.db()).await?.into_iter().filter(|owned| there.contains(&owned.0));
    let theirs = owners.filter_map(|owned| if let Owner::Sandbox(id) = owned.1 { Some(id) } else { None });
    Ok(wanted.into_iter().chain(theirs).collect())
}

async fn adopt(sandboxes: &Sandboxes, poke: &Poker<SandboxId>, stop: &CancellationToken) {
    loop {
        match wanted(sandboxes).await {
            Ok(ids) => {
                tracing::info!(sandboxes = ids.len(), "looking at every sandbox that should have a machine");
                return ids.into_iter().for_each(|id| poke.poke(id));
            }
            Err(error) => tracing::error!(%error, "the sandboxes cannot be listed; trying again"),
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(RETRY) => {}
        }
    }
}

/// Ends machines that no row owns, and sets the rest aside: a row is older than its thing, so what is found first and has
/// no row then is nobody's, or the database is an older copy. What cannot be ended or moved keeps nothing else.
async fn clean(sandboxes: &Sandboxes) -> Result<(), StepError> {
    let (db, engine) = (sandboxes.db(), sandboxes.engine());
    let found = engine.scan().await?;
    let machines: HashSet<_> = machine::living(db).await?.into_iter().map(|owned| owned.0).collect();
    for id in found.machines.into_iter().filter(|id| !machines.contains(id)) {
        tracing::warn!(machine = %id, "removing a sandbox's machine that no row owns");
        if let Err(error) = remove(engine, id).await {
            tracing::warn!(machine = %id, %error, "a machine that no row owns cannot be removed; trying again later");
        }
    }
    let templates: HashSet<String> = store::template::living(db).await?.into_iter().collect();
    for id in found.builds.into_iter().filter(|id| !templates.contains(&id.to_string())) {
        if let Err(error) = engine.clear_build(id).await {
            tracing::warn!(template = %id, %error, "a build that no row owns cannot be removed; trying again later");
        }
    }
    let uploads: HashSet<String> = store::upload::ids(db).await?.into_iter().collect();
    for id in found.uploads.into_iter().filter(|id| !uploads.contains(&id.to_string())) {
        set_aside(sandboxes, Kept::Upload(id)).await;
    }
    let layers: HashSet<String> = store::layer::ids(db).await?.into_iter().collect();
    for id in found.layers.into_iter().filter(|id| !layers.contains(&id.to_string())) {
        set_aside(sandboxes, Kept::Layer(id)).await;
    }
    let memories: HashSet<String> = store::memory::ids(db).await?.into_iter().collect();
    for id in found.memories.into_iter().filter(|id| !memories.contains(&id.to_string())) {
        set_aside(sandboxes, Kept::Memory(id)).await;
    }
    Ok(())
}

async fn remove(engine: &dyn SandboxEngine, id: MachineId) -> Result<(), EngineError> {
    engine.end(id).await?;
    engine.discard(id).await
}

async fn set_aside(sandboxes: &Sandboxes, kept: Kept) {
    if let Err(error) = try_set_aside(sandboxes, kept).await {
        tracing::warn!(?kept, ?error, "what no row owns cannot be set aside; trying again later");
    }
}

async fn try_set_aside(sandboxes: &Sandboxes, kept: Kept) -> Result<(), StepError> {
    let into = sandboxes.lost().folder(kept.folder(), sandboxes.clock().now()).await.map_err(Error::internal)?;
    tracing::warn!(?kept, into = %into.display(), "setting aside what no row owns");
    Ok(sandboxes.engine().set_aside(kept, &into).await?)
}
