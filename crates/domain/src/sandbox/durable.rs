//! Disks and memories that outlive their host, since all of them is somewhere else, too: what comes next for one.
//!
//! ```text
//!   on a second host:
//!   Asks ─ a host is chosen ─► Waits ─ the layers came ─► Remembers ─ the memory came ─► Kept
//!                                                     └─ there is none ──────────────────► Kept
//!   in a store:
//!   Stores ─ layers and memory came ─► Kept
//!   whatever it was, once its host is lost:
//!   ─► GoesOver, if another host has all of it; Asks, Waits and Remembers, where the store has what no host has; or Lost
//! ```
//!
//! Only what stands still is kept so: nobody writes to its layers any more, and no machine has it. So it can go over while nobody
//! knows what its host does: whatever that host still has of it does not run, and is a copy from then on.

use super::layer_copy::{Archive, CopyState, Lying, holders};
use crate::ids::HostId;
use crate::words;

/// Most layers of a disk that outlives its host. Each pause of this kind puts one onto it, and QEMU opens all of them.
pub const DEEPEST: usize = 64;

words! {
    /// Where a second one of everything is kept that is to outlive its host.
    Place {
        /// On another host.
        Hosts = "hosts",
        /// In the store of backups.
        Backups = "backups",
    }
}

/// The memory that belongs to a disk, and where it lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remembered {
    /// The host that it counts on.
    pub home: HostId,
    /// Another one that has all of it.
    pub copy: Option<HostId>,
    /// The store of backups that has all of it.
    pub archive: Option<Archive>,
}

impl Remembered {
    fn is_on(&self, host: HostId) -> bool {
        self.home == host || self.copy == Some(host)
    }
}

/// Hosts as their rows tell of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hosts {
    /// Those that answer.
    pub reachable: Vec<HostId>,
    /// Those of them that keep what they have.
    pub staying: Vec<HostId>,
    /// Those of them that take something new.
    pub takers: Vec<HostId>,
}

/// Something at rest: its disk, its top first, its memory, and the host that it is on.
#[derive(Clone, Copy, Debug)]
pub struct Resting<'a> {
    /// The layers of its disk.
    pub chain: &'a [Lying],
    /// Its memory, if it has any.
    pub memory: Option<&'a Remembered>,
    /// Its host.
    pub home: HostId,
}

/// What the platform is made of.
#[derive(Clone, Copy, Debug)]
pub struct Platform<'a> {
    /// Its hosts.
    pub hosts: &'a Hosts,
    /// The one that has the layers that name none.
    pub own: HostId,
    /// The name of its store, if it has one that can be used.
    pub store: Option<&'a str>,
    /// Where a second one is to be.
    pub place: Place,
}

/// Who has all of it besides its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Second {
    /// This host.
    Host(HostId),
    /// The store.
    Store,
}

/// What comes next for what is to outlive its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeping {
    /// Somebody else has all of it.
    Kept(Second),
    /// What the store lacks is to come there.
    Stores,
    /// This host has the disk; the memory is to come there.
    Remembers(HostId),
    /// Its layers are on their way.
    Waits,
    /// A host is to be found for it.
    Asks,
    /// Its host is lost, and this one has all of it.
    GoesOver(HostId),
    /// Its host is lost, and what others have is not all of it.
    Lost,
}

/// What comes next for something at rest.
pub fn keeping(at: Resting<'_>, platform: Platform<'_>) -> Keeping {
    let hosts = platform.hosts;
    let others: Vec<_> = holders(at.chain, platform.own).into_iter().filter(|host| *host != at.home).collect();
    let has_memory = |host: &HostId| at.memory.is_none_or(|memory| memory.is_on(*host));
    let takes = |host: &HostId| hosts.takers.contains(host);
    if !hosts.reachable.contains(&at.home) {
        let mut whole: Vec<_> =
            others.iter().filter(|host| hosts.reachable.contains(host) && has_memory(host)).collect();
        whole.sort_by_key(|host| !takes(host));
        return match whole.first() {
            Some(host) => Keeping::GoesOver(**host),
            None if can_be_had(at, platform) => coming(at, platform, &others),
            None => Keeping::Lost,
        };
    }
    if platform.place == Place::Backups {
        return if is_stored(at, platform.store) { Keeping::Kept(Second::Store) } else { Keeping::Stores };
    }
    if let Some(host) = others.iter().find(|host| hosts.staying.contains(host) && has_memory(host)) {
        return Keeping::Kept(Second::Host(*host));
    }
    coming(at, platform, &others)
}

/// How it comes to a host that takes something; these `others` have all of its disk.
fn coming(at: Resting<'_>, Platform { hosts, own, .. }: Platform<'_>, others: &[HostId]) -> Keeping {
    if let Some(host) = others.iter().find(|host| hosts.takers.contains(host)) {
        return Keeping::Remembers(*host);
    }
    let is_coming = |host: &HostId| {
        let mut lacking = at.chain.iter().filter(|layer| !layer.is_on(*host, own)).peekable();
        let comes =
            |layer: &Lying| layer.copies.iter().any(|copy| copy.host == *host && copy.state == CopyState::Coming);
        lacking.peek().is_some() && lacking.all(comes)
    };
    let waits = hosts.takers.iter().filter(|host| **host != at.home).any(is_coming);
    if waits { Keeping::Waits } else { Keeping::Asks }
}

/// Whether this store has all of it, as far as is known.
pub fn is_whole_in(archive: Option<&Archive>, store: &str) -> bool {
    archive.is_some_and(|archive| archive.store == store && !archive.is_doubted)
}

/// Whether the store has all of it, as far as is known.
pub fn is_stored(at: Resting<'_>, store: Option<&str>) -> bool {
    let Some(store) = store else { return false };
    let has_memory = at.memory.is_none_or(|memory| is_whole_in(memory.archive.as_ref(), store));
    has_memory && at.chain.iter().all(|layer| is_whole_in(layer.archive.as_ref(), store))
}

/// Whether a host may get all of what is on one that is lost: the memory from the store, and each layer from there or from
/// another host. What is doubted is asked for all the same: nobody else has it.
fn can_be_had(at: Resting<'_>, Platform { hosts, own, store, .. }: Platform<'_>) -> bool {
    let is_there = |archive: &Option<Archive>| archive.as_ref().is_some_and(|archive| Some(&*archive.store) == store);
    let is_elsewhere = |layer: &Lying| layer.hosts(own).iter().any(|host| hosts.reachable.contains(host));
    at.memory.is_none_or(|memory| is_there(&memory.archive))
        && at.chain.iter().all(|layer| is_there(&layer.archive) || is_elsewhere(layer))
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::super::layer_copy::LayerCopy;
    use super::*;
    use crate::Timestamp;
    use crate::ids::LayerId;
    use CopyState::{Coming, Failed, Present};

    const fn host(number: u128) -> HostId {
        HostId(Uuid::from_u128(number))
    }

    /// A disk of two layers whose home is the host 1, the upper one with these copies, the lower one with those.
    fn disk(upper: &[(u128, CopyState)], lower: &[(u128, CopyState)]) -> Vec<Lying> {
        let copy =
            |&(on, state): &(u128, CopyState)| LayerCopy { host: host(on), state, since: Timestamp(1), message: None };
        let layer = |number: u128, copies: &[(u128, CopyState)]| Lying {
            layer: LayerId(Uuid::from_u128(number)),
            home: Some(host(1)),
            bytes: 10,
            copies: copies.iter().map(copy).collect(),
            archive: None,
        };
        vec![layer(2, upper), layer(1, lower)]
    }

    /// These answer, and those of them take something new. The host 4 takes nothing and keeps what it has.
    fn hosts(reachable: &[u128], takers: &[u128]) -> Hosts {
        let of = |numbers: &[u128]| numbers.iter().map(|number| host(*number)).collect();
        let staying: Vec<_> =
            reachable.iter().copied().filter(|number| *number == 4 || takers.contains(number)).collect();
        Hosts { reachable: of(reachable), staying: of(&staying), takers: of(takers) }
    }

    /// What comes next for a disk of the host 1, with this memory, where second ones are on hosts.
    fn next(chain: &[Lying], memory: Option<&Remembered>, hosts: &Hosts) -> Keeping {
        let platform = Platform { hosts, own: host(9), store: Some("the store"), place: Place::Hosts };
        keeping(Resting { chain, memory, home: host(1) }, platform)
    }

    fn memory(copy: Option<u128>) -> Remembered {
        Remembered { home: host(1), copy: copy.map(host), archive: None }
    }

    fn on(number: u128) -> Keeping {
        Keeping::Kept(Second::Host(host(number)))
    }

    #[test]
    fn the_layers_come_first_then_the_memory_and_then_it_is_kept() {
        let all = hosts(&[1, 2, 3], &[1, 2, 3]);
        for (upper, lower, memory, expected) in [
            (vec![], vec![], None, Keeping::Asks),
            (vec![(2, Coming)], vec![], None, Keeping::Asks),
            (vec![(2, Coming)], vec![(2, Present)], None, Keeping::Waits),
            (vec![(2, Failed)], vec![(2, Present)], None, Keeping::Asks),
            (vec![(2, Present)], vec![(2, Present)], None, on(2)),
            (vec![(2, Present)], vec![(3, Present)], None, Keeping::Asks),
            (vec![(2, Present)], vec![(2, Present)], Some(memory(None)), Keeping::Remembers(host(2))),
            (vec![(2, Present)], vec![(2, Present)], Some(memory(Some(3))), Keeping::Remembers(host(2))),
            (vec![(2, Present)], vec![(2, Present)], Some(memory(Some(2))), on(2)),
            (vec![(2, Present), (3, Present)], vec![(2, Present), (3, Present)], Some(memory(Some(3))), on(3)),
        ] {
            assert_eq!(next(&disk(&upper, &lower), memory.as_ref(), &all), expected, "{upper:?} {lower:?}");
        }
    }

    #[test]
    fn a_copy_counts_on_a_host_that_keeps_it_and_another_is_made_elsewhere() {
        let whole = disk(&[(2, Present)], &[(2, Present)]);
        for (reachable, takers, expected) in [
            (vec![1, 2], vec![1, 2], on(2)),
            (vec![1, 2, 3], vec![1, 3], Keeping::Asks),
            (vec![1, 3], vec![1, 3], Keeping::Asks),
            (vec![1, 2, 3, 4], vec![1, 3], Keeping::Asks),
            // What a host that is drained has still saves what was on one that is lost.
            (vec![2, 3], vec![3], Keeping::GoesOver(host(2))),
            (vec![3], vec![3], Keeping::Lost),
        ] {
            let found = next(&whole, None, &hosts(&reachable, &takers));
            assert_eq!(found, expected, "{reachable:?} {takers:?}");
        }
        let cordoned = disk(&[(4, Present), (2, Present)], &[(4, Present), (2, Present)]);
        let found = next(&cordoned, Some(&memory(Some(4))), &hosts(&[1, 2, 4], &[1, 2]));
        assert_eq!(found, on(4), "it takes nothing new, and has all of it");
    }

    #[test]
    fn what_loses_its_host_goes_over_with_all_of_it_or_waits() {
        let left = hosts(&[2, 3], &[3]);
        let both = disk(&[(2, Present), (3, Present)], &[(2, Present), (3, Present)]);
        assert_eq!(next(&both, None, &left), Keeping::GoesOver(host(3)), "it takes something");
        assert_eq!(next(&both, Some(&memory(Some(2))), &left), Keeping::GoesOver(host(2)));
        assert_eq!(next(&both, Some(&memory(None)), &left), Keeping::Lost);
        assert_eq!(next(&both, Some(&memory(Some(1))), &left), Keeping::Lost);
        let half = disk(&[(2, Present)], &[(2, Coming)]);
        assert_eq!(next(&half, None, &left), Keeping::Lost);
    }

    #[test]
    fn what_the_store_has_is_kept_there_and_comes_to_a_host_once_its_own_is_lost() {
        let archive = |is_doubted| Some(Archive { store: "the store".into(), is_doubted });
        let there = |chain: Vec<Lying>| -> Vec<Lying> {
            chain.into_iter().map(|layer| Lying { archive: archive(false), ..layer }).collect()
        };
        let stored = |copy| Some(Remembered { archive: archive(false), ..memory(copy) });
        let say = |chain: &[Lying], memory: Option<&Remembered>, reachable: &[u128], store| {
            let hosts = hosts(reachable, reachable);
            let platform = Platform { hosts: &hosts, own: host(9), store, place: Place::Backups };
            keeping(Resting { chain, memory, home: host(1) }, platform)
        };
        let (own, other) = (Some("the store"), Some("another"));
        let (bare, whole, copied) =
            (disk(&[], &[]), there(disk(&[], &[])), there(disk(&[(2, Present)], &[(2, Present)])));
        let mut half = whole.clone();
        half[1].archive = None;
        for (chain, memory, reachable, store, expected) in [
            (&bare, None, vec![1], own, Keeping::Stores),
            (&half, None, vec![1], own, Keeping::Stores),
            (&whole, Some(memory(None)), vec![1], own, Keeping::Stores),
            (&whole, None, vec![1], other, Keeping::Stores),
            (&whole, None, vec![1], None, Keeping::Stores),
            (&whole, stored(None), vec![1], own, Keeping::Kept(Second::Store)),
            // Another host has it as well: that it is in the store is what was asked for.
            (&disk(&[(2, Present)], &[(2, Present)]), None, vec![1, 2], own, Keeping::Stores),
            (&whole, stored(None), vec![2], own, Keeping::Asks),
            (&whole, Some(memory(None)), vec![2], own, Keeping::Lost),
            (&whole, stored(None), vec![2], other, Keeping::Lost),
            (&half, stored(None), vec![2], own, Keeping::Lost),
            (&there(disk(&[(2, Coming)], &[(2, Coming)])), stored(None), vec![2], own, Keeping::Waits),
            (&copied, stored(None), vec![2], own, Keeping::Remembers(host(2))),
            (&copied, stored(Some(2)), vec![2], own, Keeping::GoesOver(host(2))),
            (&copied, None, vec![2], None, Keeping::GoesOver(host(2))),
        ] {
            assert_eq!(say(chain, memory.as_ref(), &reachable, store), expected, "{chain:?} {memory:?} {store:?}");
        }
        // What is doubted comes there again, and is asked for where nobody else has it.
        let doubted = Some(Remembered { archive: archive(true), ..memory(None) });
        assert_eq!(say(&whole, doubted.as_ref(), &[1], own), Keeping::Stores);
        assert_eq!(say(&whole, doubted.as_ref(), &[2], own), Keeping::Asks);
        // A layer that the store lacks, as one of the platform's, comes from another host.
        half[1].home = Some(host(2));
        assert_eq!(say(&half, stored(None).as_ref(), &[2], own), Keeping::Asks);
    }
}
