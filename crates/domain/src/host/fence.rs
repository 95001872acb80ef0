//! When a host is shut out of a store of disks, so that what it had there starts elsewhere.
//!
//! A host that does not answer may still run its machines, and write to their disks. So nothing of it starts on another host before
//! the store refuses whatever the lost one sends: that is the fence, and it is of the store, since nobody can ask the host. It is
//! an intent first, then made, then the rows of the machines let go of the host, and in this order each step may be taken again
//! by whoever finds it. A host that answers again ends what it had before the fence is lifted, and what nobody else took begins anew
//! there, since a fence breaks what has a disk open.
//!
//! An administrator who removes a host as lost says that it is off: where it cannot be shut out, that word is taken for it. Whoever
//! joins as a host that is shut out is another machine, and lifts nothing of what the former one may still do.

use core::net::IpAddr;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::model::State;
use crate::Timestamp;

/// Shortest time after which a host may be shut out, in seconds: until then it is not even lost.
pub const SOONEST: i64 = super::join::LOST_SECONDS;

/// Seconds after which a host is silent that is not lost yet: one that answers is looked at every ten.
pub const STALE: i64 = 20;

/// A host that uses a store, and was not removed.
#[derive(Clone, Copy, Debug)]
pub struct User {
    /// Whether it is lost, or was not heard for [`STALE`] seconds.
    pub is_silent: bool,
    /// Whether it reaches the store, as far as it was asked, and is not shut out.
    pub reaches: bool,
}

/// Whether it is rather whoever asks that is cut off: more than half of the hosts that use a store are silent, where those are
/// several, or none is left that reaches it.
pub fn is_alone(users: &[User]) -> bool {
    let silent = users.iter().filter(|user| user.is_silent).count();
    let is_reached = users.iter().any(|user| user.reaches && !user.is_silent);
    !is_reached || silent > 1 && silent * 2 > users.len()
}

/// The addresses by which a host is shut out. None at all where one of them is another's, too, or the store's own: then others
/// than the host would be shut out, or not all that it does.
pub fn to_refuse(addresses: BTreeSet<IpAddr>, of_others: &BTreeSet<IpAddr>) -> Vec<IpAddr> {
    let is_others = |address: &IpAddr| address.is_loopback() || of_others.contains(address);
    if addresses.iter().any(is_others) { Vec::new() } else { addresses.into_iter().collect() }
}

/// That a host is shut out of a store, or about to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fence {
    /// The addresses that the store refuses.
    pub addresses: Vec<IpAddr>,
    /// How often the host had joined then.
    pub enrolment: i64,
    /// Since when it is wished.
    pub since: Timestamp,
    /// Whether the store was asked in vain.
    pub is_tried: bool,
    /// Whether the store said that it refuses them.
    pub is_made: bool,
}

/// The fences of a host, by the names of stores.
pub type Fences = BTreeMap<String, Fence>;

/// A host and a store, as they stand.
#[derive(Clone, Debug)]
pub struct Seen<'a> {
    /// How the host stands; none where an administrator removed it as lost.
    pub state: Option<State>,
    /// How often it joined.
    pub enrolment: i64,
    /// For how long it has not answered, in seconds.
    pub silent: i64,
    /// After how many seconds the store has it shut out; none where it never does.
    pub patience: Option<i64>,
    /// Whether there is an address that is this host's alone, by which it reached the store.
    pub has_address: bool,
    /// Whether so many are silent that it is rather whoever asks them who is cut off, or none is left that reaches the store.
    pub is_alone: bool,
    /// The fence.
    pub fence: Option<&'a Fence>,
    /// Whether another host that is there has an address of the fence.
    pub is_taken: bool,
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
    /// Write down that the host is to be shut out.
    Want,
    /// Have the store refuse it.
    Make,
    /// Have the rows of its VMs let go of it that another host takes.
    Release,
    /// Have the host end what it had.
    Settle,
    /// Have the store take it again, and what it still has begin anew.
    Lift,
    /// Remember no fence any more, whatever the store refuses.
    Forget,
}

impl Seen<'_> {
    fn is_removed(&self) -> bool {
        self.state.is_none()
    }

    fn is_there(&self) -> bool {
        self.state.is_some_and(|state| state != State::Lost)
    }
}

/// What comes next for a host and a store.
pub fn next(seen: &Seen<'_>) -> Step {
    match seen.fence {
        None => unfenced(seen),
        Some(fence) if seen.is_there() && fence.enrolment == seen.enrolment => back(seen),
        Some(fence) if fence.is_made => shut_out(seen),
        Some(fence) => wished(seen, fence),
    }
}

fn unfenced(seen: &Seen<'_>) -> Step {
    let Some(patience) = seen.patience.filter(|_| seen.has_address) else {
        // Nobody can shut it out, and whoever removed it says that it is off.
        return if seen.is_removed() && seen.has_vms { Step::Release } else { Step::Rest };
    };
    let is_due = seen.is_removed() || seen.silent >= patience.max(SOONEST) && !seen.is_alone;
    if seen.has_vms && !seen.is_there() && is_due { Step::Want } else { Step::Rest }
}

/// The host answers again, and is the one that was lost.
const fn back(seen: &Seen<'_>) -> Step {
    if seen.has_released { Step::Settle } else { Step::Lift }
}

/// The store refuses the machine that was lost.
fn shut_out(seen: &Seen<'_>) -> Step {
    match seen.has_vms {
        true => Step::Release,
        // Who joined in its place is another machine; the store goes on to refuse the former one.
        false if seen.is_there() => Step::Forget,
        false if seen.is_removed() && seen.is_taken => Step::Lift,
        false => Step::Rest,
    }
}

/// The store is to refuse it, and did not say so yet.
fn wished(seen: &Seen<'_>, fence: &Fence) -> Step {
    if seen.is_there() && !seen.has_vms {
        // Who joined in its place may have its address by now.
        return Step::Forget;
    }
    let is_unable = seen.patience.is_none() || fence.is_tried;
    match seen.is_removed() && is_unable {
        true if seen.has_vms => Step::Release,
        true => Step::Forget,
        false if seen.patience.is_some() && (seen.is_removed() || !seen.is_alone) => Step::Make,
        false => Step::Rest,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fence(is_made: bool) -> Fence {
        Fence { addresses: vec![[10, 0, 0, 2].into()], enrolment: 1, since: Timestamp(1), is_tried: false, is_made }
    }

    fn lost(fence: Option<&Fence>) -> Seen<'_> {
        Seen {
            state: Some(State::Lost),
            enrolment: 1,
            silent: 60,
            patience: Some(60),
            has_address: true,
            is_alone: false,
            fence,
            is_taken: false,
            has_vms: true,
            has_released: false,
        }
    }

    #[test]
    fn a_lost_host_is_shut_out_before_anything_lets_go_of_it() {
        let (wished, made) = (fence(false), fence(true));
        assert_eq!(next(&lost(None)), Step::Want);
        assert_eq!(next(&lost(Some(&wished))), Step::Make);
        assert_eq!(next(&lost(Some(&made))), Step::Release);
        assert_eq!(next(&Seen { has_vms: false, ..lost(Some(&made)) }), Step::Rest);
        // Who takes the means away leaves it as it is, and so do others that fall silent meanwhile.
        assert_eq!(next(&Seen { patience: None, ..lost(Some(&wished)) }), Step::Rest);
        assert_eq!(next(&Seen { is_alone: true, ..lost(Some(&wished)) }), Step::Rest);
    }

    #[test]
    fn it_waits_as_long_as_it_is_told_and_never_less_than_until_a_host_is_lost() {
        assert_eq!(next(&Seen { silent: 59, ..lost(None) }), Step::Rest);
        let soon = Seen { patience: Some(0), ..lost(None) };
        assert_eq!(next(&Seen { silent: SOONEST - 1, ..soon.clone() }), Step::Rest);
        assert_eq!(next(&Seen { silent: SOONEST, ..soon }), Step::Want);
        for never in [
            Seen { patience: None, ..lost(None) },
            Seen { has_address: false, ..lost(None) },
            Seen { is_alone: true, ..lost(None) },
            Seen { has_vms: false, ..lost(None) },
        ] {
            assert_eq!(next(&Seen { silent: i64::MAX, ..never.clone() }), Step::Rest, "{never:?}");
        }
    }

    #[test]
    fn whoever_hears_few_is_cut_off() {
        let (heard, silent) = (User { is_silent: false, reaches: true }, User { is_silent: true, reaches: true });
        let cut_off =
            |hosts: &[(User, usize)]| is_alone(&hosts.iter().flat_map(|(host, n)| vec![*host; *n]).collect::<Vec<_>>());
        // One that is lost is lost; of several no more than half are.
        assert!(!cut_off(&[(heard, 1), (silent, 1)]) && !cut_off(&[(heard, 2), (silent, 2)]));
        assert!(cut_off(&[(heard, 1), (silent, 2)]) && cut_off(&[(heard, 2), (silent, 3)]));
        // Nobody could take anything.
        assert!(cut_off(&[]) && cut_off(&[(silent, 1)]));
        assert!(cut_off(&[(User { reaches: false, ..heard }, 2), (silent, 1)]));
    }

    #[test]
    fn a_host_is_shut_out_by_all_of_its_addresses_or_by_none() {
        let [own, other, another]: [IpAddr; 3] = [[10, 0, 0, 2].into(), [10, 1, 0, 2].into(), [10, 0, 0, 3].into()];
        assert_eq!(to_refuse([own, other].into(), &[another].into()), [own, other]);
        assert_eq!(to_refuse([own, other].into(), &[other].into()), [] as [IpAddr; 0]);
        assert_eq!(to_refuse([own, [127, 0, 0, 1].into()].into(), &[].into()), [] as [IpAddr; 0]);
    }

    #[test]
    fn one_that_answers_again_ends_what_it_had_before_it_is_taken_again() {
        let (wished, made) = (fence(false), fence(true));
        let back =
            |fence, has_released| next(&Seen { state: Some(State::Ready), silent: 0, has_released, ..lost(fence) });
        assert_eq!(back(None, false), Step::Rest);
        // Whether the store took it is found when it is lifted.
        assert_eq!(back(Some(&wished), false), Step::Lift);
        assert_eq!(back(Some(&made), true), Step::Settle);
        assert_eq!(back(Some(&made), false), Step::Lift);
    }

    #[test]
    fn whoever_joins_in_its_place_lifts_nothing() {
        let (wished, made) = (fence(false), fence(true));
        let other =
            |fence, has_vms| next(&Seen { state: Some(State::Ready), enrolment: 2, silent: 0, has_vms, ..lost(fence) });
        assert_eq!(other(Some(&wished), true), Step::Make);
        assert_eq!(other(Some(&wished), false), Step::Forget);
        assert_eq!(other(Some(&made), true), Step::Release);
        assert_eq!(other(Some(&made), false), Step::Forget);
    }

    #[test]
    fn an_administrator_s_word_is_taken_where_nobody_can_shut_it_out() {
        let (wished, made) = (fence(false), fence(true));
        let removed = |seen: Seen<'_>| next(&Seen { state: None, silent: 0, is_alone: true, ..seen });
        assert_eq!(removed(lost(None)), Step::Want);
        assert_eq!(removed(lost(Some(&wished))), Step::Make);
        assert_eq!(removed(lost(Some(&made))), Step::Release);
        for unable in [Seen { patience: None, ..lost(None) }, Seen { has_address: false, ..lost(None) }] {
            assert_eq!(removed(unable.clone()), Step::Release);
            assert_eq!(removed(Seen { has_vms: false, ..unable }), Step::Rest);
        }
        let tried = Fence { is_tried: true, ..wished.clone() };
        for unable in [lost(Some(&tried)), Seen { patience: None, ..lost(Some(&wished)) }] {
            assert_eq!(removed(unable.clone()), Step::Release);
            assert_eq!(removed(Seen { has_vms: false, ..unable }), Step::Forget);
        }
        // Its address is another one's by now.
        let empty = Seen { has_vms: false, ..lost(Some(&made)) };
        assert_eq!(removed(empty.clone()), Step::Rest);
        assert_eq!(removed(Seen { is_taken: true, ..empty }), Step::Lift);
    }

    proptest! {
        /// Whatever is seen, nothing lets go of a host that may write, unless the store refuses it or somebody said that it is off.
        #[test]
        fn nothing_lets_go_of_a_host_that_may_write(
            state in prop::sample::select(vec![None, Some(State::Ready), Some(State::Cordoned), Some(State::Lost)]),
            (silent, enrolment) in (0..100_i64, 1..3_i64),
            patience in prop::option::of(0..100_i64),
            fence in prop::option::of(any::<(bool, bool)>().prop_map(|(is_made, is_tried)| Fence { is_tried, ..fence(is_made) })),
            (has_address, is_alone, is_taken, has_vms, has_released) in any::<(bool, bool, bool, bool, bool)>(),
        ) {
            let seen = Seen {
                state, enrolment, silent, patience, has_address, is_alone, fence: fence.as_ref(), is_taken, has_vms, has_released,
            };
            let step = next(&seen);
            let is_made = fence.as_ref().is_some_and(|fence| fence.is_made);
            if step == Step::Release {
                prop_assert!(has_vms && (is_made || state.is_none()));
            }
            if step == Step::Lift {
                prop_assert!(!has_released || state.is_none());
                prop_assert!(seen.is_there() && enrolment == 1 || state.is_none() && !has_vms);
            }
            if step == Step::Forget {
                prop_assert!(!has_vms);
            }
        }
    }
}
