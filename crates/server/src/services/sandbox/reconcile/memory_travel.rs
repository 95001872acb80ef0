//! Brings captured memories to other hosts, with the layers that they belong to.
//!
//! The row of a memory names the other host before anything of it is there, and until nothing is, so that no search of that host
//! takes it for nobody's and whoever removes it removes it there, too.

use std::time::Duration;

use berth_domain::host::State;
use berth_domain::ids::{HostId, MemoryId};
use berth_host::EngineError;
use berth_host::sandbox::travel::carry_memory;

use super::{StepError, archive, fault};
use crate::services::placement::state_of;
use crate::services::sandbox::Sandboxes;
use crate::services::sandbox::store;
use crate::services::sandbox::store::archive::Thing;

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
    let Some(_carrying) = sandboxes.begin_carrying(id) else {
        return Err(EngineError::Transient("it is on its way to a host already".into()).into());
    };
    let Some(memory) = store::memory::find(sandboxes.db(), id).await? else { return Ok(Travelled::There) };
    let from = memory.host.unwrap_or_else(|| sandboxes.host());
    if from == to || memory.copied && memory.other_host == Some(to) {
        return Ok(Travelled::There);
    }
    if let Some(other) = memory.other_host.filter(|other| *other != to) {
        // It was on its way elsewhere, or came from there.
        leave_third(sandboxes, id, other).await?;
    }
    let mut tx = sandboxes.db().begin().await?;
    if !store::memory::set_other_host(&mut tx, id, to).await? {
        return Err(EngineError::Transient("it was wanted elsewhere meanwhile".into()).into());
    }
    tx.commit().await?;
    fault("memory", "bring", "intent").await?;
    let began = std::time::Instant::now();
    let too_long = |_| Err(EngineError::Transient("it took too long".into()).into());
    match tokio::time::timeout(patience, carry(sandboxes, id, (from, to))).await.unwrap_or_else(too_long) {
        Ok(bytes) => {
            let seconds = began.elapsed().as_secs_f64();
            tracing::info!(memory = %id, at = %from, %to, bytes, seconds, "a memory has come to another host");
            fault("memory", "bring", "done").await?;
            arrived(sandboxes, id, (from, to)).await
        }
        Err(StepError::Engine(EngineError::NoCapacity(reason))) => Ok(Travelled::NoRoom(reason)),
        Err(StepError::Engine(EngineError::Permanent(reason))) => Ok(Travelled::Refused(reason)),
        Err(error) => Err(error),
    }
}

/// Brings it from the host that it counts on; where that is lost, or lacks it, from the store of backups, if that has it. How many
/// bytes that took.
async fn carry(sandboxes: &Sandboxes, id: MemoryId, (from, to): (HostId, HostId)) -> Result<u64, StepError> {
    let target = sandboxes.engine_of(Some(to))?;
    let thing = Thing::Memory(id);
    let is_lacking = from == sandboxes.host() && sandboxes.coming_back().lacks(&[thing]);
    let is_lost = state_of(sandboxes.db(), from).await?.is_none_or(|state| state == State::Lost);
    if (is_lost || is_lacking)
        && let Some(file) = archive::fetch::whole(sandboxes, thing).await?
    {
        return archive::fetch::fetch(sandboxes, &*target, (thing, &file)).await;
    }
    let source = sandboxes.engine_of(Some(from))?;
    Ok(carry_memory(&*source, &*target, id).await?)
}

/// Writes down that a host has all of a memory.
async fn arrived(sandboxes: &Sandboxes, id: MemoryId, (from, to): (HostId, HostId)) -> Result<Travelled, StepError> {
    let mut tx = sandboxes.db().begin().await?;
    let is_copied = store::memory::copied(&mut tx, id, (from, to)).await?;
    tx.commit().await?;
    if is_copied {
        return Ok(Travelled::There);
    }
    if !store::archive::is_kept(sandboxes.db(), Thing::Memory(id)).await? {
        // It goes, and what was removed with it came afterwards.
        sandboxes.engine_of(Some(to))?.remove_memory(id).await?;
        return Ok(Travelled::There);
    }
    Err(EngineError::Transient("it was wanted elsewhere meanwhile".into()).into())
}

/// Has nothing of a memory be on a third host any more. One that is lost says what it has when it is back: nobody owns it then.
async fn leave_third(sandboxes: &Sandboxes, id: MemoryId, third: HostId) -> Result<(), StepError> {
    if forget(sandboxes, id, third).await {
        return Ok(());
    }
    let db = sandboxes.db();
    let is_away = state_of(db, third).await?.is_none_or(|state| state == State::Lost);
    if is_away && !is_needed_on(sandboxes, id, third).await? {
        return Ok(());
    }
    Err(EngineError::Transient(
        "a third host has it, too: it does not answer, or something begins with it there".into(),
    )
    .into())
}

/// Removes what a memory that went over left on its former host, unless it is on its way again.
pub(super) async fn forget_former(sandboxes: &Sandboxes, id: MemoryId, host: HostId) {
    if let Some(_carrying) = sandboxes.begin_carrying(id) {
        forget(sandboxes, id, host).await;
    }
}

/// Whether something may begin with a memory on a host that it does not count on.
async fn is_needed_on(sandboxes: &Sandboxes, id: MemoryId, host: HostId) -> Result<bool, StepError> {
    let db = sandboxes.db();
    Ok(store::memory::is_named_on(db, id, host).await? || store::memory::is_at_home_on(db, id, host).await?)
}

/// Removes what is of a memory on a host that it does not count on, unless a sandbox may still begin with it there. Where that
/// fails, it goes with the memory. Whether nothing is there.
async fn forget(sandboxes: &Sandboxes, id: MemoryId, host: HostId) -> bool {
    let forgotten = async {
        if is_needed_on(sandboxes, id, host).await? {
            return Ok(false);
        }
        let engine = sandboxes.engine_of(Some(host))?;
        let mut tx = sandboxes.db().begin().await?;
        if !store::memory::set_other_host(&mut tx, id, host).await? {
            return Ok(false);
        }
        tx.commit().await?;
        engine.remove_memory(id).await?;
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
