//! Which waiting request is next for a place that several owners share.
//!
//! Owners belong to groups, and groups come first: whoever can create owners at will must not get more by it. A group
//! relates to other groups as an owner relates to the owners of its group, and what follows holds for both.
//!
//! Owners get numbers of places in proportion to their [shares](Share), not numbers of turns: an answer may take ten
//! minutes or a tenth of a second, and by turns the owner of the long ones would end up with every place. So the next
//! place goes to the waiting owner that holds the fewest for its share (weighted max-min fairness), and among equals to
//! the one that has waited longest for its turn: an owner that took a place goes behind those that wait. No waiting
//! owner is passed by for good, because whoever passes it holds one more; and an owner without a place comes before
//! every owner with one, however small its share. Urgency matters only among the requests of one owner.
//!
//! If no more may wait, a newcomer whose group has few waiting for its share pushes out the last of the group with
//! most, and within its own group the last of the owner with most, as fair queues of networks do (McKenney, "Stochastic
//! Fairness Queueing", 1990): no owner can fill a line and keep others out.

use core::cmp::Reverse;
use core::hash::Hash;
use core::ops::Bound;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Which requests of an owner go first. The header `X-Priority` says it: `high`, `normal`, `low`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// A request that can wait.
    Low,
    /// A request that says nothing.
    #[default]
    Normal,
    /// A request that a person waits for.
    High,
}

impl Priority {
    /// The priority of a word; an unknown one is normal.
    pub fn of(word: Option<&str>) -> Self {
        match word {
            Some("high") => Self::High,
            Some("low") => Self::Low,
            _ => Self::Normal,
        }
    }
}

/// How much an owner gets beside others of its group, or a group beside groups: twice the share gets twice the places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share(u32);

impl Share {
    /// The largest share, that of owners without a limit.
    pub const MOST: u32 = 1000;
    /// Tokens that count for a request, where only requests are limited.
    const TOKENS_OF_A_REQUEST: i64 = 1000;
    /// Tokens a minute that are one unit of a share.
    const UNIT: i64 = 1000;

    /// The share of an owner that may use so many tokens and make so many requests a minute.
    pub fn of(tokens_per_minute: Option<i64>, requests_per_minute: Option<i64>) -> Self {
        let by_requests = requests_per_minute.map(|n| n.saturating_mul(Self::TOKENS_OF_A_REQUEST));
        let least = [tokens_per_minute, by_requests].into_iter().flatten().min();
        let units = least.and_then(|tokens| u32::try_from(tokens / Self::UNIT).ok());
        Self(units.unwrap_or(Self::MOST).clamp(1, Self::MOST))
    }

    /// The weight of a number of places or requests for this share. Different ratios with shares up to [`Self::MOST`]
    /// give different weights.
    fn load(self, number: usize) -> u64 {
        ((number as u64) << 32) / u64::from(self.0)
    }
}

impl Default for Share {
    fn default() -> Self {
        Self(Self::MOST)
    }
}

/// What an owner's group gets beside other groups, and the owner beside others of its group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shares {
    /// The group's.
    pub group: Share,
    /// The owner's.
    pub owner: Share,
}

/// The most urgent first, then the first to come.
type Rank = (Reverse<Priority>, u64);

/// A place in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot<G, O> {
    owner: (G, O),
    rank: Rank,
}

/// What a group or an owner has.
#[derive(Debug)]
struct Holding {
    share: Share,
    /// Places.
    held: usize,
    /// When it began to wait or took its last place, whichever was later.
    since: u64,
    /// How many of its requests wait.
    waiting: usize,
}

impl Holding {
    const fn joins(&mut self, now: u64) {
        if self.waiting == 0 {
            self.since = now;
        }
        self.waiting += 1;
    }

    const fn leaves(&mut self, _: u64) {
        self.waiting = self.waiting.saturating_sub(1);
    }

    const fn took(&mut self, now: u64) {
        (self.held, self.since) = (self.held.saturating_add(1), now);
    }

    const fn gave(&mut self, _: u64) {
        self.held = self.held.saturating_sub(1);
    }

    fn load(&self) -> u64 {
        self.share.load(self.held)
    }

    fn length(&self) -> u64 {
        self.share.load(self.waiting)
    }
}

/// Those that share with each other: the groups, or the owners of one group.
#[derive(Debug)]
struct Holdings<K> {
    /// All that hold places or wait.
    all: HashMap<K, Holding>,
    /// Those that wait, the next one first.
    order: BTreeSet<(u64, u64, K)>,
    /// Those that wait, by their number of waiting requests for their share.
    lengths: BTreeSet<(u64, K)>,
}

impl<K> Default for Holdings<K> {
    fn default() -> Self {
        Self { all: HashMap::new(), order: BTreeSet::new(), lengths: BTreeSet::new() }
    }
}

impl<K: Copy + Ord + Hash> Holdings<K> {
    /// Changes what one of them has, and updates both orders. Sets its share, if one is given.
    fn change(&mut self, key: K, share: Option<Share>, now: u64, with: impl FnOnce(&mut Holding, u64)) {
        let mut entry = match self.all.entry(key) {
            Entry::Occupied(entry) => entry,
            Entry::Vacant(entry) => {
                entry.insert_entry(Holding { share: Share::default(), held: 0, since: now, waiting: 0 })
            }
        };
        let holding = entry.get_mut();
        if holding.waiting > 0 {
            self.order.remove(&(holding.load(), holding.since, key));
            self.lengths.remove(&(holding.length(), key));
        }
        holding.share = share.unwrap_or(holding.share);
        with(holding, now);
        if holding.waiting > 0 {
            self.order.insert((holding.load(), holding.since, key));
            self.lengths.insert((holding.length(), key));
        } else if holding.held == 0 {
            entry.remove();
        }
    }

    fn first(&self) -> Option<K> {
        self.order.first().map(|(_, _, key)| *key)
    }

    fn after(&self, key: K) -> Option<K> {
        let holding = self.all.get(&key)?;
        let behind = (Bound::Excluded((holding.load(), holding.since, key)), Bound::Unbounded);
        self.order.range(behind).next().map(|(_, _, key)| *key)
    }

    /// The one with the most waiting requests for its share, if that exceeds what `other`, with this share, has with
    /// one more.
    fn longer_than(&self, other: K, share: Share) -> Option<K> {
        let own = self.all.get(&other).map_or(0, |holding| holding.waiting);
        self.lengths.last().filter(|(most, _)| *most > share.load(own + 1)).map(|(_, key)| *key)
    }
}

/// The waiting requests, each with a thing attached, and the places that owners hold. An owner is named by its group
/// and itself.
#[derive(Debug)]
pub struct Line<G, O, T> {
    /// Counts arrivals and places taken.
    clock: u64,
    count: usize,
    groups: Holdings<G>,
    owners: HashMap<G, Holdings<O>>,
    waiting: HashMap<(G, O), BTreeMap<Rank, T>>,
}

impl<G, O, T> Default for Line<G, O, T> {
    fn default() -> Self {
        let (owners, waiting) = Default::default();
        Self { clock: 0, count: 0, groups: Holdings::default(), owners, waiting }
    }
}

impl<G: Copy + Ord + Hash, O: Copy + Ord + Hash, T> Line<G, O, T> {
    /// How many wait.
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Whether none waits.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds a waiting request of an owner.
    pub fn join(&mut self, owner: (G, O), shares: Shares, priority: Priority, thing: T) -> Spot<G, O> {
        self.clock += 1;
        let rank = (Reverse(priority), self.clock);
        self.count += 1;
        self.change(owner, Some(shares), Holding::joins);
        self.waiting.entry(owner).or_default().insert(rank, thing);
        Spot { owner, rank }
    }

    /// Removes a waiting request; `None` if it did not wait.
    pub fn leave(&mut self, spot: Spot<G, O>) -> Option<T> {
        let waiting = self.waiting.get_mut(&spot.owner)?;
        let left = waiting.remove(&spot.rank)?;
        if waiting.is_empty() {
            self.waiting.remove(&spot.owner);
        }
        self.count -= 1;
        self.change(spot.owner, None, Holding::leaves);
        Some(left)
    }

    /// The thing attached to a waiting request.
    pub fn get_mut(&mut self, spot: Spot<G, O>) -> Option<&mut T> {
        self.waiting.get_mut(&spot.owner)?.get_mut(&spot.rank)
    }

    /// Notes that an owner has one place more.
    pub fn took(&mut self, owner: (G, O), shares: Shares) {
        self.clock += 1;
        self.change(owner, Some(shares), Holding::took);
    }

    /// Notes that an owner gave a place back.
    pub fn gave(&mut self, owner: (G, O)) {
        self.change(owner, None, Holding::gave);
    }

    /// The next request.
    pub fn first(&self) -> Option<Spot<G, O>> {
        self.first_of_group(self.groups.first()?)
    }

    /// The request after this one, if this one does not take the place.
    pub fn after(&self, spot: Spot<G, O>) -> Option<Spot<G, O>> {
        let (group, owner) = spot.owner;
        let behind = (Bound::Excluded(spot.rank), Bound::Unbounded);
        let own = self.waiting.get(&spot.owner).and_then(|waiting| waiting.range(behind).next());
        if let Some((rank, _)) = own {
            return Some(Spot { rank: *rank, ..spot });
        }
        let sibling = self.owners.get(&group).and_then(|owners| owners.after(owner));
        match sibling {
            Some(sibling) => self.first_of((group, sibling)),
            None => self.first_of_group(self.groups.after(group)?),
        }
    }

    /// The request that makes room for one more of this owner if no more may wait: the last of the group with most for
    /// its share, if that exceeds what this owner's group will have; else by the same rule the last of an owner of this
    /// group.
    pub fn yields(&self, (group, owner): (G, O), shares: Shares) -> Option<Spot<G, O>> {
        let longest = if let Some(longest) = self.groups.longer_than(group, shares.group) {
            (longest, self.owners.get(&longest)?.lengths.last()?.1)
        } else {
            (group, self.owners.get(&group)?.longer_than(owner, shares.owner)?)
        };
        let rank = *self.waiting.get(&longest)?.last_key_value()?.0;
        Some(Spot { owner: longest, rank })
    }

    fn first_of_group(&self, group: G) -> Option<Spot<G, O>> {
        self.first_of((group, self.owners.get(&group)?.first()?))
    }

    fn first_of(&self, owner: (G, O)) -> Option<Spot<G, O>> {
        let rank = *self.waiting.get(&owner)?.first_key_value()?.0;
        Some(Spot { owner, rank })
    }

    /// Changes what an owner and its group have.
    fn change(&mut self, (group, owner): (G, O), shares: Option<Shares>, with: fn(&mut Holding, u64)) {
        self.groups.change(group, shares.map(|shares| shares.group), self.clock, with);
        let owners = self.owners.entry(group).or_default();
        owners.change(owner, shares.map(|shares| shares.owner), self.clock, with);
        if owners.all.is_empty() {
            self.owners.remove(&group);
        }
    }
}

#[cfg(test)]
#[path = "fair_tests.rs"]
mod tests;
