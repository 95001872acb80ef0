//! Who makes a snapshot, and gives it up or removes it.
//!
//! A snapshot of a disk on a host is that host's. One of a disk in a store is made by whoever [`rule::maker`] says. What stays in
//! the store has nothing on that host, so that each try may be another one's. A hidden copy is a file of the host that made it: one that was begun on a host that is
//! lost, or that the VM has left, begins anew on the next.

use std::sync::Arc;

use berth_domain::ids::HostId;
use berth_domain::vm::DiskSnapshotStatus;
use berth_domain::vm::disk_snapshot::{self as rule, Actor, Place};
use berth_host::EngineError;
use berth_host::vm::{Aim, Capacity, DiskSnapshotSpec, Engine, Store};

use crate::db::DbError;
use crate::services::placement::state_of;
use crate::services::vm::reconcile::{StepError, shared_disk};
use crate::services::vm::store::disk_snapshot::DiskSnapshotRow;
use crate::services::vm::{Vms, store};

/// A host, and how it is asked about a snapshot.
pub(super) struct Maker {
    /// Which host.
    pub(super) host: HostId,
    engine: Arc<dyn Engine>,
    /// The machine that has the disk, if it is there.
    of: Option<Aim>,
    /// The store that the disk lies in.
    store: Option<Store>,
}

impl Maker {
    /// Who makes a snapshot at this moment, or gives it up, of a disk that this machine has, or none.
    pub(super) async fn of(vms: &Vms, snapshot: &DiskSnapshotRow, of: Option<Aim>) -> Result<Self, StepError> {
        let disk = store::disk::load(vms.db(), snapshot.disk).await?;
        let begun = snapshot.host.filter(|_| snapshot.begun_at.is_some());
        let near = disk.as_ref().and_then(|disk| disk.host);
        let Some(store) = &snapshot.store else {
            let host = begun.or(near).unwrap_or_else(|| vms.host());
            return Ok(Self { host, engine: vms.engine_of(Some(host))?, of, store: None });
        };
        let vm = match disk.and_then(|disk| disk.vm) {
            Some(vm) => store::vm::peek(vms.db(), vm).await?,
            None => None,
        };
        let vm = place(vms, vm.and_then(|vm| vm.machine.host)).await?;
        let actor = rule::maker(vm, place(vms, begun).await?);
        let of = of.filter(|_| vm.is_some());
        Self::on_store(vms, snapshot, (store, near), actor).await.map(|maker| Self { of, ..maker })
    }

    /// Who acts for a snapshot of a disk in a store, of several the one nearest to its disk.
    async fn on_store(
        vms: &Vms,
        snapshot: &DiskSnapshotRow,
        (store, near): (&str, Option<HostId>),
        actor: Actor,
    ) -> Result<Self, StepError> {
        let (host, engine) = match actor {
            Actor::Host(host) => (host, vms.engine_of(Some(host))?),
            Actor::Any => shared_disk::actor(vms, (&snapshot.region_id, near), store).await?,
            Actor::Nobody => {
                let away = "the host of its VM was removed; the VM is about to be on another one";
                return Err(EngineError::Transient(away.into()).into());
            }
        };
        Ok(Self { host, engine, of: None, store: Some(vms.store(store)?.clone()) })
    }

    /// Who removes a snapshot that nothing makes: the host that has a file of it, or any that reaches its store.
    pub(super) async fn to_remove(vms: &Vms, snapshot: &DiskSnapshotRow) -> Result<Self, StepError> {
        let Some(store) = &snapshot.store else {
            let host = snapshot.host.unwrap_or_else(|| vms.host());
            return Ok(Self { host, engine: vms.engine_of(Some(host))?, of: None, store: None });
        };
        let actor = rule::remover(place(vms, snapshot.host).await?);
        Self::on_store(vms, snapshot, (store, None), actor).await
    }

    /// Whether a snapshot that was begun is given up, or goes on with this host.
    pub(super) fn goes_on(&self, snapshot: &DiskSnapshotRow) -> bool {
        let is_here = snapshot.host == self.place_of(snapshot);
        snapshot.begun_at.is_some() && (is_here || snapshot.status == DiskSnapshotStatus::Deleting)
    }

    /// The host that a snapshot has its place on: none where it lies in a store.
    pub(super) fn place_of(&self, snapshot: &DiskSnapshotRow) -> Option<HostId> {
        snapshot.lies_in().is_none().then_some(self.host)
    }

    /// What the host has at this moment for a snapshot; none where that takes nothing of it.
    pub(super) async fn room(&self, snapshot: &DiskSnapshotRow) -> Option<Result<Capacity, EngineError>> {
        match snapshot.lies_in() {
            Some(_) => None,
            None => Some(self.engine.capacity().await),
        }
    }

    /// Makes a snapshot, or looks how far that is: the bytes that it takes once it is whole.
    pub(super) async fn make(&self, vms: &Vms, snapshot: &DiskSnapshotRow) -> Result<Option<u64>, EngineError> {
        let (spec, of) = (spec(snapshot), self.of);
        let Some(store) = &self.store else { return self.engine.snapshot_disk(&spec, of).await };
        if !snapshot.hidden {
            return self.engine.snapshot_shared_disk(&spec, of, store).await.map(Some);
        }
        let (engine, store) = (self.engine.clone(), store.clone());
        let copy = || async move { engine.copy_shared_disk(&spec, of, &store).await };
        vms.copies().look((snapshot.id, self.host), copy).transpose()
    }

    /// Removes a snapshot, and whatever is half made of it.
    pub(super) async fn remove(&self, vms: &Vms, snapshot: &DiskSnapshotRow) -> Result<(), EngineError> {
        vms.copies().end(snapshot.id);
        match &self.store {
            Some(store) => self.engine.remove_shared_snapshot(&spec(snapshot), store).await,
            None => self.engine.remove_snapshot(snapshot.id, self.of).await,
        }
    }
}

/// Has the host go without what is half made there of a copy that begins anew on another, if it is there: whichever it is about to
/// do to the moment of the disk is done before.
pub(super) async fn leave(vms: &Vms, snapshot: &DiskSnapshotRow) -> Result<(), StepError> {
    vms.copies().end(snapshot.id);
    let (Some(place), Some(name)) = (place(vms, snapshot.host).await?, &snapshot.store) else { return Ok(()) };
    if place.is_there() {
        vms.engine_of(Some(place.host))?.remove_shared_snapshot(&spec(snapshot), vms.store(name)?).await?;
    }
    Ok(())
}

fn spec(snapshot: &DiskSnapshotRow) -> DiskSnapshotSpec {
    DiskSnapshotSpec { id: snapshot.id, disk: snapshot.disk }
}

/// Where a host stands.
async fn place(vms: &Vms, host: Option<HostId>) -> Result<Option<Place>, DbError> {
    let Some(host) = host else { return Ok(None) };
    Ok(Some(Place { host, state: state_of(vms.db(), host).await? }))
}
