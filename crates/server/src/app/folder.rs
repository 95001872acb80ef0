//! The data folder's identity, and its tie to the database.
//!
//! The database names its folder ([`keeper`]), and the folder its database, each by an id that copies keep. A folder
//! may meet another database, or a new one because somebody mistyped an address. Such a database knows nothing of the
//! folder's machines and disks, so the service refuses to start, before it has changed anything.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use berth_domain::Timestamp;
use berth_domain::replica::{self, Lease};
use berth_host::clock::Clock;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::config::Config;
use crate::db::keeper::{self, Keeper};
use crate::db::{Db, DbError, disk_of, due, setting};
use crate::private_file;

/// The file that holds a folder's id.
const FILE: &str = "identity";
/// The file that holds the id of the folder's database.
const DATABASE: &str = "database";
/// The setting that is a database's id.
const DATABASE_ID: &str = "database.id";
/// Folders of things that rows of the database own.
const THINGS: [&str; 5] = ["disks", "snapshots", "machines", "sandbox/layers", "sandbox/memories"];
/// Pause between two checks whether another service came; of replicas `replica::RENEW` is.
const LOOK: Duration = Duration::from_secs(5);
/// Seconds by which the clock may go back without effect.
const BACK: i64 = 60;

/// The keeper that this service is to its database: its folder, and a run of its own.
pub(super) fn keeper(config: &Config) -> Result<Keeper> {
    let dir = &config.data_dir;
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    Ok(Keeper {
        folder: identity(dir)?,
        path: dir.display().to_string(),
        host: host.trim().to_owned(),
        run: Uuid::now_v7(),
        address: config.replica.is_one().then(|| config.replica.address.clone()),
    })
}

/// The folder's id; makes one where there is none.
fn identity(dir: &Path) -> Result<Uuid> {
    let file = dir.join(FILE);
    let cannot = || format!("the data folder's identity, {}, cannot be used", file.display());
    match std::fs::read_to_string(&file) {
        Ok(text) => text.trim().parse().with_context(|| {
            format!(
                "{} holds no id. Restore it from a backup; without one, remove it and type: berth serve --take-over",
                file.display()
            )
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let id = Uuid::new_v4();
            // The file appears whole or not at all, and before any database names the id.
            private_file::write(&file, format!("{id}\n").as_bytes()).with_context(cannot)?;
            Ok(id)
        }
        Err(error) => Err(error).with_context(cannot),
    }
}

/// Opens the database for a folder's service, and takes it; also returns when the last service was seen on it. If it
/// refuses, it has changed nothing.
pub(super) async fn open(config: &Config, keeper: &Keeper, clock: &Clock) -> Result<(Db, Option<Timestamp>)> {
    let disk = disk_of(&config.database_url);
    let cannot = |error: DbError| match error {
        DbError::Full(_) => anyhow!("the database {}", full(disk.as_deref())),
        error => anyhow::Error::from(error).context("the database cannot be opened"),
    };
    let wait = Duration::from_secs(config.database_wait_seconds);
    let db = Db::connect(&config.database_url, wait, config.database_connections).await.map_err(cannot)?;
    let noted = noted(&config.data_dir)?;
    // Checks before it touches the schema.
    let found = Found::of(&db).await.map_err(cannot)?;
    if let Some(reason) = found.known.as_ref().and_then(|known| known.refuses(keeper, config.take_over, clock.now())) {
        return Err(anyhow!(reason));
    }
    if !config.take_over && found.is_foreign(keeper.folder, noted.as_deref(), holds_things(&config.data_dir)) {
        return Err(anyhow!(
            "the data folder {0} belongs to another database: machines and disks lie there of which this one knows \
             nothing. Name the right one: set BERTH_DATABASE_URL, or unset it for the one in the folder. To restore a \
             backup, put it in the place of berth.db. If the folder is to begin with this database, type: berth serve \
             --take-over; what none of its rows owns is then set aside in {0}/lost",
            config.data_dir.display()
        ));
    }
    db.migrate().await.map_err(cannot)?;
    let taken = keeper::take(&db, keeper, config.take_over, clock.now()).await.map_err(cannot)?;
    taken.map_err(|reason| anyhow!(reason))?;
    let id = id_of(&db).await.map_err(cannot)?;
    if noted.as_ref() != Some(&id) {
        let file = config.data_dir.join(DATABASE);
        private_file::write(&file, format!("{id}\n").as_bytes())
            .with_context(|| format!("the file {} cannot be written", file.display()))?;
    }
    let seen = found.known.map(|known| known.seen_at);
    if let Some(seen) = seen {
        follow_clock(&db, seen, clock.now()).await.map_err(cannot)?;
    }
    Ok((db, seen))
}

/// Refuses a data folder for a replica that stands by, before anything of it is asked for: one that belongs to another
/// database, or that is a copy of the active one's.
pub(super) async fn admit_standby(
    config: &Config,
    keeper: &Keeper,
    db: &Db,
    active: &keeper::KeeperRow,
    is_known: bool,
) -> Result<()> {
    let (dir, noted) = (&config.data_dir, noted(&config.data_dir)?);
    let id = setting::find(db, DATABASE_ID).await?;
    let is_foreign = noted.as_ref().is_some_and(|noted| id.as_ref() != Some(noted));
    if is_foreign || (noted.is_none() && !is_known && holds_things(dir)) {
        return Err(anyhow!(
            "the data folder {} belongs to another database: machines and disks lie there of which this one knows nothing. Have \
             this replica begin with an empty folder that has the same secrets.key: set BERTH_DATA_DIR",
            dir.display()
        ));
    }
    if active.is_copied_by(keeper) && !config.take_over {
        return Err(anyhow!(
            "the data folder {} is a copy of {} of host {}, whose service has the database. Have this replica begin with an \
             empty folder that has the same secrets.key: set BERTH_DATA_DIR",
            dir.display(),
            active.keeper.path,
            active.keeper.host
        ));
    }
    if let (None, Some(id)) = (noted, id) {
        private_file::write(&dir.join(DATABASE), format!("{id}\n").as_bytes())
            .with_context(|| format!("the file {} cannot be written", dir.join(DATABASE).display()))?;
    }
    Ok(())
}

/// Has a replica that was about to be active have its turn no more.
pub(super) async fn give_up(config: &Config) {
    let wait = Duration::from_secs(config.database_wait_seconds);
    let given = async {
        let folder = identity(&config.data_dir)?;
        let db = Db::connect(&config.database_url, wait, 1).await?;
        keeper::gave_up(&db, folder, Clock::default().now()).await?;
        db.close().await;
        anyhow::Ok(())
    };
    match tokio::time::timeout(wait, given).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "the other replicas are not told that it is their turn"),
        Err(_) => tracing::warn!("the other replicas are not told that it is their turn: no answer in time"),
    }
}

/// A database before this service takes it.
struct Found {
    /// Its keeper.
    known: Option<keeper::KeeperRow>,
    /// Its id.
    id: Option<String>,
    /// Whether it has no schema yet.
    is_new: bool,
}

impl Found {
    async fn of(db: &Db) -> Result<Self, DbError> {
        // A missing table is an answer; a database that cannot be read gives none.
        let known = match keeper::find(db).await {
            Err(DbError::NoTable(_)) => None,
            found => found?,
        };
        let (id, is_new) = match setting::find(db, DATABASE_ID).await {
            Err(DbError::NoTable(_)) => (None, true),
            found => (found?, false),
        };
        Ok(Self { known, id, is_new })
    }

    /// Whether this folder keeps it.
    fn is_kept_by(&self, folder: Uuid) -> bool {
        self.known.as_ref().is_some_and(|known| known.keeper.folder == folder)
    }

    /// Whether a folder belongs to another database: by the id that the folder noted, or because it holds things of
    /// rows though this database is new.
    fn is_foreign(&self, folder: Uuid, noted: Option<&str>, holds_things: bool) -> bool {
        match (noted, &self.id) {
            (Some(noted), Some(id)) => noted != id,
            // A folder as an older service left it.
            (Some(_), None) => !self.is_kept_by(folder),
            (None, _) => self.is_new && holds_things,
        }
    }
}

/// The database id that the folder noted last.
fn noted(dir: &Path) -> Result<Option<String>> {
    let file = dir.join(DATABASE);
    match std::fs::read_to_string(&file) {
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("the file {} cannot be read", file.display())),
    }
}

fn holds_things(dir: &Path) -> bool {
    THINGS.iter().any(|folder| std::fs::read_dir(dir.join(folder)).is_ok_and(|mut entries| entries.next().is_some()))
}

/// The database's id; makes one where there is none.
pub(super) async fn id_of(db: &Db) -> Result<String, DbError> {
    let mut tx = db.begin().await?;
    if let Some(id) = setting::find(&mut tx, DATABASE_ID).await? {
        return Ok(id);
    }
    let id = Uuid::new_v4().to_string();
    setting::put(&mut tx, DATABASE_ID, &id).await?;
    tx.commit().await?;
    Ok(id)
}

/// Whether the database takes writes, as of the service's last sign of life. Clones share it.
#[derive(Clone, Default)]
pub(super) struct Health(Arc<Mutex<Option<String>>>);

impl Health {
    /// Whether the database takes writes; else what is wrong.
    fn writable(&self) -> Result<(), String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone().map_or(Ok(()), Err)
    }

    /// The same as a function, for the probes.
    pub(super) fn writes(&self) -> Arc<dyn Fn() -> Result<(), String> + Send + Sync> {
        let health = self.clone();
        Arc::new(move || health.writable())
    }

    /// Notes the outcome of a write, and logs a change. `disk` is the folder of the database, if that is on this host.
    fn note(&self, disk: Option<&Path>, outcome: Result<(), &DbError>) {
        let wrong = match outcome {
            Ok(()) => None,
            Err(DbError::Full(_)) => Some(full(disk)),
            Err(error) => Some(format!("cannot be written to: {error}")),
        };
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match (&wrong, noted.is_some()) {
            (Some(wrong), false) => tracing::error!("the database {wrong}; trying until it can"),
            (None, true) => tracing::info!("the database can be written to again"),
            _ => {}
        }
        *noted = wrong;
    }
}

fn full(disk: Option<&Path>) -> String {
    let Some(folder) = disk else {
        return "cannot be written to, because the disk of its server is full. Free some there".to_owned();
    };
    let free = rustix::fs::statvfs(folder).map_or(0, |disk| disk.f_bavail.saturating_mul(disk.f_frsize));
    format!(
        "cannot be written to, because its disk is full (the disk of {} has {free} bytes left). Free some: disks and images \
         that nobody needs, lost/, logs",
        folder.display()
    )
}

/// Gives the database the service's signs of life.
pub(super) struct Keeping {
    db: Db,
    run: Uuid,
    /// The folder of the database, if that is on this host.
    disk: Option<PathBuf>,
    health: Health,
    /// How long the service may act, where others stand by.
    lease: Option<Lease>,
}

impl Keeping {
    /// For a run of the configured service, which took the database after this moment.
    pub(super) fn new(db: &Db, keeper: &Keeper, config: &Config, health: Health, before: Duration) -> Self {
        let lease = keeper.address.is_some().then(|| Lease::new(before));
        Self { db: db.clone(), run: keeper.run, disk: disk_of(&config.database_url), health, lease }
    }

    /// Tells the database regularly that the service runs, for as long as it does anything. Cancels `taken_over` once another
    /// service has the database, or may have it, and returns.
    pub(super) async fn keep(mut self, clock: Clock, stop: CancellationToken, taken_over: CancellationToken) {
        let (mut last, pause) = (clock.now(), if self.lease.is_some() { replica::RENEW } else { LOOK });
        loop {
            tokio::time::sleep(pause).await;
            let (asked, now) = (uptime(), clock.now());
            let left = self.lease.map_or(Some(Duration::MAX), |lease| lease.left(asked));
            let told = async {
                if follow_clock(&self.db, last, now).await.is_ok() {
                    last = now;
                }
                keeper::seen(&self.db, self.run, now).await
            };
            let seen = tokio::time::timeout(left.unwrap_or_default(), told).await;
            let seen = seen.unwrap_or_else(|_| Err(DbError::Unavailable("no answer in time".into())));
            self.health.note(self.disk.as_deref(), seen.as_ref().map(|_| ()));
            let ends = match (&seen, &mut self.lease) {
                (Ok(false), _) => "another service has taken over the database; this one ends and touches nothing more",
                (Ok(true), Some(lease)) => {
                    lease.renew(asked);
                    continue;
                }
                (Err(_), Some(lease)) if lease.left(uptime()).is_none() => {
                    "the database has not answered for so long that another replica may have it; this one ends"
                }
                _ => continue,
            };
            tracing::error!("{ends}");
            taken_over.cancel();
            return stop.cancel();
        }
    }
}

/// Time since the machine started, its sleep included.
pub(super) fn uptime() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::try_from(now).unwrap_or_default()
}

/// After the clock was set back, makes the workers look at all waiting rows.
pub(super) async fn follow_clock(db: &Db, last: Timestamp, now: Timestamp) -> Result<(), DbError> {
    if now.plus_seconds(BACK) >= last {
        return Ok(());
    }
    tracing::warn!(%last, %now, "the clock was set back; looking at everything that waits");
    due::look_at_all(db, now).await
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_folder_keeps_its_identity() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config { data_dir: dir.path().to_owned(), ..Config::default() };
        let first = keeper(&config).unwrap();
        let second = keeper(&config).unwrap();
        assert_eq!((first.folder, first.run == second.run), (second.folder, false));
        let mode = std::fs::metadata(dir.path().join(FILE)).unwrap().permissions().mode();
        assert_eq!((mode & 0o777, std::fs::read_dir(dir.path()).unwrap().count()), (0o600, 1));
        std::fs::write(dir.path().join(FILE), "half").unwrap();
        let error = keeper(&config).unwrap_err().to_string();
        assert!(error.contains("--take-over"), "{error}");
    }

    #[test]
    fn a_full_disk_is_told_until_there_is_room_again() {
        let dir = tempfile::tempdir().unwrap();
        let health = Health::default();
        assert_eq!(health.clone().writable(), Ok(()));
        health.note(Some(dir.path()), Err(&DbError::Full("database or disk is full".into())));
        let told = health.clone().writable().unwrap_err();
        assert!(told.contains("full") && told.contains(&dir.path().display().to_string()), "{told}");
        assert!(told.contains("bytes left"), "{told}");
        health.note(Some(dir.path()), Ok(()));
        assert_eq!(health.clone().writable(), Ok(()));
        health.note(None, Err(&DbError::Full("could not extend file".into())));
        assert!(health.writable().unwrap_err().contains("its server"));
    }
}
