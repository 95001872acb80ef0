//! Fair turns: the work of many owners before few workers.
//!
//! Owners take turns, so that a thousand pieces of one do not stand before the first piece of another. Owners belong to
//! groups, and groups come first: whoever can make owners as they like must not get more by it. So groups take turns,
//! and within the turns of its group each owner has its own.
//!
//! A turn alone is not enough where a piece may take minutes: a group may hold no more workers than are free, so that
//! one alone has half of them, two a third each, and whoever comes next always finds one (Choudhury and Hahne, "Dynamic
//! queue length thresholds for shared-memory packet switches", 1998). Of what its group may hold an owner leaves the
//! last one to an owner that has none. Work of nobody's, the platform's own, is one more in the round, without a share.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// An owner's work, in the order it came.
type Pieces<O, K> = (Option<O>, VecDeque<K>);
/// A group's owners that have work, the next one first.
type Owners<O, K> = VecDeque<Pieces<O, K>>;

/// What waits for a worker, and who holds how many. An owner is named by its group and by itself.
#[derive(Clone, Debug)]
pub struct Queue<G, O, K> {
    workers: usize,
    busy: usize,
    /// Workers of each group that has any.
    groups: HashMap<G, usize>,
    /// Workers of each owner that has any.
    owners: HashMap<(G, O), usize>,
    /// Whose turn comes next is first, of the groups and of the owners of each. Nobody is in it without work, or twice.
    round: VecDeque<(Option<G>, Owners<O, K>)>,
}

impl<G: Clone + Eq + Hash, O: Clone + Eq + Hash, K> Queue<G, O, K> {
    /// Nothing, before so many workers.
    pub fn new(workers: usize) -> Self {
        Self { workers, busy: 0, groups: HashMap::new(), owners: HashMap::new(), round: VecDeque::new() }
    }

    /// Adds a piece of work behind its owner's others.
    pub fn push(&mut self, owner: Option<(G, O)>, key: K) {
        let (group, owner) = owner.unzip();
        let Some((_, owners)) = self.round.iter_mut().find(|(known, _)| *known == group) else {
            self.round.push_back((group, VecDeque::from([(owner, VecDeque::from([key]))])));
            return;
        };
        match owners.iter_mut().find(|(known, _)| *known == owner) {
            Some((_, keys)) => keys.push_back(key),
            None => owners.push_back((owner, VecDeque::from([key]))),
        }
    }

    /// Hands out the next piece that may begin; its owner holds a worker until [`Self::done`].
    pub fn begin(&mut self) -> Option<(Option<(G, O)>, K)> {
        let (turn, own) = self.turn()?;
        let (group, mut owners) = self.round.remove(turn)?;
        let (owner, mut keys) = owners.remove(own)?;
        let key = keys.pop_front()?;
        if !keys.is_empty() {
            owners.push_back((owner.clone(), keys));
        }
        if !owners.is_empty() {
            self.round.push_back((group.clone(), owners));
        }
        self.busy += 1;
        let owner = group.zip(owner);
        if let Some(owner) = &owner {
            *self.groups.entry(owner.0.clone()).or_default() += 1;
            *self.owners.entry(owner.clone()).or_default() += 1;
        }
        Some((owner, key))
    }

    /// What [`Self::begin`] would hand out.
    pub fn peek(&self) -> Option<&K> {
        let (turn, own) = self.turn()?;
        self.round.get(turn)?.1.get(own)?.1.front()
    }

    /// An owner's worker is free again.
    pub fn done(&mut self, owner: Option<&(G, O)>) {
        self.busy = self.busy.saturating_sub(1);
        let Some(owner) = owner else { return };
        less(&mut self.groups, &owner.0);
        less(&mut self.owners, owner);
    }

    /// Takes back what waits and is not wanted any more.
    pub fn retain(&mut self, is_wanted: impl Fn(&K) -> bool) {
        for (_, owners) in &mut self.round {
            for (_, keys) in owners.iter_mut() {
                keys.retain(&is_wanted);
            }
            owners.retain(|(_, keys)| !keys.is_empty());
        }
        self.round.retain(|(_, owners)| !owners.is_empty());
    }

    /// Whose turn it is: the group's place in the round, and the owner's in its group's.
    fn turn(&self) -> Option<(usize, usize)> {
        let free = self.workers.saturating_sub(self.busy);
        if free == 0 {
            return None;
        }
        self.round.iter().enumerate().find_map(|(turn, (group, owners))| {
            let Some(group) = group else { return Some((turn, 0)) };
            let held = self.groups.get(group).copied().unwrap_or_default();
            // With one more it may hold no other.
            let is_last = held + 1 >= free.saturating_sub(1);
            let has_none = |owner: &Option<O>| {
                owner.as_ref().is_none_or(|o| !self.owners.contains_key(&(group.clone(), o.clone())))
            };
            let own = owners.iter().position(|(owner, _)| !is_last || has_none(owner))?;
            (held < free).then_some((turn, own))
        })
    }
}

fn less<K: Eq + Hash>(held: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = held.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            held.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Owner = (u8, u8);

    fn drain(queue: &mut Queue<u8, u8, u32>) -> Vec<(Option<Owner>, u32)> {
        std::iter::from_fn(|| queue.begin()).collect()
    }

    #[test]
    fn one_group_takes_half_and_the_next_one_finds_a_worker() {
        for (workers, most) in [(1, 1), (2, 1), (3, 2), (4, 2), (8, 4), (32, 16)] {
            let mut queue = Queue::new(workers);
            for owner in 0..40 {
                (0..10).for_each(|key| queue.push(Some((1, owner)), key));
            }
            assert_eq!(drain(&mut queue).len(), most, "of {workers}, however many owners it has");
            queue.push(Some((2, 0)), 100);
            assert_eq!(queue.begin().is_some(), workers > 1, "of {workers}");
        }
    }

    #[test]
    fn one_owner_leaves_a_worker_of_its_group_s_to_another() {
        for (workers, most) in [(1, 1), (2, 1), (3, 1), (4, 1), (5, 2), (8, 3), (32, 15)] {
            let mut queue = Queue::new(workers);
            (0..40).for_each(|key| queue.push(Some((1, 1)), key));
            assert_eq!(drain(&mut queue).len(), most, "of {workers}");
            queue.push(Some((1, 2)), 100);
            assert_eq!(queue.begin().is_some(), workers > 2, "of {workers}");
        }
    }

    #[test]
    fn owners_take_turns_in_the_order_they_came() {
        let mut queue = Queue::new(100);
        (0..3).for_each(|key| queue.push(Some((1, 1)), key));
        queue.push(None, 10);
        (20..22).for_each(|key| queue.push(Some((2, 1)), key));
        (30..32).for_each(|key| queue.push(Some((1, 2)), key));
        assert_eq!(queue.peek(), Some(&0));
        let order: Vec<u32> = drain(&mut queue).into_iter().map(|(_, key)| key).collect();
        assert_eq!(order, [0, 10, 20, 30, 21, 1, 31, 2], "groups first, and the owners of each within");
    }

    #[test]
    fn what_is_nobodys_may_take_every_worker() {
        let mut queue = Queue::<u8, u8, u32>::new(4);
        (0..6).for_each(|key| queue.push(None, key));
        assert_eq!(drain(&mut queue).len(), 4);
    }

    #[test]
    fn what_is_taken_back_does_not_begin() {
        let mut queue = Queue::new(16);
        (0..4).for_each(|key| queue.push(Some((1, 1)), key));
        queue.push(Some((1, 2)), 7);
        queue.push(Some((2, 1)), 9);
        queue.retain(|key| key % 2 == 0);
        assert_eq!(drain(&mut queue), [(Some((1, 1)), 0), (Some((1, 1)), 2)]);
    }

    #[derive(Clone, Debug)]
    enum Act {
        Push(Option<Owner>),
        Next,
        Done(usize),
    }

    fn acts() -> impl Strategy<Value = Vec<Act>> {
        let act = prop_oneof![
            3 => prop::option::weighted(0.8, (0..4_u8, 0..3_u8)).prop_map(Act::Push),
            3 => Just(Act::Next),
            2 => (0..64_usize).prop_map(Act::Done),
        ];
        prop::collection::vec(act, 1..300)
    }

    /// Who may have the next worker: those who wait, of a group that holds fewer than are free, and of whom none takes
    /// its group's last but who has none.
    fn able(
        workers: usize,
        running: &[Option<Owner>],
        waiting: &HashMap<Option<Owner>, VecDeque<u32>>,
    ) -> Vec<Option<Owner>> {
        let free = workers - running.len();
        let may = |owner: &Option<Owner>| {
            let Some((group, _)) = owner else { return free > 0 };
            let of_group = running.iter().flatten().filter(|(known, _)| known == group).count();
            of_group < free && (of_group + 1 < free - 1 || !running.contains(owner))
        };
        waiting.iter().filter(|(owner, keys)| !keys.is_empty() && may(owner)).map(|(owner, _)| *owner).collect()
    }

    fn group(owner: Option<Owner>) -> Option<u8> {
        owner.map(|(group, _)| group)
    }

    proptest! {
        /// Everything begins once and in its owner's order; nobody whose group has no worker waits while one is free;
        /// no group holds more than half, rounded up; and none is passed over by another more than once in a row, nor
        /// an owner by another of its group.
        #[test]
        fn turns_are_fair(workers in 1..12_usize, acts in acts()) {
            let mut queue = Queue::new(workers);
            let mut waiting: HashMap<Option<Owner>, VecDeque<u32>> = HashMap::new();
            let mut running: Vec<Option<Owner>> = Vec::new();
            // How often another had a turn while this one waited and might have had one: of groups, and within them.
            let mut groups: HashMap<(Option<u8>, Option<u8>), usize> = HashMap::new();
            let mut owners: HashMap<(Option<Owner>, Option<Owner>), usize> = HashMap::new();
            let mut key = 0;
            for act in acts {
                match act {
                    Act::Push(owner) => {
                        key += 1;
                        queue.push(owner, key);
                        waiting.entry(owner).or_default().push_back(key);
                    }
                    Act::Done(at) if !running.is_empty() => {
                        let owner = running.swap_remove(at % running.len());
                        queue.done(owner.as_ref());
                    }
                    Act::Done(_) => {}
                    Act::Next => {
                        let able = able(workers, &running, &waiting);
                        let idle = |of: Option<u8>| of.is_some() && running.iter().all(|owner| group(*owner) != of);
                        let left_out = waiting.iter().any(|(o, keys)| !keys.is_empty() && idle(group(*o)));
                        prop_assert!(!left_out || running.len() == workers || !able.is_empty());
                        let peeked = queue.peek().copied();
                        let next = queue.begin();
                        prop_assert_eq!(peeked, next.map(|(_, key)| key));
                        prop_assert_eq!(next.is_some(), !able.is_empty());
                        let Some((owner, begun)) = next else { continue };
                        prop_assert!(able.contains(&owner));
                        prop_assert_eq!(waiting.get_mut(&owner).and_then(VecDeque::pop_front), Some(begun));
                        running.push(owner);
                        let held = running.iter().filter(|o| group(**o) == group(owner)).count();
                        prop_assert!(owner.is_none() || held <= workers.div_ceil(2));
                        groups.retain(|(waits, _), _| *waits != group(owner));
                        owners.retain(|(waits, _), _| *waits != owner);
                        let others: std::collections::HashSet<_> =
                            able.iter().map(|o| group(*o)).filter(|other| *other != group(owner)).collect();
                        for other in others {
                            let times = groups.entry((other, group(owner))).or_default();
                            *times += 1;
                            prop_assert!(*times <= 1, "group {:?} passed {other:?}", group(owner));
                        }
                        let siblings = able.into_iter().filter(|o| *o != owner && group(*o) == group(owner));
                        for sibling in siblings {
                            let times = owners.entry((sibling, owner)).or_default();
                            *times += 1;
                            prop_assert!(*times <= 1, "{owner:?} passed {sibling:?}");
                        }
                    }
                }
            }
        }
    }
}
