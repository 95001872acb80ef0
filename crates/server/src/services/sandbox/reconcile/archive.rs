//! Brings layers and memories that stand still to the store of backups, and from there to hosts.
//!
//! A row names the store before anything of it is there, so that whoever removes it removes it there, too, and says what it
//! hashes to once all of it is. That is what a host compares with what it gets, so that nobody need trust the store. What broke
//! off is sent anew from its beginning.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use berth_domain::ids::HostId;
use berth_domain::sandbox::durable::Place;
use berth_host::EngineError;
use berth_host::sandbox::{ImageFile, SandboxEngine};
use berth_host::vm::Content;
use bytes::Bytes;
use futures::stream::{self, StreamExt};
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::io::AsyncReadExt;
use tokio::time::timeout;
use tokio_util::io::StreamReader;
use tokio_util::sync::CancellationToken;

use super::{StepError, fault};
use crate::db::DbError;
use crate::services::depot::search::{Keeps, Searcher};
use crate::services::depot::{Depot, DepotError, Id, PART};
use crate::services::sandbox::Sandboxes;
use crate::services::sandbox::store;
use crate::services::sandbox::store::archive::Thing;

/// How long a part may take to come from a host.
const SILENCE: Duration = Duration::from_mins(5);
/// How long a host may take to say what it has of something: it hashes all of that.
const ANSWER: Duration = Duration::from_hours(1);

impl Id for Thing {
    const ABOUT: &'static str = "archive.json";
}

#[async_trait]
impl Keeps<Thing> for Sandboxes {
    async fn lies_in(&self, store: &str) -> Result<bool, DbError> {
        store::archive::lies_in(self.db(), store).await
    }

    async fn named(&self) -> Result<HashSet<Thing>, DbError> {
        store::archive::named(self.db()).await
    }
}

/// Looks whether the store is in its place, and searches it for what no row names, until told to stop.
pub async fn search(sandboxes: Sandboxes, stop: CancellationToken) {
    let Some(depot) = sandboxes.depot() else { return stop.cancelled().await };
    if sandboxes.config().durable_in == Place::Hosts && !is_used(&sandboxes, depot).await {
        return stop.cancelled().await;
    }
    let searcher = Searcher { depot, keeps: &sandboxes, service: sandboxes.host() };
    searcher.search(sandboxes.clock(), sandboxes.lost().days(), &stop).await;
}

/// Whether something may lie in the store, as far as can be told: a place that nobody uses is not marked.
async fn is_used(sandboxes: &Sandboxes, depot: &Depot<Thing>) -> bool {
    store::archive::lies_in(sandboxes.db(), depot.name()).await.unwrap_or(true)
}

/// The store, in its place.
async fn in_place(sandboxes: &Sandboxes) -> Result<&Depot<Thing>, StepError> {
    let none = || EngineError::Transient("no store of backups is configured".into());
    let depot = sandboxes.depot().ok_or_else(none)?;
    Searcher { depot, keeps: sandboxes, service: sandboxes.host() }.in_place().await?;
    Ok(depot)
}

/// What is done with the file of a layer or memory on a host.
impl Thing {
    async fn file(self, engine: &dyn SandboxEngine) -> Result<ImageFile, EngineError> {
        match self {
            Self::Layer(id) => engine.layer_file(id).await,
            Self::Memory(id) => engine.memory_file(id).await,
        }
    }

    async fn read(self, engine: &dyn SandboxEngine, file: &ImageFile) -> Result<Box<dyn Content>, EngineError> {
        match self {
            Self::Layer(id) => engine.read_layer(id, file).await,
            Self::Memory(id) => engine.read_memory(id, file).await,
        }
    }

    async fn expect(self, engine: &dyn SandboxEngine, file: &ImageFile) -> Result<bool, EngineError> {
        match self {
            Self::Layer(id) => engine.expect_layer(id, file).await,
            Self::Memory(id) => engine.expect_memory(id, file).await,
        }
    }

    async fn take(
        self,
        engine: &dyn SandboxEngine,
        file: &ImageFile,
        content: Box<dyn Content>,
    ) -> Result<(), EngineError> {
        match self {
            Self::Layer(id) => engine.take_layer(id, file, content).await,
            Self::Memory(id) => engine.take_memory(id, file, content).await,
        }
    }
}

/// Has the store have all of something that a host has.
pub(super) async fn keep(sandboxes: &Sandboxes, thing: Thing, from: HostId) -> Result<(), StepError> {
    let depot = in_place(sandboxes).await?;
    let mut tx = sandboxes.db().begin().await?;
    if !store::archive::begin(&mut tx, thing, depot.name()).await? {
        return Ok(());
    }
    tx.commit().await?;
    fault("archive", "keep", "begun").await?;
    let began = Instant::now();
    let sent = bring(sandboxes, depot, thing, from).await;
    if store::archive::find(sandboxes.db(), thing).await?.is_none_or(|archived| archived.store != depot.name()) {
        // It goes, or has gone, and what was removed with it came afterwards.
        return depot.clear(thing).await.map_err(away);
    }
    let (bytes, seconds) = (sent?, began.elapsed().as_secs_f64());
    tracing::info!(%thing, %from, bytes, seconds, "the store has all of it");
    Ok(())
}

/// Brings all of something to the store, and records that it is there; answers how many bytes that are.
async fn bring(sandboxes: &Sandboxes, depot: &Depot<Thing>, thing: Thing, from: HostId) -> Result<u64, StepError> {
    let engine = sandboxes.engine_of(Some(from))?;
    let silent = |_| EngineError::Transient("its host does not say what it has of it".into());
    let file = timeout(ANSWER, thing.file(&*engine)).await.map_err(silent)??;
    let parts = send(&*engine, depot, thing, &file).await?;
    depot.keep(thing, parts).await.map_err(away)?;
    depot.describe(thing, &about(&file, parts)).await.map_err(away)?;
    fault("archive", "keep", "sent").await?;
    let mut tx = sandboxes.db().begin().await?;
    store::archive::end(&mut tx, thing, depot.name(), &file).await?;
    tx.commit().await?;
    Ok(file.bytes)
}

/// Puts a file part by part; how many there are. What came is what the host said that it is.
async fn send(
    engine: &dyn SandboxEngine,
    depot: &Depot<Thing>,
    thing: Thing,
    file: &ImageFile,
) -> Result<i64, StepError> {
    let mut content = thing.read(engine, file).await?;
    let (mut left, mut number, mut hash) = (file.bytes, 0, Sha256::new());
    let broke_off = |error: String| EngineError::Transient(format!("what its host sent broke off: {error}"));
    while left > 0 {
        let length = PART.min(left);
        let mut part = Vec::with_capacity(usize::try_from(length).unwrap_or_default());
        let read = timeout(SILENCE, (&mut content).take(length).read_to_end(&mut part)).await;
        read.map_err(|silent| broke_off(silent.to_string()))?.map_err(|error| broke_off(error.to_string()))?;
        if part.len() as u64 != length {
            return Err(broke_off(format!("{left} bytes are missing")).into());
        }
        let part = Bytes::from(part);
        // Hashing a part takes a moment that others of this thread would have to wait for.
        let hashed = part.clone();
        let hashing = tokio::task::spawn_blocking(move || hash.chain_update(&hashed));
        hash = hashing.await.map_err(|error| broke_off(error.to_string()))?;
        number += 1;
        depot.put(thing, number, part).await.map_err(away)?;
        fault("archive", "keep", "part").await?;
        left -= length;
    }
    if berth_domain::hex::encode(&hash.finalize()) != file.sha256 {
        return Err(EngineError::Transient("its host sent something else than it said".into()).into());
    }
    Ok(number)
}

/// What stands beside the parts, for whoever has nothing but the store.
fn about(file: &ImageFile, parts: i64) -> serde_json::Value {
    json!({
        "parts": parts, "size_bytes": file.bytes, "sha256": file.sha256,
        "format": "its parts in the order of their names: a layer is qcow2, a memory an archive",
    })
}

/// Whether the store can be asked for all of something: then its length and what it hashes to.
pub(super) async fn whole(sandboxes: &Sandboxes, thing: Thing) -> Result<Option<ImageFile>, StepError> {
    let Some(name) = sandboxes.depot().map(Depot::name) else { return Ok(None) };
    let archived = store::archive::find(sandboxes.db(), thing).await?.filter(|archived| archived.store == name);
    Ok(archived.and_then(|archived| archived.file))
}

/// Brings something from the store to a host; answers how many bytes that took, none where it was there already. What the host
/// gets is compared with what the row says.
pub(super) async fn fetch(
    sandboxes: &Sandboxes,
    to: &dyn SandboxEngine,
    (thing, file): (Thing, &ImageFile),
) -> Result<u64, StepError> {
    let depot = in_place(sandboxes).await?;
    if !thing.expect(to, file).await? {
        return Ok(0);
    }
    fault("archive", "fetch", "expected").await?;
    let parts = file.bytes.div_ceil(PART);
    let missing = Arc::new(AtomicBool::new(false));
    let content = StreamReader::new(Box::pin(parts_of(depot.clone(), thing, parts, missing.clone())));
    let taken = thing.take(to, file, Box::new(content)).await;
    fault("archive", "fetch", "taken").await?;
    if missing.load(Ordering::Relaxed) {
        let mut tx = sandboxes.db().begin().await?;
        store::archive::doubt(&mut tx, thing).await?;
        tx.commit().await?;
        tracing::error!(%thing, "a part of it is not in the store of backups");
        return Err(EngineError::Permanent("a part of it is missing in the store of backups".into()).into());
    }
    taken?;
    Ok(file.bytes)
}

/// The parts of something, each asked for when the one before was taken.
fn parts_of(
    depot: Depot<Thing>,
    thing: Thing,
    parts: u64,
    missing: Arc<AtomicBool>,
) -> impl futures::Stream<Item = std::io::Result<Bytes>> + Send {
    stream::iter(1..=i64::try_from(parts).unwrap_or(i64::MAX)).then(move |number| {
        let (depot, missing) = (depot.clone(), missing.clone());
        async move {
            depot.get(thing, number).await.map_err(|error| {
                if error.is_missing() {
                    missing.store(true, Ordering::Relaxed);
                } else {
                    tracing::warn!(%thing, %error, "the store of backups cannot be read; trying again");
                }
                std::io::Error::other("the store of backups cannot be read")
            })
        }
    })
}

/// Removes what the store has of something that goes; fine where that is nothing, or another store.
pub(super) async fn clear(sandboxes: &Sandboxes, thing: Thing) -> Result<(), StepError> {
    let Some(store) = store::archive::of_going(sandboxes.db(), thing).await? else { return Ok(()) };
    if sandboxes.depot().map(Depot::name) != Some(&*store) {
        tracing::warn!(%thing, store, "it stays in a store that is not configured, where nobody owns it any more");
        return Ok(());
    }
    let depot = in_place(sandboxes).await?;
    depot.clear(thing).await.map_err(away)?;
    fault("archive", "clear", "done").await
}

/// Tells the operator why the store cannot be used.
fn away(error: DepotError) -> StepError {
    tracing::warn!(%error, "the store of backups cannot be used; trying again");
    error.into()
}
