//! A PostgreSQL server, or the one of several that leads.
//!
//! `postgres://berth@a,b,c/berth` names the members of a cluster that something else keeps, such as Patroni: one takes writes,
//! and another one takes its place when it is lost. The driver knows one address and asks for no sign of life: a
//! connection that a cut severs stays silent for as long as the cut lasts, and whoever waits for an answer waits as long.
//! So one connection asks the leader each second whether it still leads ([`watch`]), all [`members`] are asked where the
//! answer is missing and every few seconds in any case, and [`choice`] says what follows from what they said. Where
//! another one leads, a pool of connections to it takes the place of the former one, whose callers are told that the database does
//! not answer. A single address is watched in the same way: it may be one that moves between servers.
//!
//! Two members may take writes at the same time, because whoever demotes the old leader died, hangs or is cut off. Each
//! promotion begins a timeline with a higher number, so the later one leads, and none of an earlier one than was followed
//! before is ever followed: what was acknowledged there would be lost. A service forgets that number when it ends.
//!
//! A leader that is slow is not lost. Connections are made anew only where not one question was answered while the watch waited, and
//! what is under way on the former ones has a few seconds to end.

mod choice;
mod group;
mod members;
mod settled;
mod watch;
mod writer;

use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnection, PgPool, PgPoolOptions};
use sqlx::{Connection, Postgres};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::context::TokioContext;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use self::choice::{Followed, choose};
use self::members::none_leads;
pub use self::members::{Member, Said, Surveyed, Waits};
pub(super) use self::members::{Members, survey};
pub use self::settled::settled;
use self::writer::Writer;
pub(super) use self::writer::{Asker, Pen};
use super::DbError;

/// How long a service that begins waits for a cluster to have a leader. An election takes at most 20 s where Patroni keeps it.
const ELECTION: Duration = Duration::from_mins(1);
/// Between two questions to a cluster that has none.
const AGAIN: Duration = Duration::from_secs(1);
/// How long what is under way may take to end on connections that are given up.
const GRACE: Duration = Duration::from_secs(5);

/// What has a server let go of the lock of writers where who holds it is stopped, cut off or without power: else nobody
/// could take over from it. In milliseconds and seconds; less than [`berth_domain::replica::FREE`].
const LET_GO: [(&str, &str); 5] = [
    ("idle_in_transaction_session_timeout", "8000"),
    ("tcp_user_timeout", "8000"),
    ("tcp_keepalives_idle", "3"),
    ("tcp_keepalives_interval", "2"),
    ("tcp_keepalives_count", "2"),
];

/// Statements that each connection keeps prepared. A change of a row names the columns that it changes, so that there are many.
const PREPARED: usize = 512;
/// How long a server may take to say over a connection that it is there.
const SIGN: Duration = Duration::from_secs(2);
/// How long what only reads may take.
const READ: Duration = Duration::from_mins(1);
/// After so long a connection that nobody used is asked whether it is there still.
const UNUSED: Duration = Duration::from_millis(100);

/// Connections to the leader, until others take their place.
pub(super) struct Link {
    pub(super) pool: PgPool,
    /// The runtime that watches its connections: a caller may run on one that ends earlier.
    home: Handle,
    gone: CancellationToken,
    /// Questions that were answered.
    answers: AtomicU64,
}

impl Link {
    /// Connections to a member that refuse to be those of a standby, which has what its leader had a moment ago, or of a leader of an
    /// earlier timeline.
    fn new(pool: &PgPoolOptions, members: &Members, to: Followed, home: &Handle) -> Arc<Self> {
        let own = members.clone();
        let checked = pool.clone().after_connect(move |connection, _| {
            let own = own.clone();
            Box::pin(async move {
                match own.leads(connection).await? {
                    Said::Leads(timeline) if timeline >= to.timeline => Ok(()),
                    _ => Err(sqlx::Error::Protocol("the member does not lead".into())),
                }
            })
        });
        let _entered = home.enter();
        let pool = checked.connect_lazy_with(members.options(to.member));
        Arc::new(Self { pool, home: home.clone(), gone: CancellationToken::new(), answers: AtomicU64::new(0) })
    }

    /// What is asked of the leader, as long as it leads. It lies in memory of its own, so that who awaits it stays small.
    pub(super) fn ask<'a, T: 'a>(
        &'a self,
        asking: impl Future<Output = Result<T, sqlx::Error>> + Send + 'a,
    ) -> impl Future<Output = Result<T, sqlx::Error>> + Send + 'a {
        let asking = Box::pin(TokioContext::new(asking, self.home.clone()));
        async move {
            tokio::select! {
                biased;
                outcome = asking => {
                    if matches!(outcome, Ok(_) | Err(sqlx::Error::Database(_))) {
                        self.answers.fetch_add(1, Ordering::Relaxed);
                    }
                    outcome
                }
                () = self.gone.cancelled() => {
                    Err(io::Error::new(io::ErrorKind::NotConnected, "its leader is lost, and with it this question").into())
                }
            }
        }
    }

    /// The same of what only reads, in time: over a connection that is cut nothing comes, while others are well. [`leave_if_silent`] is
    /// told how it ended.
    pub(super) async fn read<'a, T: 'a>(
        &'a self,
        asking: impl Future<Output = Result<T, sqlx::Error>> + Send + 'a,
    ) -> Result<T, sqlx::Error> {
        self.in_time(READ, asking).await
    }

    /// The same of anything, which may take so long.
    async fn in_time<'a, T: 'a>(
        &'a self,
        patience: Duration,
        asking: impl Future<Output = Result<T, sqlx::Error>> + Send + 'a,
    ) -> Result<T, sqlx::Error> {
        let late = || io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {patience:?}")).into();
        timeout(patience, self.ask(asking)).await.unwrap_or_else(|_| Err(late()))
    }

    /// Whether others have taken its place, and nothing is waited for any more.
    pub(super) fn is_gone(&self) -> bool {
        self.gone.is_cancelled()
    }

    fn answers(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }

    /// Gives these connections up: what is asked over them has so long to end.
    async fn leave(self: Arc<Self>, grace: Duration) {
        let closed = self.pool.close();
        if timeout(grace, closed).await.is_err() {
            self.gone.cancel();
            self.pool.close().await;
        }
    }
}

/// The leader, found and followed.
pub(super) struct Leader {
    following: Arc<Following>,
    writer: Arc<Writer>,
    _watch: AbortOnDropHandle<()>,
}

struct Following {
    members: Members,
    pool: PgPoolOptions,
    home: Handle,
    link: Mutex<(Followed, Arc<Link>)>,
}

impl Leader {
    /// Finds the leader of a cluster, whose members may take so long to answer, and follows it from now on. A caller waits at
    /// most `wait` for one of `most` connections, and for a lock.
    ///
    /// # Errors
    /// None of the members leads, of several for as long as an election may take; the sentence says of each why.
    pub(super) async fn find(url: &str, patience: Duration, wait: Duration, most: u32) -> Result<Self, DbError> {
        let members: Members = url.parse().map_err(|wrong| DbError::Other(format!("its address {wrong}")))?;
        let locked = wait.as_millis().to_string();
        let members = members.with(|options| {
            let options = options.options([("lock_timeout", locked.as_str())]).options(LET_GO);
            options.statement_cache_capacity(PREPARED)
        });
        let found = first(&members, patience).await?;
        let home = Handle::current();
        let pool = PgPoolOptions::new().max_connections(most).acquire_timeout(wait).test_before_acquire(false);
        let pool = pool.before_acquire(|connection, usage| {
            Box::pin(async move {
                if usage.idle_for > UNUSED {
                    is_there(connection).await?;
                }
                Ok(true)
            })
        });
        let link = Link::new(&pool, &members, found, &home);
        let writer = Writer::new(home.clone());
        let following = Arc::new(Following { members, pool, home, link: Mutex::new((found, link)) });
        let watch = AbortOnDropHandle::new(tokio::spawn(watch::watch(following.clone())));
        Ok(Self { following, writer, _watch: watch })
    }

    /// The connections to whoever leads now.
    pub(super) fn link(&self) -> Arc<Link> {
        self.following.now().1
    }
}

/// Whether a server did not answer in time.
fn is_silent(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Io(error) if error.kind() == io::ErrorKind::TimedOut)
}

/// Closes a connection over which an answer did not come in time: the pool would wait for it for as long as TCP does.
pub(super) fn leave_if_silent(connection: &mut PoolConnection<Postgres>, error: Option<&sqlx::Error>) {
    if error.is_some_and(is_silent) {
        connection.close_on_drop();
    }
}

/// Asks over a connection whether the server is there.
async fn is_there(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    let late = || io::Error::new(io::ErrorKind::TimedOut, "no answer over a connection").into();
    timeout(SIGN, connection.ping()).await.unwrap_or_else(|_| Err(late()))
}

/// The first leader.
async fn first(members: &Members, patience: Duration) -> Result<Followed, DbError> {
    let (began, mut is_told) = (Instant::now(), false);
    loop {
        let said = members.ask(patience).await;
        if let Some(found) = choose(&said, Followed::default())
            && members.settle(found.member).await.is_ok()
        {
            if members.is_cluster() {
                let leader = members.place(found.member);
                tracing::info!(leader, timeline = found.timeline, "found the database's leader");
            }
            return Ok(found);
        }
        let none = none_leads(&said, 0);
        if !members.is_cluster() || began.elapsed() > ELECTION {
            let refuses = said.iter().all(|member| matches!(member.said, Said::Refuses(_)));
            return Err(if refuses { DbError::Other(none) } else { DbError::Unavailable(none) });
        }
        if !std::mem::replace(&mut is_told, true) {
            tracing::warn!("no member of the database's cluster leads; waiting up to {ELECTION:?}: {none}");
        }
        sleep(AGAIN).await;
    }
}

impl Following {
    fn now(&self) -> (Followed, Arc<Link>) {
        let link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        (link.0, link.1.clone())
    }

    fn note(&self, found: Followed) {
        self.link.lock().unwrap_or_else(PoisonError::into_inner).0 = found;
    }

    /// Has callers ask this member over new connections from now on; what they have asked over the former ones has so long to end.
    fn follow(&self, found: Followed, grace: Duration) {
        let link = Link::new(&self.pool, &self.members, found, &self.home);
        let (_, former) = {
            let mut now = self.link.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *now, (found, link))
        };
        self.home.spawn(former.leave(grace));
    }
}
