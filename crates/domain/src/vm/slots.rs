//! Turns before few slots: of those who have what was sent converted, images and disks of projects, and of those who have backups
//! restored.
//!
//! Few go on at a time, since each takes a core, and one may take as long as the operator allows, whatever a sender made up.
//! So those who wait take turns ([`fair`]): where there are several slots an organization, and with it a project, never has the
//! last one, which is for whoever comes next. Who waits asks again and again; who does not ask any more is forgotten.

use std::collections::HashMap;
use std::hash::Hash;

use crate::Timestamp;
use crate::fair;
use crate::ids::{OrgId, Owner, ProjectId};

/// How many conversions go on at a time.
pub const CONVERSIONS: usize = 2;
/// For how long one that waits keeps its turn without asking, in seconds: several times what it rests between.
const FORGOTTEN: i64 = 30;

/// Whose something is. The platform's own is that of one more organization.
type Whose = (Option<OrgId>, Option<ProjectId>);

/// What goes on, and what waits for that.
#[derive(Clone, Debug)]
pub struct Turns<K> {
    waiting: fair::Queue<Option<OrgId>, Option<ProjectId>, K>,
    /// When each that waits asked last.
    asked: HashMap<K, Timestamp>,
    slots: Vec<Option<Whose>>,
}

impl<K: Clone + Eq + Hash> Turns<K> {
    /// Nobody, before so many slots.
    pub fn new(slots: usize) -> Self {
        Self { waiting: fair::Queue::new(slots), asked: HashMap::new(), slots: vec![None; slots] }
    }

    /// Asks for a slot of somebody's, or the platform's own where nobody is named: its number, from 0, where the turn has come.
    /// It is taken until [`Self::end`].
    pub fn ask(&mut self, owner: Option<Owner>, key: &K, now: Timestamp) -> Option<usize> {
        let oldest = now.plus_seconds(-FORGOTTEN);
        self.asked.retain(|waiting, at| waiting == key || *at >= oldest);
        self.waiting.retain(|waiting| self.asked.contains_key(waiting));
        let whose = owner.unzip();
        if self.asked.insert(key.clone(), now).is_none() {
            self.waiting.push(Some(whose), key.clone());
        }
        if self.waiting.peek() != Some(key) {
            return None;
        }
        let free = self.slots.iter().position(Option::is_none)?;
        self.waiting.begin()?;
        self.asked.remove(key);
        self.slots[free] = Some(whose);
        Some(free)
    }

    /// Forgets one that does not wait any more.
    pub fn forget(&mut self, key: &K) {
        self.asked.remove(key);
        self.waiting.retain(|waiting| waiting != key);
    }

    /// Frees a slot.
    pub fn end(&mut self, slot: usize) {
        if let Some(whose) = self.slots.get_mut(slot).and_then(Option::take) {
            self.waiting.done(Some(&whose));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;

    fn owner(org: u8, project: u8) -> Option<Owner> {
        let id = |number: u8| Uuid::from_u128(u128::from(number));
        (org > 0).then(|| (OrgId(id(org)), ProjectId(id(project))))
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp(0).plus_seconds(seconds)
    }

    #[test]
    fn a_project_leaves_a_slot_to_whoever_comes_next() {
        let mut turns = Turns::new(CONVERSIONS);
        assert_eq!(turns.ask(owner(1, 1), &1, at(0)), Some(0));
        for waiting in 2..10 {
            assert_eq!(turns.ask(owner(1, 1), &waiting, at(0)), None);
        }
        assert_eq!(turns.ask(owner(2, 1), &20, at(0)), Some(1));
        // The platform's own take turns as well.
        assert_eq!(turns.ask(None, &30, at(0)), None);
        turns.end(1);
        assert_eq!(turns.ask(owner(1, 1), &2, at(0)), None);
        assert_eq!(turns.ask(None, &30, at(0)), Some(1));
        turns.end(0);
        assert_eq!(turns.ask(None, &31, at(0)), None);
        assert_eq!(turns.ask(owner(1, 1), &3, at(0)), None, "another of it asked before");
        assert_eq!(turns.ask(owner(1, 1), &2, at(0)), Some(0));
    }

    #[test]
    fn who_does_not_ask_any_more_keeps_nobody_waiting() {
        for (late, has_turn) in [(FORGOTTEN, false), (FORGOTTEN + 1, true)] {
            let mut turns = Turns::new(CONVERSIONS);
            assert!(turns.ask(owner(1, 1), &1, at(0)).is_some() && turns.ask(owner(2, 1), &2, at(0)).is_some());
            assert!(turns.ask(owner(3, 1), &3, at(0)).is_none());
            turns.end(0);
            assert_eq!(turns.ask(owner(4, 1), &4, at(late)).is_some(), has_turn);
            turns.forget(&3);
            assert_eq!(turns.ask(owner(4, 1), &4, at(late)).is_some(), !has_turn);
        }
    }

    #[derive(Clone, Debug)]
    enum Act {
        Ask(u8, u8, u16),
        End(usize),
    }

    fn acts() -> impl Strategy<Value = Vec<Act>> {
        let act = prop_oneof![
            3 => (0..4_u8, 1..3_u8, 0..6_u16).prop_map(|(org, project, piece)| Act::Ask(org, project, piece)),
            1 => (0..CONVERSIONS).prop_map(Act::End),
        ];
        prop::collection::vec(act, 1..200)
    }

    proptest! {
        /// Nobody has all slots; each slot is one conversion's; and where one is free somebody gets it who waits and has none.
        #[test]
        fn no_project_has_all_slots(acts in acts()) {
            let mut turns = Turns::new(CONVERSIONS);
            let mut held: [Option<(u8, u8)>; CONVERSIONS] = [None; CONVERSIONS];
            let mut waiting: Vec<(u8, u8, u16)> = Vec::new();
            for act in acts {
                match act {
                    Act::Ask(org, project, piece) => {
                        let key = (org, project, piece);
                        match turns.ask(owner(org, project), &key, at(0)) {
                            Some(slot) => {
                                prop_assert!(held[slot].is_none(), "a slot of two");
                                held[slot] = Some((org, project));
                                waiting.retain(|other| *other != key);
                            }
                            None if !waiting.contains(&key) => waiting.push(key),
                            None => {}
                        }
                    }
                    Act::End(slot) => {
                        held[slot] = None;
                        turns.end(slot);
                    }
                }
                let orgs: Vec<u8> = held.iter().flatten().map(|(org, _)| *org).collect();
                prop_assert!(orgs.len() < 2 || orgs[0] != orgs[1], "{held:?}");
                if orgs.len() < CONVERSIONS && waiting.iter().any(|(org, _, _)| !orgs.contains(org)) {
                    let mut asked = turns.clone();
                    let mut gets = |(org, project, piece): &(u8, u8, u16)| {
                        asked.ask(owner(*org, *project), &(*org, *project, *piece), at(0)).is_some()
                    };
                    prop_assert!(waiting.iter().any(&mut gets), "{held:?} {waiting:?}");
                }
            }
        }
    }
}
