//! Slowing down who guesses: a growing wait for each account, known or not, and a bound for each client
//! address. Both are kept in memory and bounded; nothing of it has to survive a restart.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use berth_domain::{Code, Error, Result, Timestamp};

use crate::config::Identity;

/// Entries of each table before old ones are dropped.
const ENTRIES: usize = 100_000;
/// Seconds after which an account is forgotten.
const FORGOTTEN: i64 = 3600;

#[derive(Clone, Copy)]
struct Account {
    failures: u32,
    until: Timestamp,
    last: Timestamp,
}

#[derive(Default)]
struct Tables {
    accounts: HashMap<String, Account>,
    clients: HashMap<IpAddr, (i64, u32)>,
    reloaded: Option<Timestamp>,
}

/// The waits.
pub struct Throttle {
    tables: Mutex<Tables>,
    free: u32,
    first: u64,
    longest: u64,
    per_minute: u32,
}

impl Throttle {
    /// Waits as configured.
    pub fn new(config: &Identity) -> Self {
        Self {
            tables: Mutex::default(),
            free: config.login_failures_before_backoff,
            first: config.backoff_first_seconds,
            longest: config.backoff_max_seconds,
            per_minute: config.logins_per_minute_per_address,
        }
    }

    fn tables(&self) -> std::sync::MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a login from an address; 429 above the bound.
    pub fn client(&self, address: IpAddr, now: Timestamp) -> Result<()> {
        let minute = now.seconds() / 60;
        let mut tables = self.tables();
        if tables.clients.len() > ENTRIES {
            tables.clients.retain(|_, (m, _)| *m == minute);
        }
        let entry = tables.clients.entry(address).or_insert((minute, 0));
        if entry.0 != minute {
            *entry = (minute, 0);
        }
        entry.1 += 1;
        if entry.1 > self.per_minute {
            return Err(wait(60 - now.seconds().rem_euclid(60)));
        }
        Ok(())
    }

    /// Refuses an account that has to wait.
    pub fn account(&self, email: &str, now: Timestamp) -> Result<()> {
        match self.tables().accounts.get(&email.to_lowercase()) {
            Some(account) if account.until > now => Err(wait((account.until.0 - now.0 + 999_999) / Timestamp::SECOND)),
            _ => Ok(()),
        }
    }

    /// Counts a failure: after the free ones each doubles the wait.
    pub fn failed(&self, email: &str, now: Timestamp) {
        let mut tables = self.tables();
        if tables.accounts.len() > ENTRIES {
            tables.accounts.retain(|_, a| a.last.plus_seconds(FORGOTTEN) > now);
        }
        let account =
            tables.accounts.entry(email.to_lowercase()).or_insert(Account { failures: 0, until: now, last: now });
        if account.last.plus_seconds(FORGOTTEN) < now {
            account.failures = 0;
        }
        account.failures = account.failures.saturating_add(1);
        account.last = now;
        if account.failures >= self.free {
            let doublings = (account.failures - self.free).min(32);
            let seconds = (self.first << doublings).min(self.longest);
            account.until = now.plus_seconds(i64::try_from(seconds).unwrap_or(i64::MAX));
        }
    }

    /// Whether the signing keys may be read again: once a second, however many tokens name unknown ones.
    pub fn key_reload(&self, now: Timestamp) -> bool {
        let mut tables = self.tables();
        let due = tables.reloaded.is_none_or(|at| at.plus_seconds(1) <= now);
        if due {
            tables.reloaded = Some(now);
        }
        due
    }

    /// Forgets the failures of an account.
    pub fn succeeded(&self, email: &str) {
        self.tables().accounts.remove(&email.to_lowercase());
    }
}

fn wait(seconds: i64) -> Error {
    let seconds = seconds.max(1).unsigned_abs();
    Error::new(Code::RateLimited, format!("Too many attempts. Try again in {seconds} s.")).retry_after(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sixth_attempt_waits_and_the_wait_doubles() {
        let throttle = Throttle::new(&Identity::default());
        let mut now = Timestamp(0);
        for _ in 0..5 {
            throttle.account("A@b", now).unwrap();
            throttle.failed("A@b", now);
        }
        for seconds in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 900, 900] {
            assert_eq!(throttle.account("a@B", now).unwrap_err().retry_after, Some(seconds));
            now = now.plus_seconds(i64::try_from(seconds).unwrap());
            throttle.account("a@b", now).unwrap();
            throttle.failed("a@b", now);
        }
        throttle.succeeded("a@b");
        throttle.account("a@b", now).unwrap();
    }

    #[test]
    fn thirty_logins_a_minute() {
        let throttle = Throttle::new(&Identity::default());
        let address = IpAddr::from([127, 0, 0, 1]);
        for _ in 0..30 {
            throttle.client(address, Timestamp(0)).unwrap();
        }
        assert_eq!(throttle.client(address, Timestamp(0)).unwrap_err().retry_after, Some(60));
        throttle.client(address, Timestamp(60 * Timestamp::SECOND)).unwrap();
    }
}
