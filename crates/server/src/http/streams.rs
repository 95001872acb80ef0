//! How many answers without an end there are, and who holds them.
//!
//! A stream, a console, a wait or a request into a sandbox holds its connection as long as its reader or its program
//! likes, and the service never cuts it in favour of another. So they may have only three quarters of the connections.
//! An organization, and a credential, holds at most as many of those as it leaves free: the first may have half, the
//! next a quarter, and a newcomer still finds some.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use berth_domain::{Code, Error, Result};
use uuid::Uuid;

/// Seconds after which a refused caller should try again.
const COME_AGAIN: u64 = 5;

/// The places for answers without an end.
pub struct Streams {
    most: usize,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    taken: usize,
    held: HashMap<Uuid, usize>,
}

/// A place for one of them. Dropping it frees the place.
pub struct Place {
    streams: Arc<Streams>,
    holders: Vec<Uuid>,
}

/// How many of so many connections may be held for long: three quarters.
pub const fn held_long(connections: usize) -> usize {
    match connections - connections / 4 {
        0 => 1,
        most => most,
    }
}

impl Streams {
    /// The places that so many connections leave room for.
    pub fn of(connections: usize) -> Arc<Self> {
        Arc::new(Self { most: held_long(connections), table: Mutex::default() })
    }

    /// Takes a place for these holders: a credential and its organization.
    ///
    /// # Errors
    /// 429 where one of them holds as many as it leaves free.
    pub fn enter(self: &Arc<Self>, holders: Vec<Uuid>) -> Result<Place> {
        let mut table = self.table();
        let free = self.most.saturating_sub(table.taken);
        if free == 0 || holders.iter().any(|holder| table.held.get(holder).is_some_and(|held| *held >= free)) {
            let message = "Too many streams, consoles and waits are open. End some of yours, or try again shortly.";
            return Err(Error::new(Code::TooMany, message).retry_after(COME_AGAIN));
        }
        table.taken += 1;
        for holder in &holders {
            *table.held.entry(*holder).or_default() += 1;
        }
        drop(table);
        Ok(Place { streams: self.clone(), holders })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut table = self.streams.table();
        table.taken -= 1;
        for holder in &self.holders {
            if let Some(held) = table.held.get_mut(holder) {
                *held -= 1;
                if *held == 0 {
                    table.held.remove(holder);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_of(streams: &Arc<Streams>, holders: &[u128]) -> Vec<Place> {
        let holders: Vec<_> = holders.iter().copied().map(Uuid::from_u128).collect();
        std::iter::from_fn(|| streams.enter(holders.clone()).ok()).collect()
    }

    #[test]
    fn each_organization_leaves_as_many_as_it_has() {
        // Three quarters of sixteen.
        let streams = Streams::of(16);
        let first = all_of(&streams, &[1, 100]);
        assert_eq!(first.len(), 6);
        assert_eq!(all_of(&streams, &[2, 100]).len(), 0, "with another key of the same organization");
        let others: Vec<_> = (101..110).map(|org| all_of(&streams, &[org + 100, org])).collect();
        assert_eq!(others.iter().map(Vec::len).collect::<Vec<_>>(), [3, 2, 1, 0, 0, 0, 0, 0, 0]);
        drop(others);
        assert_eq!(all_of(&streams, &[1, 101]).len(), 0, "the same person in another organization");
        drop(first);
        assert_eq!(all_of(&streams, &[1, 100]).len(), 6);
        let table = streams.table();
        assert!(table.held.is_empty() && table.taken == 0);
    }

    #[test]
    fn there_is_a_place_however_few_connections_there_are() {
        for (connections, places) in [(0, 1), (1, 1), (2, 1), (4, 2), (8, 3)] {
            assert_eq!(all_of(&Streams::of(connections), &[1]).len(), places, "{connections}");
        }
    }
}
