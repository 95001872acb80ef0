//! Brings captured memories to other hosts, with the layers that they belong to.
//!
//! The row of a memory names the other host before anything of it is there, and until nothing is, so that no search of that host
//! takes it for nobody's and whoever removes it removes it there, too.

use std::time::Duration;

use berth_domain::ids::{HostId, MemoryId};
use berth_host::EngineError;
use berth_host::sandbox::travel::carry_memory;

use super::{StepError, fault};
use crate::services::sandbox::Sandboxes;
use crate::services::sandbox::store;

/// What became of a memory that was to go to another host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Travelled {
    /// It is there.
    There,
    /// There is no room for it.
    NoRoom(String),
    /// No machine there can load it.
    Refused(String),
}

/// Brings a memory to a host within so long, whatever is said meanwhile. It counts where it was until its row says otherwise
/// ([`store::memory::go_over`]). Whoever drops this ends it.
pub(super) async fn bring(
    sandboxes: &Sandboxes,
    id: MemoryId,
    to: HostId,
    patience: Duration,
) -> Result<Travelled, StepError> {
    let Some(memory) = store::memory::find(sandboxes.db(), id).await? else { return Ok(Travelled::There) };
    let from = memory.host.unwrap_or_else(|| sandboxes.host());
    if from == to {
        return Ok(Travelled::There);
    }
    if let Some(other) = memory.other_host.filter(|other| *other != to) {
        // It was on its way elsewhere, or came from there.
        if !forget(sandboxes, id, other).await {
            return Err(EngineError::Transient("something of it is on a third host that does not answer".into()).into());
        }
    }
    let mut tx = sandboxes.db().begin().await?;
    store::memory::set_other_host(&mut tx, id, to).await?;
    tx.commit().await?;
    fault("memory", "bring", "intent").await?;
    let (source, target) = (sandboxes.engine_of(Some(from))?, sandboxes.engine_of(Some(to))?);
    let began = std::time::Instant::now();
    let carried = tokio::time::timeout(patience, carry_memory(&*source, &*target, id)).await;
    match carried.unwrap_or_else(|_| Err(EngineError::Transient("it took too long".into()))) {
        Ok(bytes) => {
            let seconds = began.elapsed().as_secs_f64();
            tracing::info!(memory = %id, %from, %to, bytes, seconds, "a memory has come to another host");
            fault("memory", "bring", "done").await?;
            if store::memory::find(sandboxes.db(), id).await?.is_none() {
                // It went meanwhile, and what was removed with it came afterwards.
                target.remove_memory(id).await?;
            }
            Ok(Travelled::There)
        }
        Err(EngineError::NoCapacity(reason)) => Ok(Travelled::NoRoom(reason)),
        Err(EngineError::Permanent(reason)) => Ok(Travelled::Refused(reason)),
        Err(error) => Err(error.into()),
    }
}

/// Removes what is of a memory on a host that it does not count on, unless a sandbox may still begin with it there. Where that
/// fails, it goes with the memory. Whether nothing is there.
pub(super) async fn forget(sandboxes: &Sandboxes, id: MemoryId, host: HostId) -> bool {
    let forgotten = async {
        let db = sandboxes.db();
        if store::memory::is_named_on(db, id, host).await? || store::memory::is_at_home_on(db, id, host).await? {
            return Ok(false);
        }
        sandboxes.engine_of(Some(host))?.remove_memory(id).await?;
        let mut tx = sandboxes.db().begin().await?;
        store::memory::left(&mut tx, id, host).await?;
        tx.commit().await?;
        Ok::<_, StepError>(true)
    };
    forgotten.await.unwrap_or_else(|error| {
        tracing::warn!(memory = %id, %host, ?error, "what is left of a memory on another host stays until the memory goes");
        false
    })
}
