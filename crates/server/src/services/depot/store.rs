//! The store itself, opened when it is needed, and calls of it that are counted and given up.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::local::LocalFileSystem;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, RetryConfig};
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

use crate::config::{Backups, S3};

/// How long a store may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(10);
/// How long a store may say nothing.
const SILENCE: Duration = Duration::from_mins(1);
/// How long one request may take with all that is tried again of it.
const PATIENCE: Duration = Duration::from_mins(2);
/// How often a request is tried again.
const TRIES: usize = 5;
/// How long any call may take, a search of all that is there among them.
pub(super) const LONGEST_CALL: Duration = Duration::from_mins(5);
/// How many calls of one place may be without an answer at the same time.
pub(super) const CALLS: usize = 128;

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

/// A store.
#[derive(Clone, Debug)]
pub(super) struct Store {
    pub config: Backups,
    opened: Arc<Mutex<Option<Arc<dyn ObjectStore>>>>,
    pub calls: Arc<Semaphore>,
    pub longest_call: Duration,
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

impl Store {
    /// That of the configuration, of which nothing is asked yet.
    pub fn of(config: &Backups) -> Self {
        Self {
            config: config.clone(),
            opened: Arc::default(),
            calls: Arc::new(Semaphore::new(CALLS)),
            longest_call: LONGEST_CALL,
        }
    }

    /// The store, opened where it is not.
    pub async fn open(&self) -> Result<Arc<dyn ObjectStore>, DepotError> {
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
    pub async fn ask<T, F>(&self, ask: impl FnOnce(Arc<dyn ObjectStore>) -> F + Send) -> Result<T, DepotError>
    where
        T: Send + 'static,
        F: Future<Output = object_store::Result<T>> + Send + 'static,
    {
        let asked = ask(self.open().await?);
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
}

/// Opens the store of the configuration, a folder where it is not there yet, with the keys as they are at this moment.
fn open(config: &Backups) -> Result<Arc<dyn ObjectStore>, DepotError> {
    let opened = match &config.s3 {
        Some(s3) => bucket(s3).map(|store| Arc::new(store) as Arc<dyn ObjectStore>),
        None => folder(&config.folder).map(|store| Arc::new(store) as Arc<dyn ObjectStore>),
    };
    opened.map_err(|error| DepotError::Closed(format!("{error:#}")))
}

fn folder(folder: &Path) -> Result<LocalFileSystem> {
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
