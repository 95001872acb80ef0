//! The database: one SQL text over SQLite and PostgreSQL.
//!
//! SQLite is the default, because a laptop has no database server: one writer connection with
//! `BEGIN IMMEDIATE`, so that a transaction never fails half way for a lock, and many readers beside
//! it (WAL). PostgreSQL takes the same statements: `$1` parameters, `BIGINT` for every integer and
//! every time (microseconds), `TEXT` for the rest, and nothing that only one of the two knows.
//!
//! PostgreSQL has one writer at a time as well, and commits several transactions together (`leader::group`).
//!
//! A transaction collects what it touched ([`Signal`]). On commit, and only then, it wakes the workers and tells the
//! watchers.

pub mod audit;
mod authority;
mod connect;
pub mod due;
pub mod event;
pub mod home;
pub mod idempotency;
pub mod json;
pub mod keeper;
mod lane;
mod leader;
pub mod listing;
pub mod machine;
pub mod machine_gpu;
mod migrate;
pub mod network;
pub mod owned;
mod query;
pub mod quota;
mod reader;
pub mod record;
pub mod resource_usage;
mod row;
pub mod setting;
pub mod ssh_key;
pub mod tenant;
pub mod usage;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use berth_domain::ids::HostId;
use berth_domain::replica::HOLDS;
use sqlx::sqlite::SqlitePool;
use tokio::sync::broadcast;

pub use authority::Authority;
pub use connect::{check_address, copy, disk_of, survey};
use leader::Asker;
pub use leader::{Member, Said, Surveyed, Waits, settled};
pub use query::{On, PageQuery, Query, Value, marks, page_of, sql};
pub use reader::Reader;
pub use row::{FromRow, Row};

/// PostgreSQL, too, has one writer at a time, so that a transaction may write a row that it read. The key is the word
/// `berth`.
const ONE_WRITER: &str = "SELECT pg_advisory_xact_lock(422724498536)";
/// Signals that are kept for a slow watcher; after more, it has to read the rows again.
const SIGNALS: usize = 4096;
/// How long a caller waits for the database, by default.
pub const WAIT: Duration = Duration::from_secs(5);
/// Connections to a server at most, unless the configuration says another number.
pub const CONNECTIONS: u32 = 16;

/// Why the database failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum DbError {
    /// A row broke a unique rule: another transaction was first.
    #[error("a unique rule was broken: {0}")]
    Unique(String),
    /// No connection, or no answer in time.
    #[error("the database does not answer: {0}")]
    Unavailable(String),
    /// The database was lost while it committed.
    #[error("it is not known whether the change was made: {0}")]
    Unknown(String),
    /// The disk of the database is full.
    #[error("no space left for the database: {0}")]
    Full(String),
    /// A table is not there: the database is new, or of an older version.
    #[error("{0}")]
    NoTable(String),
    /// Anything else, a defect among them.
    #[error("{0}")]
    Other(String),
}

impl From<sqlx::Error> for DbError {
    fn from(error: sqlx::Error) -> Self {
        let text = error.to_string();
        match &error {
            sqlx::Error::Database(e) if e.is_unique_violation() => Self::Unique(text),
            sqlx::Error::Database(e) if e.code().is_some_and(|c| c == "13" || c == "53100") => Self::Full(text),
            sqlx::Error::Database(e) if e.code().is_some_and(|code| may_pass(&code)) => Self::Unavailable(text),
            sqlx::Error::Database(e) if lacks_table(e.code().as_deref(), e.message()) => Self::NoTable(text),
            sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed | sqlx::Error::Io(_) | sqlx::Error::WorkerCrashed => {
                Self::Unavailable(text)
            }
            _ => Self::Other(text),
        }
    }
}

/// Whether a code means that the database cannot answer now: SQLite is busy or locked; PostgreSQL took too long for a
/// lock or a statement, ends, ended, begins, ended a session that stood still, takes no more connections, has become a standby, or lost
/// one (class 08).
fn may_pass(code: &str) -> bool {
    const PASSING: [&str; 11] =
        ["5", "6", "25006", "25P03", "55P03", "57014", "57P01", "57P02", "57P03", "57P05", "53300"];
    PASSING.contains(&code) || (code.len() == 5 && code.starts_with("08"))
}

/// Whether the error is a missing table. SQLite has one code for every mistake of a statement; only the text
/// distinguishes them.
fn lacks_table(code: Option<&str>, message: &str) -> bool {
    match code {
        Some("42P01") => true,
        Some("1") => message.starts_with("no such table"),
        _ => false,
    }
}

impl From<DbError> for berth_domain::Error {
    fn from(error: DbError) -> Self {
        match error {
            DbError::Unavailable(_) => Self::unavailable(error),
            DbError::Unknown(_) => Self {
                message: "The database was lost meanwhile, and it is not known whether this was done. Look first, or send it \
                          again with the same Idempotency-Key."
                    .into(),
                ..Self::unavailable(error)
            },
            DbError::Full(_) => Self {
                message:
                    "The disk of the service is full: nothing can be written. Its operator has to free some space."
                        .into(),
                retry_after: Some(60),
                ..Self::unavailable(error)
            },
            DbError::Unique(_) | DbError::NoTable(_) | DbError::Other(_) => Self::internal(error),
        }
    }
}

/// What a committed transaction touched, for workers and watchers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Signal {
    /// A row of this table wants work.
    Work(&'static str),
    /// A row changed: its table and its id.
    Row(&'static str, uuid::Uuid),
    /// An event was written for this project.
    Event(uuid::Uuid),
    /// A warm machine of this host got an owner, gave way, or is not what it was.
    Warm(HostId),
}

#[derive(Clone)]
enum Pools {
    Sqlite { write: SqlitePool, read: SqlitePool },
    Postgres(Arc<leader::Leader>),
}

/// The term in which a service has its database; 0 before it has taken it. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Term(Arc<AtomicI64>);

impl Term {
    /// As it is now.
    pub fn now(&self) -> i64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// The database, which everything shares.
#[derive(Clone)]
pub struct Db {
    pools: Pools,
    signals: Arc<broadcast::Sender<Signal>>,
    epoch: Arc<AtomicU64>,
    lanes: Arc<lane::Lanes>,
    /// The term in which it writes.
    term: Term,
    /// How long a change waits for its turn.
    wait: Duration,
}

impl Db {
    /// Connects and brings the schema up to date. `url` is `sqlite:PATH` or `postgres://…`.
    pub async fn open(url: &str) -> Result<Self, DbError> {
        let db = Self::connect(url, WAIT, CONNECTIONS).await?;
        db.migrate().await?;
        Ok(db)
    }

    /// Connects, and leaves the schema as it is. Callers wait at most `wait` for a connection, a lock or a turn; a server has
    /// at most so many connections.
    pub async fn connect(url: &str, wait: Duration, connections: u32) -> Result<Self, DbError> {
        let pools = connect::open(url, wait, connections).await?;
        let signals = Arc::new(broadcast::channel(SIGNALS).0);
        Ok(Self { pools, signals, epoch: Arc::default(), lanes: Arc::default(), term: Term::default(), wait })
    }

    /// The term in which it writes; 0 before it is taken.
    pub fn term(&self) -> i64 {
        self.term.now()
    }

    /// From now on it is written to in this term.
    pub(in crate::db) fn be_in_term(&self, term: i64) {
        self.term.0.store(term, Ordering::SeqCst);
    }

    /// The same, as it becomes.
    pub fn in_term(&self) -> Term {
        self.term.clone()
    }

    /// Brings the schema up to date.
    pub async fn migrate(&self) -> Result<(), DbError> {
        migrate::run(self).await
    }

    /// Whether the schema is the one that this version wants.
    pub async fn is_current(&self) -> Result<bool, DbError> {
        migrate::is_current(self).await
    }

    /// The latest step of the schema that only a newer version has.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn newer_step(&self) -> Result<Option<i64>, DbError> {
        migrate::newer_step(self).await
    }

    /// Whether others may write to the same database: a service that lost it to this one, and has not noticed yet.
    pub const fn is_shared(&self) -> bool {
        matches!(self.pools, Pools::Postgres(..))
    }

    /// A number that changes with every commit: while it stays the same, what was read stays true. `None` where others
    /// may write, too.
    pub fn epoch(&self) -> Option<u64> {
        (!self.is_shared()).then(|| self.epoch.load(Ordering::SeqCst))
    }

    /// Begins a transaction that may write, for which nobody waits.
    pub async fn begin(&self) -> Result<Tx, DbError> {
        self.begin_for(Asker::Worker).await
    }

    /// Begins one for a request that has no caller yet, who signs in for instance.
    pub async fn begin_for_request(&self) -> Result<Tx, DbError> {
        self.begin_for(Asker::Caller).await
    }

    /// Begins one for which nobody waits, and that takes long: what was done before it is committed first.
    pub async fn begin_in_bulk(&self) -> Result<Tx, DbError> {
        self.begin_for(Asker::Bulk).await
    }

    async fn begin_for(&self, asker: Asker) -> Result<Tx, DbError> {
        // Who gives up waiting loses its place in the queue.
        let patience = if asker == Asker::Keeper { HOLDS } else { self.wait };
        let inner = match &self.pools {
            Pools::Sqlite { write, .. } => TxInner::Sqlite(write.begin_with("BEGIN IMMEDIATE").await?),
            Pools::Postgres(leader) => {
                TxInner::Postgres(leader::Pen::begin(leader, &self.term, asker, patience).await?)
            }
        };
        let (sender, epoch) = (self.signals.clone(), self.epoch.clone());
        Ok(Tx { inner, signals: Vec::new(), following: Vec::new(), sender, epoch, turn: None })
    }

    /// A receiver of every signal that is committed from now on.
    pub fn watch(&self) -> broadcast::Receiver<Signal> {
        self.signals.subscribe()
    }

    /// Tells workers and watchers something without a transaction.
    pub fn signal(&self, signal: Signal) {
        // Having no receiver is fine: the rows are the truth.
        let _ = self.signals.send(signal);
    }

    /// Whether the database answers.
    pub async fn ping(&self) -> Result<(), DbError> {
        sql("SELECT CAST(1 AS BIGINT) AS one").fetch_one::<i64>(self).await.map(drop)
    }

    /// Ends all connections.
    pub async fn close(&self) {
        match &self.pools {
            Pools::Sqlite { write, read } => {
                read.close().await;
                write.close().await;
            }
            Pools::Postgres(leader) => leader.link().pool.close().await,
        }
    }
}

enum TxInner {
    Sqlite(sqlx::Transaction<'static, sqlx::Sqlite>),
    Postgres(leader::Pen),
}

/// A transaction. Dropped without [`Tx::commit`], it changes nothing.
pub struct Tx {
    inner: TxInner,
    signals: Vec<Signal>,
    /// Actions to run once it is committed.
    following: Vec<Box<dyn FnOnce() + Send>>,
    sender: Arc<broadcast::Sender<Signal>>,
    epoch: Arc<AtomicU64>,
    /// Its turn among its tenant's transactions, until it is over, or waits for a commit with others.
    turn: Option<lane::Turn>,
}

impl Tx {
    /// Whether others may write to the same database.
    pub const fn is_shared(&self) -> bool {
        matches!(self.inner, TxInner::Postgres(..))
    }

    /// Sends this signal when, and only when, the transaction is committed.
    pub fn signal(&mut self, signal: Signal) {
        if !self.signals.contains(&signal) {
            self.signals.push(signal);
        }
    }

    /// Has the answer wait for a commit of what this transaction wrote, though whoever has it leaves it without one.
    pub const fn commit_when_left(&mut self) {
        if let TxInner::Postgres(pen) = &mut self.inner {
            pen.commit_when_left();
        }
    }

    /// Runs `follow` when the transaction is committed, or may be: it corrects what memory holds of the rows.
    pub fn once_committed(&mut self, follow: impl FnOnce() + Send + 'static) {
        self.following.push(Box::new(follow));
    }

    /// Commits, then runs the actions that follow and sends the signals. All of that happens in a task of its own: once
    /// it has begun, it goes on even if the client leaves.
    pub async fn commit(self) -> Result<(), DbError> {
        tokio::spawn(self.finish()).await.map_err(|error| DbError::Other(error.to_string()))?
    }

    async fn finish(self) -> Result<(), DbError> {
        // The number changes before and after the commit, so that whatever was read between the two counts as old. This
        // holds also for a commit whose outcome is not known.
        self.epoch.fetch_add(1, Ordering::SeqCst);
        let outcome = match self.inner {
            TxInner::Sqlite(tx) => tx.commit().await.map_err(DbError::from),
            TxInner::Postgres(pen) => {
                let outcome = pen.end();
                // It waits, but no longer at the writer.
                drop(self.turn);
                outcome.await
            }
        };
        self.epoch.fetch_add(1, Ordering::SeqCst);
        for follow in self.following {
            follow();
        }
        // A signal has others look at rows, and does no harm where there is nothing to see.
        if matches!(outcome, Ok(()) | Err(DbError::Unknown(_))) {
            for signal in self.signals {
                let _ = self.sender.send(signal);
            }
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_follows_a_commit_follows_though_who_asked_for_it_leaves() {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(&format!("sqlite:{}", dir.path().join("db").display())).await.unwrap();
        let mut signals = db.watch();
        let (follows, followed) = tokio::sync::oneshot::channel();
        let mut tx = db.begin().await.unwrap();
        setting::put(&mut tx, "a", "b").await.unwrap();
        tx.signal(Signal::Work("settings"));
        tx.once_committed(move || follows.send(()).unwrap());
        let mut committing = Box::pin(tx.commit());
        assert!(futures::poll!(&mut committing).is_pending());
        drop(committing);
        followed.await.unwrap();
        assert_eq!(setting::find(&db, "a").await.unwrap().as_deref(), Some("b"));
        assert_eq!(signals.recv().await.unwrap(), Signal::Work("settings"));
        assert_eq!(db.epoch().map(|epoch| epoch % 2), Some(0));
    }

    #[test]
    fn a_server_that_ends_is_a_database_that_does_not_answer() {
        for code in ["25006", "57P01", "57P02", "57P03", "08006", "08001", "53300", "55P03", "5"] {
            assert!(may_pass(code), "{code}");
        }
        for code in ["08", "42P01", "23505", "1", "0800", "53100"] {
            assert!(!may_pass(code), "{code}");
        }
    }
}
