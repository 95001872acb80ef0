//! Snapshots of disks that lie in a store, and what is made of them.

use berth_domain::ids::MachineId;

use super::QemuEngine;
use crate::vm::{DiskSnapshotSpec, DiskSpec, Store};
use crate::{EngineError, Result};

#[expect(clippy::unused_async, reason = "they await as soon as they do something")]
impl QemuEngine {
    /// Keeps in its store what a disk is at one moment; the bytes that it takes.
    pub(super) async fn snapshot_shared(&self, _: &DiskSnapshotSpec, _: Option<MachineId>, _: &Store) -> Result<u64> {
        Err(EngineError::Permanent("not yet".into()))
    }

    /// Copies a disk as it is at one moment into a snapshot that lies on this host; the bytes that it takes.
    pub(super) async fn copy_shared(&self, _: &DiskSnapshotSpec, _: Option<MachineId>, _: &Store) -> Result<u64> {
        Err(EngineError::Permanent("not yet".into()))
    }

    /// Makes a disk of a snapshot, whole or not at all.
    pub(super) async fn restore_shared(&self, _: &DiskSpec, _: &Store) -> Result<()> {
        Err(EngineError::Permanent("not yet".into()))
    }

    /// Removes a snapshot, in the store and on this host.
    pub(super) async fn forget_shared_snapshot(&self, _: &DiskSnapshotSpec, _: &Store) -> Result<()> {
        Err(EngineError::Permanent("not yet".into()))
    }
}
