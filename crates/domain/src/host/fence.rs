//! When a host is shut out of a store of disks, so that what it had there starts elsewhere.
//!
//! A host that does not answer may still run its machines, and write to their disks. So nothing of it starts on another host before
//! the store refuses whatever the lost one sends: that is the fence, and it is of the store, since nobody can ask the host. It is
//! an intent first, then made, then the rows of the machines let go of the host, and in this order each step may be taken again
//! by whoever finds it. A host that answers again ends what it had before the fence is lifted.
//!
//! An administrator who removes a host as lost says that it is off: where it cannot be shut out, that word is taken for it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::model::State;
use crate::Timestamp;

/// Shortest time after which a host may be shut out, in seconds: until then it is not even lost.
pub const SOONEST: i64 = super::join::LOST_SECONDS;

/// That a host is shut out of a store, or about to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fence {
    /// The address that the store refuses.
    pub address: IpAddr,
    /// Since when it is wished.
    pub since: Timestamp,
    /// Whether the store said that it refuses it.
    pub is_made: bool,
}

/// The fences of a host, by the names of stores.
pub type Fences = BTreeMap<String, Fence>;

/// A host and a store, as they stand.
#[derive(Clone, Debug)]
pub struct Seen<'a> {
    /// How the host stands; none where an administrator removed it as lost.
    pub state: Option<State>,
    /// For how long it has not answered, in seconds.
    pub silent: i64,
    /// After how many seconds the store has it shut out; none where it never does.
    pub patience: Option<i64>,
    /// From where the host reached the store last.
    pub address: Option<IpAddr>,
    /// The fence.
    pub fence: Option<&'a Fence>,
    /// Whether VMs are on the host whose disks lie in the store.
    pub has_vms: bool,
    /// Whether the host still has to end what it had.
    pub has_released: bool,
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing.
    Rest,
    /// Write down that the host is to be shut out, at this address.
    Want(IpAddr),
    /// Have the store refuse it.
    Make,
    /// Have the rows of its VMs let go of it: all, or those that another host takes.
    Release {
        /// Whether those, too, that no other host takes.
        all: bool,
    },
    /// Have the host end what it had.
    Settle,
    /// Have the store take it again.
    Lift,
}

/// What comes next for a host and a store.
pub fn next(seen: &Seen<'_>) -> Step {
    let is_there = seen.state.is_some_and(|state| state != State::Lost);
    match seen.fence {
        Some(fence) if !fence.is_made && is_there => Step::Lift,
        Some(fence) if !fence.is_made => Step::Make,
        Some(_) if !is_there && seen.has_vms => Step::Release { all: false },
        Some(_) if !is_there => Step::Rest,
        Some(_) if seen.has_vms => Step::Release { all: true },
        Some(_) if seen.has_released => Step::Settle,
        Some(_) => Step::Lift,
        None if is_there || !seen.has_vms => Step::Rest,
        None => shut_out(seen),
    }
}

/// What comes next for a host that does not answer, with VMs that could go on elsewhere.
fn shut_out(seen: &Seen<'_>) -> Step {
    let is_removed = seen.state.is_none();
    match (seen.patience, seen.address) {
        (Some(patience), Some(address)) if is_removed || seen.silent >= patience.max(SOONEST) => Step::Want(address),
        (Some(_), Some(_)) => Step::Rest,
        // Nobody can shut it out, and whoever removed it says that it is off.
        _ if is_removed => Step::Release { all: false },
        _ => Step::Rest,
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;

    const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

    fn fence(is_made: bool) -> Fence {
        Fence { address: ADDRESS, since: Timestamp(1), is_made }
    }

    fn lost(fence: Option<&Fence>) -> Seen<'_> {
        Seen {
            state: Some(State::Lost),
            silent: 60,
            patience: Some(60),
            address: Some(ADDRESS),
            fence,
            has_vms: true,
            has_released: false,
        }
    }

    #[test]
    fn a_lost_host_is_shut_out_before_anything_lets_go_of_it() {
        assert_eq!(next(&lost(None)), Step::Want(ADDRESS));
        assert_eq!(next(&lost(Some(&fence(false)))), Step::Make);
        assert_eq!(next(&lost(Some(&fence(true)))), Step::Release { all: false });
        assert_eq!(next(&Seen { has_vms: false, ..lost(Some(&fence(true))) }), Step::Rest);
    }

    #[test]
    fn it_waits_as_long_as_it_is_told_and_never_less_than_until_a_host_is_lost() {
        assert_eq!(next(&Seen { silent: 59, ..lost(None) }), Step::Rest);
        let soon = Seen { patience: Some(0), ..lost(None) };
        assert_eq!(next(&Seen { silent: SOONEST - 1, ..soon.clone() }), Step::Rest);
        assert_eq!(next(&Seen { silent: SOONEST, ..soon }), Step::Want(ADDRESS));
        for never in [
            Seen { patience: None, silent: i64::MAX, ..lost(None) },
            Seen { address: None, silent: i64::MAX, ..lost(None) },
            Seen { has_vms: false, ..lost(None) },
        ] {
            assert_eq!(next(&never), Step::Rest, "{never:?}");
        }
    }

    #[test]
    fn one_that_answers_again_ends_what_it_had_before_it_is_taken_again() {
        let (wished, made) = (fence(false), fence(true));
        let back = |fence, has_vms, has_released| {
            next(&Seen { state: Some(State::Ready), silent: 0, has_vms, has_released, ..lost(fence) })
        };
        assert_eq!(back(None, true, false), Step::Rest);
        assert_eq!(back(Some(&wished), true, false), Step::Lift, "nothing let go of it yet");
        assert_eq!(back(Some(&made), true, true), Step::Release { all: true });
        assert_eq!(back(Some(&made), false, true), Step::Settle);
        assert_eq!(back(Some(&made), false, false), Step::Lift);
    }

    #[test]
    fn an_administrator_s_word_is_taken_where_nobody_can_shut_it_out() {
        let (wished, made) = (fence(false), fence(true));
        let removed = |fence| next(&Seen { state: None, silent: 0, ..lost(fence) });
        assert_eq!(removed(None), Step::Want(ADDRESS));
        assert_eq!(removed(Some(&wished)), Step::Make);
        assert_eq!(removed(Some(&made)), Step::Release { all: false });
        for unable in [Seen { patience: None, ..lost(None) }, Seen { address: None, ..lost(None) }] {
            assert_eq!(next(&Seen { state: None, ..unable }), Step::Release { all: false });
        }
    }

    proptest! {
        /// Whatever is seen, nothing lets go of a host that is there or may be, unless the store refuses it or somebody said
        /// that it is off.
        #[test]
        fn nothing_lets_go_of_a_host_that_may_write(
            state in prop::sample::select(vec![None, Some(State::Ready), Some(State::Cordoned), Some(State::Lost)]),
            silent in 0..100_i64,
            patience in prop::option::of(0..100_i64),
            address in prop::option::of(Just(ADDRESS)),
            fence in prop::option::of(any::<bool>().prop_map(fence)),
            (has_vms, has_released) in any::<(bool, bool)>(),
        ) {
            let seen = Seen { state, silent, patience, address, fence: fence.as_ref(), has_vms, has_released };
            let step = next(&seen);
            let is_made = fence.as_ref().is_some_and(|fence| fence.is_made);
            if matches!(step, Step::Release { .. }) {
                prop_assert!(is_made || state.is_none() && fence.is_none());
            }
            if step == Step::Lift {
                prop_assert!(state.is_some_and(|state| state != State::Lost));
                prop_assert!(!is_made || !has_vms && !has_released, "what it had is ended first");
            }
        }
    }
}
