//! The database: one SQL text over SQLite and PostgreSQL.
//!
//! SQLite is the default, because a laptop has no database server: one writer connection with
//! `BEGIN IMMEDIATE`, so that a transaction never fails half way for a lock, and many readers beside
//! it (WAL). PostgreSQL takes the same statements: `$1` parameters, `BIGINT` for every integer and
//! every time (microseconds), `TEXT` for the rest, and nothing that only one of the two knows.
//!
//! A transaction collects what it touched ([`Signal`]); on commit, and only then, the workers are
//! woken and the watchers told.

pub mod audit;
pub mod event;
pub mod idempotency;
pub mod json;
mod migrate;
mod query;
pub mod record;
mod row;
pub mod tenant;
pub mod usage;

use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sqlx::Connection;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use tokio::runtime::Handle;
use tokio::sync::broadcast;
use tokio::time::timeout;
use tokio_util::context::TokioContext;

pub use query::{On, PageQuery, Query, Value, page_of, sql};
pub use row::{FromRow, Row};

/// Connections that read at the same time.
const READERS: u32 = 8;
/// How long a request waits for a connection before it is answered `service_unavailable`.
const ACQUIRE: Duration = Duration::from_secs(5);
/// How long the first connection to a file may take, which recovers what a power cut left, on a disk that may be busy.
const OPEN: Duration = Duration::from_mins(1);
/// PostgreSQL, too, has one writer at a time: a transaction that read a row may write it, whoever else
/// serves. The key is the word `berth`.
const ONE_WRITER: &str = "SELECT pg_advisory_xact_lock(422724498536)";
/// Signals kept for a slow watcher before it has to look at the rows again.
const SIGNALS: usize = 4096;

/// What went wrong with the database.
#[derive(Debug, thiserror::Error)]
pub enum DbError {
    /// A unique rule was broken: somebody else was first.
    #[error("a unique rule was broken: {0}")]
    Unique(String),
    /// No connection, or no answer in time.
    #[error("the database does not answer: {0}")]
    Unavailable(String),
    /// The disk of the database is full.
    #[error("no space left for the database: {0}")]
    Full(String),
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
            sqlx::Error::Database(e)
                if e.code().is_some_and(|c| ["5", "6", "55P03", "57014"].contains(&c.as_ref())) =>
            {
                Self::Unavailable(text)
            }
            sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed | sqlx::Error::Io(_) | sqlx::Error::WorkerCrashed => {
                Self::Unavailable(text)
            }
            _ => Self::Other(text),
        }
    }
}

impl From<DbError> for berth_domain::Error {
    fn from(error: DbError) -> Self {
        match error {
            DbError::Unavailable(_) | DbError::Full(_) => Self::unavailable(error),
            DbError::Unique(_) | DbError::Other(_) => Self::internal(error),
        }
    }
}

/// What a committed transaction touched: told to workers and watchers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Signal {
    /// A row of this table wants work.
    Work(&'static str),
    /// A row changed: its table and its id.
    Row(&'static str, uuid::Uuid),
    /// An event was written for this project.
    Event(uuid::Uuid),
}

#[derive(Clone)]
enum Pools {
    Sqlite {
        write: SqlitePool,
        read: SqlitePool,
    },
    /// With the runtime that watches its connections: who asks may run on one that ends earlier.
    Postgres(PgPool, Handle),
}

/// The database, shared by everything.
#[derive(Clone)]
pub struct Db {
    pools: Pools,
    signals: Arc<broadcast::Sender<Signal>>,
    epoch: Arc<AtomicU64>,
}

impl Db {
    /// Connects and brings the schema up to date. `url` is `sqlite:PATH` or `postgres://…`.
    pub async fn open(url: &str) -> Result<Self, DbError> {
        let pools = if url.starts_with("postgres://") || url.starts_with("postgresql://") {
            open_postgres(url).await?
        } else {
            open_sqlite(Path::new(url.strip_prefix("sqlite:").unwrap_or(url))).await?
        };
        let db = Self { pools, signals: Arc::new(broadcast::channel(SIGNALS).0), epoch: Arc::default() };
        migrate::run(&db).await?;
        Ok(db)
    }

    /// Whether other services may write to the same database.
    pub const fn is_shared(&self) -> bool {
        matches!(self.pools, Pools::Postgres(..))
    }

    /// Changes with every commit: what was read before is true for as long as it is the same. `None` where
    /// others may write, too.
    pub fn epoch(&self) -> Option<u64> {
        (!self.is_shared()).then(|| self.epoch.load(Ordering::SeqCst))
    }

    /// Begins a transaction that may write.
    pub async fn begin(&self) -> Result<Tx, DbError> {
        let inner = match &self.pools {
            Pools::Sqlite { write, .. } => TxInner::Sqlite(write.begin_with("BEGIN IMMEDIATE").await?),
            Pools::Postgres(pool, home) => {
                let mut tx = TokioContext::new(pool.begin(), home.clone()).await?;
                sqlx::query(ONE_WRITER).execute(&mut *tx).await?;
                TxInner::Postgres(tx)
            }
        };
        Ok(Tx { inner, signals: Vec::new(), sender: self.signals.clone(), epoch: self.epoch.clone() })
    }

    /// Everything that is committed from now on.
    pub fn watch(&self) -> broadcast::Receiver<Signal> {
        self.signals.subscribe()
    }

    /// Tells workers and watchers without a transaction.
    pub fn signal(&self, signal: Signal) {
        // Nobody listening is fine: the rows are the truth.
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
            Pools::Postgres(pool, _) => pool.close().await,
        }
    }
}

enum TxInner {
    Sqlite(sqlx::Transaction<'static, sqlx::Sqlite>),
    Postgres(sqlx::Transaction<'static, sqlx::Postgres>),
}

/// A transaction. Dropped without [`Tx::commit`], nothing of it happened.
pub struct Tx {
    inner: TxInner,
    signals: Vec<Signal>,
    sender: Arc<broadcast::Sender<Signal>>,
    epoch: Arc<AtomicU64>,
}

impl Tx {
    /// Whether other services may write to the same database.
    pub const fn is_shared(&self) -> bool {
        matches!(self.inner, TxInner::Postgres(_))
    }

    /// Tells this when, and only when, the transaction is committed.
    pub fn signal(&mut self, signal: Signal) {
        if !self.signals.contains(&signal) {
            self.signals.push(signal);
        }
    }

    /// Makes it durable, then tells who waits for it.
    pub async fn commit(self) -> Result<(), DbError> {
        // Before: nothing read from now on is taken for what is true afterwards. After: nothing read
        // meanwhile is. A commit whose outcome is not known counts, too.
        self.epoch.fetch_add(1, Ordering::SeqCst);
        let outcome = match self.inner {
            TxInner::Sqlite(tx) => tx.commit().await,
            TxInner::Postgres(tx) => tx.commit().await,
        };
        self.epoch.fetch_add(1, Ordering::SeqCst);
        outcome?;
        for signal in self.signals {
            let _ = self.sender.send(signal);
        }
        Ok(())
    }
}

async fn open_sqlite(path: &Path) -> Result<Pools, DbError> {
    let options = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(true)
        .statement_cache_capacity(256)
        .busy_timeout(ACQUIRE);
    let first = timeout(OPEN, SqliteConnection::connect_with(&options)).await;
    let first = first.map_err(|_| DbError::Unavailable(format!("its file did not open in {OPEN:?}")))??;
    let write = SqlitePoolOptions::new()
        .max_connections(1)
        .acquire_timeout(ACQUIRE)
        .test_before_acquire(false)
        // SQLite ends a transaction by itself when its disk is full; what then cannot be rolled back
        // again would stay "in a transaction" for ever.
        .before_acquire(|connection, _| Box::pin(async move { Ok(!connection.is_in_transaction()) }))
        .connect_with(options.clone())
        .await?;
    let read = SqlitePoolOptions::new()
        .max_connections(READERS)
        .acquire_timeout(ACQUIRE)
        .test_before_acquire(false)
        .connect_lazy_with(options.read_only(true).create_if_missing(false));
    first.close().await?;
    Ok(Pools::Sqlite { write, read })
}

async fn open_postgres(url: &str) -> Result<Pools, DbError> {
    let options = PgConnectOptions::from_str(url)
        .map_err(|_| DbError::Other("the database URL is not of the form postgres://user:password@host/name".into()))?;
    let patience = ACQUIRE.as_millis().to_string();
    let options = options.options([("lock_timeout", patience.as_str())]);
    let pool = PgPoolOptions::new().max_connections(READERS * 2).acquire_timeout(ACQUIRE).connect_with(options).await?;
    Ok(Pools::Postgres(pool, Handle::current()))
}
