//! Who writes next to a server, and whose changes are committed together.
//!
//! One transaction writes at a time. A commit waits for the server's disk, and in a cluster for that of another member, too: longer
//! than all that a short transaction asks. So whoever ends while others wait does not commit. The next one goes on in the same
//! transaction, behind a savepoint, and whoever finds nobody waiting commits for all ([`Pen::end`]). Nobody is told that a change was made
//! before it is committed. Who leaves in the middle, or asked something that failed, loses its own changes and nobody else's. If the
//! server is lost, all of them are told so. Who changes nothing has still seen what others did: what it answers rests on a commit that
//! may fail, and waits for that ([`super::settled`]).
//!
//! Callers and workers take turns: each request brings several transactions of workers about, which would else be most of
//! those that wait before the next request. The service's own sign of life comes before both, since without it the service ends.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sqlx::postgres::PgConnection;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::Leader;
use super::group::{Asks, Group, SLOW, silent};
use super::settled::heard;
use crate::db::{DbError, Term};

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
                group.be_alone();
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
    async fn settle(self: Arc<Self>, group: Group) {
        let mut is_free = Frees(Some(self.clone()));
        let Some(group) = group.what_is_left().await else { return };
        match if group.takes_more() { self.pass_on(Some(group)) } else { Some(group) } {
            Some(group) => group.commit().await,
            None => is_free.0 = None,
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

/// The right to write, which goes on to the next one however its holder ends, and what was done with it so far.
pub(in crate::db) struct Pen {
    /// None once it went on.
    writer: Option<Arc<Writer>>,
    group: Option<Group>,
    asker: Asker,
    /// Whether a statement failed, after which the server takes none.
    is_broken: bool,
    /// Whether it is committed, too, where it is left without an end.
    commits_when_left: bool,
}

impl Pen {
    const fn new(writer: Arc<Writer>, group: Option<Group>, asker: Asker) -> Self {
        Self { writer: Some(writer), group, asker, is_broken: false, commits_when_left: false }
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
        if let Some(group) = pen.group.take_if(|group| group.term() != term) {
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
        pen.group = Some(Group::begin(leader, term, pen.asker == Asker::Bulk, patience).await?);
        Ok(pen)
    }

    /// Where the next statement is asked, after which [`Self::note`] is told how it ended.
    pub(in crate::db) fn connection(&mut self) -> Result<(Asks, &mut PgConnection), sqlx::Error> {
        // Also by one whose answer nobody waited for.
        self.is_broken = true;
        self.group.as_mut().ok_or_else(silent)?.connection()
    }

    /// How the last statement ended: after one that failed, the server takes none.
    pub(in crate::db) fn note(&mut self, error: Option<&sqlx::Error>) {
        self.is_broken = error.is_some();
        if let Some(group) = &mut self.group {
            group.note(error);
        }
    }

    /// Somebody answers by what the transaction saw and wrote anew, whoever leaves it: the answer waits for its commit.
    pub(in crate::db) const fn commit_when_left(&mut self) {
        self.commits_when_left = true;
    }

    /// Ends the transaction, whose changes the next one sees from now on; what comes of its commit.
    pub(in crate::db) fn end(mut self) -> impl Future<Output = Result<(), DbError>> + Send + use<> {
        let (told, outcome) = oneshot::channel();
        let is_broken = self.is_broken;
        if let Some(group) = self.group.as_mut().filter(|_| !is_broken) {
            // A sign of life waits for nobody's statement.
            group.end(told, self.asker == Asker::Keeper);
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
        if let Some(group) = &mut group {
            group.leave(self.commits_when_left && !self.is_broken);
        }
        let is_settled = group.as_ref().is_none_or(Group::takes_more);
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
