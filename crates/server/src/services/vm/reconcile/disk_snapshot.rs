//! Makes and removes snapshots of disks.
//!
//! The owner of a disk makes a snapshot of it ([`copy`]): its VM, or the disk's own worker where no VM has it. The owner
//! writes down that it begins, and takes a place on the host; whatever a crash cuts off then is found or begun anew. What
//! its owner does not have any more the snapshot's own worker removes. Which host that asks says [`maker`].

mod maker;

use berth_domain::ids::{DiskSnapshotId, Owner};
use berth_domain::vm::DiskSnapshotStatus;
use berth_domain::vm::disk_snapshot::{DiskSnapshotStep, look_again, next};
use berth_domain::{Result, Timestamp};
use berth_host::EngineError;
use berth_host::vm::Aim;

use self::maker::{Maker, leave};
use super::capacity::shortage_of_disk;
use super::{StepError, fault};
use crate::db::{Signal, Tx};
use crate::services::vm::store::disk_snapshot::DiskSnapshotRow;
use crate::services::vm::{Vms, store, told};
use crate::work::Due;
use crate::work::lifecycle::{Life, Next};

/// The lives of snapshots of disks.
pub struct DiskSnapshotLife {
    vms: Vms,
}

impl Life for DiskSnapshotLife {
    type Key = DiskSnapshotId;
    type Seen = DiskSnapshotRow;
    type Step = DiskSnapshotStep;
    const TABLE: &'static str = "disk_snapshots";
    const KIND: &'static str = "disk_snapshot";

    async fn due(&self, now: Timestamp, limit: usize) -> Result<Due<DiskSnapshotId>> {
        Ok(store::disk_snapshot::due(self.vms.db(), now, limit).await?)
    }

    async fn owner(&self, id: &DiskSnapshotId) -> Option<Owner> {
        store::disk_snapshot::owner(self.vms.db(), *id).await.ok().flatten()
    }

    async fn look(&self, id: &DiskSnapshotId) -> Result<Option<DiskSnapshotRow>, StepError> {
        Ok(store::disk_snapshot::load(self.vms.db(), *id).await?)
    }

    async fn plan(&self, snapshot: &DiskSnapshotRow) -> Result<Next<DiskSnapshotStep>, StepError> {
        Ok(next(snapshot.status, snapshot.begun_at.is_some()).map_or(Next::Rest(None), Next::Take))
    }

    fn name(step: &DiskSnapshotStep) -> &'static str {
        step.as_str()
    }

    async fn take(&self, snapshot: &DiskSnapshotRow, step: DiskSnapshotStep) -> Result<(), StepError> {
        match step {
            DiskSnapshotStep::Remove => {
                Maker::to_remove(&self.vms, snapshot).await?.remove(&self.vms, snapshot).await?;
                fault("disk_snapshot", "remove", "done").await?;
                record(&self.vms, snapshot.id, |snapshot, now| {
                    snapshot.status = DiskSnapshotStatus::Deleted;
                    (snapshot.deleted_at, snapshot.work_at) = (Some(now), None);
                })
                .await
            }
        }
    }

    async fn rest(&self, snapshot: &DiskSnapshotRow, until: Option<Timestamp>) -> Result<(), StepError> {
        if snapshot.work_at == until {
            return Ok(());
        }
        record(&self.vms, snapshot.id, |now, _| {
            // What changed meanwhile wants another look.
            if (now.status, now.begun_at) == (snapshot.status, snapshot.begun_at) {
                now.work_at = until;
            }
        })
        .await
    }

    async fn postpone(&self, snapshot: &DiskSnapshotRow, until: Timestamp) -> Result<(), StepError> {
        record(&self.vms, snapshot.id, |snapshot, _| snapshot.work_at = Some(until)).await
    }

    /// What is to be removed is never given up.
    async fn give_up(&self, _: &DiskSnapshotRow, _: &EngineError) -> Result<bool, StepError> {
        Ok(false)
    }
}

impl DiskSnapshotLife {
    /// The lives of the service's snapshots of disks.
    pub const fn new(vms: Vms) -> Self {
        Self { vms }
    }
}

/// Copies a disk into a snapshot, in the machine that has it where that runs, or looks how far that is, and records it; one
/// that is not wanted any more is given up.
pub(super) async fn copy(vms: &Vms, id: DiskSnapshotId, of: Option<Aim>) -> Result<(), StepError> {
    let seen = store::disk_snapshot::load(vms.db(), id).await?;
    let Some(seen) = seen.filter(DiskSnapshotRow::is_open) else { return Ok(()) };
    let in_store = seen.store.is_some();
    match make(vms, seen, of).await {
        // Whatever else its VM wants does not wait for a store.
        Err(StepError::Engine(error @ EngineError::Transient(_))) if in_store => trouble(vms, id, &error).await,
        outcome => outcome,
    }
}

async fn make(vms: &Vms, seen: DiskSnapshotRow, of: Option<Aim>) -> Result<(), StepError> {
    let id = seen.id;
    let maker = Maker::of(vms, &seen, of).await?;
    let Some(snapshot) = begin(vms, seen, &maker).await? else { return Ok(()) };
    fault("disk", "snapshot", "begun").await?;
    if snapshot.status == DiskSnapshotStatus::Deleting {
        return give_up(vms, &snapshot, &maker).await;
    }
    let copied = maker.make(vms, &snapshot).await;
    fault("disk", "snapshot", "done").await?;
    let outcome = match copied {
        Ok(None) => None,
        Ok(Some(bytes)) => Some(Ok(bytes)),
        Err(error) if !error.is_final() => return Err(error.into()),
        Err(error) => {
            maker.remove(vms, &snapshot).await?;
            Some(Err(error.to_string()))
        }
    };
    record(vms, id, |snapshot, now| {
        // One that is to go is given up next, or removed.
        if snapshot.status != DiskSnapshotStatus::Pending {
            return;
        }
        let Some(outcome) = outcome else {
            snapshot.look_at = Some(look_again(snapshot.begun_at.unwrap_or(now), now));
            return;
        };
        (snapshot.begun_at, snapshot.look_at, snapshot.message) = (None, None, None);
        match outcome {
            Ok(bytes) => {
                snapshot.status = DiskSnapshotStatus::Ready;
                snapshot.bytes = Some(i64::try_from(bytes).unwrap_or(i64::MAX));
            }
            Err(reason) => {
                snapshot.status = DiskSnapshotStatus::Failed;
                snapshot.message = Some(reason);
            }
        }
    })
    .await
}

/// Says why a snapshot is not made or given up yet, and when that is tried again.
async fn trouble(vms: &Vms, id: DiskSnapshotId, error: &EngineError) -> Result<(), StepError> {
    tracing::warn!(snapshot = %id, %error, "a snapshot of a disk in a store is not made, or not given up, yet; trying again");
    record(vms, id, |snapshot, now| {
        if snapshot.is_open() {
            snapshot.message = Some(error.to_string());
            snapshot.look_at = Some(look_again(snapshot.begun_at.unwrap_or(snapshot.created_at), now));
        }
    })
    .await
}

async fn give_up(vms: &Vms, snapshot: &DiskSnapshotRow, maker: &Maker) -> Result<(), StepError> {
    maker.remove(vms, snapshot).await?;
    fault("disk", "snapshot", "given_up").await?;
    record(vms, snapshot.id, |snapshot, now| (snapshot.begun_at, snapshot.work_at) = (None, Some(now))).await
}

/// Writes down that something of a snapshot may be on the host from now on, or in the store, where it has a place there; one
/// that has none fails. None where nothing is to be done.
async fn begin(vms: &Vms, seen: DiskSnapshotRow, maker: &Maker) -> Result<Option<DiskSnapshotRow>, StepError> {
    if maker.goes_on(&seen) {
        return Ok(Some(seen));
    }
    if seen.begun_at.is_some() {
        leave(vms, &seen).await?;
    }
    let asked = maker.room(&seen).await;
    let now = vms.clock().now();
    let mut tx = vms.db().begin().await?;
    let found = store::disk_snapshot::load(&mut tx, seen.id).await?;
    let Some(before) = found.filter(DiskSnapshotRow::is_open) else { return Ok(None) };
    if maker.goes_on(&before) {
        return Ok(Some(before));
    }
    let missing = match asked {
        // A host that will not come back copies nothing.
        Some(Err(error)) if error.is_final() => Some(error.to_string()),
        Some(asked) => shortage_of_disk(&mut tx, maker.host, before.size_gb, asked?).await?,
        None => None,
    };
    let mut snapshot = DiskSnapshotRow { host: maker.place_of(&before), begun_at: None, ..before.clone() };
    if let Some(missing) = missing {
        snapshot.status = DiskSnapshotStatus::Failed;
        snapshot.message = Some(EngineError::NoCapacity(missing).to_string());
    } else {
        snapshot.begun_at = Some(now);
    }
    let snapshot = write(&mut tx, &before, snapshot, now).await?;
    tx.commit().await?;
    Ok(Some(snapshot).filter(|snapshot| snapshot.begun_at.is_some()))
}

async fn record(
    vms: &Vms,
    id: DiskSnapshotId,
    change: impl FnOnce(&mut DiskSnapshotRow, Timestamp),
) -> Result<(), StepError> {
    let now = vms.clock().now();
    let mut tx = vms.db().begin().await?;
    let Some(before) = store::disk_snapshot::load(&mut tx, id).await? else { return Ok(()) };
    let mut snapshot = before.clone();
    change(&mut snapshot, now);
    write(&mut tx, &before, snapshot, now).await?;
    Ok(tx.commit().await?)
}

/// Writes a row; tells of what its owner sees another way, and the image that it is made for.
async fn write(
    tx: &mut Tx,
    before: &DiskSnapshotRow,
    mut snapshot: DiskSnapshotRow,
    now: Timestamp,
) -> Result<DiskSnapshotRow, StepError> {
    if snapshot.status != before.status {
        snapshot.updated_at = now;
        match snapshot.image {
            Some(image) => store::project_image::wake(tx, image, now).await?,
            None if snapshot.hidden => store::backup::wake(tx, snapshot.id, now).await?,
            None => told::snapshot(tx, &snapshot, now).await?,
        }
    }
    store::disk_snapshot::update(tx, before, &snapshot).await?;
    if snapshot.work_at.is_some() {
        tx.signal(Signal::Work("disk_snapshots"));
    }
    Ok(snapshot)
}
