//! The keeper of a database: one data folder, and of its services the one that came last.
//!
//! The rows describe machines, disks and processes of one host, which lie in one folder. A service with another folder
//! would find none of them, take them for lost and start them a second time. So the database names its folder and
//! refuses others until the operator says that the folder is to change. It admits the same folder in the same place at
//! once, however the last service ended, since the folder's own lock keeps two services apart. A copy of a folder has
//! the same id as its original: the database refuses it while the other's service runs, until the operator says that it
//! is to take over. So a service checks every few seconds whether it is still the one that came last, and ends if it is
//! not.

use berth_domain::Timestamp;
use uuid::Uuid;

use super::{Db, DbError, FromRow, On, Row, record, sql};
use crate::columns;

/// The table, of one row.
const TABLE: &str = "keeper";
/// Seconds without a sign of life after which a service counts as gone.
pub const GONE: i64 = 30;

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
}

impl FromRow for KeeperRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        let keeper = Keeper {
            folder: row.parsed("folder")?,
            path: row.text("path")?,
            host: row.text("host")?,
            run: row.parsed("run")?,
        };
        Ok(Self { keeper, runs: row.flag("runs")?, seen_at: row.time("seen_at")? })
    }
}

impl KeeperRow {
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
    sql("SELECT folder, path, host, run, runs, seen_at FROM keeper WHERE id = 1").fetch_optional(on).await
}

/// Takes the database for a service; the inner error says why its present keeper does not let it.
pub async fn take(db: &Db, keeper: &Keeper, takes_over: bool, now: Timestamp) -> Result<Result<(), String>, DbError> {
    let mut tx = db.begin().await?;
    if let Some(reason) = find(&mut tx).await?.and_then(|known| known.refuses(keeper, takes_over, now)) {
        return Ok(Err(reason));
    }
    let columns = columns! {
        "folder": keeper.folder.to_string(), "path": &keeper.path, "host": &keeper.host,
        "run": keeper.run.to_string(), "runs": true, "seen_at": now,
    };
    record::upsert(TABLE, columns! { "id": 1_i64 }, columns).execute(&mut tx).await?;
    tx.commit().await?;
    Ok(Ok(()))
}

/// Notes that a service still runs; `false` if another one came after it.
pub async fn seen(db: &Db, run: Uuid, now: Timestamp) -> Result<bool, DbError> {
    note(db, run, true, now).await
}

/// Notes that a service ended in good order.
pub async fn left(db: &Db, run: Uuid, now: Timestamp) -> Result<(), DbError> {
    note(db, run, false, now).await.map(drop)
}

async fn note(db: &Db, run: Uuid, runs: bool, now: Timestamp) -> Result<bool, DbError> {
    let mut tx = db.begin().await?;
    let columns = columns! { "run": run.to_string(), "seen_at": now, "runs": runs };
    let changed = record::overwrite(TABLE, columns).execute(&mut tx).await?;
    tx.commit().await?;
    Ok(changed == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keeper(path: &str) -> Keeper {
        Keeper { folder: Uuid::now_v7(), path: path.into(), host: "alpha".into(), run: Uuid::now_v7() }
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
    async fn who_ended_in_good_order_need_not_be_waited_for() {
        let (db, _dir) = database().await;
        let (first, second) = (keeper("/srv/first"), keeper("/srv/second"));
        take(&db, &first, false, NOW).await.unwrap().unwrap();
        left(&db, first.run, NOW).await.unwrap();
        assert!(take(&db, &second, false, NOW).await.unwrap().is_err());
        take(&db, &second, true, NOW).await.unwrap().unwrap();
    }
}
