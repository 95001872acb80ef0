//! Drives reconcilers.
//!
//! A reconciler takes no input but a key, is safe to repeat, and runs once at a time for each key. Rows
//! say when they want to be looked at (`work_at`), so nothing is forgotten in a crash. A committed
//! transaction wakes the driver at once; an engine pokes a key; a timer stands behind both, for the
//! wake-up that was lost and for the time that has come.

use std::collections::HashSet;
use std::hash::Hash;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use berth_domain::{Result, Timestamp};
use futures::FutureExt;
use tokio::sync::{Notify, Semaphore, broadcast, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::db::{Db, Signal};

/// Rows fetched at a time.
const BATCH: usize = 256;
/// Longest time between two looks at the rows.
const IDLE: Duration = Duration::from_secs(2);
/// Wait after the database did not answer.
const BACKOFF: Duration = Duration::from_millis(500);
/// Wait after the work on a row panicked.
const AFTER_PANIC: Duration = Duration::from_secs(5);

/// Rows that want work.
#[derive(Debug)]
pub struct Due<K> {
    /// Those whose time has come, longest due first.
    pub now: Vec<K>,
    /// When the next one's time comes.
    pub next: Option<Timestamp>,
}

impl<K> Due<K> {
    /// Sorts a work list, longest due first, into what is due and what comes next.
    pub fn at(now: Timestamp, list: Vec<(K, Timestamp)>) -> Self {
        let next = list.iter().map(|(_, at)| *at).find(|at| *at > now);
        Self { now: list.into_iter().filter(|(_, at)| *at <= now).map(|(key, _)| key).collect(), next }
    }
}

/// Makes the world agree with one kind of row.
pub trait Reconciler: Send + Sync + 'static {
    /// What names a row.
    type Key: Clone + Eq + Hash + Send + Sync + std::fmt::Debug + 'static;

    /// The table whose signals wake it.
    const TABLE: &'static str;

    /// Rows that want work at `now`, at most `limit`.
    fn due(&self, now: Timestamp, limit: usize) -> impl Future<Output = Result<Due<Self::Key>>> + Send;

    /// Works on one row until it is at rest or waits. Failures are its own to record.
    fn reconcile(&self, key: Self::Key) -> impl Future<Output = ()> + Send;
}

/// Pokes single keys from outside.
#[derive(Clone, Debug)]
pub struct Poker<K>(mpsc::UnboundedSender<K>);

impl<K> Poker<K> {
    /// Has this key looked at as soon as possible, whatever its row says.
    pub fn poke(&self, key: K) {
        // A driver that ended takes no more work.
        let _ = self.0.send(key);
    }
}

/// The driver of one reconciler.
pub struct Driver<R: Reconciler> {
    reconciler: Arc<R>,
    db: Db,
    clock: Clock,
    slots: Arc<Semaphore>,
    busy: Arc<Mutex<Busy<R::Key>>>,
    freed: Arc<Notify>,
    pokes: mpsc::UnboundedReceiver<R::Key>,
    tasks: JoinSet<()>,
}

/// Keys being worked on, and those poked meanwhile.
struct Busy<K> {
    running: HashSet<K>,
    again: HashSet<K>,
}

impl<K: Eq + Hash> Busy<K> {
    /// Whether a key was poked while it was worked on; if not, it is free from this moment.
    fn once_more(&mut self, key: &K) -> bool {
        let again = self.again.remove(key);
        if !again {
            self.running.remove(key);
        }
        again
    }
}

impl<R: Reconciler> Driver<R> {
    /// A driver with so many workers, and the way to poke it.
    pub fn new(reconciler: Arc<R>, db: Db, clock: Clock, workers: usize) -> (Self, Poker<R::Key>) {
        let (sender, pokes) = mpsc::unbounded_channel();
        let busy = Busy { running: HashSet::new(), again: HashSet::new() };
        let driver = Self {
            reconciler,
            db,
            clock,
            slots: Arc::new(Semaphore::new(workers)),
            busy: Arc::new(Mutex::new(busy)),
            freed: Arc::new(Notify::new()),
            pokes,
            tasks: JoinSet::new(),
        };
        (driver, Poker(sender))
    }

    /// Works until told to stop; then lets what is under way come to its end.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut signals = self.db.watch();
        let freed = self.freed.clone();
        loop {
            let sleep = self.dispatch().await;
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(sleep) => {}
                () = woken::<R>(&mut signals) => {}
                () = freed.notified() => {}
                // Nobody may be left who pokes.
                Some(key) = self.pokes.recv() => self.spawn(key),
            }
            while self.tasks.try_join_next().is_some() {}
        }
        while self.tasks.join_next().await.is_some() {}
    }

    /// Starts work on every due row; how long nothing more is to be done.
    async fn dispatch(&mut self) -> Duration {
        let now = self.clock.now();
        match self.reconciler.due(now, BATCH).await {
            Ok(due) => {
                due.now.iter().for_each(|key| self.spawn(key.clone()));
                let wait = due.next.map_or(i64::MAX, |at| (at.0 - now.0).max(1000));
                IDLE.min(Duration::from_micros(wait.unsigned_abs()))
            }
            Err(error) => {
                tracing::error!(table = R::TABLE, %error, "the work list cannot be read; trying again");
                BACKOFF
            }
        }
    }

    fn spawn(&mut self, key: R::Key) {
        if !self.claim(&key) {
            return;
        }
        let reconciler = self.reconciler.clone();
        let (slots, busy, freed) = (self.slots.clone(), self.busy.clone(), self.freed.clone());
        self.tasks.spawn(async move {
            let _release = Release(freed);
            let Ok(_slot) = slots.acquire_owned().await else {
                return;
            };
            loop {
                let work = AssertUnwindSafe(reconciler.reconcile(key.clone()));
                if work.catch_unwind().await.is_err() {
                    // The panic told its place. The row is due still, and is tried again in good time.
                    tracing::error!(table = R::TABLE, ?key, "the work on a row panicked; trying again");
                    tokio::time::sleep(AFTER_PANIC).await;
                }
                if !lock(&busy).once_more(&key) {
                    break;
                }
            }
        });
    }

    /// Whether the key was free; one that is not is looked at once more afterwards.
    fn claim(&self, key: &R::Key) -> bool {
        let mut busy = lock(&self.busy);
        let free = busy.running.insert(key.clone());
        if !free {
            busy.again.insert(key.clone());
        }
        free
    }
}

/// Tells that a worker is free, whatever became of its work.
struct Release(Arc<Notify>);

impl Drop for Release {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

fn lock<K>(busy: &Mutex<Busy<K>>) -> std::sync::MutexGuard<'_, Busy<K>> {
    busy.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns when a row of the reconciler's table wants work, or when signals were missed.
async fn woken<R: Reconciler>(signals: &mut broadcast::Receiver<Signal>) {
    loop {
        match signals.recv().await {
            Ok(Signal::Work(table)) if table == R::TABLE => return,
            Ok(_) => {}
            Err(broadcast::error::RecvError::Lagged(_)) => return,
            Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[derive(Default)]
    struct Idle {
        looks: AtomicUsize,
    }

    impl Reconciler for Idle {
        type Key = u32;
        const TABLE: &'static str = "nothing";

        async fn due(&self, _: Timestamp, _: usize) -> Result<Due<u32>> {
            self.looks.fetch_add(1, Ordering::Relaxed);
            Ok(Due { now: Vec::new(), next: None })
        }

        async fn reconcile(&self, _: u32) {}
    }

    struct Panics(AtomicUsize);

    impl Reconciler for Panics {
        type Key = u32;
        const TABLE: &'static str = "panics";

        async fn due(&self, _: Timestamp, _: usize) -> Result<Due<u32>> {
            Ok(Due { now: vec![1], next: None })
        }

        async fn reconcile(&self, _: u32) {
            self.0.fetch_add(1, Ordering::Relaxed);
            panic!("on purpose");
        }
    }

    #[tokio::test]
    async fn a_row_that_panics_does_not_spin() {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(&format!("sqlite:{}", dir.path().join("db").display())).await.unwrap();
        let panics = Arc::new(Panics(AtomicUsize::new(0)));
        let (driver, _poker) = Driver::new(panics.clone(), db, Clock::default(), 1);
        let running = tokio::spawn(driver.run(CancellationToken::new()));
        tokio::time::sleep(Duration::from_millis(300)).await;
        running.abort();
        assert_eq!(panics.0.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn a_driver_without_work_rests() {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(&format!("sqlite:{}", dir.path().join("db").display())).await.unwrap();
        let idle = Arc::new(Idle::default());
        let (driver, poker) = Driver::new(idle.clone(), db, Clock::default(), 1);
        drop(poker);
        let stop = CancellationToken::new();
        let running = tokio::spawn(driver.run(stop.clone()));
        tokio::time::sleep(Duration::from_millis(300)).await;
        stop.cancel();
        running.await.unwrap();
        assert!((1..=3).contains(&idle.looks.load(Ordering::Relaxed)), "{:?}", idle.looks);
    }
}
