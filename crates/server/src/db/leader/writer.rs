//! Who writes next to a server, and whose changes are committed together.
//!
//! One transaction writes at a time. A commit waits for the server's disk, and in a cluster for that of another member, too: longer
//! than all that a short transaction asks. So whoever ends while others wait does not commit. The next one goes on in the same
//! transaction, behind a savepoint, and whoever finds nobody waiting commits for all ([`Pen::end`]). Nobody is told that a change was made
//! before it is committed. Who leaves in the middle, or asked something that failed, loses its own changes and nobody else's. If the
//! server is lost, all of them are told so. Who changes nothing has still seen what others did: what it answers rests on a commit that
//! may fail, and waits for that ([`settled`]).
//!
//! Callers and workers take turns: each request brings several transactions of workers about, which would else be most of
//! those that wait before the next request. The service's own sign of life comes before both, since without it the service ends.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{fmt, io};

use berth_domain::replica::{HOLDS, RENEW};
use sqlx::pool::PoolConnection;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Postgres, Row};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::{Leader, Link, is_silent};
use crate::db::{DbError, ONE_WRITER, Term};

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
const SLOW: Duration = Duration::from_secs(1);
/// The term of the service that has the database.
const PRESENT_TERM: &str = "SELECT term FROM keeper WHERE id = 1";

/// Who asks for a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::db) enum Asker {
    /// The service, which says that it lives.
    Keeper,
    /// A request, whose sender waits.
    Caller,
    /// Nobody waits for it.
    Worker,
    /// Nobody waits for it, and it takes long: nobody else's commit waits for its end.
    Bulk,
}

impl fmt::Display for Asker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Keeper => "the service itself",
            Self::Caller => "a request",
            Self::Worker => "a worker",
            Self::Bulk => "work in bulk",
        })
    }
}

/// What a service is told that writes in an earlier term.
fn overtaken() -> sqlx::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, "another service has taken it over").into()
}

/// What is told of a connection over which nothing comes.
fn silent() -> sqlx::Error {
    io::Error::new(io::ErrorKind::TimedOut, "no answer to a statement in time").into()
}

tokio::task_local! {
    /// Commits that what is answered here rests on.
    static RESTS_ON: RefCell<Vec<Outcome>>;
}

type Outcome = oneshot::Receiver<Result<(), DbError>>;

/// An answer, once all that it rests on is committed.
///
/// # Errors
/// Something that it rests on was lost.
pub async fn settled<T>(answering: impl Future<Output = T>) -> Result<T, DbError> {
    let answered = async {
        let answer = answering.await;
        (answer, RESTS_ON.with(RefCell::take))
    };
    let (answer, rests_on) = RESTS_ON.scope(RefCell::default(), answered).await;
    for outcome in rests_on {
        // It may have done something of its own that is not lost.
        heard(outcome).await.map_err(|error| match error {
            DbError::Unavailable(text) => DbError::Unknown(text),
            error => error,
        })?;
    }
    Ok(answer)
}

async fn heard(outcome: Outcome) -> Result<(), DbError> {
    outcome.await.unwrap_or_else(|_| Err(DbError::Unknown("the service ends".into())))
}

/// The one who writes, and those who want to.
pub(super) struct Writer {
    queue: Mutex<Queue>,
    home: Handle,
}

/// Somebody who wants to write.
struct Waiting {
    asker: Asker,
    give: oneshot::Sender<Pen>,
}

#[derive(Default)]
struct Queue {
    /// Who writes, and since when.
    holder: Option<(Asker, Instant)>,
    keepers: VecDeque<Waiting>,
    callers: VecDeque<Waiting>,
    workers: VecDeque<Waiting>,
    /// Whether of callers and workers a caller had the last turn.
    was_caller: bool,
}

impl Queue {
    fn of(&mut self, asker: Asker) -> &mut VecDeque<Waiting> {
        match asker {
            Asker::Keeper => &mut self.keepers,
            Asker::Caller => &mut self.callers,
            Asker::Worker | Asker::Bulk => &mut self.workers,
        }
    }

    /// The next one who still waits.
    fn next(&mut self) -> Option<Waiting> {
        let turns = if self.was_caller { [Asker::Worker, Asker::Caller] } else { [Asker::Caller, Asker::Worker] };
        for asker in [Asker::Keeper, turns[0], turns[1]] {
            while let Some(waiting) = self.of(asker).pop_front() {
                if !waiting.give.is_closed() {
                    if asker != Asker::Keeper {
                        self.was_caller = asker == Asker::Caller;
                    }
                    return Some(waiting);
                }
            }
        }
        None
    }

    /// What somebody is told who waited in vain.
    fn late(&self) -> DbError {
        let count = self.keepers.len() + self.callers.len() + self.workers.len();
        let holder = self.holder.map(|(asker, since)| format!(" for that of {asker}, since {:.1?}", since.elapsed()));
        DbError::Unavailable(format!("{count} changes wait{}", holder.unwrap_or_default()))
    }
}

impl Writer {
    pub(super) fn new(home: Handle) -> Arc<Self> {
        Arc::new(Self { queue: Mutex::default(), home })
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the pen, at most `patience`.
    async fn pen(self: &Arc<Self>, asker: Asker, patience: Duration) -> Result<Pen, DbError> {
        let given = {
            let mut queue = self.queue();
            if queue.holder.is_none() {
                queue.holder = Some((asker, Instant::now()));
                return Ok(Pen::new(self.clone(), None, asker));
            }
            let (give, given) = oneshot::channel();
            queue.of(asker).push_back(Waiting { asker, give });
            given
        };
        match timeout(patience, given).await {
            Ok(Ok(pen)) => Ok(pen),
            Ok(Err(_)) | Err(_) => Err(self.queue().late()),
        }
    }

    /// Gives the pen to the next one who waits. Where nobody does, or not with what is to be committed, that comes back; or the pen is free.
    fn pass_on(self: &Arc<Self>, mut group: Option<Group>) -> Option<Group> {
        let mut queue = self.queue();
        while let Some(next) = queue.next() {
            if let Some(group) = group.as_mut().filter(|_| next.asker == Asker::Bulk) {
                // Its turn comes after the commit.
                group.is_alone = true;
                queue.was_caller = true;
                queue.of(Asker::Bulk).push_front(next);
                break;
            }
            queue.holder = Some((next.asker, Instant::now()));
            match next.give.send(Pen::new(self.clone(), group, next.asker)) {
                Ok(()) => return None,
                // Who waited left just now.
                Err(mut pen) => (pen.writer, group) = (None, pen.group.take()),
            }
        }
        if group.is_none() {
            queue.holder = None;
        }
        group
    }

    /// Tells of a holder for whom all others waited for long.
    fn tell_if_slow(&self) {
        if let Some((asker, since)) = self.queue().holder.filter(|(_, since)| since.elapsed() > SLOW) {
            tracing::warn!(%asker, ms = since.elapsed().as_millis(), "a change kept all others waiting");
        }
    }

    /// Undoes what was not ended and commits what was, unless somebody goes on with it, and gives the pen to the next one.
    async fn settle(self: Arc<Self>, mut group: Group) {
        let mut is_free = Frees(Some(self.clone()));
        let undone = if group.is_open { group.undo().await } else { Ok(()) };
        if let Err(error) = undone {
            group.fail(&error);
        } else {
            let left = if group.takes_more() { self.pass_on(Some(group)) } else { Some(group) };
            let Some(group) = left else {
                is_free.0 = None;
                return;
            };
            group.commit().await;
        }
    }
}

/// Gives the pen to the next one when it is dropped, however that comes about.
struct Frees(Option<Arc<Writer>>);

impl Drop for Frees {
    fn drop(&mut self) {
        if let Some(writer) = self.0.take() {
            writer.pass_on(None);
        }
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
struct Group {
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
    async fn begin(leader: &Leader, term: i64, asker: Asker, patience: Duration) -> Result<Self, DbError> {
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
        let is_alone = asker == Asker::Bulk;
        Ok(Self { begun, term, is_alone, ended: Vec::new(), since: None, count: 1, is_open: true })
    }

    /// Begins another transaction behind what was done. The term is still the one that was asked for: nobody else had the lock since.
    async fn go_on(&mut self) -> Result<(), sqlx::Error> {
        let former = self.count;
        self.count += 1;
        self.is_open = true;
        let release = if former > 1 { format!("RELEASE SAVEPOINT s{former}; ") } else { String::new() };
        self.begun.execute(format!("{release}SAVEPOINT s{}", self.count)).await
    }

    /// Undoes what the last one who began did.
    async fn undo(&mut self) -> Result<(), sqlx::Error> {
        self.is_open = false;
        if self.count == 1 {
            // Nobody else did anything, and the whole is undone when it is dropped.
            return Err(sqlx::Error::WorkerCrashed);
        }
        let back = format!("ROLLBACK TO SAVEPOINT s{}", self.count);
        match self.begun.execute(back.clone()).await {
            // A statement failed whose answer nobody waited for, and this is it.
            Err(sqlx::Error::Database(_)) => self.begun.execute(back).await,
            outcome => outcome,
        }
    }

    /// Notes that somebody answers by what those who ended did, and changes nothing itself.
    fn is_rested_on(&mut self) {
        if self.ended.is_empty() {
            return;
        }
        let (told, outcome) = oneshot::channel();
        // Who answers nobody looks anew.
        if RESTS_ON.try_with(|all| all.borrow_mut().push(outcome)).is_ok() {
            self.ended.push(told);
        }
    }

    /// Whether one more may go on in it.
    fn takes_more(&self) -> bool {
        !self.is_alone && self.count < MOST && self.since.is_none_or(|since| since.elapsed() < LONGEST)
    }

    async fn commit(self) {
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
    fn fail(self, error: &sqlx::Error) {
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

/// The right to write, which goes on to the next one however its holder ends, and what was done with it so far.
pub(in crate::db) struct Pen {
    /// None once it went on.
    writer: Option<Arc<Writer>>,
    group: Option<Group>,
    asker: Asker,
    /// Whether a statement failed, after which the server takes none.
    is_broken: bool,
}

impl Pen {
    const fn new(writer: Arc<Writer>, group: Option<Group>, asker: Asker) -> Self {
        Self { writer: Some(writer), group, asker, is_broken: false }
    }

    /// Begins a transaction that may write, once no other one does.
    ///
    /// # Errors
    /// Others wrote for as long as `patience`, the database is lost, or another service has taken it over.
    pub(in crate::db) async fn begin(
        leader: &Leader,
        term: &Term,
        asker: Asker,
        patience: Duration,
    ) -> Result<Self, DbError> {
        let mut pen = leader.writer.pen(asker, patience).await?;
        // As it is now: it may have risen while others wrote.
        let term = term.now();
        if let Some(group) = pen.group.take_if(|group| group.term != term) {
            // Whoever waits for this may leave.
            let _ = leader.writer.home.spawn(group.commit()).await;
        }
        if let Some(group) = &mut pen.group {
            match group.go_on().await {
                Ok(()) => return Ok(pen),
                Err(error) => {
                    if let Some(group) = pen.group.take() {
                        group.fail(&error);
                    }
                }
            }
        }
        pen.group = Some(Group::begin(leader, term, pen.asker, patience).await?);
        Ok(pen)
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
    pub(in crate::db) fn end(mut self) -> impl Future<Output = Result<(), DbError>> + Send + use<> {
        let (told, outcome) = oneshot::channel();
        let is_broken = self.is_broken;
        if let Some(group) = self.group.as_mut().filter(|_| !is_broken) {
            group.ended.push(told);
            group.since.get_or_insert_with(Instant::now);
            group.is_open = false;
            // A sign of life waits for nobody's statement.
            group.is_alone |= self.asker == Asker::Keeper;
        }
        drop(self);
        async move {
            if is_broken {
                return Err(DbError::Other("a statement of the transaction failed".into()));
            }
            heard(outcome).await
        }
    }
}

impl Drop for Pen {
    fn drop(&mut self) {
        let Some(writer) = self.writer.take() else { return };
        writer.tell_if_slow();
        let mut group = self.group.take();
        if let Some(group) = group.as_mut().filter(|group| group.is_open) {
            group.is_rested_on();
        }
        let is_settled = group.as_ref().is_none_or(|group| !group.is_open && group.takes_more());
        let left = if is_settled { writer.pass_on(group) } else { group };
        if let Some(group) = left {
            let home = writer.home.clone();
            home.spawn(writer.settle(group));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_of_life_comes_first_and_callers_and_workers_take_turns() {
        let mut queue = Queue::default();
        let askers = [Asker::Worker, Asker::Worker, Asker::Worker, Asker::Caller, Asker::Caller, Asker::Keeper];
        let mut waiting = Vec::new();
        for asker in askers {
            let (give, given) = oneshot::channel();
            queue.of(asker).push_back(Waiting { asker, give });
            waiting.push(given);
        }
        // One of the workers leaves.
        drop(waiting.remove(0));
        let turns: Vec<_> = std::iter::from_fn(|| queue.next()).map(|next| next.asker).collect();
        assert_eq!(turns, [Asker::Keeper, Asker::Caller, Asker::Worker, Asker::Caller, Asker::Worker]);
    }

    #[tokio::test]
    async fn who_waits_in_vain_is_told_for_whom() {
        let writer = Writer::new(Handle::current());
        let held = writer.pen(Asker::Worker, Duration::ZERO).await.unwrap();
        let told = writer.pen(Asker::Caller, Duration::ZERO).await.err().unwrap().to_string();
        assert!(told.contains("1 changes wait for that of a worker, since "), "{told}");
        drop(held);
        drop(writer.pen(Asker::Caller, Duration::ZERO).await.unwrap());
    }
}
