//! The keeper of a database: one data folder, and of its services the one that came last.
//!
//! The rows describe machines, disks and processes of one host, which lie in one folder. A service with another folder
//! would find none of them, take them for lost and start them a second time. So the database names its folder and
//! refuses others until the operator says that the folder is to change. It admits the same folder in the same place at
//! once, however the last service ended, since the folder's own lock keeps two services apart. A copy of a folder has
//! the same id as its original: the database refuses it while the other's service runs, until the operator says that it
//! is to take over. So a service checks every few seconds whether it is still the one that came last, and ends if it is
//! not.
//!
//! Replicas ([`berth_domain::replica`]) share a database, each with a folder and a host of its own, and one of them keeps
//! it at a time. Each time that somebody takes it a *term* begins. Whoever may write states the term in which it does
//! ([`Db::in_term`]), and writes nothing in an earlier one than the database's.

use berth_domain::Timestamp;
use berth_domain::ids::HostId;
use berth_domain::replica::Sign;
use uuid::Uuid;

use super::leader::Asker;
use super::{Db, DbError, FromRow, On, Row, Tx, record, sql};
use crate::columns;

/// The table, of one row.
const TABLE: &str = "keeper";
/// Seconds without a sign of life after which a service counts as gone.
pub const GONE: i64 = 30;
/// The sign of one of a version that gave none.
const NONE: Sign = Sign { term: 0, beat: 0 };

/// The keeper of a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keeper {
    /// The data folder's id.
    pub folder: Uuid,
    /// Where the folder lies.
    pub path: String,
    /// Name of its host.
    pub host: String,
    /// The service's run.
    pub run: Uuid,
    /// Where the other replicas reach it, as `host:port`; none of a service that shares its database with nobody.
    pub address: Option<String>,
}

/// A keeper as the database knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeeperRow {
    /// The keeper.
    pub keeper: Keeper,
    /// Whether its service has not ended in good order.
    pub runs: bool,
    /// When its service was last seen.
    pub seen_at: Timestamp,
    /// Its sign of life.
    pub sign: Sign,
}

impl FromRow for KeeperRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        let keeper = Keeper {
            folder: row.parsed("folder")?,
            path: row.text("path")?,
            host: row.text("host")?,
            run: row.parsed("run")?,
            address: if row.has("address") { row.opt_text("address")? } else { None },
        };
        // A start looks before it brings the schema up to date.
        let sign = if row.has("term") { Sign { term: row.int("term")?, beat: row.int("beat")? } } else { NONE };
        Ok(Self { keeper, runs: row.flag("runs")?, seen_at: row.time("seen_at")?, sign })
    }
}

impl KeeperRow {
    /// Whether a replica may take the database: who keeps it is a replica that ended in good order, or of which it saw this
    /// sign of life and none since, for long enough; or it is the single service that this one was. One that was killed has no
    /// precedence: where it dies at each start, another one has its turn.
    pub fn is_free_for(&self, asks: &Keeper, silent: Option<Sign>) -> bool {
        match self.keeper.address {
            Some(_) => !self.runs || silent == Some(self.sign),
            None => self.is_kept_in_place_by(asks),
        }
    }

    fn is_kept_in_place_by(&self, asks: &Keeper) -> bool {
        let Keeper { folder, path, host, .. } = &self.keeper;
        (folder, path, host) == (&asks.folder, &asks.path, &asks.host)
    }

    /// Whether a replica's folder is a copy of the one that the database names.
    pub fn is_copied_by(&self, asks: &Keeper) -> bool {
        self.keeper.folder == asks.folder && !self.is_kept_in_place_by(asks)
    }

    /// Why another service may not have the database; `None` if it may.
    pub fn refuses(&self, asks: &Keeper, takes_over: bool, now: Timestamp) -> Option<String> {
        let Keeper { folder: kept_by, path, host, .. } = &self.keeper;
        let seconds = now.seconds().abs_diff(self.seen_at.seconds());
        let runs = self.runs && seconds < GONE.unsigned_abs();
        if *kept_by == asks.folder {
            let moved = (path, host) != (&asks.path, &asks.host);
            return (runs && moved && !takes_over).then(|| {
                format!(
                    "a service on the data folder {path} of host {host} runs with this database (seen {seconds} s ago), and \
                     {} of host {} is a copy of that folder. Give this service a folder and a database of its own: set \
                     BERTH_DATA_DIR and BERTH_DATABASE_URL. If the folder was moved, stop that service first, or wait \
                     {GONE} s if its host is lost; to take the database from it now, type: berth serve --take-over",
                    asks.path, asks.host
                )
            });
        }
        let whose = format!("the database belongs to the data folder {path} of host {host}");
        if self.keeper.address.is_some() && asks.address.is_none() {
            return (!takes_over || runs).then(|| {
                format!(
                    "{whose}, one of the replicas that share it. Have this service be one of them: set \
                     BERTH_REPLICA_ADDRESS to where the others reach it"
                )
            });
        }
        if runs {
            return Some(format!(
                "{whose}, whose service runs (seen {seconds} s ago). Give this service a database of its own: set \
                 BERTH_DATABASE_URL. To have this folder take over, stop that service first, or wait {GONE} s if its host \
                 is lost"
            ));
        }
        (!takes_over).then(|| {
            format!(
                "{whose}, whose service was last seen at {}; machines and disks of its rows lie there. Start the service \
                 there, or give this one a database of its own: set BERTH_DATABASE_URL. If that folder is gone, or its \
                 database was moved here, type: berth serve --take-over",
                self.seen_at
            )
        })
    }
}

/// The database's keeper; `None` in a new one.
pub async fn find(on: impl On) -> Result<Option<KeeperRow>, DbError> {
    sql("SELECT * FROM keeper WHERE id = 1").fetch_optional(on).await
}

/// Takes the database for a service, which is in its term from then on; the inner error says why its present keeper does
/// not let it.
pub async fn take(db: &Db, keeper: &Keeper, takes_over: bool, now: Timestamp) -> Result<Result<(), String>, DbError> {
    let mut tx = db.begin().await?;
    let known = find(&mut tx).await?;
    if let Some(reason) = known.as_ref().and_then(|known| known.refuses(keeper, takes_over, now)) {
        return Ok(Err(reason));
    }
    begin_term(db, tx, keeper, known.as_ref(), now).await.map(Ok)
}

/// Takes the database for a replica, if it may have it ([`KeeperRow::is_free_for`]), as of this transaction. The replica is
/// in its term from then on.
pub async fn claim(db: &Db, keeper: &Keeper, silent: Option<Sign>, now: Timestamp) -> Result<bool, DbError> {
    let mut tx = db.begin().await?;
    let known = find(&mut tx).await?;
    if known.as_ref().is_some_and(|known| !known.is_free_for(keeper, silent)) {
        return Ok(false);
    }
    begin_term(db, tx, keeper, known.as_ref(), now).await.map(|()| true)
}

async fn begin_term(
    db: &Db,
    mut tx: Tx,
    keeper: &Keeper,
    known: Option<&KeeperRow>,
    now: Timestamp,
) -> Result<(), DbError> {
    let term = known.map_or(0, |known| known.sign.term).saturating_add(1);
    let columns = columns! {
        "folder": keeper.folder.to_string(), "path": &keeper.path, "host": &keeper.host,
        "run": keeper.run.to_string(), "runs": true, "seen_at": now, "address": keeper.address.clone(), "term": term,
    };
    record::upsert(TABLE, columns! { "id": 1_i64 }, columns).execute(&mut tx).await?;
    if keeper.address.is_some() {
        // What lies with a service that was a single one stays there, whoever is active next.
        let is_asked = sql("UPDATE hosts SET joined = 1, enrolment = 1 WHERE id = $1 AND joined = 0");
        is_asked.bind(keeper.folder.to_string()).execute(&mut tx).await?;
    }
    tx.commit().await?;
    db.be_in_term(term);
    Ok(())
}

/// Begins a later term than a host was asked in, which happens where the database is an older copy; `false` where another
/// service has the database by now.
pub async fn outdo(db: &Db, of_host: i64) -> Result<bool, DbError> {
    let mut tx = db.begin().await?;
    let (own, next) = (db.term(), of_host.saturating_add(1));
    let raised = sql("UPDATE keeper SET term = $1 WHERE id = 1 AND term = $2 AND term < $1");
    let raised = raised.bind(next).bind(own).execute(&mut tx).await? == 1;
    if raised {
        tx.commit().await?;
        db.be_in_term(next);
    }
    Ok(raised)
}

/// Notes that a service still runs; `false` if another one came after it.
pub async fn seen(db: &Db, run: Uuid, now: Timestamp) -> Result<bool, DbError> {
    note(db, run, true, now).await
}

/// The hosts on which a service of this database is: the active one's, and those of replicas that stand by.
pub async fn hosts(on: impl On) -> Result<Vec<HostId>, DbError> {
    let ids: Vec<String> =
        sql("SELECT id FROM hosts WHERE service IS NOT NULL AND removed_at IS NULL").fetch_all(on).await?;
    Ok(ids.iter().filter_map(|id| id.parse().ok()).collect())
}

/// Notes that whichever service of this folder has the database ended in good order.
pub async fn gave_up(db: &Db, folder: Uuid, now: Timestamp) -> Result<(), DbError> {
    match find(db).await? {
        Some(known) if known.keeper.folder == folder => left(db, known.keeper.run, now).await,
        _ => Ok(()),
    }
}

/// Notes that a service ended in good order.
pub async fn left(db: &Db, run: Uuid, now: Timestamp) -> Result<(), DbError> {
    note(db, run, false, now).await.map(drop)
}

async fn note(db: &Db, run: Uuid, runs: bool, now: Timestamp) -> Result<bool, DbError> {
    match find(db).await? {
        // Also where the answer to a later term was lost.
        Some(known) if known.keeper.run == run => db.be_in_term(known.sign.term),
        _ => return Ok(false),
    }
    let mut tx = db.begin_for(Asker::Keeper).await?;
    let noted = sql("UPDATE keeper SET seen_at = $2, runs = $3, beat = beat + 1 WHERE run = $1");
    let changed = noted.bind(run.to_string()).bind(now).bind(runs).execute(&mut tx).await?;
    tx.commit().await?;
    Ok(changed == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keeper(path: &str) -> Keeper {
        let (folder, run) = (Uuid::now_v7(), Uuid::now_v7());
        Keeper { folder, path: path.into(), host: "alpha".into(), run, address: None }
    }

    fn replica(path: &str) -> Keeper {
        Keeper { address: Some(format!("{}:8471", path.trim_start_matches('/'))), ..keeper(path) }
    }

    async fn sign(db: &Db) -> Sign {
        find(db).await.unwrap().unwrap().sign
    }

    async fn database() -> (Db, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        (Db::open(&format!("sqlite:{}", dir.path().join("db").display())).await.unwrap(), dir)
    }

    const NOW: Timestamp = Timestamp(1_000 * Timestamp::SECOND);

    #[tokio::test]
    async fn another_folder_is_refused_until_it_takes_over_what_nobody_runs() {
        let (db, _dir) = database().await;
        let (first, second) = (keeper("/srv/first"), keeper("/srv/second"));
        take(&db, &first, false, NOW).await.unwrap().unwrap();
        let just_seen = NOW.plus_seconds(GONE - 1);
        for takes_over in [false, true] {
            let refusal = take(&db, &second, takes_over, just_seen).await.unwrap().unwrap_err();
            assert!(refusal.contains("/srv/first of host alpha, whose service runs (seen 29 s ago)"), "{refusal}");
        }
        let gone = NOW.plus_seconds(GONE);
        let refusal = take(&db, &second, false, gone).await.unwrap().unwrap_err();
        assert!(refusal.contains("/srv/first of host alpha") && refusal.contains("--take-over"), "{refusal}");
        assert!(seen(&db, first.run, NOW).await.unwrap());
        take(&db, &second, true, gone).await.unwrap().unwrap();
        assert!(!seen(&db, first.run, gone).await.unwrap(), "the first is told that another one came");
        assert!(take(&db, &first, false, gone).await.unwrap().is_err());
    }

    #[tokio::test]
    async fn the_same_folder_is_let_in_at_once_and_a_copy_of_it_only_where_no_service_runs() {
        let (db, _dir) = database().await;
        let first = keeper("/srv/first");
        take(&db, &first, false, NOW).await.unwrap().unwrap();
        let first = Keeper { run: Uuid::now_v7(), ..first };
        take(&db, &first, false, NOW).await.unwrap().unwrap();
        let copied = Keeper { run: Uuid::now_v7(), path: "/srv/copy".into(), ..first.clone() };
        let elsewhere = Keeper { run: Uuid::now_v7(), host: "beta".into(), ..first.clone() };
        for copy in [&copied, &elsewhere] {
            let refusal = take(&db, copy, false, NOW.plus_seconds(GONE - 1)).await.unwrap().unwrap_err();
            assert!(refusal.contains("/srv/first of host alpha runs") && refusal.contains("--take-over"), "{refusal}");
        }
        assert!(seen(&db, first.run, NOW).await.unwrap());
        take(&db, &copied, false, NOW.plus_seconds(GONE)).await.unwrap().unwrap();
        assert!(!seen(&db, first.run, NOW).await.unwrap(), "the last of its services counts");
        take(&db, &elsewhere, true, NOW).await.unwrap().unwrap();
        assert!(!seen(&db, copied.run, NOW).await.unwrap());
        left(&db, elsewhere.run, NOW).await.unwrap();
        take(&db, &copied, false, NOW).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_replica_takes_the_database_from_one_that_ended_or_that_it_saw_silent() {
        let (db, _dir) = database().await;
        let (first, second) = (replica("/first"), replica("/second"));
        assert!(claim(&db, &first, None, NOW).await.unwrap(), "nobody keeps it");
        let before = sign(&db).await;
        assert_eq!((before.term, db.term()), (1, 1));
        assert!(!claim(&db, &second, None, NOW).await.unwrap());
        assert!(seen(&db, first.run, NOW).await.unwrap());
        assert!(!claim(&db, &second, Some(before), NOW).await.unwrap(), "it has given a sign of life since");
        let silent = sign(&db).await;
        assert!(silent != before && claim(&db, &second, Some(silent), NOW).await.unwrap());
        assert!(!seen(&db, first.run, NOW).await.unwrap());
        assert!(!claim(&db, &first, Some(silent), NOW).await.unwrap(), "what it saw is of an earlier term");
        left(&db, second.run, NOW).await.unwrap();
        assert!(claim(&db, &first, None, NOW).await.unwrap());
        let again = Keeper { run: Uuid::now_v7(), ..first.clone() };
        assert!(!claim(&db, &again, None, NOW).await.unwrap(), "one that was killed waits as all do");
        assert!(claim(&db, &again, Some(sign(&db).await), NOW).await.unwrap());
        assert_eq!((sign(&db).await.term, db.term()), (4, 4));
        gave_up(&db, second.folder, NOW).await.unwrap();
        assert!(!claim(&db, &second, None, NOW).await.unwrap(), "it was not its turn");
        gave_up(&db, first.folder, NOW).await.unwrap();
        assert!(claim(&db, &second, None, NOW).await.unwrap());
        let copy = Keeper { path: "/copy".into(), ..second.clone() };
        let known = find(&db).await.unwrap().unwrap();
        assert!(known.is_copied_by(&copy) && !known.is_copied_by(&second) && !known.is_copied_by(&first));
    }

    #[tokio::test]
    async fn what_lies_with_a_single_service_stays_there_from_its_first_claim_as_a_replica_on() {
        let (db, _dir) = database().await;
        let single = keeper("/single");
        take(&db, &single, false, NOW).await.unwrap().unwrap();
        let mut tx = db.begin().await.unwrap();
        let columns = columns! {
            "id": single.folder.to_string(), "name": "alpha", "addresses": "[]", "regions": "[]", "cpus": 1_i64,
            "memory_mb": 1_i64, "gpus": "[]", "overcommit": "{}", "labels": "{}", "state": "ready", "last_seen": NOW,
            "created_at": NOW,
        };
        record::insert("hosts", columns).execute(&mut tx).await.unwrap();
        tx.commit().await.unwrap();
        let asked = async || sql("SELECT joined * enrolment FROM hosts").fetch_one::<i64>(&db).await.unwrap();
        assert_eq!(asked().await, 0);
        assert!(claim(&db, &Keeper { address: Some("single:1".into()), ..single }, None, NOW).await.unwrap());
        assert_eq!(asked().await, 1);
    }

    #[tokio::test]
    async fn a_service_that_shares_with_nobody_and_replicas_refuse_each_other() {
        let (db, _dir) = database().await;
        let (single, other) = (keeper("/single"), replica("/replica"));
        take(&db, &single, false, NOW).await.unwrap().unwrap();
        left(&db, single.run, NOW).await.unwrap();
        assert!(!claim(&db, &other, Some(sign(&db).await), NOW).await.unwrap());
        let begins = Keeper { address: Some("single:8471".into()), ..single.clone() };
        assert!(claim(&db, &begins, None, NOW).await.unwrap(), "it becomes the first replica");
        assert!(claim(&db, &other, Some(sign(&db).await), NOW).await.unwrap());
        let refusal = take(&db, &keeper("/third"), false, NOW).await.unwrap().unwrap_err();
        assert!(
            refusal.contains("/replica of host alpha, one of the replicas")
                && refusal.contains("BERTH_REPLICA_ADDRESS"),
            "{refusal}"
        );
    }

    #[tokio::test]
    async fn a_term_is_outdone_by_whoever_keeps_the_database_alone() {
        let (db, dir) = database().await;
        let first = keeper("/first");
        take(&db, &first, false, NOW).await.unwrap().unwrap();
        assert!(outdo(&db, 41).await.unwrap());
        assert_eq!((sign(&db).await.term, db.term()), (42, 42));
        assert!(!outdo(&db, 41).await.unwrap(), "it is in that term already");
        let other = Db::open(&format!("sqlite:{}", dir.path().join("db").display())).await.unwrap();
        take(&other, &Keeper { run: Uuid::now_v7(), ..first }, false, NOW).await.unwrap().unwrap();
        assert!(!outdo(&db, 90).await.unwrap(), "another service came");
        assert_eq!(sign(&other).await.term, 43);
    }

    #[tokio::test]
    async fn who_ended_in_good_order_need_not_be_waited_for() {
        let (db, _dir) = database().await;
        let (first, second) = (keeper("/srv/first"), keeper("/srv/second"));
        take(&db, &first, false, NOW).await.unwrap().unwrap();
        left(&db, first.run, NOW).await.unwrap();
        assert!(take(&db, &second, false, NOW).await.unwrap().is_err());
        take(&db, &second, true, NOW).await.unwrap().unwrap();
    }
}
