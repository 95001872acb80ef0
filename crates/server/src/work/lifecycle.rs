//! The life of a row: look, plan, step, record, and again; one driver for every kind of row.
//!
//! A [`Life`] holds what is particular to a kind: how to read its rows, how to plan, and how to do and record a step.
//! This file holds what is general. It takes steps until the plan has none. Each step is repeatable and is recorded
//! only onto the row it was decided for, so a crash between any two lines costs a repetition and no more. After a
//! failure that may pass, it tries again, ever later, until the plan's deadline. A final failure is recorded once, with
//! the engine's sentence, and the row is given up.
//!
//! Every step passes a fault point before and after, `{kind}.{step}.before` and `.after`; a step with a moment in
//! between calls [`fault`] there itself. So every step has its points, and tests list the steps of a plan to prove that
//! they reach each point.

use std::collections::HashMap;
use std::fmt::{Debug, Display};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use berth_domain::ids::Owner;
use berth_domain::{Error, Result, Timestamp};
use berth_host::EngineError;
use berth_host::clock::Clock;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{Driver, Due, Poker, Reconciler};
use crate::db::{Db, DbError};

/// Steps of one run: far more than a life needs, so that a defect cannot loop for ever.
const MAX_STEPS: usize = 200;
/// Longest pause between two tries of a failing step, in seconds.
const LONGEST_PAUSE: i64 = 15;
/// Wait when not even the pause could be recorded.
const BLIND_PAUSE: Duration = Duration::from_millis(500);

/// Why a step did not finish.
#[derive(Debug)]
pub enum StepError {
    /// The engine could not do it.
    Engine(EngineError),
    /// The service could not record it, or has a defect.
    Own(Error),
}

impl From<EngineError> for StepError {
    fn from(error: EngineError) -> Self {
        Self::Engine(error)
    }
}

impl From<Error> for StepError {
    fn from(error: Error) -> Self {
        Self::Own(error)
    }
}

impl From<DbError> for StepError {
    fn from(error: DbError) -> Self {
        Self::Own(error.into())
    }
}

/// Passes the fault point of this name.
///
/// # Errors
/// What a failing step would report, where a test asked for that.
pub async fn fault(kind: &str, step: &str, moment: &str) -> Result<(), StepError> {
    berth_host::fault::point(&format!("{kind}.{step}.{moment}"))
        .await
        .map_err(|text| StepError::Engine(EngineError::Transient(text)))
}

/// The result of planning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next<S> {
    /// Take this step.
    Take(S),
    /// Do nothing before this time; without a time, until the wish changes.
    Rest(Option<Timestamp>),
}

/// What is particular to one kind of row.
pub trait Life: Send + Sync + 'static {
    /// What names a row.
    type Key: Clone + Eq + Hash + Send + Sync + Debug + Display + 'static;
    /// A row as read, with the rows that belong to it.
    type Seen: Send + Sync;
    /// One thing to do.
    type Step: Send + Sync;

    /// The table whose signals wake it.
    const TABLE: &'static str;
    /// The kind of row, in logs and in the names of fault points.
    const KIND: &'static str;
    /// Whether a stop of the service drops a step under way; else the service waits for the step.
    const DROPPED_BY_A_STOP: bool = false;

    /// Rows that want work at `now`, at most `limit`.
    fn due(&self, now: Timestamp, limit: usize) -> impl Future<Output = Result<Due<Self::Key>>> + Send;

    /// The owner of a poked key, if keys have owners.
    fn owner(&self, key: &Self::Key) -> impl Future<Output = Option<Owner>> + Send {
        let _ = key;
        async { None }
    }

    /// Reads a row; none if it is gone.
    fn look(&self, key: &Self::Key) -> impl Future<Output = Result<Option<Self::Seen>, StepError>> + Send;

    /// Asks the host for the present state, and decides what comes next.
    fn plan(&self, seen: &Self::Seen) -> impl Future<Output = Result<Next<Self::Step>, StepError>> + Send;

    /// The name of a step.
    fn name(step: &Self::Step) -> &'static str;

    /// Does a step, and records it onto the row it was decided for.
    fn take(&self, seen: &Self::Seen, step: Self::Step) -> impl Future<Output = Result<(), StepError>> + Send;

    /// Goes on from this generation, which is later than all that the host has acted on: the database is an older copy,
    /// so that what runs there is not what the row describes. False where the row counts no starts, or is there
    /// already. Who was overtaken by another service does not get this far, since that one alone writes rows.
    fn catch_up(&self, seen: &Self::Seen, generation: i64) -> impl Future<Output = Result<bool, StepError>> + Send {
        let _ = (seen, generation);
        async { Ok(false) }
    }

    /// Notes when to look again at a row at rest, unless the row changed since it was read.
    fn rest(&self, seen: &Self::Seen, until: Option<Timestamp>) -> impl Future<Output = Result<(), StepError>> + Send;

    /// Makes a row wait after a failure, unless it changed since the failed step was decided: a new wish does not wait.
    fn postpone(&self, seen: &Self::Seen, until: Timestamp) -> impl Future<Output = Result<(), StepError>> + Send;

    /// Records a final failure. False if this row is not given up, and is tried again instead.
    fn give_up(&self, seen: &Self::Seen, error: &EngineError) -> impl Future<Output = Result<bool, StepError>> + Send;
}

/// Takes the rows of one kind through their lives.
pub struct Lifecycle<L: Life> {
    life: L,
    clock: Clock,
    stop: CancellationToken,
    /// Number of failures in a row, by key.
    failures: Mutex<HashMap<L::Key, u32>>,
}

impl<L: Life> Lifecycle<L> {
    /// A lifecycle that runs until told to stop.
    pub fn new(life: L, clock: Clock, stop: CancellationToken) -> Self {
        Self { life, clock, stop, failures: Mutex::default() }
    }

    /// Starts the work with so many workers; returns the way to poke a row.
    pub fn spawn(self, tasks: &mut JoinSet<()>, db: &Db, workers: usize) -> Poker<L::Key> {
        let (clock, stop) = (self.clock.clone(), self.stop.clone());
        let (driver, poke) = Driver::new(Arc::new(self), db.clone(), clock, workers);
        tasks.spawn(driver.run(stop));
        poke
    }

    fn failures(&self) -> MutexGuard<'_, HashMap<L::Key, u32>> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes steps until there is none or the service stops; `last` is the row for which the last one was decided.
    async fn bring_about(&self, key: &L::Key, last: &mut Option<L::Seen>) -> Result<(), StepError> {
        for _ in 0..MAX_STEPS {
            if self.stop.is_cancelled() {
                return Ok(());
            }
            let Some(seen) = self.life.look(key).await? else { return Ok(()) };
            let seen = last.insert(seen);
            match self.life.plan(seen).await? {
                Next::Rest(until) => return self.life.rest(seen, until).await,
                Next::Take(step) => {
                    let name = L::name(&step);
                    tracing::debug!(kind = L::KIND, id = %key, step = name, "step");
                    fault(L::KIND, name, "before").await?;
                    self.life.take(seen, step).await?;
                    fault(L::KIND, name, "after").await?;
                }
            }
        }
        Err(Error::internal(format!("no rest after {MAX_STEPS} steps")).into())
    }

    /// Records a final failure; after any other, tries the step again later.
    async fn failed(&self, key: &L::Key, seen: Option<L::Seen>, error: StepError) -> Result<(), StepError> {
        match error {
            StepError::Engine(error) if error.is_final() => {
                // If the row changed meanwhile, its present state is given up.
                let Some(seen) = self.life.look(key).await? else { return Ok(()) };
                if self.life.give_up(&seen, &error).await? {
                    return Ok(());
                }
                tracing::warn!(kind = L::KIND, id = %key, %error, "a step failed; trying again");
                self.later(key, Some(seen)).await
            }
            StepError::Engine(EngineError::Outdated(known)) => {
                tracing::warn!(kind = L::KIND, id = %key, known, "its host has acted on a later decision; going on after it");
                match &seen {
                    Some(row) if self.life.catch_up(row, known.saturating_add(1)).await? => Ok(()),
                    _ => self.later(key, seen).await,
                }
            }
            StepError::Engine(error) => {
                tracing::warn!(kind = L::KIND, id = %key, %error, "a step failed; trying again");
                self.later(key, seen).await
            }
            StepError::Own(error) => {
                tracing::error!(kind = L::KIND, id = %key, %error, "a step failed; trying again");
                self.later(key, seen).await
            }
        }
    }

    async fn later(&self, key: &L::Key, seen: Option<L::Seen>) -> Result<(), StepError> {
        let failures = {
            let mut all = self.failures();
            let entry = all.entry(key.clone()).or_default();
            *entry = entry.saturating_add(1);
            *entry
        };
        let Some(seen) = seen else {
            // No row was read, so none can be made to wait.
            tokio::time::sleep(BLIND_PAUSE).await;
            return Ok(());
        };
        let until = self.clock.now().plus_seconds(pause(failures));
        self.life.postpone(&seen, until).await
    }
}

/// Seconds to wait after so many failures in a row.
fn pause(failures: u32) -> i64 {
    1_i64.checked_shl(failures.saturating_sub(1)).unwrap_or(LONGEST_PAUSE).clamp(1, LONGEST_PAUSE)
}

impl<L: Life> Reconciler for Lifecycle<L> {
    type Key = L::Key;
    const TABLE: &'static str = L::TABLE;

    async fn due(&self, now: Timestamp, limit: usize) -> Result<Due<L::Key>> {
        self.life.due(now, limit).await
    }

    async fn owner(&self, key: &L::Key) -> Option<Owner> {
        self.life.owner(key).await
    }

    async fn reconcile(&self, key: L::Key) {
        let mut seen = None;
        let outcome = {
            let work = self.bring_about(&key, &mut seen);
            tokio::select! {
                () = self.stop.cancelled(), if L::DROPPED_BY_A_STOP => return,
                outcome = work => outcome,
            }
        };
        let Err(error) = outcome else {
            self.failures().remove(&key);
            return;
        };
        if let Err(error) = self.failed(&key, seen, error).await {
            tracing::error!(kind = L::KIND, id = %key, ?error, "the failure could not be recorded; trying again");
            tokio::time::sleep(BLIND_PAUSE).await;
        }
    }
}

#[cfg(test)]
#[path = "lifecycle_tests.rs"]
mod tests;
