//! Drives reconcilers.
//!
//! A reconciler takes no input but a key, is safe to repeat, and runs once at a time for each key. Rows say when they
//! want work (`work_at`), so a crash forgets nothing. A committed transaction wakes the driver at once; an engine can
//! poke a key; a timer stands behind both, for lost wake-ups and for rows whose time has come. While rows wait for a
//! worker, the driver reads the list at most ten times a second, and spends at most a tenth of its time on that.
//!
//! Workers are few, and a hostile guest can keep one busy as long as its deadlines allow. So rows wait in a
//! [`fair::Queue`]: organizations take turns, one that holds many workers leaves as many to the others, and within its
//! turns its projects take theirs. A key that was poked while a worker had it waits for its turn again.

use std::collections::HashSet;
use std::hash::Hash;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use berth_domain::ids::{OrgId, Owner, ProjectId};
use berth_domain::{Result, Timestamp, fair};
use berth_host::clock::Clock;
use futures::FutureExt;
use tokio::sync::{Notify, broadcast, mpsc};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use crate::db::due::Due;
use crate::db::{Db, Signal};

pub mod host;
pub mod lifecycle;

/// Rows fetched at a time.
const BATCH: usize = 256;
/// Longest time between two looks at the rows.
const IDLE: Duration = Duration::from_secs(2);
/// Shortest time between two reads of the list while rows wait for a worker. Every written row wakes the driver, which
/// would else read a queue of thousands each time.
const WHILE_BUSY: Duration = Duration::from_millis(100);
/// The same as a multiple of the last read's duration: the more rows are due, the longer it takes to order them.
const TIMES_A_LOOK: u32 = 10;
/// Wait after the database did not answer.
const BACKOFF: Duration = Duration::from_millis(500);
/// Wait after the work on a row panicked.
const AFTER_PANIC: Duration = Duration::from_secs(5);

/// Makes the world agree with one kind of row.
pub trait Reconciler: Send + Sync + 'static {
    /// What names a row.
    type Key: Clone + Eq + Hash + Send + Sync + std::fmt::Debug + 'static;

    /// The table whose signals wake it.
    const TABLE: &'static str;

    /// Rows that want work at `now`, at most `limit`.
    fn due(&self, now: Timestamp, limit: usize) -> impl Future<Output = Result<Due<Self::Key>>> + Send;

    /// The owner of a poked key, if keys have owners.
    fn owner(&self, key: &Self::Key) -> impl Future<Output = Option<Owner>> + Send {
        let _ = key;
        async { None }
    }

    /// Works on one row until it rests or waits. The reconciler records its own failures.
    fn reconcile(&self, key: Self::Key) -> impl Future<Output = ()> + Send;
}

/// Pokes single keys from outside the driver.
#[derive(Clone, Debug)]
pub struct Poker<K>(mpsc::UnboundedSender<K>);

impl<K> Poker<K> {
    /// Asks for work on this key as soon as possible, whatever its row says.
    pub fn poke(&self, key: K) {
        // A driver that has ended takes no more work.
        let _ = self.0.send(key);
    }
}

/// The driver of one reconciler.
pub struct Driver<R: Reconciler> {
    reconciler: Arc<R>,
    db: Db,
    clock: Clock,
    work: Arc<Mutex<Work<R::Key>>>,
    freed: Arc<Notify>,
    pokes: mpsc::UnboundedReceiver<R::Key>,
    tasks: JoinSet<()>,
    /// Whether the last read of the work list failed.
    blind: bool,
}

/// Keys that wait for a worker or have one.
struct Work<K> {
    queue: fair::Queue<OrgId, ProjectId, K>,
    waiting: HashSet<K>,
    running: HashSet<K>,
    /// Running keys that were asked for again.
    again: HashSet<K>,
}

impl<K: Clone + Eq + Hash> Work<K> {
    fn new(workers: usize) -> Self {
        let queue = fair::Queue::new(workers);
        Self { queue, waiting: HashSet::new(), running: HashSet::new(), again: HashSet::new() }
    }

    /// Whether a key has to be queued. A running key is noted for another turn.
    fn note(&mut self, key: &K) -> bool {
        if self.running.contains(key) {
            self.again.insert(key.clone());
            return false;
        }
        !self.waiting.contains(key)
    }

    fn add(&mut self, key: K, owner: Option<Owner>) {
        if self.note(&key) {
            self.waiting.insert(key.clone());
            self.queue.push(owner, key);
        }
    }

    fn next(&mut self) -> Option<(Option<Owner>, K)> {
        let (owner, key) = self.queue.begin()?;
        self.waiting.remove(&key);
        self.running.insert(key.clone());
        Some((owner, key))
    }

    fn done(&mut self, owner: Option<Owner>, key: K) {
        self.queue.done(owner.as_ref());
        self.running.remove(&key);
        if self.again.remove(&key) {
            self.add(key, owner);
        }
    }
}

impl<R: Reconciler> Driver<R> {
    /// A driver with so many workers, and the way to poke it.
    pub fn new(reconciler: Arc<R>, db: Db, clock: Clock, workers: usize) -> (Self, Poker<R::Key>) {
        let (sender, pokes) = mpsc::unbounded_channel();
        let driver = Self {
            reconciler,
            db,
            clock,
            work: Arc::new(Mutex::new(Work::new(workers))),
            freed: Arc::new(Notify::new()),
            pokes,
            tasks: JoinSet::new(),
            blind: false,
        };
        (driver, Poker(sender))
    }

    /// Works until told to stop; then waits for the work under way.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut signals = self.db.watch();
        let freed = self.freed.clone();
        let mut look_at = Instant::now();
        let mut busy_until = look_at;
        loop {
            let now = Instant::now();
            if now >= look_at {
                look_at = now + self.look().await;
                busy_until = now + (now.elapsed() * TIMES_A_LOOK).clamp(WHILE_BUSY, IDLE);
            }
            self.begin();
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep_until(look_at) => {}
                () = woken::<R>(&mut signals) => look_at = look_at.min(self.next_look(busy_until)),
                () = freed.notified() => look_at = look_at.min(self.next_look(busy_until)),
                // The channel may have no senders left.
                Some(key) = self.pokes.recv() => self.poked(key).await,
            }
            while self.tasks.try_join_next().is_some() {}
        }
        while self.tasks.join_next().await.is_some() {}
    }

    /// When to read the list after a row was written or a worker became free: at once, or a moment later if rows wait
    /// already.
    fn next_look(&self, busy_until: Instant) -> Instant {
        if lock(&self.work).waiting.is_empty() { Instant::now() } else { busy_until }
    }

    /// Reads the due rows and queues them. Returns the time until the next read.
    async fn look(&mut self) -> Duration {
        let now = self.clock.now();
        match self.reconciler.due(now, BATCH).await {
            Ok(due) => {
                if std::mem::take(&mut self.blind) {
                    tracing::info!(table = R::TABLE, "the work list can be read again");
                }
                let mut work = lock(&self.work);
                for (key, owner) in due.now {
                    // A row stays due while a worker has it. If it is still due afterwards, the next read finds it.
                    if !work.running.contains(&key) {
                        work.add(key, owner);
                    }
                }
                let wait = due.next.map_or(i64::MAX, |at| (at.0 - now.0).max(1000));
                IDLE.min(Duration::from_micros(wait.unsigned_abs()))
            }
            Err(error) => {
                // Logged once: a database that is away for an hour is one fact.
                if !std::mem::replace(&mut self.blind, true) {
                    tracing::error!(table = R::TABLE, %error, "the work list cannot be read; trying until it can");
                }
                BACKOFF
            }
        }
    }

    async fn poked(&mut self, key: R::Key) {
        if lock(&self.work).note(&key) {
            let owner = self.reconciler.owner(&key).await;
            lock(&self.work).add(key, owner);
        }
    }

    /// Starts as many turns as there are free workers.
    fn begin(&mut self) {
        loop {
            let Some((owner, key)) = lock(&self.work).next() else { return };
            let reconciler = self.reconciler.clone();
            let turn = Turn { work: self.work.clone(), freed: self.freed.clone(), owner, key };
            self.tasks.spawn(async move {
                let work = AssertUnwindSafe(reconciler.reconcile(turn.key.clone()));
                if work.catch_unwind().await.is_err() {
                    // The panic has logged its place. The row is still due, and is tried again in good time.
                    tracing::error!(table = R::TABLE, key = ?turn.key, "the work on a row panicked; trying again");
                    tokio::time::sleep(AFTER_PANIC).await;
                }
            });
        }
    }
}

/// A worker's turn at a key. Dropping it frees the worker, however the work ended.
struct Turn<K: Clone + Eq + Hash> {
    work: Arc<Mutex<Work<K>>>,
    freed: Arc<Notify>,
    owner: Option<Owner>,
    key: K,
}

impl<K: Clone + Eq + Hash> Drop for Turn<K> {
    fn drop(&mut self) {
        lock(&self.work).done(self.owner, self.key.clone());
        self.freed.notify_one();
    }
}

fn lock<K>(work: &Mutex<Work<K>>) -> std::sync::MutexGuard<'_, Work<K>> {
    work.lock().unwrap_or_else(PoisonError::into_inner)
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

    use berth_domain::Error;

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
            Ok(Due { now: vec![(1, None)], next: None })
        }

        async fn reconcile(&self, _: u32) {
            self.0.fetch_add(1, Ordering::Relaxed);
            panic!("on purpose");
        }
    }

    /// Rows of forty projects that never end, and one of another.
    struct Stuck {
        greedy: OrgId,
        modest: Owner,
        done: Notify,
    }

    fn org(number: u128) -> OrgId {
        OrgId(uuid::Uuid::from_u128(number))
    }

    fn project(number: u128) -> ProjectId {
        ProjectId(uuid::Uuid::from_u128(number))
    }

    impl Reconciler for Stuck {
        type Key = u32;
        const TABLE: &'static str = "stuck";

        async fn due(&self, _: Timestamp, _: usize) -> Result<Due<u32>> {
            let greedy = (0..40).map(|key| (key, Some((self.greedy, project(key.into())))));
            Ok(Due { now: greedy.chain([(100, Some(self.modest))]).collect(), next: None })
        }

        async fn reconcile(&self, key: u32) {
            if key < 100 {
                return std::future::pending().await;
            }
            self.done.notify_one();
        }
    }

    /// Rows that cannot be listed at first.
    struct Blind {
        looks: AtomicUsize,
        sees: Notify,
    }

    impl Reconciler for Blind {
        type Key = u32;
        const TABLE: &'static str = "blind";

        async fn due(&self, _: Timestamp, _: usize) -> Result<Due<u32>> {
            if self.looks.fetch_add(1, Ordering::Relaxed) < 3 {
                return Err(Error::unavailable("the database is away"));
            }
            self.sees.notify_one();
            Ok(Due { now: Vec::new(), next: None })
        }

        async fn reconcile(&self, _: u32) {}
    }

    /// A thousand rows, each done in a moment.
    struct Many {
        left: Mutex<HashSet<u32>>,
        looks: AtomicUsize,
        done: Notify,
    }

    impl Reconciler for Many {
        type Key = u32;
        const TABLE: &'static str = "many";

        async fn due(&self, _: Timestamp, limit: usize) -> Result<Due<u32>> {
            self.looks.fetch_add(1, Ordering::Relaxed);
            let left = self.left.lock().unwrap();
            Ok(Due { now: left.iter().take(limit).map(|key| (*key, None)).collect(), next: None })
        }

        async fn reconcile(&self, key: u32) {
            let mut left = self.left.lock().unwrap();
            left.remove(&key);
            if left.is_empty() {
                self.done.notify_one();
            }
        }
    }

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            lock_log(self).write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn lock_log(log: &Log) -> std::sync::MutexGuard<'_, Vec<u8>> {
        log.0.lock().unwrap()
    }

    #[tokio::test]
    async fn a_database_that_is_away_is_told_once_and_once_more_when_it_is_back() {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_env_filter("info").with_writer(move || writer.clone()).finish();
        let _subscribed = tracing::subscriber::set_default(subscriber);
        let dir = tempfile::tempdir().unwrap();
        let blind = Arc::new(Blind { looks: AtomicUsize::new(0), sees: Notify::new() });
        let (driver, _poker) = Driver::new(blind.clone(), database(&dir).await, Clock::default(), 1);
        let stop = CancellationToken::new();
        // On this thread, whose log the test reads.
        tokio::join!(driver.run(stop.clone()), async {
            blind.sees.notified().await;
            stop.cancel();
        });
        let text = String::from_utf8(lock_log(&log).clone()).unwrap();
        let told = |word: &str| text.lines().filter(|line| line.contains("blind") && line.contains(word)).count();
        assert_eq!((told("cannot be read"), told("can be read again")), (1, 1), "{text}");
    }

    async fn database(dir: &tempfile::TempDir) -> Db {
        Db::open(&format!("sqlite:{}", dir.path().join("db").display())).await.unwrap()
    }

    #[tokio::test]
    async fn one_organizations_projects_do_not_take_every_worker() {
        let dir = tempfile::tempdir().unwrap();
        let (greedy, modest) = (org(1), (org(2), project(100)));
        let stuck = Arc::new(Stuck { greedy, modest, done: Notify::new() });
        let (driver, _poker) = Driver::new(stuck.clone(), database(&dir).await, Clock::default(), 4);
        let running = tokio::spawn(driver.run(CancellationToken::new()));
        tokio::time::timeout(Duration::from_secs(30), stuck.done.notified()).await.expect("its turn comes");
        running.abort();
    }

    #[tokio::test]
    async fn the_list_is_not_read_for_each_row_that_is_done() {
        let dir = tempfile::tempdir().unwrap();
        let left = Mutex::new((0..1_000).collect());
        let many = Arc::new(Many { left, looks: AtomicUsize::new(0), done: Notify::new() });
        let (driver, _poker) = Driver::new(many.clone(), database(&dir).await, Clock::default(), 1);
        let running = tokio::spawn(driver.run(CancellationToken::new()));
        tokio::time::timeout(Duration::from_mins(1), many.done.notified()).await.expect("the last row");
        running.abort();
        let looks = many.looks.load(Ordering::Relaxed);
        assert!(looks < 500, "{looks} looks for 1,000 rows");
    }

    #[tokio::test]
    async fn a_row_that_panics_does_not_spin() {
        let dir = tempfile::tempdir().unwrap();
        let db = database(&dir).await;
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
        let db = database(&dir).await;
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
