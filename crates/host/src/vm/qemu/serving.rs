//! What an engine knows of what serves disks of a store ([`super::served`]).

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use berth_domain::ids::DiskId;
use berth_qemu::machine::{Drive, SERVED};
use tokio::sync::RwLock;

/// What this service knows, and no other.
#[derive(Default)]
pub(super) struct Serving {
    /// Whoever begins to serve a disk reads, and whoever ends what serves no machine writes.
    pub(super) beginning: RwLock<()>,
    lost: Mutex<HashSet<DiskId>>,
}

impl Serving {
    /// Disks of which it was told that a machine has lost them.
    pub(super) fn lost(&self) -> MutexGuard<'_, HashSet<DiskId>> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A disk that is served.
pub(super) fn served_drive(id: DiskId) -> Drive {
    Drive { path: PathBuf::new(), format: SERVED, bases: Vec::new(), serial: id.serial() }
}
