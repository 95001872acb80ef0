//! Brings layers and memories from the store of backups to hosts: of a host that is lost to others, and to the service's own, once it
//! starts without what it had.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use berth_domain::{Error, Result, hex};
use berth_host::EngineError;
use berth_host::sandbox::{ImageFile, SandboxEngine};
use bytes::Bytes;
use futures::stream::{self, BoxStream, Stream, StreamExt, TryStreamExt};
use sha2::{Digest, Sha256};
use tokio_util::io::StreamReader;
use tokio_util::sync::CancellationToken;

use super::super::{StepError, fault};
use super::{away, in_place};
use crate::services::depot::{Depot, PART};
use crate::services::sandbox::Sandboxes;
use crate::services::sandbox::store;
use crate::services::sandbox::store::archive::Thing;

/// Between two tries of what the service's own host gets.
const AGAIN: Duration = Duration::from_secs(15);

/// What the configured store has of something, if it has all of it.
pub(in super::super) async fn whole(sandboxes: &Sandboxes, thing: Thing) -> Result<Option<ImageFile>, StepError> {
    let Some(name) = sandboxes.depot().map(Depot::name) else { return Ok(None) };
    let found = store::archive::find(sandboxes.db(), thing).await?;
    Ok(found.filter(|archived| archived.archive.store == name).map(|archived| archived.file))
}

/// Brings something from the store to a host; answers how many bytes that took, none where it was there already.
///
/// # Errors
/// It did not arrive. Where the store is in its place and has not what the row says, that is doubted from then on.
pub(in super::super) async fn fetch(
    sandboxes: &Sandboxes,
    to: &dyn SandboxEngine,
    (thing, file): (Thing, &ImageFile),
) -> Result<u64, StepError> {
    let depot = in_place(sandboxes).await?;
    if !thing.make_room(to, file).await? {
        return Ok(0);
    }
    fault("archive", "fetch", "expected").await?;
    let is_wrong = Arc::new(AtomicBool::new(false));
    let content = content(depot.clone(), thing, file.clone(), is_wrong.clone());
    let taken = thing.take(to, file, Box::new(StreamReader::new(content))).await;
    fault("archive", "fetch", "taken").await?;
    if is_wrong.load(Ordering::Relaxed) {
        if !store::archive::is_kept(sandboxes.db(), thing).await? {
            return Err(EngineError::Transient("it goes".into()).into());
        }
        // A share that is not mounted any more has nothing either.
        in_place(sandboxes).await?;
        let mut tx = sandboxes.db().begin().await?;
        store::archive::doubt(&mut tx, thing, depot.name()).await?;
        tx.commit().await?;
        tracing::error!(%thing, store = depot.name(), "the store has not what was sent there");
        return Err(EngineError::Permanent("the store of backups has not what was sent there".into()).into());
    }
    taken?;
    Ok(file.bytes)
}

/// Its bytes as they come, part after part. Notes where something is missing, or is not what was sent.
fn content(
    depot: Depot<Thing>,
    thing: Thing,
    file: ImageFile,
    is_wrong: Arc<AtomicBool>,
) -> BoxStream<'static, io::Result<Bytes>> {
    let (parts, noted) = (i64::try_from(file.bytes.div_ceil(PART)).unwrap_or(i64::MAX), is_wrong.clone());
    let parts = stream::iter(1..=parts).then(move |number| {
        let (depot, noted) = (depot.clone(), noted.clone());
        async move { part(&depot, thing, number, &noted).await }
    });
    checked(parts.try_flatten(), file, is_wrong).boxed()
}

async fn part(
    depot: &Depot<Thing>,
    thing: Thing,
    number: i64,
    is_wrong: &AtomicBool,
) -> io::Result<impl Stream<Item = io::Result<Bytes>> + Send + use<>> {
    let unread = || io::Error::other("the store of backups cannot be read");
    let part = depot.read(thing, number).await.map_err(|error| {
        is_wrong.fetch_or(error.is_missing(), Ordering::Relaxed);
        let _ = away(error);
        unread()
    })?;
    Ok(part.map_err(move |error| {
        tracing::warn!(%thing, %error, "the store of backups cannot be read; trying again");
        unread()
    }))
}

/// The same bytes. Once all have come it is noted whether they are what a file is to be.
fn checked(
    bytes: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
    file: ImageFile,
    is_wrong: Arc<AtomicBool>,
) -> impl Stream<Item = io::Result<Bytes>> + Send {
    stream::try_unfold((bytes.boxed(), Sha256::new(), 0_u64), move |(mut bytes, mut hash, mut length)| {
        let (file, is_wrong) = (file.clone(), is_wrong.clone());
        async move {
            let Some(next) = bytes.try_next().await? else {
                is_wrong.fetch_or(length != file.bytes, Ordering::Relaxed);
                return Ok(None);
            };
            hash.update(&next);
            length += next.len() as u64;
            if length >= file.bytes {
                // Whoever takes it may ask for no more than it is long.
                let is_it = length == file.bytes && hex::encode(&hash.clone().finalize()) == file.sha256;
                is_wrong.fetch_or(!is_it, Ordering::Relaxed);
            }
            Ok(Some((next, (bytes, hash, length))))
        }
    })
}

/// Notes what is to be on the service's own host, is not there, and lies whole in the store: a service may start on another machine
/// than it was on. Whatever begins with it waits for it.
///
/// # Errors
/// Nobody knows what the host has.
pub async fn look_back(sandboxes: &Sandboxes) -> Result<()> {
    let Some(depot) = sandboxes.depot() else { return Ok(()) };
    let wanted = store::archive::on_host(sandboxes.db(), depot.name(), sandboxes.host()).await?;
    if wanted.is_empty() {
        return Ok(());
    }
    let found = sandboxes.engine().scan().await.map_err(Error::unavailable)?;
    let there: HashSet<_> =
        found.layers.into_iter().map(Thing::Layer).chain(found.memories.into_iter().map(Thing::Memory)).collect();
    let lacking: Vec<_> = wanted.into_iter().filter(|thing| !there.contains(thing)).collect();
    if !lacking.is_empty() {
        tracing::warn!(things = lacking.len(), "this host has not all that was on it; the store of backups has it");
    }
    sandboxes.coming_back().wait_for(lacking);
    Ok(())
}

/// Brings back what the service's own host lacks, until told to stop.
pub async fn bring_back(sandboxes: Sandboxes, stop: CancellationToken) {
    stop.run_until_cancelled(async {
        while let Some(thing) = sandboxes.coming_back().next() {
            if let Err(error) = bring_one_back(&sandboxes, thing).await {
                tracing::warn!(%thing, ?error, "it has not come back yet; trying again");
                sandboxes.coming_back().put_off(thing);
                tokio::time::sleep(AGAIN).await;
            }
        }
        sandboxes.coming_back().end(sandboxes.clock().now());
    })
    .await;
    stop.cancelled().await;
}

/// Brings one of them back. What the store has not never comes; whatever else is in the way may pass, as a disk without room.
async fn bring_one_back(sandboxes: &Sandboxes, thing: Thing) -> Result<(), StepError> {
    let (engine, began) = (sandboxes.engine(), Instant::now());
    if let Some(file) = whole(sandboxes, thing).await? {
        let fetched = fetch(sandboxes, engine, (thing, &file)).await;
        let is_doubted = async || {
            let found = store::archive::find(sandboxes.db(), thing).await?;
            Ok::<_, StepError>(found.is_none_or(|archived| archived.archive.is_doubted))
        };
        match fetched {
            Ok(bytes) => {
                let seconds = began.elapsed().as_secs_f64();
                tracing::info!(%thing, bytes, seconds, "it has come back from the store of backups");
            }
            Err(error) if !is_doubted().await? => return Err(error),
            Err(error) => tracing::error!(%thing, ?error, "it does not come back"),
        }
    }
    if !store::archive::is_kept(sandboxes.db(), thing).await? {
        // It went meanwhile, and what was removed with it came afterwards.
        thing.remove(engine).await?;
    }
    sandboxes.coming_back().came(thing);
    Ok(())
}
