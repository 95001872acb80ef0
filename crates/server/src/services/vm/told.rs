//! What owners of VMs are told of them, and those of disks and their snapshots when a worker or a request changed one.

use berth_domain::Timestamp;
use berth_domain::vm::backup::Target;
use serde_json::{Value, json};

use super::store::backup::BackupRow;
use super::store::backup_schedule::BackupScheduleRow;
use super::store::disk::DiskRow;
use super::store::disk_snapshot::DiskSnapshotRow;
use super::store::project_image::ProjectImageRow;
use super::store::vm::VmRow;
use crate::db::{DbError, Tx, event};

/// What the owner of a VM is told that goes to another host while it runs.
const MIGRATES: &str = "going to another host while it runs";

/// What the owner of a VM is told: what its row says, and that it migrates.
pub fn message(vm: &VmRow) -> Option<String> {
    let migrates = vm.machine.migrating.then(|| MIGRATES.to_owned());
    let all: Vec<_> = vm.message.clone().into_iter().chain(migrates).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// Tells that a disk has another status, another VM or none.
pub async fn disk(tx: &mut Tx, disk: &DiskRow, now: Timestamp) -> Result<(), DbError> {
    event::emit(tx, disk.project, "disk.status", &disk.id.to_string(), &data(disk), now).await
}

/// What events and audit records say of a disk.
pub fn data(disk: &DiskRow) -> Value {
    json!({"name": disk.name, "status": disk.status.as_str(), "message": disk.message, "size_gb": disk.extent.wanted_gb, "vm_id": disk.vm})
}

/// Tells that a snapshot of a disk has another status.
pub async fn snapshot(tx: &mut Tx, snapshot: &DiskSnapshotRow, now: Timestamp) -> Result<(), DbError> {
    let data = snapshot_data(snapshot);
    event::emit(tx, snapshot.project, "disk_snapshot.status", &snapshot.id.to_string(), &data, now).await
}

/// What events and audit records say of a snapshot of a disk.
pub fn snapshot_data(snapshot: &DiskSnapshotRow) -> Value {
    json!({
        "name": snapshot.name, "status": snapshot.status.as_str(), "message": snapshot.message,
        "size_gb": snapshot.size_gb, "disk_id": snapshot.disk,
    })
}

/// Tells that a backup has another status.
pub async fn backup(tx: &mut Tx, backup: &BackupRow, now: Timestamp) -> Result<(), DbError> {
    let data = backup_data(backup);
    event::emit(tx, backup.project, "backup.status", &backup.id.to_string(), &data, now).await
}

/// What events and audit records say of a backup.
pub fn backup_data(backup: &BackupRow) -> Value {
    json!({
        "name": backup.name, "status": backup.status.as_str(), "message": backup.message, "size_gb": backup.size_gb,
        "size_bytes": backup.size_bytes, "disk_id": backup.disk, "schedule_id": backup.schedule,
    })
}

/// What events and audit records say of a schedule of backups.
pub fn schedule_data(schedule: &BackupScheduleRow) -> Value {
    let (field, of) = match schedule.of {
        Target::Disk { id, .. } => (schedule.of.field(), id.to_string()),
        Target::Vm(id) => (schedule.of.field(), id.to_string()),
    };
    json!({
        "name": schedule.name, field: of, "every": schedule.every, "keep": schedule.keep, "enabled": schedule.enabled,
        "message": schedule.message,
    })
}

/// Tells that an image of a project has another status.
pub async fn image(tx: &mut Tx, image: &ProjectImageRow, now: Timestamp) -> Result<(), DbError> {
    event::emit(tx, image.project, "project_image.status", &image.id.to_string(), &image_data(image), now).await
}

/// What events and audit records say of an image of a project.
pub fn image_data(image: &ProjectImageRow) -> Value {
    json!({
        "name": image.name, "status": image.status.as_str(), "message": image.message, "size_gb": image.size_gb,
        "root_disk_id": image.disk,
    })
}
