//! What a project and all projects of an organization may take of models: tokens a minute, and money a calendar month
//! (UTC).
//!
//! Machines are paid from the same money.
//!
//! A request sets aside what it may take, of its project and of its organization, before it is let in; at its end it
//! settles what it took. One lock covers both looks and the setting aside, so that concurrent requests cannot count on
//! the same rest: a limit is exceeded at most by what the admitted requests took beyond what they had set aside.
//!
//! Tokens are a bucket that fills evenly, in memory. The money spent has two parts. What this run of the service books
//! is counted in memory from the first request of a project or an organization on, limit or not, and is never read
//! back; so it does not matter which of its records are in the database already. What others wrote is a sum over rows,
//! read when it is first needed. The rows are read again after at least a second where others may write to the
//! database, and after ten seconds where they may not but machines cost money, else never; and never sooner than twenty
//! times what reading them took.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use berth_domain::gateway::Nano;
use berth_domain::{Code, Error, Month, Result, Timestamp};
use berth_host::clock::Clock;

use super::bound;
use super::meter::Meter;
use super::totals::minute;
use crate::db::resource_usage;
use crate::db::tenant::Whose;
use crate::http::auth::{Limits, Scope};
use crate::services::gateway::store;

/// Seconds without a request after which a project or an organization may be forgotten, once there are many.
const IDLE: i64 = 600;
/// Number of projects and organizations above which idle ones are forgotten.
const ENTRIES: usize = 1024;
/// Microseconds in a minute. A token counts as so many units, so that a limit of n tokens frees n units a microsecond.
const MINUTE: i128 = 60_000_000;
/// Seconds for which the sum that machines cost counts as current.
const MACHINES: i64 = 10;
/// Others' rows are read again at the earliest after so many times the duration of the last read.
const REST: i64 = 20;

/// Recently used tokens. They drain evenly, a whole limit in a minute.
#[derive(Debug)]
struct Tokens {
    /// In tokens times [`MINUTE`].
    used: i128,
    limit: i64,
    at: Timestamp,
}

impl Tokens {
    fn drain(&mut self, now: Timestamp) {
        let passed = i128::from(now.0.saturating_sub(self.at.0).max(0));
        self.used = (self.used - passed * i128::from(self.limit)).max(0);
        self.at = now;
    }

    /// Refuses with 429 a request whose tokens do not fit. `alone`: no other request has anything set aside.
    fn check(&mut self, (word, limit): (&str, i64), tokens: u64, alone: bool, now: Timestamp) -> Result<()> {
        self.drain(now);
        self.limit = limit;
        let (whole, wanted) = (i128::from(limit) * MINUTE, scaled(tokens));
        if self.used + wanted <= whole || (limit > 0 && self.used == 0 && alone) {
            return Ok(());
        }
        let (missing, second) = (self.used + wanted.min(whole) - whole, i128::from(limit) * 1_000_000);
        let seconds = if limit > 0 { ((missing + second - 1) / second).max(1) } else { 60 };
        let seconds = u64::try_from(seconds).unwrap_or(u64::MAX);
        let message = format!(
            "The {limit} tokens a minute of this {word} are used up or set aside. Try again in {seconds} s, or ask \
             an administrator of the platform for more."
        );
        Err(Error::new(Code::RateLimited, message).retry_after(seconds))
    }

    fn add(&mut self, tokens: u64) {
        self.used += scaled(tokens);
    }

    /// Replaces what a request set aside by what it used.
    fn settle(&mut self, aside: u64, used: u64, now: Timestamp) {
        self.drain(now);
        self.used = (self.used - scaled(aside) + scaled(used)).max(0);
    }
}

fn scaled(tokens: u64) -> i128 {
    i128::from(bound::tokens(tokens)) * MINUTE
}

/// What others spent, machines among them, and until when that counts as current.
#[derive(Clone, Copy, Debug)]
struct Others {
    spent: Nano,
    until: Timestamp,
}

/// Money of the month.
#[derive(Debug)]
struct Money {
    month: Month,
    others: Option<Others>,
    /// What requests of this run of the service settled.
    own: Nano,
    aside: Nano,
}

impl Money {
    const fn of(month: Month) -> Self {
        Self { month, others: None, own: Nano(0), aside: Nano(0) }
    }

    fn known(&self, now: Timestamp) -> Option<Nano> {
        self.others.filter(|others| now < others.until).map(|others| others.spent)
    }

    /// Refuses with 403 a request whose cost does not fit.
    fn check(&self, others: Nano, (word, units): (&str, i64), cost: Nano) -> Result<()> {
        let limit = Nano::whole(units);
        let taken = others + self.own + self.aside;
        if taken + cost <= limit || (limit > Nano(0) && taken == Nano(0)) {
            return Ok(());
        }
        let message = format!(
            "The {word} may spend {units} a month; {} are spent or set aside, and this may need {}. Ask an \
             administrator of the platform for more, or wait for the next month.",
            taken.units(),
            cost.units()
        );
        Err(Error::new(Code::QuotaExceeded, message))
    }
}

/// The state of a project or an organization.
#[derive(Debug)]
struct Entry {
    /// This entry counts the requests made from the beginning of this minute on.
    since: Timestamp,
    touched: Timestamp,
    open: u64,
    tokens: Tokens,
    money: Money,
    /// The reader of the rows holds this lock.
    reading: Arc<tokio::sync::Mutex<()>>,
}

impl Entry {
    fn new(now: Timestamp) -> Self {
        Self {
            // A record may be older than the arrival of its request here. It cannot belong to an earlier entry: the
            // service forgets an entry only after a longer time without requests.
            since: minute(now.plus_seconds(-IDLE / 2)),
            touched: now,
            open: 0,
            tokens: Tokens { used: 0, limit: 0, at: now },
            money: Money::of(Month::of(now)),
            reading: Arc::default(),
        }
    }

    fn touch(&mut self, now: Timestamp) {
        self.touched = now;
        if now >= self.money.month.end {
            self.money = Money::of(Month::of(now));
        }
    }

    /// Whether a new entry would be the same.
    fn is_idle(&self, now: Timestamp) -> bool {
        let long = self.touched < now.plus_seconds(-IDLE);
        let passed = i128::from(now.0.saturating_sub(self.tokens.at.0).max(0));
        long && self.open == 0 && self.tokens.used <= passed * i128::from(self.tokens.limit.max(1))
    }
}

struct Entries {
    all: HashMap<Whose, Entry>,
    most: usize,
}

impl Entries {
    fn of(&mut self, whose: Whose, now: Timestamp) -> &mut Entry {
        if self.all.len() >= self.most && !self.all.contains_key(&whose) {
            self.all.retain(|_, entry| !entry.is_idle(now));
            self.most = (self.all.len() * 2).max(ENTRIES);
        }
        let entry = self.all.entry(whose).or_insert_with(|| Entry::new(now));
        entry.touch(now);
        entry
    }
}

/// What projects and organizations took, and what they may take.
pub struct Allowances {
    inner: Arc<Inner>,
}

struct Inner {
    meter: Meter,
    clock: Clock,
    shared: bool,
    entries: Mutex<Entries>,
}

/// What a request set aside. Dropped without being settled, it gives everything back.
pub struct Reservation {
    inner: Arc<Inner>,
    of: [Aside; 2],
    cost: Nano,
    closed: bool,
}

/// What a request set aside of one payer.
#[derive(Clone, Copy, Debug)]
struct Aside {
    whose: Whose,
    /// `None` where the payer has no limit of tokens.
    tokens: Option<u64>,
    /// The beginning of the month that pays.
    month: Timestamp,
}

/// The answer to a request for admission.
enum Look {
    /// The request is admitted; both payers have set its cost aside.
    LetIn([Aside; 2]),
    /// The rows of this payer must be read first, by whoever takes this lock.
    Unread(Whose, Arc<tokio::sync::Mutex<()>>),
}

/// The payers of a request, with their limits.
const fn payers(scope: &Scope) -> [(Whose, &Limits); 2] {
    [(Whose::Project(scope.project), &scope.limits), (Whose::Org(scope.org), &scope.org_limits)]
}

impl Allowances {
    /// Starts from what the database and the meter's journal hold.
    pub fn new(meter: Meter, clock: Clock) -> Self {
        let shared = meter.db().is_shared();
        let entries = Mutex::new(Entries { all: HashMap::new(), most: ENTRIES });
        Self { inner: Arc::new(Inner { meter, clock, shared, entries }) }
    }

    /// Sets aside what a request may take: 403 where the money of the month does not suffice, 429 where the tokens of
    /// the minute do not. A request for more than a whole limit passes when nothing is used or set aside.
    pub async fn reserve(&self, scope: &Scope, tokens: u64, cost: Nano) -> Result<Reservation> {
        let cost = bound::cost(cost);
        loop {
            match self.inner.look(scope, tokens, cost)? {
                Look::LetIn(of) => return Ok(Reservation { inner: self.inner.clone(), of, cost, closed: false }),
                // Rare and large: without the box, the future of every request would hold room for it.
                Look::Unread(whose, reading) => Box::pin(self.inner.read(whose, &reading)).await?,
            }
        }
    }
}

impl Inner {
    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks every payer and, if the request fits all of them, sets its cost aside in the same step.
    fn look(&self, scope: &Scope, tokens: u64, cost: Nano) -> Result<Look> {
        let mut entries = self.entries();
        let now = self.clock.now();
        let payers = payers(scope);
        for (whose, limits) in payers {
            let entry = entries.of(whose, now);
            if let Some(units) = limits.spend_per_month {
                let Some(others) = entry.money.known(now) else {
                    return Ok(Look::Unread(whose, entry.reading.clone()));
                };
                entry.money.check(others, (whose.word(), units), cost)?;
            }
            if let Some(limit) = limits.tokens_per_minute {
                entry.tokens.check((whose.word(), limit), tokens, entry.open == 0, now)?;
            }
        }
        Ok(Look::LetIn(payers.map(|(whose, limits)| {
            let entry = entries.of(whose, now);
            if limits.tokens_per_minute.is_some() {
                entry.tokens.add(tokens);
            }
            entry.money.aside += cost;
            entry.open += 1;
            Aside { whose, tokens: limits.tokens_per_minute.map(|_| tokens), month: entry.money.month.begin }
        })))
    }

    /// Reads what others spent. Requests that wait for the same payer share one read.
    async fn read(&self, whose: Whose, reading: &tokio::sync::Mutex<()>) -> Result<()> {
        let _one_reads = reading.lock().await;
        let before = self.clock.now();
        let (month, since, first) = {
            let mut entries = self.entries();
            let entry = entries.of(whose, before);
            if entry.money.known(before).is_some() {
                return Ok(());
            }
            (entry.money.month, entry.since, entry.money.others.is_none())
        };
        if first {
            // The rows must hold everything from before this entry's time, including what a dead service left in its
            // journal.
            self.meter.flush().await?;
        }
        let own = (self.meter.service(), since);
        let models = store::usage::spent(self.meter.db(), whose, month.begin, own).await?;
        let machines = resource_usage::spent(self.meter.db(), whose, before).await?;
        let is_priced = resource_usage::is_priced(self.meter.db()).await?;
        let now = self.clock.now();
        let rest = now.0.saturating_sub(before.0).saturating_mul(REST).max(Timestamp::SECOND);
        let until = match (self.shared, is_priced) {
            (true, _) => Timestamp(now.0.saturating_add(rest)),
            (false, true) => Timestamp(now.0.saturating_add(rest)).max(now.plus_seconds(MACHINES)),
            (false, false) => Timestamp(i64::MAX),
        };
        let mut entries = self.entries();
        let entry = entries.of(whose, now);
        if entry.money.month == month && entry.since == since {
            entry.money.others = Some(Others { spent: models + machines, until });
        }
        Ok(())
    }
}

impl Reservation {
    /// Settles what the request took. Only the first call counts.
    pub fn settle(&mut self, tokens: u64, cost: Nano) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        let mut entries = self.inner.entries();
        let now = self.inner.clock.now();
        for Aside { whose, tokens: aside, month } in self.of {
            let entry = entries.of(whose, now);
            entry.open = entry.open.saturating_sub(1);
            if let Some(aside) = aside {
                entry.tokens.settle(aside, tokens, now);
            }
            // A request costs the month in which it was made.
            if entry.money.month.begin == month {
                entry.money.aside = entry.money.aside - self.cost;
                entry.money.own += bound::cost(cost);
            }
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.settle(0, Nano(0));
    }
}

#[cfg(test)]
mod tests;
