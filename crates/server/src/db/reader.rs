//! Several reads over one connection.
//!
//! Whoever gives a connection back to the pool has it asked whether it is well, which on a server takes as long as a read. What is
//! read together is read over one.

use std::sync::Arc;

use sqlx::pool::PoolConnection;
use sqlx::{Postgres, Sqlite};

use super::leader::Link;
use super::{Db, DbError, Pools};

/// A connection that reads, until it is dropped. Each statement sees what was committed before it. Whoever holds one asks for no other
/// connection meanwhile, lest a few wait for each other.
pub struct Reader(pub(super) ReaderInner);

pub(super) enum ReaderInner {
    Sqlite(PoolConnection<Sqlite>),
    Postgres(PoolConnection<Postgres>, Arc<Link>),
}

impl Db {
    /// A connection for several reads.
    ///
    /// # Errors
    /// There is none in time.
    pub async fn reader(&self) -> Result<Reader, DbError> {
        Ok(Reader(match &self.pools {
            Pools::Sqlite { read, .. } => ReaderInner::Sqlite(read.acquire().await?),
            Pools::Postgres(leader) => {
                let link = leader.link();
                ReaderInner::Postgres(link.ask(link.pool.acquire()).await?, link)
            }
        }))
    }
}
