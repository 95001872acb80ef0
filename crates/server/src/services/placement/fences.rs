//! Hosts as whoever shuts them out of stores of disks sees them, those that were removed, too.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use berth_domain::Timestamp;
use berth_domain::host::State;
use berth_domain::host::fence::{Fence, STALE, User};
use berth_domain::ids::HostId;

use crate::db::{Db, DbError, Tx};
use crate::services::host::{self, HostRow};

/// A host.
#[derive(Clone, Debug)]
pub struct Fenceable {
    row: HostRow,
    is_removed: bool,
}

impl Fenceable {
    /// Its id.
    pub const fn id(&self) -> HostId {
        self.row.id
    }

    /// What people call it.
    pub fn name(&self) -> &str {
        self.row.name()
    }

    /// How it stands; none where it was removed.
    pub fn state(&self) -> Option<State> {
        (!self.is_removed).then(|| self.row.state())
    }

    /// Whether it is lost, or was removed.
    pub fn is_away(&self) -> bool {
        self.state().is_none_or(|state| state == State::Lost)
    }

    /// How often it joined.
    pub const fn enrolment(&self) -> i64 {
        self.row.enrolment
    }

    /// When it was there last, by whoever was active then.
    pub const fn last_seen(&self) -> Timestamp {
        self.row.last_seen
    }

    /// Its fence of a store.
    pub fn fence(&self, store: &str) -> Option<&Fence> {
        self.row.fences.get(store)
    }

    /// The addresses by which it reached a store last.
    pub fn reached_from(&self, store: &str) -> impl Iterator<Item = IpAddr> {
        self.row.store_addresses.get(store).into_iter().flatten().copied()
    }

    /// All addresses that it is known by: where it is asked, and by which it reaches stores.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        let asked = self.row.addresses.iter().filter_map(|at| at.parse::<SocketAddr>().ok()).map(|at| at.ip());
        self.row.store_addresses.values().flatten().copied().chain(asked)
    }
}

/// Every host.
pub async fn all(db: &Db) -> Result<Vec<Fenceable>, DbError> {
    let there = host::all(db).await?.into_iter().map(|row| Fenceable { row, is_removed: false });
    Ok(there.chain(host::all_removed(db).await?.into_iter().map(|row| Fenceable { row, is_removed: true })).collect())
}

/// Hosts that are shut out of a store, or are to be, and which store.
pub async fn fenced(db: &Db) -> Result<BTreeSet<(HostId, String)>, DbError> {
    let rows = host::fenced(db).await?;
    Ok(rows.iter().flat_map(|row| row.fences.keys().map(|store| (row.id, store.clone()))).collect())
}

/// Says that a host is shut out of a store, or that it is not.
pub async fn set(tx: &mut Tx, id: HostId, store: &str, fence: Option<Fence>) -> Result<(), DbError> {
    host::set_fence(tx, id, store, fence).await
}

/// The hosts that use a store, as they are heard now.
pub fn users(hosts: &[Fenceable], store: &str, now: Timestamp) -> Vec<User> {
    let uses = |host: &&Fenceable| !host.is_removed && host.row.store_addresses.contains_key(store);
    let heard = |host: &Fenceable| User {
        is_silent: host.is_away() || now >= host.last_seen().plus_seconds(STALE),
        reaches: host.row.usable_stores().get(store) == Some(&None),
    };
    hosts.iter().filter(uses).map(heard).collect()
}
