//! Disks that lie in a store.

use berth_domain::ids::{DiskId, MachineId};

use super::QemuEngine;
use crate::vm::{DiskSpec, Store};
use crate::{EngineError, Result};

#[expect(clippy::unused_async, reason = "the engine's calls wait for the store")]
impl QemuEngine {
    pub(super) async fn reach(&self, _: &Store) -> Result<()> {
        Err(none())
    }

    pub(super) async fn make_shared(&self, _: &DiskSpec, _: &Store) -> Result<()> {
        Err(none())
    }

    pub(super) async fn grow_shared(&self, _: DiskId, _: i64, _: &Store) -> Result<()> {
        Err(none())
    }

    pub(super) async fn forget_shared(&self, _: DiskId, _: &Store) -> Result<()> {
        Err(none())
    }

    pub(super) async fn plug_shared(&self, _: MachineId, _: DiskId, _: &Store) -> Result<()> {
        Err(none())
    }
}

fn none() -> EngineError {
    EngineError::Permanent("this host serves no disks of stores".into())
}
