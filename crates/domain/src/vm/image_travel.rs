//! Which images of the platform go to which host.
//!
//! The service's own host has what the platform's images are: they are built or imported there. A host that joined gets each
//! that it lacks, and each later edition. Nothing goes the other way, or from one that joined to another: whoever takes over a
//! host must not get at the machines of the others by an image.

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
    /// The host that is to have it.
    pub to: HostId,
}

/// The ways to begin now, from the service's `own` host to `others`, beside those that are under way. Hosts that cannot be asked
/// are not among the others, and so are left alone. `may` tells whether an edition may go to a host: images that somebody removes
/// or imports do not travel, and a host that had no room is given time.
pub fn next(
    own: &[Edition],
    others: &[Stock],
    under_way: &[Travel],
    may: impl Fn(&Edition, HostId) -> bool,
) -> Vec<Travel> {
    let mut begun: Vec<Travel> = Vec::new();
    for (edition, to) in own.iter().flat_map(|edition| others.iter().map(move |stock| (edition, stock))) {
        let going = || under_way.iter().chain(&begun);
        let is_going = going().any(|travel| travel.to == to.host && travel.edition.id == edition.id);
        if going().count() < MOST && !is_going && lacks(to, edition) && may(edition, to.host) {
            begun.push(Travel { edition: edition.clone(), to: to.host });
        }
    }
    begun
}

/// Whether a host has no edition of an image, or an earlier one.
fn lacks(stock: &Stock, edition: &Edition) -> bool {
    stock.editions.iter().all(|had| had.id != edition.id || edition.replaces(had))
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

    fn ways(travels: &[Travel]) -> Vec<(String, u128)> {
        let way = |t: &Travel| (format!("{}-{}", t.edition.id, t.edition.version), t.to.0.as_u128());
        travels.iter().map(way).collect()
    }

    /// The ways from the first of these hosts to the others.
    fn from_first(stocks: &[Stock], under_way: &[Travel], may: impl Fn(&Edition, HostId) -> bool) -> Vec<Travel> {
        next(&stocks[0].editions, &stocks[1..], under_way, may)
    }

    #[test]
    fn what_a_host_lacks_comes_from_the_services_own() {
        for (stocks, begun) in [
            (stocks(&[&[]]), vec![]),
            (stocks(&[&[("a", 1)]]), vec![]),
            (stocks(&[&[("a", 1)], &[("a", 1)]]), vec![]),
            (stocks(&[&[("a", 1)], &[]]), vec![("a-1", 1)]),
            // A later edition takes the place of others, and an earlier one of none.
            (stocks(&[&[("a", 2)], &[("a", 1)], &[]]), vec![("a-2", 1), ("a-2", 2)]),
            (stocks(&[&[("a", 1)], &[("a", 2)]]), vec![]),
            // What one that joined has goes nowhere.
            (stocks(&[&[], &[("a", 1)], &[]]), vec![]),
            (stocks(&[&[("a", 1)], &[("a", 2), ("b", 1)], &[]]), vec![("a-1", 2)]),
            // Few at once.
            (stocks(&[&[("a", 1)], &[], &[], &[]]), vec![("a-1", 1), ("a-1", 2)]),
        ] {
            let begun: Vec<_> = begun.into_iter().map(|(what, to)| (what.to_owned(), to)).collect();
            assert_eq!(ways(&from_first(&stocks, &[], |_, _| true)), begun, "{stocks:?}");
        }
    }

    #[test]
    fn nothing_is_carried_twice_and_nothing_that_may_not() {
        let all = stocks(&[&[("a", 1), ("b", 1)], &[], &[]]);
        let going = Travel { edition: edition("a", 1), to: host(1) };
        assert_eq!(ways(&from_first(&all, std::slice::from_ref(&going), |_, _| true)), [("a-1".to_owned(), 2)]);
        // An older edition that is under way is waited for.
        let older = Travel { edition: edition("a", 0), ..going.clone() };
        assert_eq!(ways(&from_first(&all, std::slice::from_ref(&older), |_, _| true)), [("a-1".to_owned(), 2)]);
        let other = Travel { to: host(2), ..going.clone() };
        assert_eq!(from_first(&all, &[going, other], |_, _| true), []);
        let not_a_to_1 = |edition: &Edition, to| edition.id != "a" || to != host(1);
        assert_eq!(ways(&from_first(&all, &[], not_a_to_1)), [("a-1".to_owned(), 2), ("b-1".to_owned(), 1)]);
    }

    proptest! {
        /// Whoever follows it ends with what the service's own host has, or a later edition of it, on each host, carries nothing
        /// twice, and nothing else.
        #[test]
        fn all_hosts_come_to_have_what_the_services_own_has(had in vec(vec((0_u8..4, 1_u8..4), 0..5), 1..5)) {
            let names = ["a", "b", "c", "d"];
            let mut stocks: Vec<Stock> = had.iter().enumerate().map(|(number, had)| {
                let mut editions: Vec<Edition> = had.iter().map(|(id, version)| edition(names[usize::from(*id)], *version)).collect();
                editions.sort_by(|one, other| one.id.cmp(&other.id));
                editions.dedup_by(|one, other| one.id == other.id);
                Stock { host: host(number as u128), editions }
            }).collect();
            let own = stocks[0].editions.clone();
            for round in 0.. {
                let begun = from_first(&stocks, &[], |_, _| true);
                prop_assert!(begun.len() <= MOST && round < 20);
                if begun.is_empty() {
                    break;
                }
                for travel in begun {
                    prop_assert!(own.contains(&travel.edition));
                    let to = stocks.iter_mut().find(|stock| stock.host == travel.to).unwrap();
                    prop_assert!(to.editions.iter().all(|had| had.id != travel.edition.id || travel.edition.replaces(had)));
                    to.editions.retain(|had| had.id != travel.edition.id);
                    to.editions.push(travel.edition);
                }
            }
            prop_assert_eq!(&stocks[0].editions, &own);
            for (stock, one) in stocks.iter().flat_map(|stock| own.iter().map(move |one| (stock, one))) {
                let has = stock.editions.iter().find(|had| had.id == one.id);
                prop_assert!(has.is_some_and(|had| !one.replaces(had)));
            }
        }
    }
}
