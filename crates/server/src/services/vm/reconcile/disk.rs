//! Makes and removes disks that are not part of a VM's creation.

use std::sync::Arc;

use berth_domain::ids::{DiskId, HostId, Owner, VmId};
use berth_domain::vm::disk::{DiskStep, Move, next};
use berth_domain::vm::disk_snapshot::{Open, first_due};
use berth_domain::vm::{DiskKind, DiskStatus, DiskType};
use berth_domain::{Error, Result, Timestamp};
use berth_host::EngineError;
use berth_host::vm::{Aim, DiskSource, DiskSpec, Engine};

use super::capacity::shortage_of_disk;
use super::disk_snapshot::copy;
use super::disk_travel::{self, Goal};
use super::{StepError, fault, shared_disk};
use crate::db::{Signal, Tx};
use crate::services::vm::store::disk::DiskRow;
use crate::services::vm::store::disk_snapshot::DiskSnapshotRow;
use crate::services::vm::{Vms, store, told};
use crate::work::Due;
use crate::work::lifecycle::{Life, Next};

/// What the owner of a disk is told whose guest does not let go of it.
const KEPT: &str = "the guest did not let go of the disk, which stays attached; unmount it there, then detach it again";

/// Seconds between two looks at a disk that is still copied into a snapshot before it is brought to another host, or that
/// waits for a way there.
const WAITS: i64 = 2;

/// The lives of disks.
pub struct DiskLife {
    vms: Vms,
}

/// One look at a disk: its row, whether it is being made of a backup or a file, and the first of its snapshots that are to be made, or
/// given up.
pub struct Seen {
    disk: DiskRow,
    is_brought: bool,
    snapshot: Option<Open>,
    /// Where it is to be brought.
    to: Option<Goal>,
}

impl Life for DiskLife {
    type Key = DiskId;
    type Seen = Seen;
    type Step = DiskStep;
    const TABLE: &'static str = "disks";
    const KIND: &'static str = "disk";

    async fn due(&self, now: Timestamp, limit: usize) -> Result<Due<DiskId>> {
        Ok(store::disk::due(self.vms.db(), now, limit).await?)
    }

    async fn owner(&self, id: &DiskId) -> Option<Owner> {
        store::disk::owner(self.vms.db(), *id).await.ok().flatten()
    }

    async fn look(&self, id: &DiskId) -> Result<Option<Seen>, StepError> {
        let Some(disk) = store::disk::load(self.vms.db(), *id).await? else { return Ok(None) };
        let to = disk_travel::wanted(&self.vms, &disk).await?;
        // Its VM has it copied, where one has it.
        let open = if disk.vm.is_none() || to.is_some() {
            store::disk_snapshot::open_of_disk(self.vms.db(), *id).await?
        } else {
            Vec::new()
        };
        let is_brought = store::brought_disk::find(self.vms.db(), *id).await?.is_some();
        let snapshot = first_due(open.iter().map(DiskSnapshotRow::open));
        Ok(Some(Seen { disk, is_brought, snapshot, to }))
    }

    async fn plan(&self, Seen { disk, is_brought, snapshot, to }: &Seen) -> Result<Next<DiskStep>, StepError> {
        if let Some(goal) = to {
            // It is copied as it is before it goes.
            let is_carried = disk.store.is_none();
            let waits = is_carried && (snapshot.is_some() || !self.vms.ways().is_free(goal.is_awaited));
            let later = self.vms.clock().now().plus_seconds(WAITS);
            return Ok(if waits { Next::Rest(Some(later)) } else { Next::Take(DiskStep::Travel) });
        }
        if *is_brought {
            // Who makes it wakes this worker when that has ended.
            return Ok(Next::Rest(None));
        }
        let is_vms = disk.vm.is_some() || disk.anew;
        let step = next(disk.status, is_vms, disk.grows() && !is_vms, snapshot.is_some());
        // A copy that is under way is looked at in its time.
        let later = snapshot.and_then(|open| open.after).filter(|at| *at > self.vms.clock().now());
        if step == Some(DiskStep::Snapshot) && later.is_some() {
            return Ok(Next::Rest(later));
        }
        Ok(step.map_or(Next::Rest(None), Next::Take))
    }

    fn name(step: &DiskStep) -> &'static str {
        step.as_str()
    }

    async fn take(&self, Seen { disk, snapshot, to, .. }: &Seen, step: DiskStep) -> Result<(), StepError> {
        match step {
            DiskStep::Place => place(&self.vms, disk).await,
            DiskStep::Make => make(&self.vms, disk, None).await,
            DiskStep::Snapshot => match snapshot {
                Some(open) => copy(&self.vms, open.id, None).await,
                None => Ok(()),
            },
            DiskStep::Travel => match to {
                Some(goal) => disk_travel::travel(&self.vms, disk, *goal).await,
                None => Ok(()),
            },
            DiskStep::Grow => grow(&self.vms, disk.id, None).await,
            DiskStep::Remove => self.remove(disk).await,
        }
    }

    async fn rest(&self, Seen { disk, to, .. }: &Seen, until: Option<Timestamp>) -> Result<(), StepError> {
        let was_to_go = to.is_none() && disk.to.is_some();
        if disk.work_at == until && !was_to_go {
            return Ok(());
        }
        record(&self.vms, disk.id, |now, _| {
            // A wish that came in meanwhile wants another look.
            if (now.status, now.updated_at) == (disk.status, disk.updated_at) {
                now.work_at = until;
                if was_to_go {
                    disk_travel::stay(now);
                }
            }
        })
        .await
    }

    async fn postpone(&self, Seen { disk, .. }: &Seen, until: Timestamp) -> Result<(), StepError> {
        record(&self.vms, disk.id, |disk, _| disk.work_at = Some(until)).await
    }

    /// What is to be removed is never given up, and what is there does not fail.
    async fn give_up(&self, Seen { disk, .. }: &Seen, error: &EngineError) -> Result<bool, StepError> {
        if matches!(disk.status, DiskStatus::Deleting | DiskStatus::Ready) {
            return Ok(false);
        }
        settle(&self.vms, disk, Some(error.to_string())).await?;
        Ok(true)
    }
}

impl DiskLife {
    /// The lives of the service's disks.
    pub const fn new(vms: Vms) -> Self {
        Self { vms }
    }

    async fn remove(&self, disk: &DiskRow) -> Result<(), StepError> {
        match &disk.store {
            Some(store) => shared_disk::remove(&self.vms, disk, store).await?,
            None => self.vms.engine_of(disk.host)?.remove_disk(disk.id).await?,
        }
        fault("disk", "remove", "done").await?;
        record(&self.vms, disk.id, |disk, now| {
            disk.status = DiskStatus::Deleted;
            disk.deleted_at = Some(now);
            disk.work_at = None;
        })
        .await
    }
}

/// Has the disk's own worker go on with a disk that another one made.
pub(super) async fn hand_over(tx: &mut Tx, id: DiskId, now: Timestamp) -> Result<(), StepError> {
    if let Some(disk) = store::disk::load(&mut *tx, id).await? {
        let woken = DiskRow { work_at: Some(now), ..disk.clone() };
        store::disk::update(tx, &disk, &woken).await?;
        tx.signal(Signal::Work("disks"));
    }
    Ok(())
}

/// Takes a place on the host for a disk, or fails it for the lack of one.
pub(super) async fn place(vms: &Vms, disk: &DiskRow) -> Result<(), StepError> {
    // What it is made of is on one already.
    let snapshot = match disk.snapshot {
        Some(snapshot) => store::disk_snapshot::load(vms.db(), snapshot).await?,
        None => None,
    };
    let host = match &disk.store {
        Some(store) => shared_disk::actor_on(vms, disk, store).await?.0,
        None => snapshot.and_then(|snapshot| snapshot.host).unwrap_or_else(|| vms.host()),
    };
    let capacity = vms.engine_of(Some(host))?.capacity().await?;
    let now = vms.clock().now();
    let mut tx = vms.db().begin().await?;
    let found = store::disk::load(&mut tx, disk.id).await?;
    let Some(before) = found.filter(|disk| disk.status == DiskStatus::Pending) else {
        return Ok(());
    };
    let missing = match before.store {
        Some(_) => None,
        None => shortage_of_disk(&mut tx, host, before.extent.wanted_gb, capacity).await?,
    };
    let mut disk = before.clone();
    (disk.status, disk.host) = (DiskStatus::Provisioning, Some(host));
    if let Some(missing) = missing {
        disk.status = DiskStatus::Failed;
        disk.message = Some(EngineError::NoCapacity(missing).to_string());
        disk.work_at = None;
    }
    write(&mut tx, &before, disk, now).await?;
    Ok(tx.commit().await?)
}

/// Has the disks of a VM take their places on the host with it. Those that took theirs, which are made next. One that is
/// made anew is made there, too: nothing of what it was is brought.
pub(super) async fn place_all(tx: &mut Tx, vm: VmId, host: HostId, now: Timestamp) -> Result<Vec<DiskRow>, StepError> {
    let is_made_anew = |disk: &DiskRow| disk.anew && disk.status == DiskStatus::Provisioning;
    let takes_place =
        |disk: &DiskRow| disk.status == DiskStatus::Pending || is_made_anew(disk) && disk.is_elsewhere(Some(host));
    let mut placed = Vec::new();
    for disk in store::disk::of_vm(tx, vm).await?.into_iter().filter(takes_place) {
        placed.push(
            write(tx, &disk, DiskRow { status: DiskStatus::Provisioning, host: Some(host), ..disk.clone() }, now)
                .await?,
        );
    }
    Ok(placed)
}

/// Makes a disk that has its place, for a VM whose machine this is, and records it. One that is made anew goes with its
/// machine's generation: nothing that comes late makes it once more, and nobody but its VM. A failure that will not pass is
/// recorded on the disk, not returned.
pub(super) async fn make(vms: &Vms, disk: &DiskRow, of: Option<Aim>) -> Result<(), StepError> {
    let spec = DiskSpec { id: disk.id, source: source(disk)?, size_gb: disk.extent.wanted_gb };
    let made = match (&disk.store, disk.anew, of) {
        (Some(store), ..) => shared_disk::make(vms, disk, &spec, store).await,
        (None, true, Some(aim)) => vms.engine_of(disk.host)?.remake_disk(aim, &spec).await,
        (None, true, None) => return Ok(()),
        (None, false, _) => vms.engine_of(disk.host)?.make_disk(&spec).await,
    };
    fault("disk", "make", "done").await?;
    match made {
        Err(error) if !error.is_final() => Err(error.into()),
        made => settle(vms, disk, made.err().map(|error| error.to_string())).await,
    }
}

/// Has a disk grow to the size that is wanted of it, and records it. What the host has no place for, and what the disk
/// cannot become, is not wanted any more then, and the disk says why.
pub(super) async fn grow(vms: &Vms, id: DiskId, of: Option<Aim>) -> Result<(), StepError> {
    let Some(placed) = place_growth(vms, id).await? else { return Ok(()) };
    fault("disk", "grow", "placed").await?;
    let size_gb = placed.extent.placed_gb;
    let grown = match &placed.store {
        Some(store) => shared_disk::grow(vms, &placed, size_gb, store).await,
        None => vms.engine_of(placed.host)?.grow_disk(id, size_gb, of).await,
    };
    fault("disk", "grow", "done").await?;
    let reason = match grown {
        Err(error) if !error.is_final() => return Err(error.into()),
        grown => grown.err().map(|error| error.to_string()),
    };
    record(vms, id, |disk, now| {
        disk.extent = if reason.is_none() { disk.extent.grown(size_gb) } else { disk.extent.stunted(size_gb) };
        rested(disk, reason, now);
    })
    .await
}

/// Hands a disk to its VM's machine, where that runs, and records it. One that it cannot have is released, and says why.
pub(super) async fn attach(vms: &Vms, id: DiskId, of: Aim) -> Result<(), StepError> {
    let Some(disk) = store::disk::load(vms.db(), id).await? else { return Ok(()) };
    let attached = match &disk.store {
        Some(store) => shared_disk::attach(vms, &disk, of, store).await,
        None => vms.engine_of(disk.host)?.attach_disk(of, id).await,
    };
    fault("vm", "attach_disk", "done").await?;
    let reason = match attached {
        Err(error) if !error.is_final() => return Err(error.into()),
        attached => attached.err().map(|error| error.to_string()),
    };
    moved(vms, id, Move::In, |disk, now| {
        disk.moving = None;
        if reason.is_some() {
            disk.release(now);
            disk.message = reason;
        }
    })
    .await
}

/// Has the guest of a disk's VM let go of it, where that runs, and releases it. One that the guest keeps stays with the VM
/// after its last chance, and says so.
pub(super) async fn detach(vms: &Vms, id: DiskId, of: Aim, is_last: bool) -> Result<(), StepError> {
    let detached = engine_of(vms, id).await?.detach_disk(of, id).await;
    fault("vm", "detach_disk", "done").await?;
    let reason = match detached {
        Ok(true) => None,
        Ok(false) if is_last => Some(KEPT.to_owned()),
        Ok(false) => return Ok(()),
        Err(error) if !error.is_final() => return Err(error.into()),
        Err(error) => Some(error.to_string()),
    };
    moved(vms, id, Move::Out, |disk, now| {
        disk.moving = None;
        if reason.is_none() {
            disk.release(now);
        }
        disk.message = reason;
    })
    .await
}

/// Records how a disk came or went, unless its owner wants something else by now.
async fn moved(
    vms: &Vms,
    id: DiskId,
    way: Move,
    change: impl FnOnce(&mut DiskRow, Timestamp),
) -> Result<(), StepError> {
    record(vms, id, |disk, now| {
        if disk.moving.is_some_and(|(now, _)| now == way) {
            change(disk, now);
        }
    })
    .await
}

/// Takes the place on the host that a disk needs to grow, and returns the disk with it; none where it does not grow, or not by
/// so much. What lies in a store has its place there.
async fn place_growth(vms: &Vms, id: DiskId) -> Result<Option<DiskRow>, StepError> {
    let Some(seen) = store::disk::load(vms.db(), id).await?.filter(DiskRow::grows) else { return Ok(None) };
    let asked = match seen.store {
        Some(_) => None,
        None => Some(vms.engine_of(seen.host)?.capacity().await),
    };
    let now = vms.clock().now();
    let mut tx = vms.db().begin().await?;
    let found = store::disk::load(&mut tx, id).await?;
    let Some(before) = found.filter(DiskRow::grows) else { return Ok(None) };
    let host = before.host.unwrap_or_else(|| vms.host());
    let missing = match asked {
        // A host that will not come back makes nothing larger.
        Some(Err(error)) if error.is_final() => Some(error.to_string()),
        Some(asked) => shortage_of_disk(&mut tx, host, before.extent.unplaced_gb(), asked?).await?,
        None => None,
    };
    let mut disk = before.clone();
    let Some(missing) = missing else {
        disk.extent = disk.extent.placed();
        let disk = write(&mut tx, &before, disk, now).await?;
        tx.commit().await?;
        return Ok(Some(disk));
    };
    disk.extent = disk.extent.refused();
    rested(&mut disk, Some(EngineError::NoCapacity(missing).to_string()), now);
    write(&mut tx, &before, disk, now).await?;
    tx.commit().await?;
    Ok(None)
}

/// Says how a growth ended; a disk that is to grow on is looked at again.
fn rested(disk: &mut DiskRow, reason: Option<String>, now: Timestamp) {
    if reason.is_some() || !disk.grows() {
        disk.message = reason;
    }
    disk.work_at = disk.grows().then_some(now);
}

/// The engine of the host that a disk has its place on.
async fn engine_of(vms: &Vms, id: DiskId) -> Result<Arc<dyn Engine>, StepError> {
    let host = store::disk::load(vms.db(), id).await?.and_then(|disk| disk.host);
    Ok(vms.engine_of(host)?)
}

/// Tells how far a disk that is being made is. Only for who looks on: nobody is woken.
pub(super) async fn say(vms: &Vms, id: DiskId, message: &str) -> Result<(), StepError> {
    let mut tx = vms.db().begin().await?;
    let found = store::disk::load(&mut tx, id).await?;
    let Some(before) = found.filter(|disk| disk.status == DiskStatus::Provisioning) else { return Ok(()) };
    let disk = DiskRow { message: Some(message.to_owned()), ..before.clone() };
    store::disk::update(&mut tx, &before, &disk).await?;
    Ok(tx.commit().await?)
}

/// Records that a disk is made, or why it cannot be.
pub(super) async fn settle(vms: &Vms, disk: &DiskRow, reason: Option<String>) -> Result<(), StepError> {
    // Its VM may have gone onto another host meanwhile: then it is brought there.
    let vm = match disk.vm {
        Some(vm) => store::vm::peek(vms.db(), vm).await?,
        None => None,
    };
    record(vms, disk.id, |disk, now| {
        disk.status = if reason.is_none() { DiskStatus::Ready } else { DiskStatus::Failed };
        disk.anew &= reason.is_some();
        disk.message = reason;
        disk.work_at = vm.filter(|vm| disk.is_elsewhere(vm.machine.host)).map(|_| now);
    })
    .await
}

fn source(disk: &DiskRow) -> Result<DiskSource> {
    if let Some(id) = disk.snapshot {
        return Ok(DiskSource::Snapshot { id, is_root: disk.kind == DiskKind::Root });
    }
    match (disk.kind, disk.disk_type) {
        (DiskKind::Root, _) => {
            disk.image_id.clone().map(DiskSource::Image).ok_or_else(|| Error::internal("a root disk without an image"))
        }
        (DiskKind::Data, DiskType::Block) => Ok(DiskSource::Empty),
        (DiskKind::Data, DiskType::Filesystem) => Ok(DiskSource::Filesystem(disk.name.clone())),
    }
}

/// Changes a row; tells of what its owner sees another way. A disk that is being deleted is not made any more.
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
    let shown = |disk: &DiskRow| (disk.status, disk.vm, disk.extent.made_gb, disk.change(), disk.message.clone());
    if shown(&disk) != shown(before) {
        disk.updated_at = now;
        told::disk(tx, &disk, now).await?;
    }
    store::disk::update(tx, before, &disk).await?;
    if disk.work_at == Some(now) {
        // Its VM's worker may have written this.
        tx.signal(Signal::Work("disks"));
    }
    Ok(disk)
}
