//! Brings a disk to the host of its VM.
//!
//! A disk that lies on one host and belongs to a VM that is put onto another is copied there while nobody has it: its machine
//! waits for it. The row names the host that counts; it changes in one transaction once the copy is whole, unless the disk's
//! owner changed anything of it since the copy began. Whichever copy does not count is removed then, or, where that fails,
//! found by the next search of that host. A disk that lies in a store has no copies: its row changes, and that is all.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use berth_domain::hex;
use berth_domain::ids::HostId;
use berth_domain::vm::model::Want;
use berth_domain::vm::{DiskKind, DiskStatus};
use berth_host::EngineError;
use berth_host::vm::{BroughtDisk, Engine, ExportSource, Exported};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::capacity::{fullness, shortage_of_disk};
use super::{StepError, fault};
use crate::db::{Signal, Tx};
use crate::services::fleet::is_there;
use crate::services::vm::store::disk::DiskRow;
use crate::services::vm::store::vm::VmRow;
use crate::services::vm::{Vms, store, told};

/// Bytes that are under way at a time.
const CHUNK: usize = 256 << 10;
/// How long nothing of a disk may come.
const SILENCE: Duration = Duration::from_mins(1);
/// What the owner of a disk is told that is being brought to its VM.
const UNDER_WAY: &str = "being brought to the host of its VM";

/// Where a disk is to be brought.
#[derive(Clone, Copy, Debug)]
pub(super) struct Goal {
    /// The host.
    pub host: HostId,
    /// Whether its VM is to run, and waits for it.
    pub is_awaited: bool,
}

/// Where a disk is to be brought; none where it lies on its VM's host, or where that is on none.
pub(super) async fn wanted(vms: &Vms, disk: &DiskRow) -> Result<Option<Goal>, StepError> {
    let (DiskStatus::Ready, Some(vm)) = (disk.status, disk.vm) else { return Ok(None) };
    let Some(vm) = store::vm::peek(vms.db(), vm).await? else { return Ok(None) };
    let host = vm.machine.host.filter(|_| disk.is_elsewhere(vm.machine.host));
    Ok(host.map(|host| Goal { host, is_awaited: vm.want == Want::Run }))
}

/// Has the workers of a VM's disks look at those that lie on another host than the VM. Where it goes from host to host, the
/// host was chosen for its disks, too, which have their places there from now on.
pub(super) async fn wake(tx: &mut Tx, vm: &VmRow) -> Result<(), StepError> {
    let disks = store::disk::of_vm(&mut *tx, vm.id).await?;
    let elsewhere = |disk: &DiskRow| disk.is_elsewhere(vm.machine.host);
    let follow = disks.iter().any(|disk| disk.kind == DiskKind::Root && elsewhere(disk));
    for disk in disks.iter().filter(|disk| elsewhere(disk)) {
        let mut woken = DiskRow { work_at: Some(vm.updated_at), ..disk.clone() };
        if follow {
            (woken.to, woken.stuck_since) = (vm.machine.host, None);
        }
        store::disk::update(tx, disk, &woken).await?;
        tx.signal(Signal::Work("disks"));
    }
    Ok(())
}

/// Brings a disk to a host. Where it cannot be, whatever is tried, it says so, and its VM does not wait for ever.
pub(super) async fn travel(vms: &Vms, disk: &DiskRow, goal: Goal) -> Result<(), StepError> {
    if disk.store.is_some() {
        return hand_over(vms, disk, goal.host).await;
    }
    // Somebody else may have taken the last one: then it waits.
    let Some(_way) = vms.ways().enter(goal.is_awaited) else { return Ok(()) };
    let travelled = go(vms, disk, goal.host).await;
    if let Err(StepError::Engine(error)) = &travelled
        && error.is_final()
    {
        stick(vms, disk, error).await?;
    }
    travelled
}

/// Has another host act on a disk from now on that lies in a store. Nothing of it is anywhere else, so that nothing is carried, and
/// nothing goes.
async fn hand_over(vms: &Vms, disk: &DiskRow, to: HostId) -> Result<(), StepError> {
    let has_moved = settle(vms, disk, to).await?;
    fault("disk", "travel", "settled").await?;
    if has_moved { Ok(()) } else { Err(changed()) }
}

async fn go(vms: &Vms, disk: &DiskRow, to: HostId) -> Result<(), StepError> {
    let (source, target) = (vms.engine_of(disk.host)?, vms.engine_of(Some(to))?);
    let Some(seen) = begin(vms, disk, to, &*target).await? else { return Ok(()) };
    let file = vms.engine().staging().await?.join(format!("{}.travel", disk.id));
    let brought = bring(vms, &*source, &*target, &file, &seen).await;
    // What stays is swept at the next start.
    let _ = tokio::fs::remove_file(&file).await;
    brought?;
    let has_moved = settle(vms, &seen, to).await?;
    fault("disk", "travel", "settled").await?;
    if !has_moved && counts_on(vms, &seen, to).await? {
        // It was made there meanwhile, for a VM that begins anew.
        return Err(changed());
    }
    let stale: Arc<dyn Engine> = if has_moved { source } else { target };
    if let Err(error) = stale.remove_disk(disk.id).await {
        tracing::warn!(disk = %disk.id, %error, "the former copy of a disk is not removed; a search of its host finds it");
    }
    if has_moved { Ok(()) } else { Err(changed()) }
}

/// What is said of a disk that its owner changed while it was brought.
fn changed() -> StepError {
    EngineError::Transient("its owner changed it meanwhile".into()).into()
}

/// Whether a disk has its place on this host by now.
async fn counts_on(vms: &Vms, seen: &DiskRow, host: HostId) -> Result<bool, StepError> {
    Ok(store::disk::load(vms.db(), seen.id).await?.is_some_and(|now| now.host == Some(host)))
}

/// Whether a disk still is what it was when this try to bring it began.
fn is_same(seen: &DiskRow, now: &DiskRow) -> bool {
    (now.updated_at, now.host, now.vm) == (seen.updated_at, seen.host, seen.vm)
}

/// Says that a disk is being brought, if the host has a place for it; else releases it, or says so where its VM waits.
async fn begin(vms: &Vms, disk: &DiskRow, to: HostId, target: &dyn Engine) -> Result<Option<DiskRow>, StepError> {
    let capacity = target.capacity().await?;
    let now = vms.clock().now();
    let mut tx = vms.db().begin().await?;
    let found = store::disk::load(&mut tx, disk.id).await?;
    let Some(before) = found.filter(|found| found.updated_at == disk.updated_at) else { return Ok(None) };
    let missing = if before.to == Some(to) {
        fullness(capacity)
    } else {
        shortage_of_disk(&mut tx, to, before.extent.placed_gb, capacity).await?
    };
    let mut row = before.clone();
    let Some(missing) = missing else {
        // One that could not be brought says so until it is.
        let is_told = before.stuck_since.is_some() || before.message.as_deref() == Some(UNDER_WAY);
        if is_told && before.to == Some(to) {
            return Ok(Some(before));
        }
        (row.to, row.updated_at) = (Some(to), now);
        row.message = if is_told { row.message } else { Some(UNDER_WAY.to_owned()) };
        write(&mut tx, &before, &row).await?;
        tx.commit().await?;
        tracing::info!(disk = %row.id, from = ?row.host, %to, "a disk is brought to the host of its VM");
        return Ok(Some(row));
    };
    if before.moving.is_some() {
        row.release(now);
        row.message = Some(unbrought(&missing));
        write(&mut tx, &before, &row).await?;
        tx.commit().await?;
        return Ok(None);
    }
    Err(EngineError::NoCapacity(missing).into())
}

/// A disk is where it is to be, though it did not come.
pub(super) fn stay(disk: &mut DiskRow) {
    (disk.to, disk.stuck_since, disk.message) = (None, None, None);
}

/// What the owner of a disk is told that cannot be brought.
fn unbrought(why: &str) -> String {
    format!("it cannot be brought to the host of its VM: {why}")
}

/// Says why a disk cannot be brought, and since when, unless its owner changed it meanwhile.
async fn stick(vms: &Vms, disk: &DiskRow, error: &EngineError) -> Result<(), StepError> {
    let why = match error {
        EngineError::NoCapacity(missing) => unbrought(missing),
        error => unbrought(&error.to_string()),
    };
    let now = vms.clock().now();
    let mut tx = vms.db().begin().await?;
    let found = store::disk::load(&mut tx, disk.id).await?;
    let is_same = |found: &DiskRow| (found.status, found.host, found.vm) == (disk.status, disk.host, disk.vm);
    let Some(before) = found.filter(is_same) else { return Ok(()) };
    if before.stuck_since.is_some() && before.message.as_ref() == Some(&why) {
        return Ok(());
    }
    let stuck_since = before.stuck_since.or(Some(now));
    let row = DiskRow { message: Some(why), stuck_since, updated_at: now, ..before.clone() };
    write(&mut tx, &before, &row).await?;
    Ok(tx.commit().await?)
}

/// Brings the file of a disk, and makes the disk of it.
async fn bring(
    vms: &Vms,
    source: &dyn Engine,
    target: &dyn Engine,
    file: &Path,
    disk: &DiskRow,
) -> Result<(), StepError> {
    let of = ExportSource::Disk { id: disk.id, of: None };
    let about = source.export(&of).await?;
    if !about.may_be_of(disk.extent.made_gb) {
        return Err(EngineError::Transient("the host says more of the disk than that can have".into()).into());
    }
    // The file passes through the service's own disk.
    let (bytes, room) = (i64::try_from(about.bytes).unwrap_or(i64::MAX), vms.engine().capacity().await?.room_bytes);
    let missing = "the disk of the service has no room for what is brought from host to host";
    if room < bytes {
        return Err(EngineError::NoCapacity(missing.into()).into());
    }
    let passing = vms.ways().pass(bytes, room);
    let _passing = passing.ok_or_else(|| EngineError::Transient(format!("{missing} beside what is under way")))?;
    fetch(source, &of, &about, file).await?;
    fault("disk", "travel", "fetched").await?;
    // What took long may be for nothing by now, and the disk be there that counts.
    if !store::disk::load(vms.db(), disk.id).await?.is_some_and(|now| is_same(disk, &now)) {
        return Err(changed());
    }
    // What an earlier try left there is no copy of what the disk is now.
    target.remove_disk(disk.id).await?;
    // A root disk lies on its own there, and boots with its image.
    let image = disk.image_id.clone().filter(|_| disk.kind == DiskKind::Root);
    let brought = BroughtDisk { id: disk.id, size_gb: disk.extent.made_gb, image, conversion: None };
    target.bring_disk(file, &brought).await?;
    fault("disk", "travel", "brought").await
}

/// Fetches the file that a host made of a disk, whole or not at all.
async fn fetch(source: &dyn Engine, of: &ExportSource, about: &Exported, file: &Path) -> Result<(), EngineError> {
    let here = |error: std::io::Error| EngineError::Transient(format!("the disk cannot be fetched: {error}"));
    let mut content = source.exported(of, &about.sha256, about.whole()).await?;
    let mut into = tokio::fs::File::create(file).await.map_err(here)?;
    let (mut hash, mut bytes, mut chunk) = (Sha256::new(), 0, vec![0; CHUNK]);
    loop {
        let read =
            timeout(SILENCE, content.read(&mut chunk)).await.map_err(|silent| here(silent.into()))?.map_err(here)?;
        if read == 0 || bytes > about.bytes {
            break;
        }
        hash.update(&chunk[..read]);
        bytes += read as u64;
        into.write_all(&chunk[..read]).await.map_err(here)?;
    }
    into.flush().await.map_err(here)?;
    if (bytes, hex::encode(&hash.finalize())) != (about.bytes, about.sha256.clone()) {
        return Err(EngineError::Transient("the file of the disk broke off".into()));
    }
    Ok(())
}

/// Records that a disk lies on a host now, and wakes its VM; false where its owner changed it meanwhile.
async fn settle(vms: &Vms, seen: &DiskRow, to: HostId) -> Result<bool, StepError> {
    let now = vms.clock().now();
    let mut tx = vms.db().begin().await?;
    let found = store::disk::load(&mut tx, seen.id).await?;
    let Some(before) = found.filter(|found| is_same(seen, found)) else { return Ok(false) };
    let Some(id) = before.vm else { return Ok(false) };
    let Some(vm) = store::vm::load(&mut tx, id).await? else { return Ok(false) };
    // The host may have been removed meanwhile.
    if vm.machine.host != Some(to) || !is_there(&mut tx, to).await? {
        return Ok(false);
    }
    let mut row = DiskRow { host: Some(to), work_at: None, updated_at: now, ..before.clone() };
    stay(&mut row);
    write(&mut tx, &before, &row).await?;
    // It waited for this: its status has all its time from now on.
    let status_since = if vm.status.is_transitional() { now } else { vm.status_since };
    let woken = VmRow { work_at: Some(now), status_since, ..vm.clone() };
    store::vm::update(&mut tx, &vm, &woken).await?;
    tx.signal(Signal::Work("vms"));
    tx.commit().await?;
    Ok(true)
}

async fn write(tx: &mut Tx, before: &DiskRow, row: &DiskRow) -> Result<(), StepError> {
    told::disk(tx, row, row.updated_at).await?;
    Ok(store::disk::update(tx, before, row).await?)
}
