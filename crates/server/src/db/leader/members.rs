//! The members of a cluster: their addresses, and what each says.

use std::io;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::future::join_all;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgSslMode};
use sqlx::{Connection, Executor, Row};
use tokio::time::timeout;

/// How long a member may take to connect and to say whether it leads.
pub(super) const PROBE: Duration = Duration::from_secs(2);

/// Whether a server is no standby. Not every one that speaks the protocol has timelines, so a single one is not asked for more.
const LEADS: &str = "SELECT CASE WHEN pg_is_in_recovery() THEN NULL ELSE CAST(0 AS BIGINT) END, CAST(0 AS BIGINT)";
/// The same; on which timeline, the first eight digits of the file that it writes its log into; and what all members of its
/// cluster have in common.
const LEADS_ON: &str = "SELECT CASE WHEN pg_is_in_recovery() THEN NULL \
                        ELSE ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint END, \
                        system_identifier FROM pg_control_system()";
/// Timelines that there are: PostgreSQL counts them in 32 bits.
const TIMELINES: std::ops::RangeInclusive<i64> = 1..=0xffff_ffff;
/// Whom a commit of this user waits for, and how many members are told of each change. Who asks may not see which.
const WAITS_FOR: &str = "SELECT CASE WHEN current_setting('synchronous_commit') IN ('on', 'remote_apply') \
                         THEN current_setting('synchronous_standby_names') ELSE '' END, \
                         (SELECT count(*) FROM pg_stat_replication)";

/// The addresses of a server, or of the members of a cluster.
#[derive(Clone, Debug)]
pub(in crate::db) struct Members {
    all: Vec<PgConnectOptions>,
    /// The cluster that one of them was followed in.
    system: Arc<OnceLock<i64>>,
}

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
        let all = hosts.iter().map(member).collect::<Result<_, _>>().map_err(|_| wrong())?;
        Ok(Self { all, system: Arc::default() })
    }
}

/// Whether an address has an option of this name.
fn names(path: &str, key: &str) -> bool {
    path.split(['?', '&']).skip(1).any(|option| option.starts_with(key))
}

/// What a member said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// It leads, on this timeline; 0 where there is only one server.
    Leads(i64),
    /// It is a standby, which takes no writes.
    Follows,
    /// Nobody can talk to it; the sentence goes on after its name.
    Away(String),
    /// It answers, and is of no use; the sentence goes on after its name.
    Refuses(String),
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
        let asked = self.all.iter().map(|options| async move {
            let place = place(options);
            let said = timeout(patience, self.ask_one(options)).await;
            let said = said.unwrap_or_else(|_| Ok(Said::Away(format!("did not answer within {patience:?}"))));
            Member { place, said: said.unwrap_or_else(told) }
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

    /// Whether there are several, of which one leads.
    pub(super) const fn is_cluster(&self) -> bool {
        self.all.len() > 1
    }

    /// The same members, each with a change of how it is connected.
    pub(super) fn with(self, change: impl Fn(PgConnectOptions) -> PgConnectOptions) -> Self {
        Self { all: self.all.into_iter().map(change).collect(), ..self }
    }

    /// How a member is connected.
    pub(super) fn options(&self, member: usize) -> PgConnectOptions {
        self.all[member].clone()
    }

    /// What a member is called in messages.
    pub(super) fn place(&self, member: usize) -> String {
        place(&self.all[member])
    }

    /// What the server behind a connection says of itself. One of another cluster than was followed first is none of these.
    pub(super) async fn leads(&self, connection: &mut PgConnection) -> Result<Said, sqlx::Error> {
        let row = connection.fetch_one(if self.is_cluster() { LEADS_ON } else { LEADS }).await?;
        let (timeline, system): (Option<i64>, i64) = (row.try_get(0)?, row.try_get(1)?);
        if self.system.get().is_some_and(|own| *own != system) {
            return Ok(Said::Refuses(
                "belongs to another cluster; correct database_url, or whoever has its address".into(),
            ));
        }
        Ok(match timeline {
            None => Said::Follows,
            Some(timeline) if self.is_cluster() && !TIMELINES.contains(&timeline) => {
                Said::Refuses(format!("says that it leads on timeline {timeline}, which cannot be"))
            }
            Some(timeline) => Said::Leads(timeline),
        })
    }

    /// Notes which cluster a member belongs to, where there is one: members of others are not followed from then on.
    pub(super) async fn settle(&self, member: usize) -> Result<(), sqlx::Error> {
        if !self.is_cluster() {
            return Ok(());
        }
        let mut connection = PgConnection::connect_with(&self.all[member]).await?;
        let row = connection.fetch_one(LEADS_ON).await?;
        // One that was noted before stays.
        let _ = self.system.set(row.try_get(1)?);
        let _ = connection.close().await;
        Ok(())
    }
}

/// Whether whoever answers at an address has to prove that it is the server, or cannot be anybody else.
fn is_verified(options: &PgConnectOptions) -> bool {
    let host = options.get_host();
    let is_loopback = host == "localhost"
        || host.trim_matches(['[', ']']).parse().is_ok_and(|address: IpAddr| address.is_loopback())
        || options.get_socket().is_some();
    is_loopback || matches!(options.get_ssl_mode(), PgSslMode::VerifyCa | PgSslMode::VerifyFull)
}

fn place(options: &PgConnectOptions) -> String {
    format!("PostgreSQL at {}, port {}", options.get_host(), options.get_port())
}

/// Why a member is of no use, after its name.
fn told(error: sqlx::Error) -> Said {
    // What a server says ends up at a terminal.
    let plain = |text: String| text.replace(char::is_control, " ");
    match error {
        sqlx::Error::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            Said::Away(format!("refuses connections; is it running? ({error})"))
        }
        sqlx::Error::Io(error) => Said::Away(format!("cannot be reached: {error}")),
        sqlx::Error::Database(error) => Said::Refuses(plain(format!("refuses: {}", error.message()))),
        error => Said::Refuses(plain(format!("cannot be talked to: {error}"))),
    }
}

/// Whom the commits of a leader wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waits {
    /// For nobody: what it acknowledges goes with it.
    ForNobody,
    /// For one of these to have it on its disk, as PostgreSQL's `synchronous_standby_names` has them.
    For(String),
    /// For one of those, and no member is told of changes: writes wait for ever.
    InVain(String),
    /// It does not say.
    Unknown(String),
}

/// A member, and of one of several that leads, whom its commits wait for.
#[derive(Clone, Debug)]
pub struct Surveyed {
    /// The member and what it said.
    pub member: Member,
    /// Whom its commits wait for; none where it does not lead, or is alone.
    pub waits: Option<Waits>,
    /// Whether whoever answers there has proved that it is the server, or is on this machine.
    pub is_verified: bool,
}

/// The members of a cluster and what they say now.
pub(in crate::db) async fn survey(members: &Members) -> Vec<Surveyed> {
    let (said, is_cluster) = (members.ask(PROBE).await, members.is_cluster());
    let surveyed = said.into_iter().zip(&members.all).map(|(member, options)| async move {
        let leads = is_cluster && matches!(member.said, Said::Leads(_));
        let waits = if leads { Some(waits(options).await) } else { None };
        Surveyed { member, waits, is_verified: is_verified(options) }
    });
    join_all(surveyed).await
}

async fn waits(options: &PgConnectOptions) -> Waits {
    let asked = async {
        let mut connection = PgConnection::connect_with(options).await?;
        let row = connection.fetch_one(WAITS_FOR).await?;
        let found: (String, i64) = (row.try_get(0)?, row.try_get(1)?);
        // Whether it hears that is its own affair.
        let _ = connection.close().await;
        Ok(found)
    };
    match timeout(PROBE, asked).await {
        Err(_) => Waits::Unknown(format!("did not answer within {PROBE:?}")),
        Ok(Err(error)) => match told(error) {
            Said::Away(why) | Said::Refuses(why) => Waits::Unknown(why),
            Said::Leads(_) | Said::Follows => Waits::Unknown("says something else".into()),
        },
        Ok(Ok((names, _))) if names.is_empty() => Waits::ForNobody,
        Ok(Ok((names, 0))) => Waits::InVain(names),
        Ok(Ok((names, _))) => Waits::For(names),
    }
}

/// What each member says, where none is followed that leads on this timeline or a later one.
pub(super) fn none_leads(said: &[Member], known: i64) -> String {
    let of = |member: &Member| match &member.said {
        Said::Away(why) | Said::Refuses(why) => format!("{} {why}", member.place),
        Said::Follows => format!("{} is a standby, which takes no writes", member.place),
        Said::Leads(timeline) if *timeline < known => format!(
            "{} leads on timeline {timeline}, and {known} was followed before; to follow it in spite of what would be lost, \
             restart the service",
            member.place
        ),
        Said::Leads(_) => format!("{} leads", member.place),
    };
    said.iter().map(of).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<Vec<(String, u16, String)>, String> {
        let members: Members = url.parse()?;
        let of = |it: &PgConnectOptions| (it.get_host().to_owned(), it.get_port(), it.get_username().to_owned());
        Ok(members.all.iter().map(of).collect())
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

    #[test]
    fn a_server_is_verified_where_it_says_so_or_is_on_this_machine() {
        for (url, expected) in [
            ("postgres://berth@10.0.0.1/berth", false),
            ("postgres://berth@10.0.0.1/berth?sslmode=require", false),
            ("postgres://berth@10.0.0.1/berth?sslmode=verify-full", true),
            ("postgres://berth@db.example.com/berth?sslmode=verify-ca", true),
            ("postgres://berth@localhost/berth", true),
            ("postgres://berth@127.0.0.1:5433/berth", true),
            ("postgres://berth@[::1]/berth", true),
            ("postgres://berth@%2Fvar%2Frun%2Fpostgresql/berth", true),
        ] {
            let members: Members = url.parse().unwrap();
            assert_eq!(is_verified(&members.all[0]), expected, "{url}");
        }
    }

    #[test]
    fn each_member_says_why_it_does_not_lead() {
        let member = |place: &str, said| Member { place: place.into(), said };
        let away = Said::Away("did not answer within 2s".into());
        let text = none_leads(&[member("a", Said::Follows), member("b", away), member("c", Said::Leads(3))], 4);
        for part in ["a is a standby, which takes no writes; b did not", "c leads on timeline 3, and 4 was followed"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(text.ends_with("restart the service"), "{text}");
    }
}
