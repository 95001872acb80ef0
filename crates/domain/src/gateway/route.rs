//! Which of several upstreams answers a request: a pure choice over a snapshot, with chance as an argument.
//!
//! The choice keeps no state between requests, so nothing can grow, need a lock or go stale. An upstream is known by
//! its position in the list. One that is down keeps its position and does not admit.

use std::cmp::Ordering;

use crate::gateway::model::Strategy;

/// The state of an upstream at the moment of choice.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    /// Its share; 0 counts as 1.
    pub weight: u32,
    /// Requests under way.
    pub busy: u32,
    /// Most requests at the same time; `None` is no limit.
    pub most: Option<u32>,
    /// Whether it may be asked: its breaker and its health allow it, and it has an address.
    pub admits: bool,
    /// Whether this request has tried it.
    pub tried: bool,
    /// Peak EWMA of its answers in seconds; 0 is unknown.
    pub latency: f64,
}

impl Standing {
    const fn admits_this(&self) -> bool {
        self.admits && !self.tried
    }

    fn has_room(&self) -> bool {
        self.admits && self.most.is_none_or(|most| self.busy < most)
    }

    fn share(&self) -> u64 {
        u64::from(self.weight.max(1))
    }

    /// Requests under way, plus one.
    fn next(&self) -> u64 {
        u64::from(self.busy) + 1
    }
}

/// Why a request gets no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// All that admit are full: waiting may help.
    Busy,
    /// One has room, but it is not the request's turn, or the request has tried it.
    Spare,
    /// None admits the request.
    Down,
}

/// The upstream that answers; `None` if none both admits and has room. `chance` is 64 random bits, `key` the hash of
/// the conversation together with its project.
pub fn choose(strategy: Strategy, standings: &[Standing], chance: u64, key: u64) -> Option<usize> {
    match strategy {
        Strategy::Weighted => weighted(standings, chance),
        Strategy::LeastBusy => least_busy(standings, chance),
        Strategy::Latency => fastest(standings, chance),
        Strategy::Affinity => nearest(standings, key),
    }
}

/// Why [`choose`] found none, or why the caller did not ask it.
pub fn lack(standings: &[Standing]) -> Lack {
    if !standings.iter().any(Standing::admits_this) {
        Lack::Down
    } else if standings.iter().any(Standing::has_room) {
        Lack::Spare
    } else {
        Lack::Busy
    }
}

/// Spreads a number over 64 bits: one step of splitmix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number
/// Generators", 2014). Applied to a counter, it serves as random bits.
pub const fn mix(x: u64) -> u64 {
    let z = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// The upstreams that may be chosen, with their positions.
fn open(standings: &[Standing]) -> impl Iterator<Item = (usize, &Standing)> + Clone {
    standings.iter().enumerate().filter(|(_, standing)| standing.has_room() && !standing.tried)
}

/// A number below `end`, each with equal probability up to one chance; 0 if `end` is 0.
fn below(chance: u64, end: u64) -> u64 {
    let product = u128::from(chance) * u128::from(end);
    u64::try_from(product >> 64).unwrap_or_default()
}

/// By chance, in proportion to the weights.
fn weighted(standings: &[Standing], chance: u64) -> Option<usize> {
    let total = open(standings).map(|(_, standing)| standing.share()).sum();
    let mark = below(chance, total);
    let mut sum = 0;
    let mut hit = open(standings).skip_while(|(_, standing)| {
        sum += standing.share();
        sum <= mark
    });
    hit.next().map(|(place, _)| place)
}

/// The one with the fewest requests for its weight, this one included. Chance decides between equals, so that several
/// gateways, which do not see each other's requests, do not all choose the first.
fn least_busy(standings: &[Standing], chance: u64) -> Option<usize> {
    let (_, least) = open(standings).min_by(|(_, a), (_, b)| by_load(a, b))?;
    let tied = open(standings).filter(|(_, standing)| by_load(standing, least).is_eq());
    nth(tied.clone(), below(chance, tied.count() as u64)).map(|(place, _)| place)
}

/// Compares `(busy + 1) / weight` without a division. The products fit: 2³² times less than 2³².
fn by_load(a: &Standing, b: &Standing) -> Ordering {
    (a.next() * b.share()).cmp(&(b.next() * a.share()))
}

/// The faster of two chosen by chance. Two are enough to avoid the slow ones (Mitzenmacher, "The Power of Two Choices
/// in Randomized Load Balancing", 2001), and chance keeps a crowd from the single fastest one.
fn fastest(standings: &[Standing], chance: u64) -> Option<usize> {
    let count = open(standings).count() as u64;
    let first = below(chance, count);
    let (one, a) = nth(open(standings), first)?;
    if count == 1 {
        return Some(one);
    }
    let second = below(mix(chance), count - 1);
    let (two, b) = nth(open(standings), second + u64::from(second >= first))?;
    let order = cost(a, b).total_cmp(&cost(b, a)).then(a.busy.cmp(&b.busy));
    Some(if order.is_le() { one } else { two })
}

/// The expected time of an upstream's answer, beside another's. An idle upstream of unknown latency counts as fast, so
/// that a request tries it. While that first request is under way it counts like the other, so that not everything goes
/// there before it has answered once.
fn cost(standing: &Standing, other: &Standing) -> f64 {
    let known = |standing: &Standing| if standing.latency > 0.0 { standing.latency } else { 0.0 };
    let own = known(standing);
    let latency = if own > 0.0 || standing.busy == 0 { own } else { known(other) };
    latency * (f64::from(standing.busy) + 1.0)
}

/// The upstream to which this conversation belongs, so that its prompt is in that upstream's cache.
///
/// Rendezvous hashing: every upstream draws a number for the key, and the best draw wins. If an upstream goes, only its
/// own conversations move. The draws are exponential with the weights as rates, so that shares follow the weights
/// (Schindelhauer and Schomaker, "Weighted Distributed Hash Tables", 2005). A conversation moves on to its next best
/// upstream while its own has more than 5/4 of its share of the load (Mirrokni, Thorup and Zadimoghaddam, "Consistent
/// Hashing with Bounded Loads", 2018; 5/4 is the least that HAProxy's manual advises), else to the best one with room.
fn nearest(standings: &[Standing], key: u64) -> Option<usize> {
    let admitting = standings.iter().filter(|standing| standing.admits_this());
    let total = admitting.clone().map(|standing| u128::from(standing.busy)).sum::<u128>() + 1;
    let weights = admitting.map(|standing| u128::from(standing.share())).sum::<u128>();
    let within = |standing: &Standing| {
        let bounded = u128::from(standing.busy) * 4 * weights < u128::from(standing.share()) * 5 * total;
        standing.busy == 0 || bounded
    };
    let best = |a: &(usize, &Standing), b: &(usize, &Standing)| draw(key, *a).total_cmp(&draw(key, *b));
    let bounded = open(standings).filter(|(_, standing)| within(standing)).min_by(best);
    bounded.or_else(|| open(standings).min_by(best)).map(|(place, _)| place)
}

/// An exponential draw of an upstream for a key: the lowest wins.
fn draw(key: u64, (place, standing): (usize, &Standing)) -> f64 {
    let hash = mix(key ^ mix(place as u64));
    let high = u32::try_from(hash >> 32).unwrap_or(u32::MAX);
    // Between 0 and 1, both excluded.
    let uniform = (f64::from(high) + 0.5) / (f64::from(u32::MAX) + 1.0);
    -uniform.ln() / f64::from(standing.weight.max(1))
}

fn nth<T>(mut items: impl Iterator<Item = T>, place: u64) -> Option<T> {
    items.nth(usize::try_from(place).ok()?)
}

#[cfg(test)]
mod tests {
    // Not the whole prelude: its `Strategy` is another than the model's.
    use proptest::prelude::{Strategy as _, any, prop, prop_assert, prop_assert_eq, proptest};

    use super::*;

    const ALL: [Strategy; 4] = [Strategy::Weighted, Strategy::LeastBusy, Strategy::Latency, Strategy::Affinity];

    fn standing(weight: u32, busy: u32) -> Standing {
        Standing { weight, busy, most: None, admits: true, tried: false, latency: 0.0 }
    }

    fn count(strategy: Strategy, standings: &[Standing], draws: u64) -> Vec<u64> {
        let mut counts = vec![0; standings.len()];
        for draw in 0..draws {
            counts[choose(strategy, standings, mix(draw), mix(!draw)).unwrap()] += 1;
        }
        counts
    }

    #[test]
    fn the_mixer_is_splitmix64() {
        // The first numbers of the reference implementation for these seeds.
        assert_eq!(mix(0), 0xE220_A839_7B1D_CDAF);
        assert_eq!(mix(1_234_567), 6_457_827_717_110_365_317);
    }

    #[test]
    fn why_there_is_none() {
        let full = Standing { most: Some(2), ..standing(1, 2) };
        let down = Standing { admits: false, ..standing(1, 0) };
        let tried = Standing { tried: true, ..standing(1, 0) };
        for strategy in ALL {
            assert_eq!(choose(strategy, &[full, down, tried], 7, 7), None);
            assert_eq!(choose(strategy, &[], 7, 7), None);
            assert_eq!(choose(strategy, &[full, Standing { busy: 1, ..full }], 7, 7), Some(1));
        }
        assert_eq!(lack(&[full, down]), Lack::Busy);
        assert_eq!(lack(&[full, Standing { tried: true, ..full }]), Lack::Busy);
        assert_eq!(lack(&[full, tried]), Lack::Spare);
        assert_eq!(lack(&[standing(1, 0)]), Lack::Spare, "it is not its turn");
        assert_eq!(lack(&[down, tried]), Lack::Down);
        assert_eq!(lack(&[]), Lack::Down);
    }

    #[test]
    fn the_least_busy_for_its_weight() {
        let choose = |standings: &[Standing], chance| choose(Strategy::LeastBusy, standings, chance, 0);
        assert_eq!(choose(&[standing(1, 1), standing(4, 6), standing(2, 4)], u64::MAX), Some(1));
        let tied = [standing(1, 0), standing(9, 9), standing(2, 1)];
        assert_eq!((choose(&tied, 0), choose(&tied, u64::MAX)), (Some(0), Some(2)));
        assert_eq!(count(Strategy::LeastBusy, &tied, 1000)[1], 0);
        assert_eq!(choose(&[standing(1, u32::MAX), standing(u32::MAX, u32::MAX)], 0), Some(1));
    }

    #[test]
    fn the_faster_of_two() {
        let slow = |latency, busy| Standing { latency, ..standing(1, busy) };
        // The slowest of all never wins, and the fastest wins in every pair with it: two of three.
        let counts = count(Strategy::Latency, &[slow(3.0, 0), slow(1.0, 0), slow(2.0, 0)], 3000);
        assert_eq!(counts[0], 0);
        assert!((1900..2100).contains(&counts[1]), "{counts:?}");
        // A short queue at a slow one beats a long queue at a fast one.
        assert_eq!(count(Strategy::Latency, &[slow(1.0, 5), slow(2.0, 1)], 100), [0, 100]);
        // An unknown one is tried at once, but not by every request at the same time.
        assert_eq!(count(Strategy::Latency, &[slow(0.1, 0), slow(0.0, 0)], 100), [0, 100]);
        assert_eq!(count(Strategy::Latency, &[slow(0.1, 0), slow(0.0, 1)], 100), [100, 0]);
        assert_eq!(count(Strategy::Latency, &[slow(f64::NAN, 3), slow(0.0, 2)], 100), [0, 100]);
    }

    #[test]
    fn affinity_follows_the_weights() {
        let counts = count(Strategy::Affinity, &[standing(1, 0), standing(2, 0), standing(5, 0)], 8000);
        for (count, expected) in counts.iter().zip([1000, 2000, 5000]) {
            assert!(count.abs_diff(expected) < 200, "{counts:?}");
        }
    }

    fn standings() -> impl proptest::strategy::Strategy<Value = Vec<Standing>> {
        let one = (0_u32..50, 0_u32..20, prop::option::of(0_u32..20), any::<[bool; 2]>(), 0.0..10.0_f64);
        let one = one.prop_map(|(weight, busy, most, [admits, tried], latency)| Standing {
            weight,
            busy,
            most,
            admits,
            tried,
            latency,
        });
        prop::collection::vec(one, 0..8)
    }

    proptest! {
        #[test]
        fn never_one_that_is_full_or_down_or_tried_while_another_could(
            standings in standings(), chance: u64, key: u64,
        ) {
            let good = |standing: &Standing| {
                standing.admits && !standing.tried && standing.most.is_none_or(|most| standing.busy < most)
            };
            for strategy in ALL {
                match choose(strategy, &standings, chance, key) {
                    Some(place) => prop_assert!(good(&standings[place])),
                    None => prop_assert!(!standings.iter().any(good)),
                }
            }
        }

        #[test]
        fn weights_are_exact_over_all_chances(weights in prop::collection::vec(1_u32..40, 1..8), gap in 0_usize..8) {
            let mut standings: Vec<_> = weights.iter().map(|weight| standing(*weight, 0)).collect();
            let gap = gap % standings.len();
            standings[gap].admits = standings.len() == 1;
            let total: u64 = standings.iter().filter(|s| s.admits).map(|s| u64::from(s.weight)).sum();
            let mut counts = vec![0; standings.len()];
            // The lowest and the highest chance of every part of the range.
            for part in 0..total {
                let edge = |part: u64| (u128::from(part) << 64).div_ceil(u128::from(total));
                for chance in [edge(part), edge(part + 1) - 1] {
                    let chance = u64::try_from(chance).unwrap();
                    counts[choose(Strategy::Weighted, &standings, chance, 0).unwrap()] += 1;
                }
            }
            for (count, standing) in counts.iter().zip(&standings) {
                prop_assert_eq!(*count, if standing.admits { 2 * standing.weight } else { 0 });
            }
        }

        #[test]
        fn only_the_conversations_of_the_one_that_goes_move(
            weights in prop::collection::vec(1_u32..40, 2..8), gone in 0_usize..8, key: u64,
        ) {
            let mut standings: Vec<_> = weights.iter().map(|weight| standing(*weight, 0)).collect();
            let home = choose(Strategy::Affinity, &standings, 0, key).unwrap();
            prop_assert_eq!(choose(Strategy::Affinity, &standings, u64::MAX, key), Some(home));
            let gone = gone % standings.len();
            standings[gone].admits = false;
            let after = choose(Strategy::Affinity, &standings, 0, key).unwrap();
            prop_assert_eq!(after == home, gone != home);
            standings[gone].admits = true;
            prop_assert_eq!(choose(Strategy::Affinity, &standings, 0, key), Some(home));
        }

        #[test]
        fn one_conversation_does_not_flood_its_home(
            weights in prop::collection::vec(1_u32..40, 1..8), keys in prop::collection::vec(0_u64..3, 1..200),
        ) {
            let mut standings: Vec<_> = weights.iter().map(|weight| standing(*weight, 0)).collect();
            let all: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
            for (before, key) in keys.iter().enumerate() {
                let place = choose(Strategy::Affinity, &standings, 0, *key).unwrap();
                standings[place].busy += 1;
                let share = 5 * u64::from(weights[place]) * (before as u64 + 1);
                prop_assert!(u64::from(standings[place].busy) <= share.div_ceil(4 * all).max(1));
            }
        }

        #[test]
        fn a_full_house_still_has_an_order(busy in 1_u32..100, key: u64) {
            // The only one with room is far above its share.
            let full = Standing { most: Some(1), ..standing(1000, 1) };
            let standings = [full, standing(1, busy), full];
            prop_assert_eq!(choose(Strategy::Affinity, &standings, 0, key), Some(1));
        }
    }
}
