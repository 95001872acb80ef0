//! A PostgreSQL server, or the one of several that leads.
//!
//! `postgres://berth@a,b,c/berth` names the members of a cluster that something else keeps, such as Patroni: one takes writes,
//! and another one takes its place when it is lost. The driver knows one address and asks for no sign of life: a
//! connection that a cut severs stays silent for as long as the cut lasts, and whoever waits for an answer waits as long.
//! So one connection asks the leader each second whether it still leads. When it is silent or says no, all members
//! are asked at once, and a pool of connections to the new leader takes the place of the old one, whose callers are told that
//! the database does not answer. A single address is watched in the same way: it may be one that moves between servers.
//!
//! Two members may take writes at the same time, because whoever demotes the old leader died or is cut off. Each
//! promotion begins a timeline with a higher number, so the later one leads, and none of an earlier one than was followed
//! before is ever followed: what was acknowledged there would be lost. A service forgets that number when it ends. The
//! old leader says that it leads for as long as it is asked, so that all members are asked every few seconds.

use std::future::Future;
use std::io;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::join_all;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions};
use sqlx::{Connection, Executor, Row};
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};
use tokio_util::context::TokioContext;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::DbError;

/// Between two questions whether the leader still leads.
const LOOK: Duration = Duration::from_secs(1);
/// So many of those questions are between two of all members, whether one has overtaken the leader.
const LOOKS: u32 = 3;
/// How long a leader that was connected may take to answer that.
const SILENCE: Duration = Duration::from_secs(3);
/// How long a member may take to connect and to say whether it leads.
const PROBE: Duration = Duration::from_secs(2);

/// Whether a member takes writes. Not every server that speaks the protocol has timelines, so a single one is not asked.
const LEADS: &str = "SELECT CASE WHEN pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on' \
                     THEN NULL ELSE CAST(0 AS BIGINT) END";
/// The same, and on which timeline: the first eight digits of the file that it writes its log into.
const LEADS_ON: &str = "SELECT CASE WHEN pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on' THEN NULL \
                        ELSE ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint END";
/// Whom a commit of this user waits for. Who asks may not see which of them are connected.
const WAITS_FOR: &str = "SELECT CASE WHEN current_setting('synchronous_commit') IN ('on', 'remote_apply') \
                         THEN current_setting('synchronous_standby_names') ELSE '' END";

/// The addresses of a server, or of the members of a cluster.
#[derive(Clone, Debug)]
pub(super) struct Members(Vec<PgConnectOptions>);

impl FromStr for Members {
    type Err = String;

    /// Reads `postgres://user:password@host:port,host:port/name?options`.
    fn from_str(url: &str) -> Result<Self, String> {
        let wrong = || "is not a PostgreSQL address".to_owned();
        let (scheme, rest) = url.split_once("://").ok_or_else(wrong)?;
        let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let (user, hosts) = authority.rsplit_once('@').map_or(("", authority), |(user, hosts)| (user, hosts));
        let at = if user.is_empty() { "" } else { "@" };
        let hosts: Vec<_> = hosts.split(',').collect();
        if hosts.len() > 1 && hosts.iter().any(|host| host.is_empty()) {
            return Err("names a member without an address between two commas".into());
        }
        if hosts.len() > 1 && ["host=", "hostaddr=", "port="].iter().any(|key| names(path, key)) {
            return Err(
                "names several members, and one more among its options: write all of them before the name".into()
            );
        }
        let member = |host: &&str| PgConnectOptions::from_str(&format!("{scheme}://{user}{at}{host}{path}"));
        hosts.iter().map(member).collect::<Result<_, _>>().map(Self).map_err(|_| wrong())
    }
}

/// Whether an address has an option of this name.
fn names(path: &str, key: &str) -> bool {
    path.split(['?', '&']).skip(1).any(|option| option.starts_with(key))
}

/// What a member said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// It takes writes, on this timeline; 0 where there is only one server.
    Leads(i64),
    /// It takes none.
    Follows,
    /// It does not answer, or refuses; the sentence goes on after its name.
    Nothing(String),
}

/// A member and what it said.
#[derive(Clone, Debug)]
pub struct Member {
    /// The server, its address and its port.
    pub place: String,
    /// What it said.
    pub said: Said,
}

impl Members {
    /// Asks all of them at the same time.
    pub(super) async fn ask(&self, patience: Duration) -> Vec<Member> {
        let asked = self.0.iter().map(|options| async move {
            let place = place(options);
            let said = timeout(patience, self.ask_one(options)).await;
            let said = said.unwrap_or_else(|_| Ok(Said::Nothing(format!("did not answer within {patience:?}"))));
            Member { place, said: said.unwrap_or_else(|error| Said::Nothing(told(error))) }
        });
        join_all(asked).await
    }

    async fn ask_one(&self, options: &PgConnectOptions) -> Result<Said, sqlx::Error> {
        let mut connection = PgConnection::connect_with(options).await?;
        let said = self.leads(&mut connection).await?;
        // Whether it hears that is its own affair.
        let _ = connection.close().await;
        Ok(said)
    }

    async fn leads(&self, connection: &mut PgConnection) -> Result<Said, sqlx::Error> {
        let row = connection.fetch_one(if self.0.len() > 1 { LEADS_ON } else { LEADS }).await?;
        Ok(row.try_get::<Option<i64>, _>(0)?.map_or(Said::Follows, Said::Leads))
    }
}

fn place(options: &PgConnectOptions) -> String {
    format!("PostgreSQL at {}, port {}", options.get_host(), options.get_port())
}

/// Why a member is of no use, after its name.
fn told(error: sqlx::Error) -> String {
    match error {
        sqlx::Error::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            format!("refuses connections; is it running? ({error})")
        }
        sqlx::Error::Io(error) => format!("cannot be reached: {error}"),
        sqlx::Error::Database(error) => format!("refuses: {}", error.message()),
        error => error.to_string(),
    }
}

/// Which of the members to follow: one that takes writes, on the latest timeline, and none of an earlier one than `known`;
/// of several the one that was followed, if it is among them.
fn choose(members: &[Member], followed: Followed) -> Option<Followed> {
    let leading = members.iter().enumerate().filter_map(|(member, it)| match it.said {
        Said::Leads(timeline) if timeline >= followed.timeline => Some(Followed { member, timeline }),
        _ => None,
    });
    leading.max_by_key(|found| (found.timeline, found.member == followed.member, usize::MAX - found.member))
}

/// A member, and the timeline that it was followed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Followed {
    member: usize,
    timeline: i64,
}

/// Connections to the leader, until another one takes its place.
pub(super) struct Link {
    pub(super) pool: PgPool,
    /// The runtime that watches its connections: a caller may run on one that ends earlier.
    home: Handle,
    gone: CancellationToken,
}

impl Link {
    /// What is asked of the leader, as long as it leads. It lies in memory of its own, so that who awaits it stays small.
    pub(super) fn ask<'a, T: 'a>(
        &'a self,
        asking: impl Future<Output = Result<T, sqlx::Error>> + Send + 'a,
    ) -> impl Future<Output = Result<T, sqlx::Error>> + Send + 'a {
        let asking = Box::pin(TokioContext::new(asking, self.home.clone()));
        async move {
            tokio::select! {
                biased;
                outcome = asking => outcome,
                () = self.gone.cancelled() => {
                    Err(io::Error::new(io::ErrorKind::NotConnected, "its leader is lost, and with it this question").into())
                }
            }
        }
    }

    /// Whether another one has taken its place.
    pub(super) fn is_gone(&self) -> bool {
        self.gone.is_cancelled()
    }
}

/// The leader, found and followed.
pub(super) struct Leader {
    followed: Arc<Following>,
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
    /// None of the members leads; the sentence says of each why.
    pub(super) async fn find(url: &str, patience: Duration, wait: Duration, most: u32) -> Result<Self, DbError> {
        let members: Members = url.parse().map_err(|wrong| DbError::Other(format!("its address {wrong}")))?;
        let locked = wait.as_millis().to_string();
        let with_limit = |options: PgConnectOptions| options.options([("lock_timeout", locked.as_str())]);
        let members = Members(members.0.into_iter().map(with_limit).collect());
        let said = members.ask(patience).await;
        let Some(found) = choose(&said, Followed { member: 0, timeline: 0 }) else { return Err(none_leads(&said)) };
        if said.len() > 1 {
            tracing::info!(leader = said[found.member].place, timeline = found.timeline, "found the database's leader");
        }
        let home = Handle::current();
        let pool = PgPoolOptions::new().max_connections(most).acquire_timeout(wait);
        let link = new_link(&pool, &members, found, &home);
        let followed = Arc::new(Following { members, pool, home, link: Mutex::new((found, link)) });
        let watch = AbortOnDropHandle::new(tokio::spawn(watch(followed.clone())));
        Ok(Self { followed, _watch: watch })
    }

    /// The connections to whoever leads now.
    pub(super) fn link(&self) -> Arc<Link> {
        self.followed.now().1
    }
}

/// A member, and of one of several that leads, whom its commits wait for.
#[derive(Clone, Debug)]
pub struct Surveyed {
    /// The member and what it said.
    pub member: Member,
    /// The members that a commit waits for until one has it on its disk, as PostgreSQL's `synchronous_standby_names` has them;
    /// none where it waits for nobody.
    pub waits_for: Option<String>,
}

/// The members of a cluster and what they say now; nothing where the address is not a server's.
pub async fn survey(url: &str) -> Option<Vec<Surveyed>> {
    if !["postgres://", "postgresql://"].iter().any(|scheme| url.starts_with(scheme)) {
        return None;
    }
    let members: Members = url.parse().ok()?;
    let said = members.ask(PROBE).await;
    let is_cluster = said.len() > 1;
    let surveyed = said.into_iter().zip(&members.0).map(|(member, options)| async move {
        let leads = is_cluster && matches!(member.said, Said::Leads(_));
        let waits_for = if leads { timeout(PROBE, waits_for(options)).await } else { Ok(Ok(None)) };
        Surveyed { member, waits_for: waits_for.ok().and_then(Result::ok).flatten() }
    });
    Some(join_all(surveyed).await)
}

async fn waits_for(options: &PgConnectOptions) -> Result<Option<String>, sqlx::Error> {
    let mut connection = PgConnection::connect_with(options).await?;
    let names: String = connection.fetch_one(WAITS_FOR).await?.try_get(0)?;
    // Whether it hears that is its own affair.
    let _ = connection.close().await;
    Ok((!names.is_empty()).then_some(names))
}

fn none_leads(said: &[Member]) -> DbError {
    let of = |member: &Member| match &member.said {
        Said::Nothing(why) => format!("{} {why}", member.place),
        _ => format!("{} is a standby, which takes no writes", member.place),
    };
    let sentences: Vec<_> = said.iter().map(of).collect();
    DbError::Unavailable(sentences.join("; "))
}

/// Connections to a member that refuse to be those of a standby, which has what its leader had a moment ago.
fn new_link(pool: &PgPoolOptions, members: &Members, to: Followed, home: &Handle) -> Arc<Link> {
    let checked = pool.clone().after_connect(|connection, _| {
        Box::pin(async move {
            let row = connection.fetch_one(LEADS).await?;
            let leads: Option<i64> = row.try_get(0)?;
            leads.map(drop).ok_or_else(|| sqlx::Error::Protocol("the member is a standby".into()))
        })
    });
    let _entered = home.enter();
    let pool = checked.connect_lazy_with(members.0[to.member].clone());
    Arc::new(Link { pool, home: home.clone(), gone: CancellationToken::new() })
}

impl Following {
    fn now(&self) -> (Followed, Arc<Link>) {
        let link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        (link.0, link.1.clone())
    }

    fn note(&self, found: Followed) {
        self.link.lock().unwrap_or_else(PoisonError::into_inner).0 = found;
    }

    /// Has callers ask this member from now on, and ends what they have asked the former one.
    fn follow(&self, found: Followed) {
        let link = new_link(&self.pool, &self.members, found, &self.home);
        let (_, former) = {
            let mut now = self.link.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *now, (found, link))
        };
        former.gone.cancel();
        self.home.spawn(async move { former.pool.close().await });
    }

    /// Looks for a leader after one that gave such an answer, and follows it; none where there is none, or where the same
    /// one still leads: then the connections that ended are made anew by themselves.
    async fn look(&self, followed: Followed, answer: &Answer) -> Option<Followed> {
        let said = self.members.ask(PROBE).await;
        let found = choose(&said, followed);
        let is_silent = matches!(answer, Answer::Silent);
        if found.is_none() && is_silent {
            // Whoever waits for an answer of it is told that none comes; later callers wait for a connection.
            self.follow(followed);
        }
        let found = found.filter(|found| is_silent || found.member != followed.member)?;
        self.follow(found);
        Some(found)
    }

    /// Follows a member that leads on a later timeline than the leader, which may not know of it.
    async fn overtaken(&self, followed: Followed) -> Option<Followed> {
        let said = self.members.ask(PROBE).await;
        let found = choose(&said, followed).filter(|found| found.timeline > followed.timeline)?;
        if found.member == followed.member {
            return None;
        }
        self.follow(found);
        Some(found)
    }

    fn place(&self, member: usize) -> String {
        place(&self.members.0[member])
    }
}

/// What the connection that watches has learnt.
enum Answer {
    /// The member leads, on this timeline.
    Leads(i64),
    /// It does not lead, cannot be connected, or has ended the connection.
    No,
    /// It was connected, and is silent.
    Silent,
}

/// Asks the leader again and again whether it leads, and finds another one where it does not.
async fn watch(following: Arc<Following>) {
    let mut connection = None;
    let mut is_lost = false;
    let mut looks = 0_u32;
    loop {
        sleep(LOOK).await;
        looks = looks.wrapping_add(1);
        let (followed, _) = following.now();
        let place = following.place(followed.member);
        let all = async {
            let among = following.members.0.len() > 1 && looks.is_multiple_of(LOOKS);
            if among { following.overtaken(followed).await } else { None }
        };
        let (answer, overtaken) = tokio::join!(ask_leader(&following.members, followed, &mut connection), all);
        if let Some(found) = overtaken {
            let leader = following.place(found.member);
            tracing::warn!(leader, timeline = found.timeline, former = place, "the database's leader was overtaken");
            (connection, is_lost) = (None, false);
            continue;
        }
        if let Answer::Leads(timeline) = answer
            && timeline >= followed.timeline
        {
            following.note(Followed { timeline, ..followed });
            if std::mem::take(&mut is_lost) {
                tracing::info!(leader = place, timeline, "the database's leader answers again");
            }
            continue;
        }
        connection = None;
        if !std::mem::replace(&mut is_lost, true) {
            tracing::warn!(leader = place, "the database's leader does not answer, or leads no more; looking for one");
        }
        if let Some(found) = following.look(followed, &answer).await {
            let leader = following.place(found.member);
            tracing::warn!(leader, timeline = found.timeline, former = place, "the database has another leader");
            is_lost = false;
        }
    }
}

async fn ask_leader(members: &Members, followed: Followed, connection: &mut Option<PgConnection>) -> Answer {
    if connection.is_none() {
        let connecting = PgConnection::connect_with(&members.0[followed.member]);
        let Ok(Ok(connected)) = timeout(PROBE, connecting).await else { return Answer::No };
        *connection = Some(connected);
    }
    let Some(connection) = connection else { return Answer::No };
    match timeout(SILENCE, members.leads(connection)).await {
        Err(_) => Answer::Silent,
        Ok(Ok(Said::Leads(timeline))) => Answer::Leads(timeline),
        Ok(_) => Answer::No,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<Vec<(String, u16, String)>, String> {
        let members: Members = url.parse()?;
        let of = |it: &PgConnectOptions| (it.get_host().to_owned(), it.get_port(), it.get_username().to_owned());
        Ok(members.0.iter().map(of).collect())
    }

    #[test]
    fn an_address_names_one_server_or_several() {
        let member = |host: &str, port| (host.to_owned(), port, "berth".to_owned());
        assert_eq!(read("postgres://berth@a/berth"), Ok(vec![member("a", 5432)]));
        assert_eq!(
            read("postgresql://berth:p%40,ss@a:1,[::1]:2,10.0.0.3/berth?sslmode=require"),
            Ok(vec![member("a", 1), member("[::1]", 2), member("10.0.0.3", 5432)]),
        );
        for (url, word) in [
            ("postgres://berth@a,,b/berth", "between two commas"),
            ("postgres://berth@a,b,/berth", "between two commas"),
            ("postgres://berth@a,b/berth?sslmode=disable&host=c", "one more among its options"),
            ("postgres://berth@a,b:port/berth", "not a PostgreSQL address"),
            ("postgres:a,b", "not a PostgreSQL address"),
        ] {
            let refused = read(url).unwrap_err();
            assert!(refused.contains(word), "{url}: {refused}");
        }
    }

    fn members(said: &[Said]) -> Vec<Member> {
        said.iter().map(|said| Member { place: String::new(), said: said.clone() }).collect()
    }

    #[test]
    fn the_later_timeline_leads_and_none_earlier_than_was_followed() {
        use Said::{Follows, Leads};
        let away = || Said::Nothing("is away".into());
        let at = |member, timeline| Followed { member, timeline };
        for (said, followed, expected) in [
            (vec![Follows, Leads(1), away()], at(0, 0), Some(at(1, 1))),
            (vec![Leads(7), Leads(8)], at(0, 7), Some(at(1, 8))),
            (vec![Leads(8), Leads(7)], at(1, 7), Some(at(0, 8))),
            (vec![Leads(7), away()], at(1, 8), None),
            (vec![Leads(8), Leads(8)], at(1, 8), Some(at(1, 8))),
            (vec![Leads(8), Leads(8), Follows], at(2, 8), Some(at(0, 8))),
            (vec![Follows, Follows], at(0, 8), None),
            (vec![Leads(0)], at(0, 0), Some(at(0, 0))),
        ] {
            assert_eq!(choose(&members(&said), followed), expected, "{said:?} after {followed:?}");
        }
    }

    #[test]
    fn each_member_says_why_it_does_not_lead() {
        let text = none_leads(&[
            Member { place: "PostgreSQL at a, port 1".into(), said: Said::Follows },
            Member { place: "PostgreSQL at b, port 2".into(), said: Said::Nothing("did not answer within 2s".into()) },
        ]);
        let text = text.to_string();
        assert!(
            text.contains("a, port 1 is a standby, which takes no writes; PostgreSQL at b, port 2 did not"),
            "{text}"
        );
    }
}
