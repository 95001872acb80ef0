//! Carrying what sandboxes boot, the guest, layers of their disks and their memories from one host to another one, as images are
//! ([`crate::vm::travel`]).

use berth_domain::ids::{LayerId, MemoryId};
use uuid::Uuid;

use super::{GuestArrival, SandboxEngine};
use crate::error::transient;
use crate::{EngineError, Result, fault};

/// Carries a guest from a host to another one; answers how many bytes it has. Whoever drops this ends it; of what was carried
/// nothing is seen then.
///
/// # Errors
/// It did not arrive: another try begins anew.
pub async fn carry_guest(from: &dyn SandboxEngine, to: &dyn SandboxEngine, version: &str) -> Result<u64> {
    let files = from.guest_files(version).await?;
    let arrival = GuestArrival { travel: Uuid::now_v7(), version: version.to_owned(), files };
    arrival.check().map_err(|why| EngineError::Permanent(format!("what sandboxes boot cannot travel: {why}")))?;
    to.expect_guest(&arrival).await?;
    fault::point("guest.travel.expected").await.map_err(transient)?;
    for file in &arrival.files {
        let content = from.guest_file(version, file).await?;
        to.take_guest_file(arrival.travel, file, content).await?;
        fault::point("guest.travel.taken").await.map_err(transient)?;
    }
    to.adopt_guest(&arrival).await?;
    fault::point("guest.travel.adopted").await.map_err(transient)?;
    Ok(arrival.bytes())
}

/// Carries a layer to which nobody writes any more from a host to another one; answers how many bytes that took, none where it
/// was there already. Whoever drops this ends it; of what was carried nothing is seen then.
///
/// # Errors
/// It did not arrive: another try begins anew.
pub async fn carry_layer(from: &dyn SandboxEngine, to: &dyn SandboxEngine, id: LayerId) -> Result<u64> {
    let file = from.layer_file(id).await?;
    if !to.expect_layer(id, &file).await? {
        return Ok(0);
    }
    fault::point("layer.travel.expected").await.map_err(transient)?;
    let content = from.read_layer(id, &file).await?;
    to.take_layer(id, &file, content).await?;
    fault::point("layer.travel.taken").await.map_err(transient)?;
    Ok(file.bytes)
}

/// Carries a captured memory from a host to another one; answers how many bytes that took, none where it was there already.
/// Whoever drops this ends it; of what was carried nothing is seen then.
///
/// # Errors
/// It did not arrive: another try begins anew, unless no machine there can load it.
pub async fn carry_memory(from: &dyn SandboxEngine, to: &dyn SandboxEngine, id: MemoryId) -> Result<u64> {
    let file = from.memory_file(id).await?;
    if !to.expect_memory(id, &file).await? {
        return Ok(0);
    }
    fault::point("memory.travel.expected").await.map_err(transient)?;
    let content = from.read_memory(id, &file).await?;
    to.take_memory(id, &file, content).await?;
    fault::point("memory.travel.taken").await.map_err(transient)?;
    Ok(file.bytes)
}
