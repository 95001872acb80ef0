//! Where backups are kept: a folder, or a bucket of S3.
//!
//! ```text
//! <prefix>/<database>/<backup id>/000001 …   what is kept, in parts of [`PART`] bytes
//! <prefix>/<database>/<backup id>/backup.json  what it is, for whoever has nothing but the store
//! ```
//!
//! A part is an object of its own, put in one request, and so it is there whole or not at all. An upload in several requests
//! (S3's multipart uploads) would leave, where the service dies, what no list of objects shows and what is paid for
//! nevertheless. Of one backup no more than one part is in memory. What is there of a backup is all that lies below its id:
//! whatever a death left is found by that, and goes with it.
//!
//! Several services may share a bucket: each has what is below its database's id.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use berth_domain::Timestamp;
use berth_domain::ids::BackupId;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, ObjectStoreExt, RetryConfig};
use serde_json::{Value, json};

use crate::config::{Backups, S3};

/// Bytes of a part: few enough to be held in memory, many enough that 2 TiB are a number of objects that can be listed.
pub const PART: u64 = 16 << 20;
/// What describes a backup beside its parts.
const ABOUT: &str = "backup.json";
/// How long a store may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(10);
/// How long a store may say nothing.
const SILENCE: Duration = Duration::from_mins(1);
/// How long one request may take with all that is tried again of it.
const PATIENCE: Duration = Duration::from_mins(2);
/// How often a request is tried again.
const TRIES: usize = 5;

/// Why something could not be done with the store. What a store says may name what a tenant is not to see, so it is told to the
/// log alone.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct DepotError(#[from] object_store::Error);

impl DepotError {
    /// Whether something is not there that was looked for.
    pub const fn is_missing(&self) -> bool {
        matches!(self.0, object_store::Error::NotFound { .. })
    }
}

/// The store.
#[derive(Clone, Debug)]
pub struct Depot {
    store: Arc<dyn ObjectStore>,
    /// With what names begin.
    below: Path,
    /// The folder, where it is one, on which names follow.
    folder: Option<PathBuf>,
    name: String,
}

impl Depot {
    /// The store of the configuration, for the services of a database; none where there is none.
    pub fn open(config: &Backups, database: &str) -> Result<Option<Self>> {
        if let Some(s3) = &config.s3 {
            return Self::bucket(s3, database).map(Some);
        }
        if config.folder.as_os_str().is_empty() {
            return Ok(None);
        }
        let folder = &config.folder;
        std::fs::create_dir_all(folder)
            .with_context(|| format!("backups.folder: {} cannot be made", folder.display()))?;
        let store = LocalFileSystem::new_with_prefix(folder)
            .with_context(|| format!("backups.folder: {} cannot be used", folder.display()))?
            .with_fsync(true);
        Ok(Some(Self {
            store: Arc::new(store),
            below: Path::from(database),
            name: format!("folder {}", folder.display()),
            folder: Some(folder.clone()),
        }))
    }

    fn bucket(s3: &S3, database: &str) -> Result<Self> {
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
        let store = builder.build().context("backups.s3 cannot be used")?;
        let prefix = s3.prefix.trim_matches('/');
        let below = if prefix.is_empty() { Path::from(database) } else { Path::from(format!("{prefix}/{database}")) };
        Ok(Self { store: Arc::new(store), below, folder: None, name: format!("s3 {} {}", s3.endpoint, s3.bucket) })
    }

    /// What it calls itself, for the operator and for rows: one that is named otherwise is another store.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn of(&self, id: BackupId) -> Path {
        self.below.clone().join(id.to_string())
    }

    fn part(&self, id: BackupId, number: i64) -> Path {
        self.of(id).join(format!("{number:06}"))
    }

    /// Puts a part of a backup; the first one is number 1.
    pub async fn put(&self, id: BackupId, number: i64, bytes: Bytes) -> Result<(), DepotError> {
        self.store.put(&self.part(id, number), bytes.into()).await?;
        Ok(())
    }

    /// Puts what a backup is beside its parts.
    pub async fn describe(&self, id: BackupId, about: &Value) -> Result<(), DepotError> {
        let text = format!("{about:#}\n");
        self.store.put(&self.of(id).join(ABOUT), text.into()).await?;
        Ok(())
    }

    /// A part of a backup.
    pub async fn get(&self, id: BackupId, number: i64) -> Result<Bytes, DepotError> {
        Ok(self.store.get(&self.part(id, number)).await?.bytes().await?)
    }

    /// Removes all that is there of a backup; fine where there is nothing.
    pub async fn clear(&self, id: BackupId) -> Result<(), DepotError> {
        let found = self.store.list(Some(&self.of(id))).map_ok(|object| object.location).boxed();
        let mut removed = self.store.delete_stream(found);
        while let Some(one) = removed.next().await {
            match one {
                Ok(_) | Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.remove_folder(id).await
    }

    /// What a death leaves in the middle of a part is no object yet: its folder goes with it.
    async fn remove_folder(&self, id: BackupId) -> Result<(), DepotError> {
        let Some(folder) = &self.folder else { return Ok(()) };
        match tokio::fs::remove_dir_all(folder.join(self.of(id).as_ref())).await {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(DepotError(object_store::Error::Generic { store: "folder", source: Box::new(error) }))
            }
            _ => Ok(()),
        }
    }

    /// The backups of which something was put before a time, and nothing since.
    pub async fn older_than(&self, time: Timestamp) -> Result<HashSet<BackupId>, DepotError> {
        let (mut old, mut young) = (HashSet::new(), HashSet::new());
        let mut found = self.store.list(Some(&self.below));
        while let Some(object) = found.next().await {
            let object = object?;
            let mut rest = object.location.prefix_match(&self.below).into_iter().flatten();
            let Some(Ok(id)) = rest.next().map(|part| part.as_ref().parse::<BackupId>()) else { continue };
            if object.last_modified.timestamp_micros() < time.0 {
                old.insert(id)
            } else {
                young.insert(id)
            };
        }
        Ok(&old - &young)
    }

    /// Tries the store of the configuration, as `berth doctor` does; its name, or none where there is none.
    pub async fn tried(config: &Backups) -> Result<Option<String>> {
        let Some(depot) = Self::open(config, "doctor")? else { return Ok(None) };
        depot.try_out().await?;
        Ok(Some(depot.name))
    }

    /// Writes a small object, reads it back and removes it.
    async fn try_out(&self) -> Result<()> {
        let path = self.below.clone().join("doctor");
        let written = json!({"is": "what berth doctor wrote to try this store"}).to_string();
        self.store.put(&path, written.clone().into()).await.context("it cannot be written")?;
        let read =
            self.store.get(&path).await.context("it cannot be read")?.bytes().await.context("it cannot be read")?;
        self.store.delete(&path).await.context("nothing can be removed from it")?;
        if read != written.as_bytes() {
            bail!("what is read from it is not what was written");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(dir: &std::path::Path) -> Depot {
        let config = Backups { folder: dir.to_owned(), ..Backups::default() };
        Depot::open(&config, "database").unwrap().unwrap()
    }

    #[tokio::test]
    async fn all_of_a_backup_goes_and_nothing_of_another() {
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
        let ahead = Timestamp(i64::MAX);
        assert_eq!(depot.older_than(ahead).await.unwrap(), HashSet::from([other]));
        assert_eq!(depot.older_than(Timestamp(0)).await.unwrap(), HashSet::new());
    }

    #[tokio::test]
    async fn a_store_is_tried_and_left_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        folder(dir.path()).try_out().await.unwrap();
        assert_eq!(std::fs::read_dir(dir.path().join("database")).unwrap().count(), 0);
    }

    #[test]
    fn without_a_place_there_is_no_store() {
        assert!(Depot::open(&Backups::default(), "database").unwrap().is_none());
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
        let depot = Depot::bucket(&s3, "database").unwrap();
        assert_eq!(depot.below.as_ref(), "deep/er/database");
        assert!(!depot.name().contains("hush"), "{}", depot.name());
    }
}
