//! Makes and removes disks that are not part of a VM's creation.

use std::time::Duration;

use berth_domain::ids::{DiskId, Owner, VmId};
use berth_domain::vm::{DiskKind, DiskStatus, DiskType};
use berth_domain::{Error, Result, Timestamp};

use super::capacity::shortage_of_disk;
use super::{StepError, fault};
use crate::db::Tx;
use crate::services::vm::engine::{DiskSource, DiskSpec, EngineError};
use crate::services::vm::store::disk::DiskRow;
use crate::services::vm::{Vms, store, told};
use crate::work::{Due, Reconciler};

/// Pause between two tries, in seconds.
const PAUSE: i64 = 3;
/// Wait when not even the pause could be recorded.
const BLIND_PAUSE: Duration = Duration::from_millis(500);

/// Reconciles disks.
pub struct DiskReconciler {
    vms: Vms,
}

impl Reconciler for DiskReconciler {
    type Key = DiskId;
    const TABLE: &'static str = "disks";

    async fn due(&self, now: Timestamp, limit: usize) -> Result<Due<DiskId>> {
        Ok(store::disk::due(self.vms.db(), now, limit).await?)
    }

    async fn owner(&self, id: &DiskId) -> Option<Owner> {
        store::disk::owner(self.vms.db(), *id).await.ok().flatten()
    }

    async fn reconcile(&self, id: DiskId) {
        let Err(error) = self.bring_about(id).await else {
            return;
        };
        tracing::warn!(disk = %id, ?error, "a step on a disk failed; trying again");
        if let Err(error) = self.postpone(id).await {
            tracing::error!(disk = %id, ?error, "the failure could not be recorded; trying again");
            tokio::time::sleep(BLIND_PAUSE).await;
        }
    }
}

impl DiskReconciler {
    /// A reconciler for the service's disks.
    pub const fn new(vms: Vms) -> Self {
        Self { vms }
    }

    async fn bring_about(&self, id: DiskId) -> Result<(), StepError> {
        let mut tx = self.vms.db().begin().await?;
        let row = store::disk::load(&mut tx, id).await?;
        drop(tx);
        match row {
            Some(disk) if disk.status == DiskStatus::Deleting => self.remove(&disk).await,
            Some(disk) if disk.status == DiskStatus::Pending => match self.place(&disk).await? {
                Some(placed) => make(&self.vms, &placed).await,
                None => Ok(()),
            },
            Some(disk) if disk.status == DiskStatus::Provisioning => make(&self.vms, &disk).await,
            Some(disk) => record(&self.vms, disk.id, |disk, _| disk.work_at = None).await,
            None => Ok(()),
        }
    }

    /// Takes a place on the host for a disk, or fails it for the lack of one. The disk, if it has its place.
    async fn place(&self, disk: &DiskRow) -> Result<Option<DiskRow>, StepError> {
        let capacity = self.vms.engine().capacity().await?;
        let now = self.vms.clock().now();
        let mut tx = self.vms.db().begin().await?;
        let found = store::disk::load(&mut tx, disk.id).await?;
        let Some(before) = found.filter(|disk| disk.status == DiskStatus::Pending) else {
            return Ok(None);
        };
        let missing = shortage_of_disk(&mut tx, &before.region_id, before.size_gb, capacity).await?;
        let (fits, mut disk) = (missing.is_none(), before.clone());
        disk.status = DiskStatus::Provisioning;
        if let Some(missing) = missing {
            disk.status = DiskStatus::Failed;
            disk.message = Some(EngineError::NoCapacity(missing).to_string());
            disk.work_at = None;
        }
        let disk = write(&mut tx, &before, disk, now).await?;
        tx.commit().await?;
        Ok(fits.then_some(disk))
    }

    async fn remove(&self, disk: &DiskRow) -> Result<(), StepError> {
        fault("disk", "remove", "before").await?;
        self.vms.engine().remove_disk(disk.id).await?;
        fault("disk", "remove", "done").await?;
        record(&self.vms, disk.id, |disk, now| {
            disk.status = DiskStatus::Deleted;
            disk.deleted_at = Some(now);
            disk.work_at = None;
        })
        .await
    }

    async fn postpone(&self, id: DiskId) -> Result<(), StepError> {
        record(&self.vms, id, |disk, now| disk.work_at = Some(now.plus_seconds(PAUSE))).await
    }
}

/// Has the disks of a VM take their places on the host with it. Those that took theirs, which are made next.
pub(super) async fn place_all(tx: &mut Tx, vm: VmId, now: Timestamp) -> Result<Vec<DiskRow>, StepError> {
    let mut placed = Vec::new();
    for disk in store::disk::of_vm(tx, vm).await?.into_iter().filter(|disk| disk.status == DiskStatus::Pending) {
        placed.push(write(tx, &disk, DiskRow { status: DiskStatus::Provisioning, ..disk.clone() }, now).await?);
    }
    Ok(placed)
}

/// Makes a disk that has its place, and records it. A failure that will not pass is recorded on the disk, not returned.
pub(super) async fn make(vms: &Vms, disk: &DiskRow) -> Result<(), StepError> {
    fault("disk", "make", "before").await?;
    let made = match source(disk) {
        Ok(source) => vms.engine().make_disk(&DiskSpec { id: disk.id, source, size_gb: disk.size_gb }).await,
        Err(error) => return Err(error.into()),
    };
    fault("disk", "make", "done").await?;
    let reason = match made {
        Ok(()) => None,
        Err(error) if error.is_final() => Some(error.to_string()),
        Err(error) => return Err(error.into()),
    };
    record(vms, disk.id, |disk, _| {
        disk.status = if reason.is_none() { DiskStatus::Ready } else { DiskStatus::Failed };
        disk.message = reason;
        disk.work_at = None;
    })
    .await
}

fn source(disk: &DiskRow) -> Result<DiskSource> {
    match (disk.kind, disk.disk_type) {
        (DiskKind::Root, _) => {
            disk.image_id.clone().map(DiskSource::Image).ok_or_else(|| Error::internal("a root disk without an image"))
        }
        (DiskKind::Data, DiskType::Block) => Ok(DiskSource::Empty),
        (DiskKind::Data, DiskType::Filesystem) => Ok(DiskSource::Filesystem(disk.name.clone())),
    }
}

/// Changes a row; tells of a new status. A disk that is being deleted is not made any more.
async fn record(vms: &Vms, id: DiskId, change: impl FnOnce(&mut DiskRow, Timestamp)) -> Result<(), StepError> {
    let now = vms.clock().now();
    let mut tx = vms.db().begin().await?;
    let Some(before) = store::disk::load(&mut tx, id).await? else {
        return Ok(());
    };
    let mut disk = before.clone();
    change(&mut disk, now);
    if before.status == DiskStatus::Deleting && disk.status != DiskStatus::Deleted {
        disk.status = DiskStatus::Deleting;
        disk.work_at = disk.work_at.or(Some(now));
    }
    write(&mut tx, &before, disk, now).await?;
    Ok(tx.commit().await?)
}

async fn write(tx: &mut Tx, before: &DiskRow, mut disk: DiskRow, now: Timestamp) -> Result<DiskRow, StepError> {
    if disk.status != before.status {
        disk.updated_at = now;
        told::disk(tx, &disk, now).await?;
    }
    store::disk::update(tx, before, &disk).await?;
    Ok(disk)
}
