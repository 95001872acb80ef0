//! How many retries a model may have. When its upstreams fail, retrying every request would double the load just when
//! less can carry it. So retries are limited to a share of the requests, and a few more let a quiet model retry at all.
//!
//! Each model has its own budget: another model's trouble takes nothing from it. Going on to an untried upstream that
//! seems well needs no retry: that one's breaker bounds how often this is in vain.

use crate::gateway::breaker::Window;

/// Requests for a retry, and the seconds of the past that count: Finagle's and Linkerd's budgets (`percentCanRetry`,
/// `retryRatio`, `ttl`).
const PER_RETRY: u64 = 5;
/// Retries that a quiet model has in those seconds: Finagle's and Linkerd's `minRetriesPerSec`.
const ALWAYS: u64 = 100;
/// Retries that every second has, whatever happened before.
const EACH_SECOND: u64 = 10;

/// The allowed retries: for the last ten seconds a fifth of the requests and a hundred more, and always ten in a
/// second. Unused ones are not saved up.
#[derive(Clone, Debug, Default)]
pub struct Budget {
    /// Requests and retries.
    recent: Window<1_000>,
}

impl Budget {
    /// Notes a request. `now` is in milliseconds.
    pub fn deposit(&mut self, now: u64) {
        self.recent.add(now, 1, 0);
    }

    /// Whether a retry may be made; if so, counts it.
    pub fn withdraw(&mut self, now: u64) -> bool {
        let (requests, retries) = self.recent.sums(now);
        let (_, of_this_second) = self.recent.latest(now);
        let may = retries < requests / PER_RETRY + ALWAYS || of_this_second < EACH_SECOND;
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
    fn a_fifth_and_a_hundred() {
        let mut budget = Budget::default();
        assert_eq!(retries(&mut budget, 0), 100);
        for requests in 1..=4 {
            budget.deposit(0);
            assert_eq!(retries(&mut budget, 0), 0, "{requests}");
        }
        budget.deposit(0);
        assert_eq!(retries(&mut budget, 999), 1);
        // The first retries and the requests are too old to count.
        assert_eq!(retries(&mut budget, 10_000), 100);
    }

    #[test]
    fn never_below_ten_a_second() {
        let mut budget = Budget::default();
        assert_eq!(retries(&mut budget, 0), 100);
        for second in 1..100 {
            assert!(retries(&mut budget, second * 1000) >= 10, "{second}");
            assert_eq!(retries(&mut budget, second * 1000 + 999), 0, "{second}");
        }
    }

    proptest! {
        #[test]
        fn never_more_than_a_fifth_and_the_free_ones(
            steps in prop::collection::vec((prop_oneof![9 => Just(0_u64), 1 => 0_u64..4_000], any::<bool>()), 1..800),
        ) {
            let (mut budget, mut now) = (Budget::default(), 0);
            let (mut requests, mut made) = (Vec::new(), Vec::new());
            for (pause, request) in steps {
                now += pause;
                let late = |times: &[u64]| times.iter().filter(|time| *time / 1000 + 10 > now / 1000).count();
                let present = |times: &[u64]| times.iter().filter(|time| *time / 1000 == now / 1000).count();
                let allowed = late(&requests) / 5 + 100;
                if request {
                    budget.deposit(now);
                    requests.push(now);
                } else if budget.withdraw(now) {
                    made.push(now);
                    prop_assert!(late(&made) <= allowed || present(&made) <= 10);
                } else {
                    prop_assert!(late(&made) >= allowed && present(&made) >= 10, "a retry was refused that was there");
                }
            }
        }
    }
}
