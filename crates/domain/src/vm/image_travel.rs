//! Which images of the platform go from which host to which.
//!
//! A host that joins has none, and an image that is built anew is on one host alone. Every host is to have the latest edition of
//! each: whoever has it is a source, whoever has none or another one is to get it.

use std::collections::BTreeMap;

use crate::host::image::Edition;
use crate::ids::HostId;

/// How many travel at once in all: each takes what a host's disk and network give.
pub const MOST: usize = 2;

/// What a host has of images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stock {
    /// The host.
    pub host: HostId,
    /// Its editions.
    pub editions: Vec<Edition>,
}

/// A way that an image is to go.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Travel {
    /// What goes.
    pub edition: Edition,
    /// The host that has it.
    pub from: HostId,
    /// The host that is to have it.
    pub to: HostId,
}

/// The ways to begin now, beside those that are under way. Hosts that cannot be asked are not among the stocks, and so
/// are left alone. `may` tells whether an edition may go to a host: images that somebody removes or imports do not travel, and a
/// host that had no room is given time.
pub fn next(stocks: &[Stock], under_way: &[Travel], may: impl Fn(&Edition, HostId) -> bool) -> Vec<Travel> {
    let mut latest: BTreeMap<&str, &Edition> = BTreeMap::new();
    for edition in stocks.iter().flat_map(|stock| &stock.editions) {
        let known = latest.entry(&edition.id).or_insert(edition);
        if edition.replaces(known) {
            *known = edition;
        }
    }
    let mut begun: Vec<Travel> = Vec::new();
    for (edition, to) in latest.into_values().flat_map(|edition| stocks.iter().map(move |stock| (edition, stock))) {
        let going = || under_way.iter().chain(&begun);
        let is_going = going().any(|travel| travel.to == to.host && travel.edition.id == edition.id);
        if going().count() >= MOST || is_going || has(to, edition) || !may(edition, to.host) {
            continue;
        }
        // The one that sends the least at present.
        let sends = |stock: &&Stock| going().filter(|travel| travel.from == stock.host).count();
        let from = stocks.iter().filter(|stock| has(stock, edition)).min_by_key(sends).map(|stock| stock.host);
        begun.extend(from.map(|from| Travel { edition: edition.clone(), from, to: to.host }));
    }
    begun
}

/// Whether a host has an edition.
fn has(stock: &Stock, edition: &Edition) -> bool {
    stock.editions.iter().any(|had| had.id == edition.id && had.version == edition.version)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;
    use crate::Timestamp;

    const fn host(number: u128) -> HostId {
        HostId(Uuid::from_u128(number))
    }

    fn edition(id: &str, version: u8) -> Edition {
        Edition { id: id.into(), version: version.to_string(), made_at: Timestamp(version.into()) }
    }

    fn stocks(editions: &[&[(&str, u8)]]) -> Vec<Stock> {
        let stock = |(number, had): (usize, &&[(&str, u8)])| Stock {
            host: host(number as u128),
            editions: had.iter().map(|(id, version)| edition(id, *version)).collect(),
        };
        editions.iter().enumerate().map(stock).collect()
    }

    fn ways(travels: &[Travel]) -> Vec<(String, u128, u128)> {
        let way =
            |t: &Travel| (format!("{}-{}", t.edition.id, t.edition.version), t.from.0.as_u128(), t.to.0.as_u128());
        travels.iter().map(way).collect()
    }

    #[test]
    fn what_a_host_lacks_comes_from_one_that_has_it() {
        for (stocks, begun) in [
            (stocks(&[]), vec![]),
            (stocks(&[&[("a", 1)]]), vec![]),
            (stocks(&[&[("a", 1)], &[("a", 1)]]), vec![]),
            (stocks(&[&[("a", 1)], &[]]), vec![("a-1", 0, 1)]),
            (stocks(&[&[], &[("a", 1)]]), vec![("a-1", 1, 0)]),
            // The latest edition goes, and takes the place of others.
            (stocks(&[&[("a", 1)], &[("a", 2)]]), vec![("a-2", 1, 0)]),
            (stocks(&[&[("a", 2)], &[("a", 1)], &[]]), vec![("a-2", 0, 1), ("a-2", 0, 2)]),
            (stocks(&[&[("a", 1)], &[("b", 1)]]), vec![("a-1", 0, 1), ("b-1", 1, 0)]),
            // Two hosts have it: each sends one.
            (stocks(&[&[("a", 1)], &[("a", 1)], &[], &[]]), vec![("a-1", 0, 2), ("a-1", 1, 3)]),
            // Few at once.
            (stocks(&[&[("a", 1)], &[], &[], &[]]), vec![("a-1", 0, 1), ("a-1", 0, 2)]),
        ] {
            let begun: Vec<_> = begun.into_iter().map(|(what, from, to)| (what.to_owned(), from, to)).collect();
            assert_eq!(ways(&next(&stocks, &[], |_, _| true)), begun, "{stocks:?}");
        }
    }

    #[test]
    fn nothing_is_carried_twice_and_nothing_that_may_not() {
        let all = stocks(&[&[("a", 1), ("b", 1)], &[], &[]]);
        let going = Travel { edition: edition("a", 1), from: host(0), to: host(1) };
        assert_eq!(ways(&next(&all, std::slice::from_ref(&going), |_, _| true)), [("a-1".to_owned(), 0, 2)]);
        // An older edition that is under way is waited for.
        let older = Travel { edition: edition("a", 0), ..going.clone() };
        assert_eq!(ways(&next(&all, std::slice::from_ref(&older), |_, _| true)), [("a-1".to_owned(), 0, 2)]);
        let other = Travel { to: host(2), ..going.clone() };
        assert_eq!(next(&all, &[going, other], |_, _| true), []);
        let not_a_to_1 = |edition: &Edition, to| edition.id != "a" || to != host(1);
        assert_eq!(ways(&next(&all, &[], not_a_to_1)), [("a-1".to_owned(), 0, 2), ("b-1".to_owned(), 0, 1)]);
    }

    proptest! {
        /// Whoever follows it ends with the latest edition of each image on each host, and carries none that a host has.
        #[test]
        fn all_hosts_come_to_have_the_latest(had in vec(vec((0_u8..4, 1_u8..4), 0..5), 1..5)) {
            let names = ["a", "b", "c", "d"];
            let mut stocks: Vec<Stock> = had.iter().enumerate().map(|(number, had)| {
                let mut editions: Vec<Edition> = had.iter().map(|(id, version)| edition(names[usize::from(*id)], *version)).collect();
                editions.sort_by(|one, other| one.id.cmp(&other.id));
                editions.dedup_by(|one, other| one.id == other.id);
                Stock { host: host(number as u128), editions }
            }).collect();
            let every: Vec<Edition> = stocks.iter().flat_map(|stock| stock.editions.clone()).collect();
            for round in 0.. {
                let begun = next(&stocks, &[], |_, _| true);
                prop_assert!(begun.len() <= MOST && round < 20);
                if begun.is_empty() {
                    break;
                }
                for travel in begun {
                    prop_assert!(travel.from != travel.to);
                    let from = stocks.iter().find(|stock| stock.host == travel.from).unwrap();
                    prop_assert!(from.editions.contains(&travel.edition));
                    let to = stocks.iter_mut().find(|stock| stock.host == travel.to).unwrap();
                    prop_assert!(to.editions.iter().all(|had| had.id != travel.edition.id || travel.edition.replaces(had)));
                    to.editions.retain(|had| had.id != travel.edition.id);
                    to.editions.push(travel.edition);
                }
            }
            for stock in &stocks {
                for one in &every {
                    let has = stock.editions.iter().find(|had| had.id == one.id);
                    prop_assert!(has.is_some_and(|had| !one.replaces(had)));
                }
            }
        }
    }
}
