//! Who writes next to a server, and whose changes are committed together.
//!
//! One transaction writes at a time. A commit waits for the server's disk, and in a cluster for that of another member, too: longer
//! than all that a short transaction asks. So whoever ends while others wait does not commit. The next one goes on in the same
//! transaction, behind a savepoint, and whoever finds nobody waiting commits for all ([`Seat::ended`]). Nobody is told that a change was made
//! before it is committed. Who leaves in the middle, or asked something that failed, loses its own changes and nobody else's. If the
//! server is lost, all of them are told so.
//!
//! Callers and workers take turns: each request brings several transactions of workers about, which would else be most of
//! those that wait before the next request.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sqlx::pool::PoolConnection;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Postgres, Row};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::{Leader, Link};
use crate::db::{DbError, ONE_WRITER};

/// Most transactions that are committed together: fewer than the 64 savepoints that a server keeps at hand.
const MOST: usize = 32;
/// How long the first of them waits for others to end, at most; the one that is under way then is the last.
const LONGEST: Duration = Duration::from_millis(5);

/// How long the server may take for a statement of a transaction, for which all others wait: a connection that is cut says nothing.
const STILL: Duration = Duration::from_secs(20);
/// The term of the service that has the database.
const PRESENT_TERM: &str = "SELECT term FROM keeper WHERE id = 1";

/// Whose transaction it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::db) enum Whose {
    /// Somebody waits for an answer.
    Caller,
    /// All others.
    Worker,
}

/// What a service is told that writes in an earlier term.
fn overtaken() -> sqlx::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, "another service has taken it over").into()
}

/// What is told of a connection over which nothing comes.
fn silent() -> sqlx::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the server said nothing for too long").into()
}

/// The one who writes, and those who want to.
pub(super) struct Writer {
    queue: Mutex<Queue>,
    home: Handle,
}

#[derive(Default)]
struct Queue {
    is_taken: bool,
    callers: VecDeque<oneshot::Sender<Seat>>,
    workers: VecDeque<oneshot::Sender<Seat>>,
    /// Whether the last one that was taken from those who waited was a caller.
    was_caller: bool,
}

impl Queue {
    fn of(&mut self, whose: Whose) -> &mut VecDeque<oneshot::Sender<Seat>> {
        match whose {
            Whose::Caller => &mut self.callers,
            Whose::Worker => &mut self.workers,
        }
    }

    /// The next one who still waits.
    fn next(&mut self) -> Option<oneshot::Sender<Seat>> {
        let turns = if self.was_caller { [Whose::Worker, Whose::Caller] } else { [Whose::Caller, Whose::Worker] };
        for whose in turns {
            while let Some(waiting) = self.of(whose).pop_front() {
                if !waiting.is_closed() {
                    self.was_caller = whose == Whose::Caller;
                    return Some(waiting);
                }
            }
        }
        None
    }
}

impl Writer {
    pub(super) fn new(home: Handle) -> Arc<Self> {
        Arc::new(Self { queue: Mutex::default(), home })
    }

    /// Waits for the seat, at most `patience`.
    async fn seat(self: &Arc<Self>, whose: Whose, patience: Duration) -> Result<Seat, DbError> {
        let given = {
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            if !queue.is_taken {
                queue.is_taken = true;
                return Ok(Seat::new(self.clone(), None));
            }
            let (give, given) = oneshot::channel();
            queue.of(whose).push_back(give);
            given
        };
        let late = || DbError::Unavailable(format!("other changes took longer than {patience:?}"));
        timeout(patience, given).await.map_err(|_| late())?.map_err(|_| late())
    }

    /// Gives the seat to the next one who waits. Where nobody does, what is to be committed comes back, or the seat is free.
    fn give(self: &Arc<Self>, mut group: Option<Group>) -> Option<Group> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(next) = queue.next() {
            match next.send(Seat::new(self.clone(), group)) {
                Ok(()) => return None,
                // Who waited left just now.
                Err(mut seat) => (seat.writer, group) = (None, seat.group.take()),
            }
        }
        queue.is_taken = group.is_some();
        group
    }

    /// Gives up what was not ended and commits what was, unless somebody goes on with it, and gives the seat to the next one.
    async fn settle(self: Arc<Self>, mut group: Group) {
        if group.is_open && !group.give_up().await {
            group.fail("the transaction was lost, and with it this change");
        } else {
            let left = if group.takes_more() { self.give(Some(group)) } else { Some(group) };
            let Some(group) = left else { return };
            group.commit().await;
        }
        self.give(None);
    }
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
pub(in crate::db) struct Asks(Arc<Link>);

impl Asks {
    pub(in crate::db) async fn ask<T>(
        &self,
        asking: impl Future<Output = Result<T, sqlx::Error>> + Send,
    ) -> Result<T, sqlx::Error> {
        timeout(STILL, self.0.ask(asking)).await.unwrap_or_else(|_| Err(silent()))
    }
}

impl Begun {
    /// Begins once no other service writes; in a term only if the database is still in it.
    async fn at(link: Arc<Link>, term: i64) -> Result<Self, sqlx::Error> {
        let connection = link.ask(link.pool.acquire()).await?;
        let mut begun = Self { link, connection: Some(connection), is_silent: false };
        if term == 0 {
            begun.execute(format!("BEGIN; {ONE_WRITER}")).await?;
            return Ok(begun);
        }
        // One message, and several statements: the last sees what was committed while the one before waited.
        let asked = sqlx::raw_sql(AssertSqlSafe(format!("BEGIN; {ONE_WRITER}; {PRESENT_TERM}")));
        let (asks, connection) = begun.connection()?;
        let answered = asks.ask(asked.fetch_all(connection)).await;
        begun.note(answered.as_ref().err());
        let present: Option<i64> = answered?.last().map(|row| row.try_get(0)).transpose()?;
        if present == Some(term) { Ok(begun) } else { Err(overtaken()) }
    }

    fn connection(&mut self) -> Result<(Asks, &mut PgConnection), sqlx::Error> {
        let connection = self.connection.as_deref_mut().filter(|_| !self.is_silent).ok_or_else(silent)?;
        Ok((Asks(self.link.clone()), connection))
    }

    async fn execute(&mut self, text: String) -> Result<(), sqlx::Error> {
        let (asks, connection) = self.connection()?;
        let outcome = asks.ask(sqlx::raw_sql(AssertSqlSafe(text)).execute(connection)).await;
        self.note(outcome.as_ref().err());
        outcome.map(drop)
    }

    fn note(&mut self, error: Option<&sqlx::Error>) {
        self.is_silent |= matches!(error, Some(sqlx::Error::Io(error)) if error.kind() == io::ErrorKind::TimedOut);
    }

    async fn commit(mut self) -> Result<(), DbError> {
        let outcome = self.execute("COMMIT".into()).await.map_err(|error| match error.into() {
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
            if !matches!(timeout(STILL, rollback).await, Ok(Ok(_))) {
                connection.close_on_drop();
            }
        });
    }
}

/// Transactions that are committed together.
struct Group {
    begun: Begun,
    /// Those who ended, and wait for the commit.
    ended: Vec<oneshot::Sender<Result<(), DbError>>>,
    /// When the first of them ended.
    since: Option<Instant>,
    /// How many began: the savepoint of the last one has that number, but for the first, who has none.
    begun_count: usize,
    /// Whether the last one who began has not ended.
    is_open: bool,
}

impl Group {
    /// Begins at the leader; once more, at the next one, where that is lost meanwhile: nothing was written yet.
    async fn begin(leader: &Leader, term: i64) -> Result<Self, DbError> {
        let link = leader.link();
        let begun = match Begun::at(link.clone(), term).await {
            Err(_) if link.is_gone() => Begun::at(leader.link(), term).await?,
            begun => begun?,
        };
        Ok(Self { begun, ended: Vec::new(), since: None, begun_count: 1, is_open: true })
    }

    /// Begins another transaction behind what was done.
    async fn go_on(&mut self) -> Result<(), sqlx::Error> {
        let former = self.begun_count;
        self.begun_count += 1;
        self.is_open = true;
        let release = if former > 1 { format!("RELEASE SAVEPOINT s{former}; ") } else { String::new() };
        self.begun.execute(format!("{release}SAVEPOINT s{}", self.begun_count)).await
    }

    /// Gives up what the last one who began did; false where that cannot be without the others.
    async fn give_up(&mut self) -> bool {
        self.is_open = false;
        let back = format!("ROLLBACK TO SAVEPOINT s{}", self.begun_count);
        self.begun_count > 1 && self.begun.execute(back).await.is_ok()
    }

    /// Whether one more may go on in it.
    fn takes_more(&self) -> bool {
        self.begun_count < MOST && self.since.is_none_or(|since| since.elapsed() < LONGEST)
    }

    async fn commit(self) {
        let outcome = self.begun.commit().await;
        tell(self.ended, &outcome);
    }

    /// Tells those who ended that nothing of it was done.
    fn fail(self, why: &str) {
        tell(self.ended, &Err(DbError::Unavailable(why.to_owned())));
    }
}

fn tell(ended: Vec<oneshot::Sender<Result<(), DbError>>>, outcome: &Result<(), DbError>) {
    for waits in ended {
        // Who left needs no answer.
        let _ = waits.send(outcome.clone());
    }
}

/// The right to write, which goes on to the next one however its holder ends, and what was done with it so far.
pub(in crate::db) struct Seat {
    /// None once it went on.
    writer: Option<Arc<Writer>>,
    group: Option<Group>,
    /// Whether a statement failed, after which the server takes none.
    is_broken: bool,
}

impl Seat {
    const fn new(writer: Arc<Writer>, group: Option<Group>) -> Self {
        Self { writer: Some(writer), group, is_broken: false }
    }

    /// Begins a transaction that may write, once no other one does.
    ///
    /// # Errors
    /// Others wrote for as long as `patience`, the database is lost, or another service has taken it over.
    pub(in crate::db) async fn begin(
        leader: &Leader,
        term: i64,
        whose: Whose,
        patience: Duration,
    ) -> Result<Self, DbError> {
        let mut seat = leader.writer.seat(whose, patience).await?;
        if let Some(group) = &mut seat.group {
            match group.go_on().await {
                Ok(()) => return Ok(seat),
                Err(error) => {
                    if let Some(group) = seat.group.take() {
                        group.fail(&error.to_string());
                    }
                }
            }
        }
        seat.group = Some(Group::begin(leader, term).await?);
        Ok(seat)
    }

    /// Where the next statement is asked, after which [`Self::note`] is told how it ended.
    pub(in crate::db) fn connection(&mut self) -> Result<(Asks, &mut PgConnection), sqlx::Error> {
        // Also by one whose answer nobody waited for.
        self.is_broken = true;
        self.group.as_mut().ok_or_else(silent)?.begun.connection()
    }

    /// How the last statement ended: after one that failed, the server takes none.
    pub(in crate::db) fn note(&mut self, error: Option<&sqlx::Error>) {
        self.is_broken = error.is_some();
        if let Some(group) = &mut self.group {
            group.begun.note(error);
        }
    }

    /// Ends the transaction, whose changes the next one sees from now on; what comes of its commit.
    pub(in crate::db) fn ended(mut self) -> impl Future<Output = Result<(), DbError>> + Send + use<> {
        let (told, outcome) = oneshot::channel();
        let is_broken = self.is_broken;
        if let Some(group) = self.group.as_mut().filter(|_| !is_broken) {
            group.ended.push(told);
            group.since.get_or_insert_with(Instant::now);
            group.is_open = false;
        }
        drop(self);
        async move {
            if is_broken {
                return Err(DbError::Other("a statement of the transaction failed".into()));
            }
            outcome.await.unwrap_or_else(|_| Err(DbError::Unknown("the service ends".into())))
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let Some(writer) = self.writer.take() else { return };
        let group = self.group.take();
        let is_settled = group.as_ref().is_none_or(|group| !group.is_open && group.takes_more());
        let left = if is_settled { writer.give(group) } else { group };
        if let Some(group) = left {
            let home = writer.home.clone();
            home.spawn(writer.settle(group));
        }
    }
}
