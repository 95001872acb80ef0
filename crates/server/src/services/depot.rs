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
//! Nothing is opened or asked before it is needed, and nobody waits for an answer for longer than [`LONGEST_CALL`]: a server of
//! files that hangs keeps a thread for each call that it does not answer, so these are counted, and no more are made than
//! [`CALLS`]. After any failure the store is opened anew, with the keys as they are then.

mod mark;
pub mod search;

use std::collections::HashSet;
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
use futures::{StreamExt, TryStreamExt};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, ObjectStoreExt, RetryConfig};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

use crate::config::{Backups, S3};
use crate::work::lifecycle::StepError;

pub use mark::Standing;

/// Bytes of a part: few enough to be held in memory, many enough that 2 TiB are a number of objects that can be listed.
pub const PART: u64 = 16 << 20;
/// How long a store may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(10);
/// How long a store may say nothing.
const SILENCE: Duration = Duration::from_mins(1);
/// How long one request may take with all that is tried again of it.
const PATIENCE: Duration = Duration::from_mins(2);
/// How often a request is tried again.
const TRIES: usize = 5;

/// How long any call may take, a search of all that is there among them.
const LONGEST_CALL: Duration = Duration::from_mins(5);
/// How long `berth doctor` waits.
const DOCTOR: Duration = Duration::from_secs(30);
/// How many calls may be without an answer at the same time.
const CALLS: usize = 128;

/// Why something could not be done with the store. What a store says may name what a tenant is not to see, so it is told to the
/// log alone.
#[derive(Debug, thiserror::Error)]
pub enum DepotError {
    /// It cannot do that.
    #[error(transparent)]
    Store(#[from] object_store::Error),
    /// It cannot be opened, as the sentence says.
    #[error("{0}")]
    Closed(String),
    /// It does not answer.
    #[error("it does not answer")]
    Silent,
}

impl DepotError {
    /// Whether something is not there that was looked for.
    pub const fn is_missing(&self) -> bool {
        matches!(self, Self::Store(object_store::Error::NotFound { .. }))
    }
}

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
    config: Backups,
    opened: Arc<Mutex<Option<Arc<dyn ObjectStore>>>>,
    calls: Arc<Semaphore>,
    longest_call: Duration,
    /// What the last look found.
    standing: Arc<Mutex<Option<Standing>>>,
    /// With what names begin.
    below: Path,
    name: String,
    id: PhantomData<I>,
}

/// Ends a call whose caller is gone.
struct Ending(Option<AbortHandle>);

impl Drop for Ending {
    fn drop(&mut self) {
        if let Some(call) = self.0.take() {
            call.abort();
        }
    }
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
        Some(Self {
            config: config.clone(),
            opened: Arc::default(),
            calls: Arc::new(Semaphore::new(CALLS)),
            longest_call: LONGEST_CALL,
            standing: Arc::default(),
            below,
            name,
            id: PhantomData,
        })
    }

    /// The store, opened where it is not.
    async fn store(&self) -> Result<Arc<dyn ObjectStore>, DepotError> {
        if let Some(store) = self.opened.lock().unwrap_or_else(PoisonError::into_inner).clone() {
            return Ok(store);
        }
        let config = self.config.clone();
        let opening = async move {
            let opened = tokio::task::spawn_blocking(move || open(&config)).await;
            opened.map_err(|error| DepotError::Closed(error.to_string()))?
        };
        let store = self.in_time(opening).await?;
        *self.opened.lock().unwrap_or_else(PoisonError::into_inner) = Some(store.clone());
        Ok(store)
    }

    /// Asks the store something, and opens it anew the next time where it could not do that.
    async fn ask<T, F>(&self, ask: impl FnOnce(Arc<dyn ObjectStore>) -> F + Send) -> Result<T, DepotError>
    where
        T: Send + 'static,
        F: Future<Output = object_store::Result<T>> + Send + 'static,
    {
        let asked = ask(self.store().await?);
        let answer = self.in_time(async move { Ok(asked.await?) }).await;
        if answer.as_ref().is_err_and(|error| !error.is_missing()) {
            *self.opened.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        answer
    }

    /// Waits for a call. One of a folder that does not answer in time cannot be ended, and counts until it does.
    async fn in_time<T: Send + 'static>(
        &self,
        call: impl Future<Output = Result<T, DepotError>> + Send + 'static,
    ) -> Result<T, DepotError> {
        let place = self.calls.clone().try_acquire_owned().map_err(|_| DepotError::Silent)?;
        let call = tokio::spawn(async move {
            let _place = place;
            call.await
        });
        let mut ending = Ending(Some(call.abort_handle()));
        match tokio::time::timeout(self.longest_call, call).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => Err(DepotError::Closed(error.to_string())),
            Err(_) => {
                if self.config.s3.is_none() {
                    ending.0 = None;
                }
                Err(DepotError::Silent)
            }
        }
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
        self.config.s3.is_none().then(|| self.config.folder.join(self.all_of(id).as_ref()))
    }

    fn part(&self, id: I, number: i64) -> Path {
        self.all_of(id).join(format!("{number:06}"))
    }

    async fn put_at(&self, path: Path, bytes: Bytes) -> Result<(), DepotError> {
        self.ask(|store| async move { store.put(&path, bytes.into()).await.map(drop) }).await
    }

    async fn get_at(&self, path: Path) -> Result<Bytes, DepotError> {
        self.ask(|store| async move { store.get(&path).await?.bytes().await }).await
    }

    /// Puts a part of a thing; the first one is number 1.
    pub async fn put(&self, id: I, number: i64, bytes: Bytes) -> Result<(), DepotError> {
        self.put_at(self.part(id, number), bytes).await
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
        self.ask(|store| async move {
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
        self.ask(|store| async move {
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
        self.ask(|store| async move {
            let mut ids = HashSet::new();
            let mut found = store.list(Some(&below));
            while let Some(object) = found.next().await {
                let object = object?;
                let mut rest = object.location.prefix_match(&below).into_iter().flatten();
                ids.extend(rest.next().and_then(|part| part.as_ref().parse::<I>().ok()));
            }
            Ok(ids)
        })
        .await
    }

    /// Writes a small object, reads it back and removes it.
    async fn try_out(&self) -> Result<()> {
        let path = self.below.clone().join("doctor");
        let written = json!({"is": "what berth doctor wrote to try this store"}).to_string();
        self.put_at(path.clone(), written.clone().into()).await.context("it cannot be written")?;
        let read = self.get_at(path.clone()).await.context("it cannot be read")?;
        let removed = self.ask(|store| async move { store.delete(&path).await }).await;
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

/// Opens the store of the configuration, a folder where it is not there yet, with the keys as they are at this moment.
fn open(config: &Backups) -> Result<Arc<dyn ObjectStore>, DepotError> {
    let opened = match &config.s3 {
        Some(s3) => bucket(s3).map(|store| Arc::new(store) as Arc<dyn ObjectStore>),
        None => folder(&config.folder).map(|store| Arc::new(store) as Arc<dyn ObjectStore>),
    };
    opened.map_err(|error| DepotError::Closed(format!("{error:#}")))
}

fn folder(folder: &std::path::Path) -> Result<LocalFileSystem> {
    std::fs::create_dir_all(folder).with_context(|| format!("backups.folder: {} cannot be made", folder.display()))?;
    let store = LocalFileSystem::new_with_prefix(folder)
        .with_context(|| format!("backups.folder: {} cannot be used", folder.display()))?;
    Ok(store.with_fsync(true))
}

fn bucket(s3: &S3) -> Result<AmazonS3> {
    let (id, secret) = s3.keys()?;
    let is_plain = s3.endpoint.starts_with("http://");
    let client = ClientOptions::new()
        .with_connect_timeout(CONNECT)
        .with_read_timeout(SILENCE)
        .with_timeout(PATIENCE)
        .with_allow_http(is_plain);
    let retry = RetryConfig { backoff: BackoffConfig::default(), max_retries: TRIES, retry_timeout: PATIENCE };
    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(&s3.bucket)
        .with_region(&s3.region)
        .with_access_key_id(id.0)
        .with_secret_access_key(secret.0)
        .with_client_options(client)
        .with_retry(retry);
    if !s3.endpoint.is_empty() {
        builder = builder.with_endpoint(s3.endpoint.trim_end_matches('/'));
    }
    builder.build().context("backups.s3 cannot be used")
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
    use super::*;

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
        assert!(depot.store().await.unwrap_err().to_string().contains("cannot be read"));
        std::fs::write(&key, "word").unwrap();
        depot.store().await.unwrap();
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
        depot.longest_call = Duration::from_millis(500);
        for _ in 0..2 {
            assert!(matches!(depot.get(id, 2).await, Err(DepotError::Silent)));
        }
        assert_eq!(depot.calls.available_permits(), CALLS - 2);
        depot.longest_call = LONGEST_CALL;
        assert_eq!(depot.get(id, 1).await.unwrap(), "part");
        // It answers again: so do the calls that were given up, and count no more.
        drop(std::fs::File::options().write(true).open(&pipe).unwrap());
        while depot.calls.available_permits() < CALLS {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
