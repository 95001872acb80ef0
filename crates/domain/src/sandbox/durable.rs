//! Disks and memories that outlive their host, since all of them is on another one, too: what comes next for one.
//!
//! ```text
//!   Asks ─ a host is chosen ─► Waits ─ the layers came ─► Remembers ─ the memory came ─► Kept
//!                                                     └─ there is none ──────────────────► Kept
//!   whatever it was, once its host is lost ─► GoesOver, if another host has all of it, or Lost
//! ```
//!
//! Only what stands still is kept so: nobody writes to its layers any more, and no machine has it. So it can go over while nobody
//! knows what its host does: whatever that host still has of it does not run, and is a copy from then on.

use super::layer_copy::{CopyState, Lying, holders};
use crate::ids::HostId;

/// Most layers of a disk that is kept on a second host. Each pause of this kind puts one onto it, and QEMU opens all of them.
pub const DEEPEST: usize = 64;

/// The memory that belongs to a disk, and where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remembered {
    /// The host that it counts on.
    pub home: HostId,
    /// Another one that has all of it.
    pub copy: Option<HostId>,
}

impl Remembered {
    fn is_on(self, host: HostId) -> bool {
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

/// What comes next for what is to outlive its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeping {
    /// A second host has all of it.
    Kept(HostId),
    /// This host has the disk; the memory is to come there.
    Remembers(HostId),
    /// Its layers are on their way.
    Waits,
    /// A host is to be found for it.
    Asks,
    /// Its host is lost, and this one has all of it.
    GoesOver(HostId),
    /// Its host is lost, and no other one has all of it.
    Lost,
}

/// What comes next for a disk at rest, with its memory, whose home is this host. `own` has the layers that name no host.
pub fn keeping(chain: &[Lying], memory: Option<Remembered>, home: HostId, hosts: &Hosts, own: HostId) -> Keeping {
    let others: Vec<_> = holders(chain, own).into_iter().filter(|host| *host != home).collect();
    let has_memory = |host: &HostId| memory.is_none_or(|memory| memory.is_on(*host));
    let takes = |host: &HostId| hosts.takers.contains(host);
    if !hosts.reachable.contains(&home) {
        let mut whole: Vec<_> =
            others.into_iter().filter(|host| hosts.reachable.contains(host) && has_memory(host)).collect();
        whole.sort_by_key(|host| !takes(host));
        return whole.first().map_or(Keeping::Lost, |host| Keeping::GoesOver(*host));
    }
    if let Some(host) = others.iter().find(|host| hosts.staying.contains(host) && has_memory(host)) {
        return Keeping::Kept(*host);
    }
    if let Some(host) = others.iter().find(|host| takes(host)) {
        return Keeping::Remembers(*host);
    }
    let is_coming = |host: &HostId| {
        let mut lacking = chain.iter().filter(|layer| !layer.is_on(*host, own)).peekable();
        let comes =
            |layer: &Lying| layer.copies.iter().any(|copy| copy.host == *host && copy.state == CopyState::Coming);
        lacking.peek().is_some() && lacking.all(comes)
    };
    let waits = hosts.takers.iter().filter(|host| **host != home).any(is_coming);
    if waits { Keeping::Waits } else { Keeping::Asks }
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

    #[test]
    fn the_layers_come_first_then_the_memory_and_then_it_is_kept() {
        let all = hosts(&[1, 2, 3], &[1, 2, 3]);
        let memory = |copy: Option<u128>| Some(Remembered { home: host(1), copy: copy.map(host) });
        for (upper, lower, memory, expected) in [
            (vec![], vec![], None, Keeping::Asks),
            (vec![(2, Coming)], vec![], None, Keeping::Asks),
            (vec![(2, Coming)], vec![(2, Present)], None, Keeping::Waits),
            (vec![(2, Failed)], vec![(2, Present)], None, Keeping::Asks),
            (vec![(2, Present)], vec![(2, Present)], None, Keeping::Kept(host(2))),
            (vec![(2, Present)], vec![(3, Present)], None, Keeping::Asks),
            (vec![(2, Present)], vec![(2, Present)], memory(None), Keeping::Remembers(host(2))),
            (vec![(2, Present)], vec![(2, Present)], memory(Some(3)), Keeping::Remembers(host(2))),
            (vec![(2, Present)], vec![(2, Present)], memory(Some(2)), Keeping::Kept(host(2))),
            (
                vec![(2, Present), (3, Present)],
                vec![(2, Present), (3, Present)],
                memory(Some(3)),
                Keeping::Kept(host(3)),
            ),
        ] {
            assert_eq!(keeping(&disk(&upper, &lower), memory, host(1), &all, host(9)), expected, "{upper:?} {lower:?}");
        }
    }

    #[test]
    fn a_copy_counts_on_a_host_that_keeps_it_and_another_is_made_elsewhere() {
        let whole = disk(&[(2, Present)], &[(2, Present)]);
        for (reachable, takers, expected) in [
            (vec![1, 2], vec![1, 2], Keeping::Kept(host(2))),
            (vec![1, 2, 3], vec![1, 3], Keeping::Asks),
            (vec![1, 3], vec![1, 3], Keeping::Asks),
            (vec![1, 2, 3, 4], vec![1, 3], Keeping::Asks),
            // What a host that is drained has still saves what was on one that is lost.
            (vec![2, 3], vec![3], Keeping::GoesOver(host(2))),
            (vec![3], vec![3], Keeping::Lost),
        ] {
            let found = keeping(&whole, None, host(1), &hosts(&reachable, &takers), host(9));
            assert_eq!(found, expected, "{reachable:?} {takers:?}");
        }
        let cordoned = disk(&[(4, Present), (2, Present)], &[(4, Present), (2, Present)]);
        let memory = Some(Remembered { home: host(1), copy: Some(host(4)) });
        let found = keeping(&cordoned, memory, host(1), &hosts(&[1, 2, 4], &[1, 2]), host(9));
        assert_eq!(found, Keeping::Kept(host(4)), "it takes nothing new, and has all of it");
    }

    #[test]
    fn what_loses_its_host_goes_over_with_all_of_it_or_waits() {
        let left = hosts(&[2, 3], &[3]);
        let both = disk(&[(2, Present), (3, Present)], &[(2, Present), (3, Present)]);
        let memory = |copy: Option<u128>| Some(Remembered { home: host(1), copy: copy.map(host) });
        assert_eq!(keeping(&both, None, host(1), &left, host(9)), Keeping::GoesOver(host(3)), "it takes something");
        assert_eq!(keeping(&both, memory(Some(2)), host(1), &left, host(9)), Keeping::GoesOver(host(2)));
        assert_eq!(keeping(&both, memory(None), host(1), &left, host(9)), Keeping::Lost);
        assert_eq!(keeping(&both, memory(Some(1)), host(1), &left, host(9)), Keeping::Lost);
        let half = disk(&[(2, Present)], &[(2, Coming)]);
        assert_eq!(keeping(&half, None, host(1), &left, host(9)), Keeping::Lost);
    }
}
