//! Slowing down who guesses: a growing wait for each account, known or not.
//!
//! The wait holds for the account and the network that the tries came from, so that nobody is locked out by a stranger:
//! whoever comes from elsewhere does not wait. Who guesses from many networks meets a ceiling of the account's own
//! (NIST SP 800-63B, 3.2.2: at most 100 failures in a row), above which it waits for everybody but those who come from a
//! network that the account signed in from before.
//!
//! A try counts before its password is looked at, not after: as many as may still fail are looked at together, and the
//! others wait for their outcome. Thirty at once get as many guesses as thirty in a row. All of it is kept in memory and
//! bounded; nothing of it has to survive a restart.

use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::sync::{Mutex, PoisonError};

use berth_domain::{Error, Result, Timestamp};
use berth_host::clock::Clock;
use tokio::sync::Notify;

use super::limits;
use super::recent::Recent;
use crate::config::Identity;
use crate::http::client_address::ClientNetwork;

/// Seconds after which the failures of a network are forgotten.
const FORGOTTEN: i64 = 3_600;
/// Seconds after which those of an account are.
const FORGOTTEN_EVERYWHERE: i64 = 86_400;

#[derive(Default)]
struct Failures {
    count: u32,
    pending: u32,
    until: Timestamp,
    last: Timestamp,
}

enum Admission {
    Admitted,
    /// Seconds to wait.
    Refused(i64),
    /// As many as may fail are being looked at.
    Busy,
}

impl Failures {
    fn admits(&mut self, free: u32, forgotten: i64, now: Timestamp) -> Admission {
        if self.last.plus_seconds(forgotten) < now {
            self.count = 0;
        }
        if self.until > now && self.count >= free {
            return Admission::Refused((self.until.0 - now.0 + 999_999) / Timestamp::SECOND);
        }
        if self.pending == 0 || self.count.saturating_add(self.pending) < free {
            return Admission::Admitted;
        }
        Admission::Busy
    }

    /// The seconds to wait for, if it has to: after the free ones each failure doubles them.
    fn failed(&mut self, free: u32, waits: (u64, u64), now: Timestamp) -> Option<u64> {
        self.count = self.count.saturating_add(1);
        self.last = now;
        let doublings = self.count.checked_sub(free)?.min(32);
        let seconds = (waits.0 << doublings).min(waits.1);
        self.until = now.plus_seconds(i64::try_from(seconds).unwrap_or(i64::MAX));
        Some(seconds)
    }
}

type Here = (u64, ClientNetwork);

#[derive(Default)]
struct Tables {
    here: Recent<Here, Failures>,
    everywhere: Recent<u64, Failures>,
}

/// The waits.
pub struct Throttle {
    tables: Mutex<Tables>,
    settled: Notify,
    names: RandomState,
    free: u32,
    ceiling: u32,
    waits: (u64, u64),
}

/// A try that is being looked at. Dropped without an outcome, nothing is known of it.
pub struct Attempt<'a> {
    throttle: &'a Throttle,
    here: Here,
}

impl Throttle {
    /// Waits as configured.
    pub fn new(config: &Identity) -> Self {
        Self {
            tables: Mutex::default(),
            settled: Notify::new(),
            names: RandomState::new(),
            free: config.login_failures_before_backoff,
            ceiling: config.login_failures_ceiling,
            waits: (config.backoff_first_seconds, config.backoff_max_seconds),
        }
    }

    fn tables(&self) -> std::sync::MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn account(&self, email: &str) -> u64 {
        self.names.hash_one(email.to_lowercase())
    }

    /// Counts a try at an account from a network, once it is its turn; refuses it where the network has to wait.
    pub async fn attempt(&self, email: &str, network: ClientNetwork, clock: &Clock) -> Result<Attempt<'_>> {
        let here = (self.account(email), network);
        loop {
            let mut settled = pin!(self.settled.notified());
            settled.as_mut().enable();
            match self.admit(here, clock.now()) {
                Admission::Admitted => return Ok(Attempt { throttle: self, here }),
                Admission::Refused(seconds) => return Err(wait(seconds)),
                Admission::Busy => settled.await,
            }
        }
    }

    fn admit(&self, here: Here, now: Timestamp) -> Admission {
        let tables = &mut *self.tables();
        let failures = tables.here.touch(here);
        let admission = failures.admits(self.free, FORGOTTEN, now);
        if matches!(admission, Admission::Admitted) {
            failures.pending += 1;
            tables.everywhere.touch(here.0).pending += 1;
        }
        admission
    }

    /// Forgets what failed from a network, and the account's ceiling: its owner proved to be there.
    pub fn forget(&self, email: &str, network: ClientNetwork) {
        let account = self.account(email);
        let tables = &mut *self.tables();
        let known = [tables.here.get_mut((account, network)), tables.everywhere.get_mut(account)];
        for failures in known.into_iter().flatten() {
            failures.count = 0;
        }
    }
}

impl Attempt<'_> {
    /// The wait of a network that the account did not sign in from before, where too much failed from all of them.
    pub fn refused_from_elsewhere(&self, now: Timestamp) -> Option<Error> {
        let tables = &mut *self.throttle.tables();
        let failures = tables.everywhere.touch(self.here.0);
        // This one is pending, too.
        failures.pending = failures.pending.saturating_sub(1);
        let admission = failures.admits(self.throttle.ceiling, FORGOTTEN_EVERYWHERE, now);
        failures.pending += 1;
        match admission {
            Admission::Admitted => None,
            Admission::Refused(seconds) => Some(wait(seconds)),
            Admission::Busy => Some(wait(1)),
        }
    }

    /// The password was wrong. The seconds for which its network has to wait now, if it has to.
    pub fn failed(self, now: Timestamp) -> Option<u64> {
        let Throttle { free, ceiling, waits, .. } = *self.throttle;
        let tables = &mut *self.throttle.tables();
        tables.everywhere.touch(self.here.0).failed(ceiling, waits, now);
        tables.here.touch(self.here).failed(free, waits, now)
    }

    /// The password was right.
    pub fn succeeded(self) {
        let tables = &mut *self.throttle.tables();
        tables.here.touch(self.here).count = 0;
        tables.everywhere.touch(self.here.0).count = 0;
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let tables = &mut *self.throttle.tables();
        let known = [tables.here.get_mut(self.here), tables.everywhere.get_mut(self.here.0)];
        for failures in known.into_iter().flatten() {
            failures.pending = failures.pending.saturating_sub(1);
        }
        self.throttle.settled.notify_waiters();
    }
}

fn wait(seconds: i64) -> Error {
    limits::wait("Too many attempts.", seconds)
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn network(last: u8) -> ClientNetwork {
        ClientNetwork::of(IpAddr::from([192, 0, 2, last]))
    }

    async fn fail(throttle: &Throttle, from: u8, clock: &Clock) {
        throttle.attempt("a@b", network(from), clock).await.unwrap().failed(clock.now());
    }

    fn configured(change: impl FnOnce(&mut Identity)) -> Throttle {
        let mut config = Identity::default();
        change(&mut config);
        Throttle::new(&config)
    }

    #[tokio::test]
    async fn the_sixth_attempt_waits_and_the_wait_doubles() {
        let throttle = Throttle::new(&Identity::default());
        let (mut now, here) = (Timestamp(FORGOTTEN * Timestamp::SECOND), (throttle.account("A@b"), network(1)));
        let admitted = |now| match throttle.admit(here, now) {
            Admission::Admitted => Ok(Attempt { throttle: &throttle, here }),
            Admission::Refused(seconds) => Err(seconds),
            Admission::Busy => Err(0),
        };
        for _ in 0..5 {
            admitted(now).unwrap().failed(now);
        }
        for seconds in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 900, 900] {
            assert_eq!(admitted(now).err(), Some(seconds));
            now = now.plus_seconds(seconds);
            admitted(now).unwrap().failed(now);
        }
        throttle.forget("a@B", network(1));
        admitted(now).unwrap().succeeded();
        assert!(admitted(now).is_ok());
    }

    #[tokio::test]
    async fn who_fails_from_one_network_locks_nobody_out_of_another() {
        let (throttle, clock) = (configured(|c| c.backoff_first_seconds = 60), Clock::default());
        for _ in 0..5 {
            fail(&throttle, 1, &clock).await;
        }
        assert!(throttle.attempt("a@b", network(1), &clock).await.is_err());
        let other = throttle.attempt("a@b", network(2), &clock).await.unwrap();
        assert!(other.refused_from_elsewhere(clock.now()).is_none());
        other.succeeded();
        assert!(throttle.attempt("a@b", network(1), &clock).await.is_err(), "a success elsewhere frees no guesser");
    }

    #[tokio::test]
    async fn an_account_has_a_ceiling_over_all_networks() {
        let throttle = configured(|c| {
            c.backoff_first_seconds = 60;
            c.login_failures_ceiling = 20;
        });
        let clock = Clock::default();
        for n in 0..20 {
            let attempt = throttle.attempt("a@b", network(n), &clock).await.unwrap();
            assert!(attempt.refused_from_elsewhere(clock.now()).is_none(), "{n}");
            attempt.failed(clock.now());
        }
        let refused = async || {
            let attempt = throttle.attempt("a@b", network(100), &clock).await.unwrap();
            attempt.refused_from_elsewhere(clock.now()).is_some()
        };
        assert!(refused().await);
        clock.advance(61);
        assert!(!refused().await);
        fail(&throttle, 101, &clock).await;
        clock.advance(61);
        assert!(refused().await, "the wait doubles");
        throttle.forget("a@b", network(102));
        assert!(!refused().await);
    }

    #[tokio::test]
    async fn as_many_are_looked_at_together_as_may_fail() {
        let (throttle, clock) = (configured(|c| c.backoff_first_seconds = 60), Clock::default());
        let mut open = Vec::new();
        for _ in 0..5 {
            open.push(throttle.attempt("a@b", network(1), &clock).await.unwrap());
        }
        let mut sixth = pin!(throttle.attempt("a@b", network(1), &clock));
        assert!(futures::poll!(sixth.as_mut()).is_pending());
        for attempt in open {
            attempt.failed(clock.now());
        }
        assert!(sixth.await.is_err());
        // Those who know the password pass, however many they are.
        let first = throttle.attempt("c@d", network(1), &clock).await.unwrap();
        let others: Vec<_> = (0..4).map(|_| throttle.attempt("c@d", network(1), &clock)).collect();
        let others = futures::future::try_join_all(others).await.unwrap();
        let mut last = pin!(throttle.attempt("c@d", network(1), &clock));
        assert!(futures::poll!(last.as_mut()).is_pending());
        first.succeeded();
        assert!(last.await.is_ok());
        drop(others);
    }
}
