//! Which refusals are worth a record: attacks are to be seen, and must not fill the log that shows them.
//!
//! In a minute a network has so many records, and all networks together have so many; a key that is refused again from
//! the same network has none. Where all together had more refusals, one more record says so. What was recorded is kept
//! in memory: a service that was taken over from counts for itself.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use berth_domain::Timestamp;

use crate::http::client_address::ClientNetwork;

/// Records of one network in a minute: as many as it may try to sign in by default.
const OF_NETWORK: u32 = 30;
/// Records of all networks together in a minute.
const OF_ALL: u32 = 1_000;

/// Whether a refusal has a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noted {
    /// It has one of its own.
    Itself,
    /// It has none, and is the first of this minute for which all networks together left no room: one record says that
    /// there were more.
    More,
    /// It has none.
    Not,
}

#[derive(Default)]
struct Minute {
    number: i64,
    seen: HashSet<(String, ClientNetwork)>,
    networks: HashMap<ClientNetwork, u32>,
    all: u32,
    told_of_more: bool,
}

/// What was recorded in this minute.
#[derive(Default)]
pub struct Notices(Mutex<Minute>);

impl Notices {
    /// Whether a refusal of a network is to be recorded.
    pub fn each(&self, network: ClientNetwork, now: Timestamp) -> Noted {
        self.minute(now).counts(network)
    }

    /// Whether a refusal is to be recorded that has one record a minute for the same thing and the same network.
    pub fn once(&self, what: &str, network: ClientNetwork, now: Timestamp) -> Noted {
        let mut minute = self.minute(now);
        let key = (what.to_owned(), network);
        if minute.seen.contains(&key) {
            return Noted::Not;
        }
        let noted = minute.counts(network);
        if noted == Noted::Itself {
            minute.seen.insert(key);
        }
        noted
    }

    fn minute(&self, now: Timestamp) -> std::sync::MutexGuard<'_, Minute> {
        let mut minute = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let number = now.seconds().div_euclid(60);
        if minute.number != number {
            *minute = Minute { number, ..Minute::default() };
        }
        minute
    }
}

impl Minute {
    fn counts(&mut self, network: ClientNetwork) -> Noted {
        if self.all >= OF_ALL {
            let told = std::mem::replace(&mut self.told_of_more, true);
            return if told { Noted::Not } else { Noted::More };
        }
        let of_network = self.networks.entry(network).or_default();
        if *of_network >= OF_NETWORK {
            return Noted::Not;
        }
        *of_network += 1;
        self.all += 1;
        Noted::Itself
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn network(number: u32) -> ClientNetwork {
        ClientNetwork::of(IpAddr::from(number.to_be_bytes()))
    }

    fn minute(number: i64) -> Timestamp {
        Timestamp(number * 60 * Timestamp::SECOND)
    }

    #[test]
    fn the_same_of_one_place_is_noted_once_a_minute() {
        let notices = Notices::default();
        let once = |what: &str, from: u32, at: i64| notices.once(what, network(from), minute(at));
        assert_eq!([once("k", 1, 7), once("k", 1, 7)], [Noted::Itself, Noted::Not]);
        assert_eq!([once("k", 2, 7), once("l", 1, 7), once("k", 1, 8)], [Noted::Itself; 3]);
    }

    #[test]
    fn a_place_has_thirty_notes_a_minute_and_all_have_a_thousand() {
        let notices = Notices::default();
        let each = |from: u32| notices.each(network(from), minute(7));
        let noted = (0..100).filter(|_| each(0) == Noted::Itself).count();
        assert_eq!(noted, 30);
        assert_eq!(notices.once("k", network(0), minute(7)), Noted::Not);
        let others: Vec<_> = (1..2_000).map(each).collect();
        let count = |noted| others.iter().filter(|one| **one == noted).count();
        // Of all that the minute has no room for there is one record.
        assert_eq!((count(Noted::Itself), count(Noted::More), others[970]), (970, 1, Noted::More));
        assert_eq!(notices.each(network(0), minute(8)), Noted::Itself);
    }
}
