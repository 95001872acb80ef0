//! Where what outlives hosts is kept: a folder, or a bucket of S3. Each service has its own place there, whose things have ids of
//! one type.
//!
//! ```text
//! <prefix>/<place>/<id>/000001 …     what is kept, in parts of [`PART`] bytes
//! <prefix>/<place>/<id>/<about>      what it is, for whoever has nothing but the store
//! ```
//!
//! A part is an object of its own, put in one request, and so it is there whole or not at all. An upload in several requests
//! (S3's multipart uploads) would leave, where the service dies, what no list of objects shows and what is paid for
//! nevertheless. Of one thing no more than one part is in memory. What is there of a thing is all that lies below its id:
//! whatever a death left is found by that, and goes with it.
//!
//! Several platforms may share a bucket: each has what is below its database's id.
//!
//! Nothing is opened or asked before it is needed, and nobody waits for an answer for longer than some minutes: a server of
//! files that hangs keeps a thread for each call that it does not answer, so these are counted, and no more are made in one place than
//! there may be ([`store`]). After any failure the store is opened anew, with the keys as they are then.

mod mark;
pub mod search;
mod store;

use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::hash::Hash;
use std::marker::PhantomData;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use berth_domain::ids::BackupId;
use berth_host::EngineError;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use serde_json::{Value, json};

use self::store::Store;
use crate::config::Backups;
use crate::work::lifecycle::StepError;

pub use mark::Standing;
pub use store::DepotError;

/// Bytes of a part: few enough to be held in memory, many enough that 2 TiB are a number of objects that can be listed.
pub const PART: u64 = 16 << 20;

/// How long `berth doctor` waits.
const DOCTOR: Duration = Duration::from_secs(30);

/// Why a step did not come to an end. What a store says is for the log alone.
impl From<DepotError> for StepError {
    fn from(_: DepotError) -> Self {
        Self::Engine(EngineError::Transient("the store of backups cannot be used".into()))
    }
}

/// What names a thing in the store.
pub trait Id: Copy + Eq + Hash + Display + FromStr + Send + Sync + 'static {
    /// What describes a thing beside its parts.
    const ABOUT: &'static str;
}

/// A service's place in the store.
#[derive(Clone, Debug)]
pub struct Depot<I> {
    store: Store,
    /// What the last look found.
    standing: Arc<Mutex<Option<Standing>>>,
    /// With what names begin.
    below: Path,
    /// The place in which this one lies: where that has no mark, it is not the store.
    within: Option<Path>,
    name: String,
    id: PhantomData<I>,
}

impl<I: Id> Depot<I> {
    /// A place in the store of the configuration; none where there is none. Nothing is asked of it.
    pub fn of(config: &Backups, place: &str) -> Option<Self> {
        let (prefix, name) = match &config.s3 {
            Some(s3) => (s3.prefix.trim_matches('/'), format!("s3 {} {}", s3.endpoint, s3.bucket)),
            None if config.folder.as_os_str().is_empty() => return None,
            None => ("", format!("folder {}", config.folder.display())),
        };
        let below = if prefix.is_empty() { Path::from(place) } else { Path::from(format!("{prefix}/{place}")) };
        let (store, standing) = (Store::of(config), Arc::default());
        Some(Self { store, standing, below, within: None, name, id: PhantomData })
    }

    /// A place in another one of the store, which somebody else marks.
    pub fn inside(config: &Backups, place: &str, name: &str) -> Option<Self> {
        let whole = Self::of(config, place)?;
        Some(Self { below: whole.below.clone().join(name), within: Some(whole.below), ..whole })
    }

    /// What it calls itself, for the operator and for rows: one that is named otherwise is another store.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn standing(&self) -> MutexGuard<'_, Option<Standing>> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn all_of(&self, id: I) -> Path {
        self.below.clone().join(id.to_string())
    }

    /// Where a thing lies, if the store is a folder.
    fn folder_of(&self, id: I) -> Option<PathBuf> {
        self.store.config.s3.is_none().then(|| self.store.config.folder.join(self.all_of(id).as_ref()))
    }

    fn part(&self, id: I, number: i64) -> Path {
        self.all_of(id).join(format!("{number:06}"))
    }

    async fn put_at(&self, path: Path, bytes: Bytes) -> Result<(), DepotError> {
        self.store.ask(|store| async move { store.put(&path, bytes.into()).await.map(drop) }).await
    }

    async fn get_at(&self, path: Path) -> Result<Bytes, DepotError> {
        self.store.ask(|store| async move { store.get(&path).await?.bytes().await }).await
    }

    /// Puts a part of a thing; the first one is number 1.
    pub async fn put(&self, id: I, number: i64, bytes: Bytes) -> Result<(), DepotError> {
        self.put_at(self.part(id, number), bytes).await
    }

    /// A part of a thing as it comes, for whoever would not wait until all of it is there.
    pub async fn read(
        &self,
        id: I,
        number: i64,
    ) -> Result<BoxStream<'static, object_store::Result<Bytes>>, DepotError> {
        let path = self.part(id, number);
        self.store.ask(|store| async move { Ok(store.get(&path).await?.into_stream()) }).await
    }

    /// Puts what a thing is beside its parts.
    pub async fn describe(&self, id: I, about: &Value) -> Result<(), DepotError> {
        self.put_at(self.all_of(id).join(I::ABOUT), format!("{about:#}\n").into()).await
    }

    /// What stands beside the parts of a thing; none where there is nothing, or something else.
    pub async fn about(&self, id: I) -> Result<Option<Value>, DepotError> {
        match self.get_at(self.all_of(id).join(I::ABOUT)).await {
            Err(error) if error.is_missing() => Ok(None),
            text => Ok(serde_json::from_slice(&text?).ok()),
        }
    }

    /// A part of a thing.
    pub async fn get(&self, id: I, number: i64) -> Result<Bytes, DepotError> {
        self.get_at(self.part(id, number)).await
    }

    /// Removes the parts of a thing that are more than so many, and what a death left in the middle of one.
    pub async fn keep(&self, id: I, parts: i64) -> Result<(), DepotError> {
        let (of, last) = (self.all_of(id), self.part(id, parts));
        let folder = self.folder_of(id);
        self.store
            .ask(|store| async move {
                // Parts are of six digits, so that their names come in their order; what the thing is does not begin with one.
                let is_part = |path: &Path| {
                    path.filename().is_some_and(|name| name.starts_with(|first: char| first.is_ascii_digit()))
                };
                let found: Vec<Path> = store.list(Some(&of)).map_ok(|object| object.location).try_collect().await?;
                for path in found.into_iter().filter(|path| is_part(path) && *path > last) {
                    store.delete(&path).await?;
                }
                match folder {
                    Some(folder) => remove_halves(&folder).await.map_err(unusable),
                    None => Ok(()),
                }
            })
            .await
    }

    /// Removes all that is there of a thing; fine where there is nothing.
    pub async fn clear(&self, id: I) -> Result<(), DepotError> {
        let of = self.all_of(id);
        // What a death leaves in the middle of a part is no object yet: its folder goes with it.
        let folder = self.folder_of(id);
        self.store
            .ask(|store| async move {
                let found = store.list(Some(&of)).map_ok(|object| object.location).boxed();
                let mut removed = store.delete_stream(found);
                while let Some(one) = removed.next().await {
                    match one {
                        Ok(_) | Err(object_store::Error::NotFound { .. }) => {}
                        Err(error) => return Err(error),
                    }
                }
                match folder {
                    Some(folder) => remove_folder(folder).await,
                    None => Ok(()),
                }
            })
            .await
    }

    /// The things of which something is there.
    pub async fn all(&self) -> Result<HashSet<I>, DepotError> {
        let below = self.below.clone();
        // One level alone: what lies below the things is far more.
        let listed = self.store.ask(|store| async move { store.list_with_delimiter(Some(&below)).await }).await?;
        let names = listed.common_prefixes.iter().filter_map(|prefix| prefix.filename());
        Ok(names.filter_map(|name| name.parse().ok()).collect())
    }

    /// The parts of a thing that are there, with their lengths in bytes.
    pub async fn parts(&self, id: I) -> Result<HashMap<i64, u64>, DepotError> {
        let of = self.all_of(id);
        let listed = self.store.ask(|store| async move { store.list_with_delimiter(Some(&of)).await }).await?;
        let parts =
            listed.objects.iter().filter_map(|object| Some((object.location.filename()?.parse().ok()?, object.size)));
        Ok(parts.collect())
    }

    /// Writes a small object, reads it back and removes it.
    async fn try_out(&self) -> Result<()> {
        let path = self.below.clone().join("doctor");
        let written = json!({"is": "what berth doctor wrote to try this store"}).to_string();
        self.put_at(path.clone(), written.clone().into()).await.context("it cannot be written")?;
        let read = self.get_at(path.clone()).await.context("it cannot be read")?;
        let removed = self.store.ask(|store| async move { store.delete(&path).await }).await;
        removed.context("nothing can be removed from it")?;
        if read != written.as_bytes() {
            bail!("what is read from it is not what was written");
        }
        Ok(())
    }
}

/// Tries the store of the configuration, as `berth doctor` does; its name, or none where there is none.
pub async fn tried(config: &Backups) -> Result<Option<String>> {
    let Some(depot) = Depot::<BackupId>::of(config, "doctor") else { return Ok(None) };
    let silent = || format!("it did not answer within {} seconds", DOCTOR.as_secs());
    tokio::time::timeout(DOCTOR, depot.try_out()).await.with_context(silent)??;
    Ok(Some(depot.name))
}

async fn remove_folder(folder: PathBuf) -> object_store::Result<()> {
    match tokio::fs::remove_dir_all(folder).await {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(unusable(error)),
        _ => Ok(()),
    }
}

/// Removes from a thing's folder what is no object yet: a store shows no name with a `#`.
async fn remove_halves(folder: &std::path::Path) -> std::io::Result<()> {
    let mut found = match tokio::fs::read_dir(folder).await {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    while let Some(entry) = found.next_entry().await? {
        if entry.file_name().as_encoded_bytes().contains(&b'#') {
            tokio::fs::remove_file(entry.path()).await?;
        }
    }
    Ok(())
}

fn unusable(error: std::io::Error) -> object_store::Error {
    object_store::Error::Generic { store: "folder", source: Box::new(error) }
}

#[cfg(test)]
mod tests {
    use super::store::{CALLS, LONGEST_CALL};
    use super::*;
    use crate::config::S3;

    pub(super) fn folder(dir: &std::path::Path) -> Depot<BackupId> {
        let config = Backups { folder: dir.to_owned(), ..Backups::default() };
        Depot::of(&config, "database").unwrap()
    }

    #[tokio::test]
    async fn all_of_a_thing_goes_and_nothing_of_another() {
        let dir = tempfile::tempdir().unwrap();
        let depot = folder(dir.path());
        let [one, other] = [1, 2].map(|n| BackupId(uuid::Uuid::from_u128(n)));
        for id in [one, other] {
            depot.put(id, 1, Bytes::from_static(b"part")).await.unwrap();
            depot.describe(id, &json!({"parts": 1})).await.unwrap();
        }
        // What a death in the middle of a part leaves.
        let half = dir.path().join(format!("database/{one}/000002#1"));
        std::fs::write(&half, "pa").unwrap();
        depot.clear(one).await.unwrap();
        assert!(!half.parent().unwrap().exists());
        assert!(depot.get(one, 1).await.unwrap_err().is_missing());
        assert_eq!(depot.get(other, 1).await.unwrap(), "part");
        depot.clear(one).await.unwrap();
        assert_eq!(depot.all().await.unwrap(), HashSet::from([other]));
    }

    #[tokio::test]
    async fn what_is_kept_is_whole_parts_and_no_more_than_there_are() {
        let dir = tempfile::tempdir().unwrap();
        let depot = folder(dir.path());
        let id = BackupId(uuid::Uuid::from_u128(1));
        depot.keep(id, 1).await.unwrap();
        for number in 1..=3 {
            depot.put(id, number, Bytes::from_static(b"part")).await.unwrap();
        }
        let of = dir.path().join(format!("database/{id}"));
        std::fs::write(of.join("000002#1"), "pa").unwrap();
        depot.keep(id, 2).await.unwrap();
        let mut names: Vec<_> = std::fs::read_dir(of).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["000001", "000002"]);
    }

    #[tokio::test]
    async fn a_store_is_tried_and_left_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        folder(dir.path()).try_out().await.unwrap();
        assert_eq!(std::fs::read_dir(dir.path().join("database")).unwrap().count(), 0);
    }

    #[test]
    fn without_a_place_there_is_no_store() {
        assert!(Depot::<BackupId>::of(&Backups::default(), "database").is_none());
    }

    #[test]
    fn a_bucket_shows_no_secret() {
        let dir = tempfile::tempdir().unwrap();
        let [id, secret] = ["id", "secret"].map(|name| dir.path().join(name));
        std::fs::write(&id, "AKIDKNOWN").unwrap();
        std::fs::write(&secret, "hushhush").unwrap();
        let s3 = S3 {
            bucket: "b".into(),
            prefix: "/deep/er/".into(),
            region: "us-east-1".into(),
            access_key_file: id,
            secret_key_file: secret,
            ..S3::default()
        };
        let depot = Depot::<BackupId>::of(&Backups { s3: Some(s3), ..Backups::default() }, "database").unwrap();
        assert_eq!(depot.below.as_ref(), "deep/er/database");
        assert!(!depot.name().contains("hush"), "{}", depot.name());
    }

    #[tokio::test]
    async fn keys_are_read_when_they_are_needed() {
        let dir = tempfile::tempdir().unwrap();
        let key = dir.path().join("key");
        let named = S3 { bucket: "b".into(), region: "us-east-1".into(), ..S3::default() };
        let s3 = S3 { access_key_file: key.clone(), secret_key_file: key.clone(), ..named };
        let depot = Depot::<BackupId>::of(&Backups { s3: Some(s3), ..Backups::default() }, "database").unwrap();
        assert!(depot.store.open().await.unwrap_err().to_string().contains("cannot be read"));
        std::fs::write(&key, "word").unwrap();
        depot.store.open().await.unwrap();
    }

    /// A pipe that nobody writes to answers as a server of files that hangs does.
    #[tokio::test]
    async fn a_store_that_hangs_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let mut depot = folder(dir.path());
        let id = BackupId(uuid::Uuid::from_u128(1));
        depot.put(id, 1, Bytes::from_static(b"part")).await.unwrap();
        let pipe = dir.path().join(format!("database/{id}/000002"));
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        depot.store.longest_call = Duration::from_millis(500);
        for _ in 0..2 {
            assert!(matches!(depot.get(id, 2).await, Err(DepotError::Silent)));
        }
        assert_eq!(depot.store.calls.available_permits(), CALLS - 2);
        depot.store.longest_call = LONGEST_CALL;
        assert_eq!(depot.get(id, 1).await.unwrap(), "part");
        // It answers again: so do the calls that were given up, and count no more.
        drop(std::fs::File::options().write(true).open(&pipe).unwrap());
        while depot.store.calls.available_permits() < CALLS {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
