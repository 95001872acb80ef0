//! Which hosts get what sandboxes boot, the guest.
//!
//! The service's own host has it: it is built there. A host that joined gets it where it has none, or another one. A replica's is
//! built there, as the own one is: which is the newer nobody knows, so that host gets one only where it has none. Nothing
//! goes the other way: whoever takes over a host must not get at the machines of the others by what they boot.

use crate::ids::HostId;

/// How many hosts get it at once.
pub const MOST: usize = 2;

/// A way that a guest is to go.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Travel {
    /// What goes: the SHA-256 of its manifest.
    pub version: String,
    /// The host that is to have it.
    pub to: HostId,
}

/// Another host than the service's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Other {
    /// Which.
    pub host: HostId,
    /// The guest that it has.
    pub guest: Option<String>,
    /// Whether a service of the platform is there, too.
    pub is_replicas: bool,
}

impl Other {
    fn lacks(&self, own: &str) -> bool {
        match &self.guest {
            None => true,
            Some(guest) => guest != own && !self.is_replicas,
        }
    }
}

/// The ways to begin now from the service's `own` host, which has this guest, to `others`, beside those that are under way. Hosts
/// that cannot be asked are not among the others. `may` tells whether it may go to a host: one
/// that had no room is given time.
pub fn next(own: Option<&str>, others: &[Other], under_way: &[Travel], may: impl Fn(&Travel) -> bool) -> Vec<Travel> {
    let Some(own) = own else { return Vec::new() };
    let lacking =
        others.iter().filter(|other| other.lacks(own) && !under_way.iter().any(|travel| travel.to == other.host));
    let ways = lacking.map(|other| Travel { version: own.to_owned(), to: other.host }).filter(may);
    ways.take(MOST.saturating_sub(under_way.len())).collect()
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    const fn host(number: u128) -> HostId {
        HostId(Uuid::from_u128(number))
    }

    fn way(version: &str, to: u128) -> Travel {
        Travel { version: version.into(), to: host(to) }
    }

    fn others(had: &[Option<&str>]) -> Vec<Other> {
        let other = |(had, number): (Option<&str>, u128)| Other {
            host: host(number),
            guest: had.map(str::to_owned),
            is_replicas: false,
        };
        had.iter().copied().zip(1..).map(other).collect()
    }

    #[test]
    fn a_replica_keeps_its_own_and_gets_one_where_it_has_none() {
        let replicas = |had: &[Option<&str>]| -> Vec<Other> {
            others(had).into_iter().map(|other| Other { is_replicas: true, ..other }).collect()
        };
        assert_eq!(next(Some("a"), &replicas(&[Some("b"), Some("a"), None]), &[], |_| true), [way("a", 3)]);
    }

    #[test]
    fn each_host_that_has_none_or_another_one_gets_that_of_the_services_own() {
        for (own, had, begun) in [
            (None, vec![None, Some("a")], vec![]),
            (Some("a"), vec![], vec![]),
            (Some("a"), vec![Some("a")], vec![]),
            (Some("a"), vec![None], vec![1]),
            (Some("a"), vec![Some("b")], vec![1]),
            (Some("a"), vec![Some("a"), None, Some("b")], vec![2, 3]),
            // Few at once.
            (Some("a"), vec![None, None, None], vec![1, 2]),
        ] {
            let expected: Vec<_> = begun.into_iter().map(|to| way("a", to)).collect();
            assert_eq!(next(own, &others(&had), &[], |_| true), expected, "{own:?} {had:?}");
        }
    }

    #[test]
    fn nothing_is_carried_twice_and_nothing_where_it_may_not() {
        let all = others(&[None, None, None]);
        assert_eq!(next(Some("a"), &all, &[way("a", 1)], |_| true), [way("a", 2)]);
        // Another one that is under way is waited for.
        assert_eq!(next(Some("a"), &all, &[way("b", 1)], |_| true), [way("a", 2)]);
        assert_eq!(next(Some("a"), &all, &[way("a", 1), way("a", 2)], |_| true), []);
        assert_eq!(next(Some("a"), &all, &[way("a", 1), way("a", 2), way("a", 4)], |_| true), []);
        assert_eq!(next(Some("a"), &all, &[], |travel| travel.to != host(1)), [way("a", 2), way("a", 3)]);
    }
}
