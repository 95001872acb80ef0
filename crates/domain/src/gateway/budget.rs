//! How many retries there may be. When an upstream goes, every request would be tried again elsewhere, and the load
//! would double just when there is less to carry it. A share of the requests keeps that in bounds, and a few on top
//! let a quiet model retry at all.

use crate::gateway::breaker::Window;

/// Requests for a retry, and retries that are always there: a fifth of the requests of ten seconds is what Finagle's
/// and Linkerd's budgets allow; their free part is ten a second, ours is ten in all.
const PER_RETRY: u64 = 5;
const ALWAYS: u64 = 10;

/// Retries that may be made: a fifth of the requests of the last ten seconds, and always ten. What is not used is not
/// saved up.
#[derive(Clone, Debug, Default)]
pub struct Budget {
    /// Requests and retries.
    recent: Window<1_000>,
}

impl Budget {
    /// A request came. `now` is in milliseconds.
    pub fn deposit(&mut self, now: u64) {
        self.recent.add(now, 1, 0);
    }

    /// Whether a retry may be made; it counts where it may.
    pub fn withdraw(&mut self, now: u64) -> bool {
        let (requests, retries) = self.recent.sums(now);
        let may = retries < requests / PER_RETRY + ALWAYS;
        if may {
            self.recent.add(now, 0, 1);
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn retries(budget: &mut Budget, now: u64) -> usize {
        (0..1000).filter(|_| budget.withdraw(now)).count()
    }

    #[test]
    fn a_fifth_and_ten() {
        let mut budget = Budget::default();
        assert_eq!(retries(&mut budget, 0), 10);
        for requests in 1..=4 {
            budget.deposit(0);
            assert_eq!(retries(&mut budget, 0), 0, "{requests}");
        }
        budget.deposit(0);
        assert_eq!(retries(&mut budget, 9_999), 1);
        // The first ten and the requests have gone; the last retry has not.
        assert_eq!(retries(&mut budget, 10_000), 9);
        assert_eq!(retries(&mut budget, 18_999), 0);
        assert_eq!(retries(&mut budget, 19_000), 1);
        assert_eq!(retries(&mut budget, 100_000), 10);
    }

    proptest! {
        #[test]
        fn never_more_than_a_fifth_and_ten(
            steps in prop::collection::vec((prop_oneof![4 => Just(0_u64), 1 => 0_u64..4_000], any::<bool>()), 1..400),
        ) {
            let (mut budget, mut now) = (Budget::default(), 0);
            let (mut requests, mut made) = (Vec::new(), Vec::new());
            for (pause, request) in steps {
                now += pause;
                let late = |times: &[u64]| times.iter().filter(|time| *time / 1000 + 10 > now / 1000).count();
                let allowed = late(&requests) / 5 + 10;
                if request {
                    budget.deposit(now);
                    requests.push(now);
                } else if budget.withdraw(now) {
                    made.push(now);
                    prop_assert!(late(&made) <= allowed);
                } else {
                    prop_assert!(late(&made) >= allowed, "a retry was refused that was there");
                }
            }
        }
    }
}
