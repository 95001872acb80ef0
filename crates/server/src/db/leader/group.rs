//! Transactions that are committed together: one of the server's, in which each but the first has a savepoint.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_domain::replica::{HOLDS, RENEW};
use sqlx::pool::PoolConnection;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Postgres, Row};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::settled::rests_on;
use super::{Leader, Link, is_silent};
use crate::db::{DbError, ONE_WRITER};

/// Most transactions that are committed together: fewer than the 64 savepoints that a server keeps at hand.
const MOST: usize = 32;
/// How long the first of them waits for others to end, at most; the one that is under way then is the last.
const LONGEST: Duration = Duration::from_millis(5);

/// How long the server works at a statement of a transaction, or waits for the lock of writers, for which all others wait.
const SERVER: Duration = Duration::from_secs(6);
/// How long its answer is waited for: a connection that is cut says nothing. It gives up before that ([`SERVER`]), so that nothing
/// goes on there with the lock.
const STATEMENT: Duration = Duration::from_secs(8);
const _: () = assert!(STATEMENT.as_secs() + RENEW.as_secs() < HOLDS.as_secs(), "a sign of life comes in time after it");
/// A change, or a commit, that takes longer is told of.
pub(super) const SLOW: Duration = Duration::from_secs(1);
/// The term of the service that has the database.
const PRESENT_TERM: &str = "SELECT term FROM keeper WHERE id = 1";

/// What a service is told that writes in an earlier term.
fn overtaken() -> sqlx::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, "another service has taken it over").into()
}

/// What is told of a connection over which nothing comes.
pub(super) fn silent() -> sqlx::Error {
    io::Error::new(io::ErrorKind::TimedOut, "no answer to a statement in time").into()
}

/// A transaction that the server began, and gives up unless it is committed.
struct Begun {
    link: Arc<Link>,
    /// None once it is over.
    connection: Option<PoolConnection<Postgres>>,
    /// Whether the server did not answer in time, and is asked nothing more over this connection.
    is_silent: bool,
}

/// What is asked of a server in time, as long as that leads.
pub(in crate::db) struct Asks {
    link: Arc<Link>,
    patience: Duration,
}

impl Asks {
    pub(in crate::db) async fn ask<T>(
        &self,
        asking: impl Future<Output = Result<T, sqlx::Error>> + Send,
    ) -> Result<T, sqlx::Error> {
        self.link.in_time(self.patience, asking).await
    }
}

impl Begun {
    /// Begins once no other service writes, for whose end the server waits at most `patience` itself; in a term only if the database
    /// is still in it.
    async fn at(link: Arc<Link>, term: i64, patience: Duration) -> Result<Self, sqlx::Error> {
        let connection = link.ask(link.pool.acquire()).await?;
        let mut begun = Self { link, connection: Some(connection), is_silent: false };
        // One message, and several statements: the last sees what was committed while the one before waited. A commit takes as long as
        // it does: its statement is over when it waits for another member.
        let present = if term == 0 { "" } else { PRESENT_TERM };
        let (locked, worked) = (patience.min(SERVER).as_millis().max(1), SERVER.as_millis());
        let asked = sqlx::raw_sql(AssertSqlSafe(format!(
            "BEGIN; SET LOCAL lock_timeout = {locked}; {ONE_WRITER}; SET LOCAL statement_timeout = {worked}; {present}"
        )));
        let (asks, connection) = begun.connection()?;
        let answered = asks.ask(asked.fetch_all(connection)).await;
        begun.note(answered.as_ref().err());
        if term == 0 {
            return answered.map(|_| begun);
        }
        let present: Option<i64> = answered?.last().map(|row| row.try_get(0)).transpose()?;
        if present == Some(term) { Ok(begun) } else { Err(overtaken()) }
    }

    fn connection(&mut self) -> Result<(Asks, &mut PgConnection), sqlx::Error> {
        let connection = self.connection.as_deref_mut().filter(|_| !self.is_silent).ok_or_else(silent)?;
        Ok((Asks { link: self.link.clone(), patience: STATEMENT }, connection))
    }

    async fn execute(&mut self, text: String) -> Result<(), sqlx::Error> {
        let (asks, connection) = self.connection()?;
        let outcome = asks.ask(sqlx::raw_sql(AssertSqlSafe(text)).execute(connection)).await;
        self.note(outcome.as_ref().err());
        outcome.map(drop)
    }

    fn note(&mut self, error: Option<&sqlx::Error>) {
        self.is_silent |= error.is_some_and(is_silent);
    }

    async fn commit(mut self) -> Result<(), DbError> {
        // A server that has undone everything would commit nothing, and say so without an error.
        let outcome = self.execute("SELECT 1; COMMIT".into()).await.map_err(|error| match error.into() {
            DbError::Unavailable(text) => DbError::Unknown(text),
            error => error,
        });
        if outcome.is_ok() {
            self.connection = None;
        }
        outcome
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        let Some(mut connection) = self.connection.take() else { return };
        if self.is_silent || self.link.is_gone() {
            connection.close_on_drop();
            return;
        }
        // Whoever has the connection next is not in the middle of something.
        self.link.home.spawn(async move {
            let rollback = sqlx::raw_sql("ROLLBACK").execute(&mut *connection);
            if !matches!(timeout(STATEMENT, rollback).await, Ok(Ok(_))) {
                connection.close_on_drop();
            }
        });
    }
}

/// Whether another service writes.
fn is_locked(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Database(error) if error.code().is_some_and(|code| code == "55P03"))
}

/// Whether what was to begin may begin over another connection: this one ended, and nothing was written yet.
fn is_over(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(error) => !matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::TimedOut),
        sqlx::Error::Database(error) => error.code().is_some_and(|code| code.starts_with("57P")),
        sqlx::Error::PoolClosed => true,
        _ => false,
    }
}

/// Transactions that are committed together.
pub(super) struct Group {
    begun: Begun,
    /// In which it began.
    term: i64,
    /// Whether nobody goes on in it.
    is_alone: bool,
    /// Those who ended, and wait for the commit.
    ended: Vec<oneshot::Sender<Result<(), DbError>>>,
    /// When the first of them ended.
    since: Option<Instant>,
    /// How many began: the savepoint of the last one has that number, but for the first, who has none.
    count: usize,
    /// Whether the last one who began has not ended.
    is_open: bool,
}

impl Group {
    /// Begins at the leader; once more where the connection had ended, or another one leads by now.
    pub(super) async fn begin(leader: &Leader, term: i64, is_alone: bool, patience: Duration) -> Result<Self, DbError> {
        let (since, mut is_again) = (Instant::now(), false);
        let begun = loop {
            let link = leader.link();
            let left = patience.saturating_sub(since.elapsed());
            let error = match Begun::at(link.clone(), term, left).await {
                Ok(begun) => break begun,
                Err(error) => error,
            };
            let waits_on = is_locked(&error) && since.elapsed() < patience;
            let is_elsewhere = is_over(&error) || !Arc::ptr_eq(&link, &leader.link());
            if !waits_on && (std::mem::replace(&mut is_again, true) || !is_elsewhere) {
                return Err(error.into());
            }
        };
        Ok(Self { begun, term, is_alone, ended: Vec::new(), since: None, count: 1, is_open: true })
    }

    /// Begins another transaction behind what was done. The term is still the one that was asked for: nobody else had the lock since.
    pub(super) async fn go_on(&mut self) -> Result<(), sqlx::Error> {
        let former = self.count;
        self.count += 1;
        self.is_open = true;
        let release = if former > 1 { format!("RELEASE SAVEPOINT s{former}; ") } else { String::new() };
        self.begun.execute(format!("{release}SAVEPOINT s{}", self.count)).await
    }

    /// Where the next statement is asked, after which [`Self::note`] is told how it ended.
    pub(super) fn connection(&mut self) -> Result<(Asks, &mut PgConnection), sqlx::Error> {
        self.begun.connection()
    }

    pub(super) fn note(&mut self, error: Option<&sqlx::Error>) {
        self.begun.note(error);
    }

    /// The term in which it began.
    pub(super) const fn term(&self) -> i64 {
        self.term
    }

    /// Nobody goes on in it any more.
    pub(super) const fn be_alone(&mut self) {
        self.is_alone = true;
    }

    /// Ends the transaction of the last one who began, who is told of the commit.
    pub(super) fn end(&mut self, told: oneshot::Sender<Result<(), DbError>>, is_alone: bool) {
        self.ended.push(told);
        self.since.get_or_insert_with(Instant::now);
        (self.is_open, self.is_alone) = (false, self.is_alone || is_alone);
    }

    /// What is to be committed of it, without what the last one who began did where that was not ended; none where nobody ended, or
    /// those who did are told that it is lost.
    pub(super) async fn what_is_left(mut self) -> Option<Self> {
        if self.ended.is_empty() {
            return None;
        }
        if std::mem::replace(&mut self.is_open, false)
            && let Err(error) = self.undo().await
        {
            self.fail(&error);
            return None;
        }
        Some(self)
    }

    async fn undo(&mut self) -> Result<(), sqlx::Error> {
        let back = format!("ROLLBACK TO SAVEPOINT s{}", self.count);
        match self.begun.execute(back.clone()).await {
            // A statement failed whose answer nobody waited for, and this is it.
            Err(sqlx::Error::Database(_)) => self.begun.execute(back).await,
            outcome => outcome,
        }
    }

    /// Somebody leaves without an end, and answers by what others did who ended, where anybody waits for the answer; or by what it did
    /// itself, which is an end.
    pub(super) fn leave(&mut self, commits: bool) {
        if !self.is_open || (self.ended.is_empty() && !commits) {
            return;
        }
        match rests_on() {
            Some(told) if commits => self.end(told, false),
            told => self.ended.extend(told),
        }
    }

    /// Whether one more may go on in it as it is.
    pub(super) fn takes_more(&self) -> bool {
        !self.is_open && !self.is_alone && self.count < MOST && self.since.is_none_or(|since| since.elapsed() < LONGEST)
    }

    pub(super) async fn commit(self) {
        let (count, began) = (self.ended.len(), Instant::now());
        let outcome = self.begun.commit().await;
        if began.elapsed() > SLOW {
            tracing::warn!(
                count,
                ms = began.elapsed().as_millis(),
                "the database committed slowly, while all others waited"
            );
        }
        tell(self.ended, &outcome);
    }

    /// Tells those who ended that nothing of it was done.
    pub(super) fn fail(self, error: &sqlx::Error) {
        if !self.ended.is_empty() {
            tracing::warn!(count = self.ended.len(), %error, "changes that were to be committed together are lost");
        }
        let text = format!("the transaction is lost, and with it this change: {error}");
        tell(self.ended, &Err(DbError::Unavailable(text)));
    }
}

fn tell(ended: Vec<oneshot::Sender<Result<(), DbError>>>, outcome: &Result<(), DbError>) {
    for waits in ended {
        // Who left needs no answer.
        let _ = waits.send(outcome.clone());
    }
}
