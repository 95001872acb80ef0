//! Brings layers and memories that stand still to the store of backups; [`fetch`] brings them from there to hosts.
//!
//! A row names the store before anything of it is there, so that whoever removes it removes it there, too, and says what it
//! hashes to once all of it is. That is what is compared with what comes from there, so that nothing is taken that the store
//! changed. What broke off goes on behind the parts that are there, if they are of the same file.

pub mod fetch;

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use berth_domain::ids::HostId;
use berth_domain::sandbox::durable::Place;
use berth_host::EngineError;
use berth_host::sandbox::{ImageFile, SandboxEngine};
use berth_host::vm::Content;
use bytes::Bytes;
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::io::AsyncReadExt;
use tokio::time::timeout;
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

    async fn named(&self, store: &str) -> Result<HashSet<Thing>, DbError> {
        store::archive::named(self.db(), store).await
    }

    async fn whole(&self, store: &str) -> Result<HashSet<Thing>, DbError> {
        store::archive::whole(self.db(), store).await
    }

    async fn doubt(&self, store: &str, thing: Thing) -> Result<(), DbError> {
        let mut tx = self.db().begin().await?;
        store::archive::doubt(&mut tx, thing, store).await?;
        tx.commit().await
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

    /// Makes room for it; false where it is there already.
    async fn make_room(self, engine: &dyn SandboxEngine, file: &ImageFile) -> Result<bool, EngineError> {
        match self {
            Self::Layer(id) => engine.expect_layer(id, file).await,
            Self::Memory(id) => engine.expect_memory(id, file).await,
        }
    }

    async fn remove(self, engine: &dyn SandboxEngine) -> Result<(), EngineError> {
        match self {
            Self::Layer(id) => engine.remove_layer(id).await,
            Self::Memory(id) => engine.remove_memory(id).await,
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
    if !store::archive::is_kept(sandboxes.db(), thing).await? {
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
    let there = there(sandboxes, depot, (thing, &file)).await?;
    depot.describe(thing, &about(&file)).await.map_err(away)?;
    let parts = send(&*engine, depot, (thing, &file), &there).await?;
    depot.keep(thing, parts).await.map_err(away)?;
    fault("archive", "keep", "sent").await?;
    // A share that was unmounted meanwhile is a folder of this machine.
    in_place(sandboxes).await?;
    let mut tx = sandboxes.db().begin().await?;
    store::archive::end(&mut tx, thing, depot.name(), &file).await?;
    tx.commit().await?;
    Ok(file.bytes)
}

/// The parts of a file that an earlier try left, with their lengths. They are of that file where this is what stands beside them; of
/// what was wrong, nothing is relied on.
async fn there(
    sandboxes: &Sandboxes,
    depot: &Depot<Thing>,
    (thing, file): (Thing, &ImageFile),
) -> Result<HashMap<i64, u64>, StepError> {
    let known = store::archive::find(sandboxes.db(), thing).await?;
    let is_doubted =
        known.is_some_and(|archived| archived.archive.store == depot.name() && archived.archive.is_doubted);
    let beside = depot.about(thing).await.map_err(away)?;
    if is_doubted || beside.is_none_or(|beside| beside != about(file)) {
        return Ok(HashMap::new());
    }
    depot.parts(thing).await.map_err(away)
}

/// Puts a file part by part, but for those that are there; how many there are. What came is what the host said that it is.
async fn send(
    engine: &dyn SandboxEngine,
    depot: &Depot<Thing>,
    (thing, file): (Thing, &ImageFile),
    there: &HashMap<i64, u64>,
) -> Result<i64, StepError> {
    let mut content = thing.read(engine, file).await?;
    let (mut left, mut number, mut hash) = (file.bytes, 0, Sha256::new());
    while left > 0 {
        let length = PART.min(left);
        let part = next_part(&mut content, length).await?;
        // Hashing a part takes a moment that others of this thread would have to wait for.
        let hashed = part.clone();
        let hashing = tokio::task::spawn_blocking(move || hash.chain_update(&hashed));
        hash = hashing.await.map_err(|error| broke_off(&error.to_string()))?;
        number += 1;
        if there.get(&number) != Some(&length) {
            depot.put(thing, number, part).await.map_err(away)?;
        }
        fault("archive", "keep", "part").await?;
        left -= length;
    }
    if berth_domain::hex::encode(&hash.finalize()) != file.sha256 {
        return Err(EngineError::Transient("its host sent something else than it said".into()).into());
    }
    Ok(number)
}

/// The next bytes of what a host sends, so many.
async fn next_part(content: &mut Box<dyn Content>, length: u64) -> Result<Bytes, EngineError> {
    let mut part = Vec::with_capacity(usize::try_from(length).unwrap_or_default());
    let read = timeout(SILENCE, content.take(length).read_to_end(&mut part)).await;
    read.map_err(|silent| broke_off(&silent.to_string()))?.map_err(|error| broke_off(&error.to_string()))?;
    if part.len() as u64 == length { Ok(part.into()) } else { Err(broke_off("bytes are missing")) }
}

fn broke_off(how: &str) -> EngineError {
    EngineError::Transient(format!("what its host sent broke off: {how}"))
}

/// What stands beside the parts from the beginning: of which file they are, for whoever has nothing but the store, too.
fn about(file: &ImageFile) -> serde_json::Value {
    json!({
        "parts": file.bytes.div_ceil(PART), "size_bytes": file.bytes, "sha256": file.sha256,
        "format": "its parts in the order of their names: of a layer qcow2, of a memory what one host sends to another",
    })
}

/// Removes what the store has of something that goes; fine where that is nothing, or another store. Where it does not answer, few
/// wait for it: others that go have nothing there.
pub(super) async fn clear(sandboxes: &Sandboxes, thing: Thing) -> Result<(), StepError> {
    let Some(depot) = sandboxes.depot() else { return Ok(()) };
    if !store::archive::may_be_in(sandboxes.db(), thing, depot.name()).await? {
        return Ok(());
    }
    let busy = |_| EngineError::Transient("others are removed from the store of backups; trying again".into());
    let _turn = sandboxes.clearing().try_acquire().map_err(busy)?;
    in_place(sandboxes).await?;
    depot.clear(thing).await.map_err(away)?;
    fault("archive", "clear", "done").await
}

/// Tells the operator why the store cannot be used.
fn away(error: DepotError) -> StepError {
    tracing::warn!(%error, "the store of backups cannot be used; trying again");
    error.into()
}
