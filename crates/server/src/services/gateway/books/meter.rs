//! What requests took: counted off the path of requests, and in the database a moment later.
//!
//! A request pays for one append to the [journal](super::journal). A worker adds sealed segments to the
//! [totals](super::totals) of the database, oldest first, each in one transaction, and then removes the segment's file.
//! It may repeat an interrupted step without harm: the transaction notes the segment's number, and no segment is added
//! twice. A later record of a request holds only the difference to the earlier one.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context;
use berth_host::fault;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::journal::{Appended, Found, Journal, Segment};
use super::record::Record;
use super::totals::Line;
use crate::db::{Db, DbError};
use crate::services::gateway::store;

/// How long the worker gathers records before it moves them, and how long it waits between two tries.
const GATHER: Duration = Duration::from_secs(1);
/// Least time between two moves that readers cause: each move is a transaction, which keeps others from writing.
const BREATH: Duration = Duration::from_millis(200);

/// The meter of a service; its copies are the same one.
#[derive(Clone)]
pub struct Meter {
    inner: Arc<Inner>,
}

struct Inner {
    db: Db,
    service: Uuid,
    state: Mutex<State>,
    /// The task that moves segments holds this lock.
    moving: tokio::sync::Mutex<()>,
    /// Of the records written, how many are in the database.
    moved: AtomicU64,
    /// When a reader last had segments moved. The reader that has them moved holds the lock.
    reading: tokio::sync::Mutex<Option<Instant>>,
    wake: Notify,
    failing: AtomicBool,
    failures: AtomicU64,
    lost: AtomicU64,
}

struct State {
    journal: Journal,
    /// Records written so far; all that a dead service left counts as one.
    written: u64,
    /// Whether the worker was told that there is something to move.
    told: bool,
}

impl Meter {
    /// Opens the journal in a folder. The meter moves what a dead service left there first of all.
    pub fn open(dir: &Path, db: Db) -> anyhow::Result<Self> {
        let service = Uuid::now_v7();
        let journal = Journal::open(dir, service)
            .with_context(|| format!("the journal of usage cannot be opened in {}", dir.display()))?;
        let told = journal.sealed() > 0;
        let inner = Inner {
            db,
            service,
            state: Mutex::new(State { journal, written: told.into(), told }),
            moving: tokio::sync::Mutex::default(),
            moved: AtomicU64::new(0),
            reading: tokio::sync::Mutex::default(),
            wake: Notify::new(),
            failing: AtomicBool::new(false),
            failures: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        };
        if told {
            inner.wake.notify_one();
        }
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The run of the service that this meter's rows name as theirs.
    pub fn service(&self) -> Uuid {
        self.inner.service
    }

    /// The database that records are moved to.
    pub fn db(&self) -> &Db {
        &self.inner.db
    }

    /// Records that the journal could not write.
    pub fn failures(&self) -> u64 {
        self.inner.failures.load(Ordering::Relaxed)
    }

    /// Of those, the ones that found no room in memory either.
    pub fn lost(&self) -> u64 {
        self.inner.lost.load(Ordering::Relaxed)
    }

    /// Writes the part of a record that is not written yet. A failure to write does not fail the request.
    pub fn write(&self, record: &mut Record) {
        let counts = record.counts();
        let line = Line { group: record.group(), counts: counts - record.written };
        let text = match line.text() {
            Ok(text) => text,
            Err(error) => return self.note(Appended::Lost(error.into())),
        };
        let (appended, told) = {
            let mut state = self.state();
            state.written += 1;
            (state.journal.append(&line, &text), std::mem::replace(&mut state.told, true))
        };
        if !told {
            self.inner.wake.notify_one();
        }
        if !matches!(appended, Appended::Lost(_)) {
            record.written = counts;
        }
        self.note(appended);
    }

    /// Counts failures, and logs the first of a series.
    fn note(&self, appended: Appended) {
        let Inner { failing, failures, lost, .. } = &*self.inner;
        let (error, is_lost) = match appended {
            Appended::Written => {
                if failing.load(Ordering::Relaxed) {
                    failing.store(false, Ordering::Relaxed);
                }
                return;
            }
            Appended::Kept(error) => (error, false),
            Appended::Lost(error) => (error, true),
        };
        failures.fetch_add(1, Ordering::Relaxed);
        if !failing.swap(true, Ordering::Relaxed) {
            tracing::error!(%error, "usage cannot be written to the journal; it is kept in memory");
        }
        if is_lost && lost.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::error!(%error, "usage is lost: it can neither be written nor moved to the database");
        }
    }

    /// Moves everything written so far to the database.
    pub async fn flush(&self) -> Result<(), DbError> {
        let moved = self.move_all().await;
        if moved.is_err() {
            // The worker tries the rest.
            self.inner.wake.notify_one();
        }
        moved
    }

    /// Moves everything written before this call, for a reader. However many readers there are, segments move a few
    /// times a second: readers that come during a move wait together for the next one.
    pub async fn catch_up(&self) -> Result<(), DbError> {
        let wanted = self.state().written;
        let is_there = || self.inner.moved.load(Ordering::Acquire) >= wanted;
        if is_there() {
            return Ok(());
        }
        let mut last = self.inner.reading.lock().await;
        if let Some(last) = *last
            && !is_there()
        {
            tokio::time::sleep_until(last + BREATH).await;
        }
        if is_there() {
            return Ok(());
        }
        let moved = self.flush().await;
        *last = Some(Instant::now());
        moved
    }

    async fn move_all(&self) -> Result<(), DbError> {
        let _moving = self.inner.moving.lock().await;
        // Seals the present segment only after the sealed ones have moved: while the database is away, files do not
        // become many.
        self.move_sealed().await?;
        let written = {
            let mut state = self.state();
            state.journal.seal();
            state.told = false;
            state.written
        };
        self.move_sealed().await?;
        self.inner.moved.fetch_max(written, Ordering::Release);
        Ok(())
    }

    async fn move_sealed(&self) -> Result<(), DbError> {
        let count = self.state().journal.sealed();
        for _ in 0..count {
            let oldest = self.state().journal.oldest();
            let Some(segment) = oldest else { break };
            self.move_one(segment).await?;
        }
        Ok(())
    }

    async fn move_one(&self, segment: Segment) -> Result<(), DbError> {
        let reading = segment.clone();
        let read = tokio::task::spawn_blocking(move || reading.read()).await.map_err(other)?;
        let Found { totals, unread } = read.map_err(other)?;
        fault::point("usage.move.before").await.map_err(DbError::Other)?;
        if !totals.is_empty() {
            let mut tx = self.inner.db.begin().await?;
            store::usage::add(&mut tx, (segment.service, segment.number), &totals).await?;
            tx.commit().await?;
        }
        fault::point("usage.move.written").await.map_err(DbError::Other)?;
        // A file that cannot be removed does not count twice: the database has noted its number.
        if unread > 0 {
            tracing::error!(lines = unread, "records of usage cannot be read; their file is set aside");
            segment.set_aside().unwrap_or_else(stays);
        } else {
            segment.remove().unwrap_or_else(stays);
        }
        self.state().journal.forget_oldest();
        fault::point("usage.move.done").await.map_err(DbError::Other)
    }

    /// Moves what is written, until told to stop and once more then.
    pub async fn run(self, stop: CancellationToken) {
        let mut failing = false;
        loop {
            let gathered = async {
                self.inner.wake.notified().await;
                tokio::time::sleep(GATHER).await;
            };
            tokio::select! {
                () = stop.cancelled() => break,
                () = gathered => {}
            }
            match self.flush().await {
                Ok(()) => failing = false,
                Err(error) => {
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!(%error, "usage cannot be moved to the database; trying again until it can");
                    }
                }
            }
        }
        if let Err(error) = self.flush().await {
            tracing::warn!(%error, "usage stays in the journal until the next start");
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn stays(error: std::io::Error) {
    tracing::warn!(%error, "a file of usage whose records are in the database stays where it is");
}

fn other(error: impl std::fmt::Display) -> DbError {
    DbError::Other(format!("the journal of usage: {error}"))
}

#[cfg(test)]
mod tests {
    use berth_domain::gateway::{Nano, Usage};

    use super::*;
    use crate::db::sql;
    use crate::services::gateway::books::bound;

    async fn database(dir: &Path) -> Db {
        Db::open(&format!("sqlite:{}", dir.join("db").display())).await.unwrap()
    }

    fn record(completion: u64) -> Record {
        Record::sample("tiny".into(), Usage { prompt: 1, completion })
    }

    async fn number(db: &Db, what: &'static str) -> i64 {
        let text = format!("SELECT CAST(COALESCE({what}, 0) AS BIGINT) FROM inference_totals");
        sql(text).fetch_one(db).await.unwrap()
    }

    fn files(dir: &Path) -> usize {
        std::fs::read_dir(dir).unwrap().count()
    }

    #[tokio::test]
    async fn every_record_counts_once() {
        let dir = tempfile::tempdir().unwrap();
        let (db, usage) = (database(dir.path()).await, dir.path().join("usage"));
        let meter = Meter::open(&usage, db.clone()).unwrap();
        let writers: Vec<_> = (0..4)
            .map(|_| {
                let meter = meter.clone();
                tokio::task::spawn_blocking(move || {
                    for _ in 0..400 {
                        let mut record = record(100);
                        meter.write(&mut record);
                        record.usage.completion = 2;
                        meter.write(&mut record);
                    }
                })
            })
            .collect();
        meter.flush().await.unwrap();
        for writer in writers {
            writer.await.unwrap();
        }
        meter.flush().await.unwrap();
        assert_eq!(number(&db, "SUM(requests)").await, 1600);
        assert_eq!((number(&db, "SUM(completion_tokens)").await, number(&db, "SUM(cost)").await), (3200, 8000));
        assert_eq!((files(&usage), meter.failures(), meter.lost()), (0, 0, 0));
    }

    #[tokio::test]
    async fn many_readers_move_little_and_each_finds_what_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let (db, usage) = (database(dir.path()).await, dir.path().join("usage"));
        let meter = Meter::open(&usage, db.clone()).unwrap();
        let reads = |reader: u64| {
            let (meter, db) = (meter.clone(), db.clone());
            async move {
                for turn in 0..5 {
                    meter.write(&mut Record::sample(format!("{reader}-{turn}").into(), Usage::default()));
                    meter.catch_up().await.unwrap();
                    let text = format!("COUNT(CASE WHEN model = '{reader}-{turn}' THEN 1 END)");
                    let text = format!("SELECT CAST({text} AS BIGINT) FROM inference_totals");
                    assert_eq!(sql(text).fetch_one::<i64>(&db).await.unwrap(), 1, "{reader} {turn}");
                }
            }
        };
        futures::future::join_all((0..20).map(reads)).await;
        let moved: i64 = sql("SELECT segment FROM inference_journals").fetch_one(&db).await.unwrap();
        assert!(moved < 20, "{moved} moves for 100 reads");
        meter.catch_up().await.unwrap();
        let now: i64 = sql("SELECT segment FROM inference_journals").fetch_one(&db).await.unwrap();
        assert_eq!(now, moved, "nothing new is there");
    }

    #[tokio::test]
    async fn what_a_dead_service_left_is_moved_and_again_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (db, usage) = (database(dir.path()).await, dir.path().join("usage"));
        let dead = Meter::open(&usage, db.clone()).unwrap();
        dead.write(&mut record(1));
        dead.write(&mut record(2));
        let kept = dir.path().join("kept");
        let file = std::fs::read_dir(&usage).unwrap().next().unwrap().unwrap().path();
        std::fs::copy(&file, &kept).unwrap();
        let service = dead.service();
        drop(dead);
        for _ in 0..2 {
            let meter = Meter::open(&usage, db.clone()).unwrap();
            meter.flush().await.unwrap();
            assert_eq!((number(&db, "SUM(requests)").await, number(&db, "SUM(completion_tokens)").await), (2, 3));
            assert_eq!(files(&usage), 0);
            let named: String = sql("SELECT DISTINCT service FROM inference_totals").fetch_one(&db).await.unwrap();
            assert_eq!(named, service.to_string(), "whose rows they are does not change");
            // As if the service had died before it removed the file.
            std::fs::copy(&kept, &file).unwrap();
        }
    }

    #[tokio::test]
    async fn while_the_database_is_away_nothing_is_lost() {
        let dir = tempfile::tempdir().unwrap();
        let (db, usage) = (database(dir.path()).await, dir.path().join("usage"));
        let meter = Meter::open(&usage, db.clone()).unwrap();
        meter.write(&mut record(1));
        db.close().await;
        for _ in 0..3 {
            assert!(meter.flush().await.is_err());
            meter.write(&mut record(1));
        }
        assert_eq!(files(&usage), 2);
        let db = database(dir.path()).await;
        let meter = Meter::open(&usage, db.clone()).unwrap();
        meter.flush().await.unwrap();
        assert_eq!(number(&db, "SUM(requests)").await, 4);
    }

    #[tokio::test]
    async fn a_journal_that_cannot_be_written_fails_no_request() {
        let dir = tempfile::tempdir().unwrap();
        let (db, usage) = (database(dir.path()).await, dir.path().join("usage"));
        let meter = Meter::open(&usage, db.clone()).unwrap();
        std::fs::remove_dir(&usage).unwrap();
        let mut record = record(1);
        meter.write(&mut record);
        record.usage.completion = 7;
        meter.write(&mut record);
        assert_eq!((meter.failures(), meter.lost()), (2, 0));
        meter.flush().await.unwrap();
        assert_eq!((number(&db, "SUM(requests)").await, number(&db, "SUM(completion_tokens)").await), (1, 7));
    }

    #[tokio::test]
    async fn what_cannot_be_read_is_left_to_people() {
        let dir = tempfile::tempdir().unwrap();
        let (db, usage) = (database(dir.path()).await, dir.path().join("usage"));
        let dead = Meter::open(&usage, db.clone()).unwrap();
        dead.write(&mut record(1));
        let file = std::fs::read_dir(&usage).unwrap().next().unwrap().unwrap().path();
        let mut text = std::fs::read(&file).unwrap();
        text.extend_from_slice(b"[\"of another kind\"]\n");
        std::fs::write(&file, &text).unwrap();
        drop(dead);
        for _ in 0..2 {
            let meter = Meter::open(&usage, db.clone()).unwrap();
            meter.flush().await.unwrap();
            assert_eq!(number(&db, "SUM(requests)").await, 1);
            assert_eq!(std::fs::read(file.with_extension("unread")).unwrap(), text);
        }
    }

    #[tokio::test]
    async fn nothing_a_client_or_an_upstream_says_stops_the_meter() {
        let dir = tempfile::tempdir().unwrap();
        let db = database(dir.path()).await;
        let meter = Meter::open(&dir.path().join("usage"), db.clone()).unwrap();
        for _ in 0..100 {
            let usage = Usage { prompt: u64::MAX, completion: u64::MAX };
            let mut odd = Record { model: "a\0b".into(), usage, cost: Nano(i64::MAX), ..record(0) };
            meter.write(&mut odd);
        }
        meter.flush().await.unwrap();
        assert_eq!(number(&db, "SUM(cost)").await, 100 * bound::cost(Nano(i64::MAX)).0);
        let model: String = sql("SELECT model FROM inference_totals LIMIT 1").fetch_one(&db).await.unwrap();
        assert_eq!(model, "a\u{fffd}b");
    }

    #[tokio::test]
    async fn the_worker_moves_what_is_written_and_the_rest_at_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let (db, usage) = (database(dir.path()).await, dir.path().join("usage"));
        Meter::open(&usage, db.clone()).unwrap().write(&mut record(1));
        let meter = Meter::open(&usage, db.clone()).unwrap();
        let stop = CancellationToken::new();
        let worker = tokio::spawn(meter.clone().run(stop.clone()));
        let moved = async {
            while number(&db, "SUM(requests)").await == 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_mins(1), moved).await.unwrap();
        meter.write(&mut record(1));
        stop.cancel();
        worker.await.unwrap();
        assert_eq!((number(&db, "SUM(requests)").await, files(&usage)), (2, 0));
    }
}
