//! The life of a row: look, plan, step, record, and again, the same for whatever has one.
//!
//! A [`Life`] says what is particular: how its rows are read, what its plan is, how a step is done and recorded. What
//! is general stands here once. Steps are taken until there is none to take. Doing is repeatable, and a step is
//! recorded only onto the row it was decided for, so a crash between any two lines costs a repetition and no more.
//! Failures that may pass are tried again, ever later; a plan's deadline ends them. One that will not pass is given up
//! once, with the sentence that the engine said.
//!
//! Every step passes a fault point before and after, `{kind}.{step}.before` and `.after`; what has a moment in between
//! passes [`fault`] there itself. So no step is without its point, and tests list the steps of a plan to prove that
//! each point is reached.

use std::collections::HashMap;
use std::fmt::{Debug, Display};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use berth_domain::ids::Owner;
use berth_domain::{Error, Result, Timestamp};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{Driver, Due, Poker, Reconciler};
use crate::clock::Clock;
use crate::db::{Db, DbError};
use crate::engine::EngineError;

/// Steps of one run: far more than a life needs, so that a defect cannot spin for ever.
const MAX_STEPS: usize = 200;
/// Longest pause between two tries of a failing step, in seconds.
const LONGEST_PAUSE: i64 = 15;
/// Wait when not even the pause could be recorded.
const BLIND_PAUSE: Duration = Duration::from_millis(500);

/// Why a step did not come to its end.
#[derive(Debug)]
pub enum StepError {
    /// The engine could not do it.
    Engine(EngineError),
    /// It could not be recorded, or a defect of ours.
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
    crate::fault::point(&format!("{kind}.{step}.{moment}"))
        .await
        .map_err(|text| StepError::Engine(EngineError::Transient(text)))
}

/// What a plan says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next<S> {
    /// Take this step.
    Take(S),
    /// Nothing to do before this time; none: until somebody wishes something else.
    Rest(Option<Timestamp>),
}

/// What is particular to one kind of row.
pub trait Life: Send + Sync + 'static {
    /// What names a row.
    type Key: Clone + Eq + Hash + Send + Sync + Debug + Display + 'static;
    /// A row as it was read, with the rows that belong to it.
    type Seen: Send + Sync;
    /// One thing to do.
    type Step: Send + Sync;

    /// The table whose signals wake it.
    const TABLE: &'static str;
    /// What a row is, in logs and in the names of fault points.
    const KIND: &'static str;
    /// Whether a step that is under way is dropped when the service stops; else it is waited for.
    const DROPPED_BY_A_STOP: bool = false;

    /// Rows that want work at `now`, at most `limit`.
    fn due(&self, now: Timestamp, limit: usize) -> impl Future<Output = Result<Due<Self::Key>>> + Send;

    /// Whose a key is that was poked, where keys are somebody's.
    fn owner(&self, key: &Self::Key) -> impl Future<Output = Option<Owner>> + Send {
        let _ = key;
        async { None }
    }

    /// Reads a row; none where it is gone.
    fn look(&self, key: &Self::Key) -> impl Future<Output = Result<Option<Self::Seen>, StepError>> + Send;

    /// Asks the host what there is, and decides what comes next.
    fn plan(&self, seen: &Self::Seen) -> impl Future<Output = Result<Next<Self::Step>, StepError>> + Send;

    /// What a step is called.
    fn name(step: &Self::Step) -> &'static str;

    /// Does a step, and records it onto the row it was decided for.
    fn take(&self, seen: &Self::Seen, step: Self::Step) -> impl Future<Output = Result<(), StepError>> + Send;

    /// Notes when a row at rest is to be looked at again, unless it changed since it was seen.
    fn rest(&self, seen: &Self::Seen, until: Option<Timestamp>) -> impl Future<Output = Result<(), StepError>> + Send;

    /// Has a row wait after a failure, if it still is what the failed step was decided for: another wish does not wait.
    fn postpone(&self, seen: &Self::Seen, until: Timestamp) -> impl Future<Output = Result<(), StepError>> + Send;

    /// Records a failure that will not pass. False where this row is not given up, and is tried again instead.
    fn give_up(&self, seen: &Self::Seen, error: &EngineError) -> impl Future<Output = Result<bool, StepError>> + Send;
}

/// Takes the rows of one kind through their lives.
pub struct Lifecycle<L: Life> {
    life: L,
    clock: Clock,
    stop: CancellationToken,
    /// How often in a row the steps of a key failed.
    failures: Mutex<HashMap<L::Key, u32>>,
}

impl<L: Life> Lifecycle<L> {
    /// Until told to stop.
    pub fn new(life: L, clock: Clock, stop: CancellationToken) -> Self {
        Self { life, clock, stop, failures: Mutex::default() }
    }

    /// Begins the work on them, with so many workers; the way to poke one.
    pub fn spawn(self, tasks: &mut JoinSet<()>, db: &Db, workers: usize) -> Poker<L::Key> {
        let (clock, stop) = (self.clock.clone(), self.stop.clone());
        let (driver, poke) = Driver::new(Arc::new(self), db.clone(), clock, workers);
        tasks.spawn(driver.run(stop));
        poke
    }

    fn failures(&self) -> MutexGuard<'_, HashMap<L::Key, u32>> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes steps until there is none to take, or the service stops; `last` is what the last one was decided for.
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

    /// Tries a failing step again later; a failure that will not pass is recorded.
    async fn failed(&self, key: &L::Key, seen: Option<L::Seen>, error: StepError) -> Result<(), StepError> {
        match error {
            StepError::Engine(error) if error.is_final() => {
                // A row that changed meanwhile is given up as it is now.
                let Some(seen) = self.life.look(key).await? else { return Ok(()) };
                if self.life.give_up(&seen, &error).await? {
                    return Ok(());
                }
                tracing::warn!(kind = L::KIND, id = %key, %error, "a step failed; trying again");
                self.later(key, Some(seen)).await
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
            // Nothing was read that could be told to wait.
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
