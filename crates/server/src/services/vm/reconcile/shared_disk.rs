//! Disks that lie in a store of several hosts.
//!
//! Nothing of such a disk is on a host but what serves it to a machine that runs. The host of its row is the one that acts on it: that
//! of its VM, or whichever was asked last. So it goes from host to host by a change of its row alone. Where that host is away, any
//! other one of its region that reaches the store makes a disk that is nobody's larger, or removes it. A disk that is made of a snapshot
//! lies in the store of that, so that whoever reaches the store makes it.

use std::sync::Arc;

use berth_domain::ids::HostId;
use berth_host::EngineError;
use berth_host::vm::{Aim, DiskSource, DiskSpec, Engine};

use crate::services::placement;
use crate::services::vm::Vms;
use crate::services::vm::store::disk::DiskRow;

/// The host that acts on what lies in a store and no VM has: its own, if that is there and reaches the store, then the service's,
/// then any other; of those that are of its region.
///
/// # Errors
/// None that reaches the store can be asked now.
pub(super) async fn actor(
    vms: &Vms,
    (region, own): (&str, Option<HostId>),
    store: &str,
) -> Result<(HostId, Arc<dyn Engine>), EngineError> {
    let asked = placement::reaching(vms.db(), store, (region, own)).await;
    let mut hosts = asked.map_err(|error| EngineError::Transient(error.to_string()))?;
    hosts.sort_by_key(|host| (Some(*host) != own, *host != vms.host()));
    let mut asked = hosts.into_iter().filter_map(|host| Some((host, vms.engine_of(Some(host)).ok()?)));
    let found = asked.find(|(_, engine)| engine.ready().is_ok());
    found.ok_or_else(|| EngineError::Transient(format!("no host reaches the store {store} now")))
}

/// The host that acts on a disk of no VM.
pub(super) async fn actor_on(vms: &Vms, disk: &DiskRow, store: &str) -> Result<(HostId, Arc<dyn Engine>), EngineError> {
    actor(vms, (&disk.region_id, disk.host), store).await
}

/// Makes a disk that has its place: where its VM is, or for none by whichever host is there.
pub(super) async fn make(vms: &Vms, disk: &DiskRow, spec: &DiskSpec, store: &str) -> Result<(), EngineError> {
    let engine = match disk.vm {
        Some(_) => vms.engine_of(disk.host)?,
        None => actor_on(vms, disk, store).await?.1,
    };
    match spec.source {
        DiskSource::Snapshot { .. } => engine.restore_shared_disk(spec, vms.store(store)?).await,
        _ => engine.make_shared_disk(spec, vms.store(store)?).await,
    }
}

/// Has a disk grow that no machine has: its VM's is off.
pub(super) async fn grow(vms: &Vms, disk: &DiskRow, size_gb: i64, store: &str) -> Result<(), EngineError> {
    let (_, engine) = actor_on(vms, disk, store).await?;
    engine.grow_shared_disk(disk.id, size_gb, vms.store(store)?).await
}

/// Removes a disk that is nobody's any more.
pub(super) async fn remove(vms: &Vms, disk: &DiskRow, store: &str) -> Result<(), EngineError> {
    let (_, engine) = actor_on(vms, disk, store).await?;
    engine.remove_shared_disk(disk.id, vms.store(store)?).await
}

/// Hands a disk to a machine that runs.
pub(super) async fn attach(vms: &Vms, disk: &DiskRow, of: Aim, store: &str) -> Result<(), EngineError> {
    vms.engine_of(disk.host)?.attach_shared_disk(of, disk.id, vms.store(store)?).await
}
