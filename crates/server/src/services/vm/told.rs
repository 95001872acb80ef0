//! What the owners of disks are told when a worker or a request changed one.

use berth_domain::Timestamp;
use serde_json::{Value, json};

use super::store::disk::DiskRow;
use crate::db::{DbError, Tx, event};

/// Tells that a disk has another status, another VM or none.
pub async fn disk(tx: &mut Tx, disk: &DiskRow, now: Timestamp) -> Result<(), DbError> {
    event::emit(tx, disk.project, "disk.status", &disk.id.to_string(), &data(disk), now).await
}

/// What events and audit records say of a disk.
pub fn data(disk: &DiskRow) -> Value {
    json!({"name": disk.name, "status": disk.status.as_str(), "message": disk.message, "size_gb": disk.extent.wanted_gb, "vm_id": disk.vm})
}
