//! What follows from what members said; pure.

use super::members::{Member, Said};

/// A member, and the timeline that it was followed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Followed {
    pub(super) member: usize,
    pub(super) timeline: i64,
}

/// What the leader answered to the connection that watches it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// It leads, on this timeline.
    Leads(i64),
    /// It leads no more, or cannot be connected.
    No,
    /// It was connected, and has ended the connection.
    Ended,
    /// It was connected, and is silent.
    Silent,
}

impl Answer {
    /// The leader as it is now, where it leads on no earlier timeline than it was followed on.
    pub(super) fn leads(self, followed: Followed) -> Option<Followed> {
        match self {
            Self::Leads(timeline) if timeline >= followed.timeline => Some(Followed { timeline, ..followed }),
            _ => None,
        }
    }
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Move {
    /// Stay with the leader, which leads on this timeline.
    Stay(Followed),
    /// Wait for one that leads; connections that ended are made anew by themselves.
    Wait,
    /// Follow another member, and end what the former one was asked.
    Follow(Followed),
    /// Ask the same member over new connections: those that there are may be dead.
    Renew,
    /// Tell who waits for an answer that none comes.
    GiveUp,
}

/// Which of the members to follow: the one that leads on the latest timeline. A promotion begins another one, so that nobody but
/// the leader that was followed leads on its timeline, unless two write on one: then nobody can tell which is right.
pub(super) fn choose(members: &[Member], followed: Followed) -> Option<Followed> {
    let leading = members.iter().enumerate().filter_map(|(member, it)| match it.said {
        Said::Leads(timeline) if timeline >= followed.timeline => Some(Followed { member, timeline }),
        _ => None,
    });
    let is_first = followed == Followed::default();
    let leading =
        leading.filter(|found| is_first || found.member == followed.member || found.timeline > followed.timeline);
    leading.max_by_key(|found| (found.timeline, found.member == followed.member, usize::MAX - found.member))
}

/// What is known beside the answer of a leader.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Beside {
    /// Whether it has answered anything else meanwhile.
    pub(super) has_answered: bool,
    /// Whether it was silent before, and who waits for its answers was not told.
    pub(super) is_untold: bool,
}

impl Beside {
    /// Whether somebody waits for answers of a silent leader, and is not told by this either.
    pub(super) const fn leaves_untold(self, answer: Answer, then: Move) -> bool {
        matches!(then, Move::Wait) && (self.is_untold || matches!(answer, Answer::Ended | Answer::Silent))
    }
}

/// What to do after an answer of the leader and of all members, who need not be asked where it leads.
pub(super) fn next(followed: Followed, answer: Answer, said: &[Member], beside: Beside) -> Move {
    let found = choose(said, followed);
    let another = found.filter(|found| found.member != followed.member);
    if let Some(own) = answer.leads(followed) {
        return another.filter(|another| another.timeline > own.timeline).map_or(Move::Stay(own), Move::Follow);
    }
    if let Some(another) = another {
        return Move::Follow(another);
    }
    match answer {
        // Another server has its place, and what it answers says nothing of connections to the former one.
        Answer::Silent if let Some(later) = found.filter(|found| found.timeline > followed.timeline) => {
            Move::Follow(later)
        }
        Answer::Ended | Answer::Silent if beside.has_answered => Move::Wait,
        Answer::Silent if found.is_none() => Move::GiveUp,
        // It was silent, and now it cannot be connected either.
        Answer::No if found.is_none() && beside.is_untold && !beside.has_answered => Move::GiveUp,
        Answer::Ended | Answer::Silent => Move::Renew,
        Answer::Leads(_) | Answer::No => Move::Wait,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(said: &[Said]) -> Vec<Member> {
        said.iter().map(|said| Member { place: String::new(), said: said.clone() }).collect()
    }

    const fn at(member: usize, timeline: i64) -> Followed {
        Followed { member, timeline }
    }

    fn away() -> Said {
        Said::Away("is away".into())
    }

    #[test]
    fn the_later_timeline_leads_and_none_earlier_than_was_followed() {
        use Said::{Follows, Leads};
        for (said, followed, expected) in [
            (vec![Follows, Leads(1), away()], at(0, 0), Some(at(1, 1))),
            (vec![Leads(7), Leads(8)], at(0, 7), Some(at(1, 8))),
            (vec![Leads(8), Leads(7)], at(1, 7), Some(at(0, 8))),
            (vec![Leads(7), away()], at(1, 8), None),
            (vec![Leads(8), Leads(8)], at(1, 8), Some(at(1, 8))),
            (vec![Leads(8), Leads(8), Follows], at(2, 8), None),
            (vec![Follows, Leads(8), Leads(8)], at(0, 0), Some(at(1, 8))),
            (vec![Follows, Follows], at(0, 8), None),
            (vec![Leads(0)], at(0, 0), Some(at(0, 0))),
        ] {
            assert_eq!(choose(&members(&said), followed), expected, "{said:?} after {followed:?}");
        }
    }

    #[test]
    fn a_leader_is_left_for_a_later_one_and_its_connections_where_they_are_dead() {
        use Answer::{Ended, No, Silent};
        use Said::{Follows, Leads};
        let (same, other) = (vec![Leads(3), Follows], vec![Follows, Leads(4)]);
        let none = vec![away(), Follows];
        for (answer, said, has_answered, expected) in [
            (Answer::Leads(3), vec![], false, Move::Stay(at(0, 3))),
            (Answer::Leads(5), vec![], false, Move::Stay(at(0, 5))),
            (Answer::Leads(3), vec![Leads(3), Leads(3)], false, Move::Stay(at(0, 3))),
            (Answer::Leads(3), vec![Leads(3), Leads(4)], true, Move::Follow(at(1, 4))),
            (Answer::Leads(5), vec![Leads(5), Leads(4)], true, Move::Stay(at(0, 5))),
            (Answer::Leads(2), none.clone(), false, Move::Wait),
            (Answer::Leads(2), other.clone(), false, Move::Follow(at(1, 4))),
            (No, other.clone(), false, Move::Follow(at(1, 4))),
            (Silent, other.clone(), true, Move::Follow(at(1, 4))),
            (No, same.clone(), false, Move::Wait),
            (No, none.clone(), false, Move::Wait),
            (Silent, vec![Leads(4), Follows], true, Move::Follow(at(0, 4))),
            (Silent, vec![Leads(4), Follows], false, Move::Follow(at(0, 4))),
            // Slow, and not dead.
            (Silent, same.clone(), true, Move::Wait),
            (Silent, none.clone(), true, Move::Wait),
            (Ended, same.clone(), true, Move::Wait),
            (Silent, same.clone(), false, Move::Renew),
            (Ended, same, false, Move::Renew),
            (Ended, none.clone(), false, Move::Renew),
            (Silent, none, false, Move::GiveUp),
        ] {
            let beside = Beside { has_answered, ..Beside::default() };
            assert_eq!(next(at(0, 3), answer, &members(&said), beside), expected, "{answer:?} {said:?}");
        }
    }

    #[test]
    fn who_waits_for_a_silent_leader_is_told_once_that_is_away() {
        let (none, same) = (members(&[away(), Said::Follows]), members(&[Said::Leads(3), Said::Follows]));
        let after = |answer, said: &[Member], beside| {
            let then = next(at(0, 3), answer, said, beside);
            (then, beside.leaves_untold(answer, then))
        };
        let heard = Beside { has_answered: true, ..Beside::default() };
        let untold = Beside { is_untold: true, ..Beside::default() };
        assert_eq!(after(Answer::Silent, &none, heard), (Move::Wait, true));
        assert_eq!(after(Answer::No, &none, Beside { has_answered: true, ..untold }), (Move::Wait, true));
        assert_eq!(after(Answer::No, &none, untold), (Move::GiveUp, false));
        // One that was not silent waits for as long as its callers do.
        assert_eq!(after(Answer::No, &none, Beside::default()), (Move::Wait, false));
        assert_eq!(after(Answer::Leads(3), &same, untold), (Move::Stay(at(0, 3)), false));
    }
}
