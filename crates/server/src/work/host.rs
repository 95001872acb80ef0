//! Machines of a host, watched for one kind of owner: adoption at start, what happens to them, and what no row owns.
//!
//! [`MachineOwners`] holds what is particular to a kind of owner: its engine, its rows, and how to poke one. This file holds what
//! is general. At the start every owner is looked at that should have a machine, or has a folder on the host: that adopts
//! machines that are alive, finds those that died while nobody looked, and ends those that a database from a backup wants
//! no more. Whoever is off by its row is ended once, too: what was under way on a host that could not be asked, as it was
//! removed, may begin yet, and nobody would look for it there. Afterwards an owner is looked at when the engine tells that something happened to its machine. A search of the
//! host, now and then, ends what no row owns: a row is older than its thing, so a thing that is found first and has no row
//! then is nobody's, or the database is an older copy.

use std::collections::HashSet;
use std::hash::Hash;
use std::time::Duration;

use berth_domain::host::{Aim, EngineError};
use berth_domain::ids::{HostId, MachineId};
use berth_domain::machine::Owner;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

use super::Poker;
use super::lifecycle::StepError;
use crate::db::{Db, DbError, machine};

/// Between two searches for what no row owns.
const SWEEP: Duration = Duration::from_mins(10);
/// Wait after a list that could not be read.
const RETRY: Duration = Duration::from_secs(2);
/// Wait after a search that failed.
const SWEEP_RETRY: Duration = Duration::from_mins(1);

/// What the log says of one kind of owner: whole sentences.
pub struct Sentences {
    /// Every owner that should have a machine is looked at.
    pub adopting: &'static str,
    /// They could not be listed.
    pub unlisted: &'static str,
    /// The host could not be searched.
    pub unsearched: &'static str,
    /// A machine is removed that no row owns.
    pub removing: &'static str,
}

/// What is particular to one kind of owner of machines.
pub trait MachineOwners: Send + Sync + 'static {
    /// What names an owner.
    type Id: Copy + Eq + Hash + Send + Sync;

    /// What the log says.
    const SENTENCES: Sentences;

    /// Where rows of machines are.
    fn db(&self) -> &Db;

    /// The host that is watched.
    fn host(&self) -> HostId;

    /// Machines that something happened to.
    fn events(&self) -> broadcast::Receiver<MachineId>;

    /// The owner of a machine, if it is of this kind.
    fn of_kind(owner: Owner) -> Option<Self::Id>;

    /// Something happened to a machine of another owner. Most wait for their machines themselves.
    fn happened_to_another(&self, owner: Owner) {
        let _ = owner;
    }

    /// Owners that should have a machine, by their rows.
    fn wanting(&self) -> impl Future<Output = Result<Vec<Self::Id>, DbError>> + Send;

    /// Machines that the host has, running or only their folders.
    fn machines(&self) -> impl Future<Output = berth_host::Result<Vec<MachineId>>> + Send;

    /// Machines of the host whose owners are off by their rows.
    fn off(&self) -> impl Future<Output = Result<Vec<Aim>, DbError>> + Send;

    /// Ends a machine, and what is under way to begin it.
    fn end(&self, aim: Aim) -> impl Future<Output = berth_host::Result<()>> + Send;

    /// Ends a machine, and removes what it left on the host.
    fn remove(&self, id: MachineId) -> impl Future<Output = berth_host::Result<()>> + Send;

    /// Searches the host: ends machines that no row owns ([`end_unowned`]), and sets the rest aside.
    fn search(&self) -> impl Future<Output = Result<(), StepError>> + Send;
}

/// Watches the host until told to stop.
pub async fn watch<T: MachineOwners>(owners: T, poke: Poker<T::Id>, stop: CancellationToken) {
    let mut events = owners.events();
    let (mut sweep, mut is_new) = (tokio::time::interval(SWEEP), true);
    adopt(&owners, &poke, &stop).await;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = sweep.tick() => {
                if let Err(error) = search(&owners, &mut is_new).await {
                    tracing::warn!(?error, "{}", T::SENTENCES.unsearched);
                    sweep.reset_after(SWEEP_RETRY);
                }
            }
            event = events.recv() => match event {
                Ok(id) => tell_owner(&owners, &poke, id).await,
                Err(RecvError::Lagged(_)) => adopt(&owners, &poke, &stop).await,
                Err(RecvError::Closed) => return,
            }
        }
    }
}

/// Searches the host. A new one is rid of machines whose owners are off, too; until it is, that is tried with each search.
async fn search<T: MachineOwners>(owners: &T, is_new: &mut bool) -> Result<(), StepError> {
    let ended = if *is_new { end_off(owners).await } else { Ok(()) };
    owners.search().await?;
    ended?;
    *is_new = false;
    Ok(())
}

/// Ends machines whose owners are off. One that cannot be ended keeps none of the others.
async fn end_off<T: MachineOwners>(owners: &T) -> Result<(), StepError> {
    let mut outcome = Ok(());
    for aim in owners.off().await? {
        match owners.end(aim).await {
            // Whoever was off is to run by now.
            Ok(()) | Err(EngineError::Outdated(_)) => {}
            Err(error) => {
                tracing::warn!(machine = %aim.id, host = %owners.host(), %error, "a machine whose owner is off cannot be ended; trying again later");
                outcome = Err(error.into());
            }
        }
    }
    outcome
}

/// Has the owner looked at to whose machine something happened.
async fn tell_owner<T: MachineOwners>(owners: &T, poke: &Poker<T::Id>, id: MachineId) {
    match machine::owner(owners.db(), id).await {
        Ok(Some(owner)) => match T::of_kind(owner) {
            Some(id) => poke.poke(id),
            None => owners.happened_to_another(owner),
        },
        // What is nobody's is found by a search of the host.
        Ok(None) => {}
        Err(error) => tracing::warn!(machine = %id, %error, "nobody is told what happened to a machine"),
    }
}

/// Has everything looked at that should have a machine, or has one.
async fn adopt<T: MachineOwners>(owners: &T, poke: &Poker<T::Id>, stop: &CancellationToken) {
    loop {
        match concerned(owners).await {
            Ok(ids) => {
                tracing::info!(machines = ids.len(), "{}", T::SENTENCES.adopting);
                return ids.into_iter().for_each(|id| poke.poke(id));
            }
            Err(error) => tracing::error!(%error, "{}", T::SENTENCES.unlisted),
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(RETRY) => {}
        }
    }
}

/// Owners that should have a machine, and those of which the host has one.
async fn concerned<T: MachineOwners>(owners: &T) -> Result<HashSet<T::Id>, DbError> {
    let mut ids: HashSet<_> = owners.wanting().await?.into_iter().collect();
    let there: HashSet<_> = owners.machines().await.unwrap_or_default().into_iter().collect();
    let owned = machine::living(owners.db(), owners.host()).await?.into_iter().filter(|owned| there.contains(&owned.0));
    ids.extend(owned.filter_map(|owned| T::of_kind(owned.1)));
    Ok(ids)
}

/// Of the machines that the host has, ends those that no row owns. One that cannot be ended keeps none of the others.
pub async fn end_unowned<T: MachineOwners>(owners: &T, found: Vec<MachineId>) -> Result<(), DbError> {
    let owned: HashSet<_> =
        machine::living(owners.db(), owners.host()).await?.into_iter().map(|owned| owned.0).collect();
    for id in found.into_iter().filter(|id| !owned.contains(id)) {
        tracing::warn!(machine = %id, "{}", T::SENTENCES.removing);
        if let Err(error) = owners.remove(id).await {
            tracing::warn!(machine = %id, %error, "a machine that no row owns cannot be removed; trying again later");
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "host_tests.rs"]
mod tests;
