//! Copies of layers on other hosts than their own: what is needed of them, and what comes next for one.
//!
//! ```text
//!   (none) ─ a sandbox is put there ─► coming ─► present
//!                                        └─► failed ─ another sandbox is put there ─► coming
//! ```
//!
//! A copy goes with its layer. Of one on a host that was removed nobody makes use, unless that host comes back.

use std::collections::BTreeSet;

use crate::Timestamp;
use crate::ids::{HostId, LayerId};
use crate::words;

words! {
    /// Where a copy stands.
    CopyState {
        /// It is to be brought.
        Coming = "coming",
        /// It is there.
        Present = "present",
        /// It could not be brought.
        Failed = "failed",
    }
}

words! {
    /// One thing to do for a copy.
    CopyStep {
        /// Bring it.
        Bring = "bring",
        /// Record that it was not brought in time.
        Expire = "expire",
    }
}

/// The next step for a copy; none where it is at rest. One of a layer that goes is not brought any more.
pub fn next(state: CopyState, is_layer_kept: bool, is_too_late: bool) -> Option<CopyStep> {
    match state {
        CopyState::Coming if !is_layer_kept => None,
        CopyState::Coming if is_too_late => Some(CopyStep::Expire),
        CopyState::Coming => Some(CopyStep::Bring),
        CopyState::Present | CopyState::Failed => None,
    }
}

/// A layer of a disk to which nobody writes any more, and where it lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lying {
    /// Which.
    pub layer: LayerId,
    /// The host that it was made on; none of those of a service that had no other hosts.
    pub home: Option<HostId>,
    /// What it takes there, in bytes.
    pub bytes: i64,
    /// Its copies.
    pub copies: Vec<LayerCopy>,
    /// The store of backups that has all of it.
    pub archive: Option<Archive>,
}

/// A store of backups that has all of something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Archive {
    /// The store's name.
    pub store: String,
    /// Whether something of it was missing or wrong when it was looked for. It may be there again, as a share that is mounted again.
    pub is_doubted: bool,
}

/// A copy of a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerCopy {
    /// The host that it is on, or comes to.
    pub host: HostId,
    /// Where it stands.
    pub state: CopyState,
    /// Since when.
    pub since: Timestamp,
    /// Why it failed.
    pub message: Option<String>,
}

/// Whether a disk can be begun on a host, by the layers that it is to lie on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Availability {
    /// All of them are there, the last since then; none where nothing had to be brought.
    Here(Option<Timestamp>),
    /// Some come.
    Coming,
    /// Some are to be brought, and nobody is at that.
    Lacking(Vec<LayerId>),
    /// One could not be brought.
    Failed(String),
}

impl Lying {
    fn copy_on(&self, host: HostId) -> Option<&LayerCopy> {
        self.copies.iter().find(|copy| copy.host == host)
    }

    /// Whether it can be read on a host.
    pub fn is_on(&self, host: HostId, own: HostId) -> bool {
        self.home.unwrap_or(own) == host || self.copy_on(host).is_some_and(|copy| copy.state == CopyState::Present)
    }

    /// The hosts on which it can be read, its home first.
    pub fn hosts(&self, own: HostId) -> Vec<HostId> {
        let copies = self.copies.iter().filter(|copy| copy.state == CopyState::Present).map(|copy| copy.host);
        std::iter::once(self.home.unwrap_or(own)).chain(copies).collect()
    }
}

/// The hosts that have all layers of a disk; `own` has those that name none. The first one's home comes first, if it does.
pub fn holders(chain: &[Lying], own: HostId) -> Vec<HostId> {
    let mut seen = BTreeSet::new();
    let some = chain.first().map(|top| top.hosts(own)).unwrap_or_default().into_iter();
    some.filter(|host| seen.insert(*host) && chain.iter().all(|layer| layer.is_on(*host, own))).collect()
}

/// What a host lacks of the layers of a disk, in bytes.
pub fn lacking_bytes(chain: &[Lying], host: HostId, own: HostId) -> i64 {
    let lacking = chain.iter().filter(|layer| !layer.is_on(host, own));
    lacking.fold(0, |sum, layer| sum.saturating_add(layer.bytes))
}

/// Whether a disk can be begun on a host. What failed before `since` may be tried again.
pub fn availability(chain: &[Lying], host: HostId, own: HostId, since: Timestamp) -> Availability {
    let lacking: Vec<_> = chain.iter().filter(|layer| !layer.is_on(host, own)).collect();
    if lacking.is_empty() {
        let brought = chain.iter().filter_map(|layer| layer.copy_on(host));
        return Availability::Here(brought.map(|copy| copy.since).max());
    }
    let failed = |copy: &&LayerCopy| copy.state == CopyState::Failed && copy.since >= since;
    if let Some(copy) = lacking.iter().filter_map(|layer| layer.copy_on(host)).find(failed) {
        return Availability::Failed(
            copy.message.clone().unwrap_or_else(|| "what it begins with was not brought".into()),
        );
    }
    let is_coming = |layer: &Lying| layer.copy_on(host).is_some_and(|copy| copy.state == CopyState::Coming);
    let waiting: Vec<_> = lacking.iter().filter(|layer| !is_coming(layer)).map(|layer| layer.layer).collect();
    if waiting.is_empty() { Availability::Coming } else { Availability::Lacking(waiting) }
}

/// The layers of a disk that a host lacks, the topmost first.
pub fn lacking(chain: &[Lying], host: HostId, own: HostId) -> Vec<LayerId> {
    chain.iter().filter(|layer| !layer.is_on(host, own)).map(|layer| layer.layer).collect()
}

/// What comes next for a layer that is to be at home on another host, with what it lies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// It is on this one whole.
    To(HostId),
    /// The rest of it is on its way to one.
    Waits,
    /// Some host has to be asked.
    Asks,
}

/// What comes next for a layer that is to be at home on another host, one of those that it `can` be on.
pub fn departure(chain: &[Lying], can: &[HostId], own: HostId) -> Departure {
    if let Some(to) = holders(chain, own).into_iter().find(|host| can.contains(host)) {
        return Departure::To(to);
    }
    let comes = |host: &&HostId| availability(chain, **host, own, Timestamp::default()) == Availability::Coming;
    if can.iter().any(|host| comes(&host)) { Departure::Waits } else { Departure::Asks }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    const fn host(number: u128) -> HostId {
        HostId(Uuid::from_u128(number))
    }

    fn copy(on: u128, state: CopyState, since: i64) -> LayerCopy {
        LayerCopy { host: host(on), state, since: Timestamp(since), message: Some("no room".into()) }
    }

    fn layer(number: u128, home: u128, copies: Vec<LayerCopy>) -> Lying {
        Lying { layer: LayerId(Uuid::from_u128(number)), home: Some(host(home)), bytes: 10, copies, archive: None }
    }

    use CopyState::{Coming, Failed, Present};

    #[test]
    fn a_copy_is_brought_in_time_unless_its_layer_goes() {
        for (state, is_kept, is_late, step) in [
            (Coming, true, false, Some(CopyStep::Bring)),
            (Coming, true, true, Some(CopyStep::Expire)),
            (Coming, false, false, None),
            (Coming, false, true, None),
            (Present, true, true, None),
            (Failed, true, false, None),
        ] {
            assert_eq!(next(state, is_kept, is_late), step, "{state} {is_kept} {is_late}");
        }
    }

    #[test]
    fn a_host_has_a_disk_that_has_all_of_its_layers() {
        let whole = [
            layer(2, 1, vec![copy(3, Present, 1), copy(4, Present, 1), copy(5, Coming, 1)]),
            layer(1, 1, vec![copy(3, Present, 1), copy(4, Coming, 1), copy(5, Present, 1)]),
        ];
        assert_eq!(holders(&whole, host(9)), [host(1), host(3)]);
        assert_eq!(holders(&[], host(9)), []);
        // One that was made elsewhere, on a copy.
        let above = [layer(3, 3, vec![]), whole[0].clone(), whole[1].clone()];
        assert_eq!(holders(&above, host(9)), [host(3)]);
        let nowhere = [Lying { home: None, ..layer(1, 1, vec![copy(2, Present, 1)]) }];
        assert_eq!(holders(&nowhere, host(9)), [host(9), host(2)]);
        for (on, bytes) in [(1, 0), (3, 0), (4, 10), (5, 10), (6, 20)] {
            assert_eq!(lacking_bytes(&whole, host(on), host(9)), bytes, "{on}");
        }
    }

    #[test]
    fn a_layer_departs_to_who_has_it_whole_and_waits_for_who_gets_it() {
        let two = |one: Vec<LayerCopy>, other: Vec<LayerCopy>| [layer(2, 1, one), layer(1, 1, other)];
        for (chain, can, expected) in [
            (two(vec![], vec![]), vec![2, 3], Departure::Asks),
            (two(vec![copy(2, Coming, 1)], vec![]), vec![2], Departure::Asks),
            (two(vec![copy(2, Coming, 1)], vec![copy(2, Present, 1)]), vec![3, 2], Departure::Waits),
            (two(vec![copy(2, Coming, 1)], vec![copy(2, Present, 1)]), vec![3], Departure::Asks),
            (two(vec![copy(2, Failed, 1)], vec![copy(2, Present, 1)]), vec![2], Departure::Asks),
            (two(vec![copy(2, Present, 1)], vec![copy(2, Present, 1)]), vec![3, 2], Departure::To(host(2))),
            (two(vec![copy(2, Present, 1)], vec![copy(2, Present, 1)]), vec![3], Departure::Asks),
        ] {
            let can: Vec<_> = can.into_iter().map(host).collect();
            assert_eq!(departure(&chain, &can, host(9)), expected, "{chain:?} {can:?}");
        }
        let id = |number: u128| LayerId(Uuid::from_u128(number));
        let half = two(vec![copy(2, Coming, 1)], vec![copy(2, Present, 1)]);
        assert_eq!((lacking(&half, host(2), host(9)), lacking(&half, host(1), host(9))), (vec![id(2)], vec![]));
    }

    #[test]
    fn what_is_lacking_is_brought_once_and_what_failed_is_tried_for_whoever_comes_later() {
        let two = |one: Vec<LayerCopy>, other: Vec<LayerCopy>| [layer(2, 1, one), layer(1, 1, other)];
        let id = |number: u128| LayerId(Uuid::from_u128(number));
        for (chain, expected) in [
            (two(vec![], vec![]), Availability::Lacking(vec![id(2), id(1)])),
            (two(vec![copy(2, Coming, 1)], vec![]), Availability::Lacking(vec![id(1)])),
            (two(vec![copy(2, Coming, 1)], vec![copy(2, Present, 1)]), Availability::Coming),
            (two(vec![copy(2, Coming, 1)], vec![copy(2, Coming, 1)]), Availability::Coming),
            (two(vec![copy(2, Present, 3)], vec![copy(2, Present, 4)]), Availability::Here(Some(Timestamp(4)))),
            (two(vec![copy(2, Failed, 4)], vec![copy(2, Present, 1)]), Availability::Lacking(vec![id(2)])),
            (two(vec![copy(2, Failed, 5)], vec![copy(2, Coming, 1)]), Availability::Failed("no room".into())),
            // Another host's copies say nothing of this one.
            (two(vec![copy(3, Failed, 9)], vec![copy(3, Present, 9)]), Availability::Lacking(vec![id(2), id(1)])),
        ] {
            assert_eq!(availability(&chain, host(2), host(9), Timestamp(5)), expected, "{chain:?}");
        }
        assert_eq!(availability(&two(vec![], vec![]), host(1), host(9), Timestamp(5)), Availability::Here(None));
    }
}
