//! What simulated hosts have of disks that lie in stores.

use std::collections::HashMap;

use berth_domain::ids::DiskId;
use berth_host::vm::{DiskSource, DiskSpec, Store};
use berth_host::{EngineError, Result};

/// The disks of all stores that hosts of one test reach.
#[derive(Default)]
pub struct SharedDisks {
    /// Sizes in GiB, by the names of the stores.
    all: HashMap<(String, DiskId), i64>,
}

impl SharedDisks {
    /// Makes one; fine where it is there.
    pub fn make(&mut self, disk: &DiskSpec, store: &Store) -> Result<()> {
        if matches!(disk.source, DiskSource::Snapshot { .. }) {
            return Err(EngineError::Permanent("a disk of a store is made of an image, or with nothing on it".into()));
        }
        self.all.entry((store.name.clone(), disk.id)).or_insert(disk.size_gb);
        Ok(())
    }

    /// Has one grow.
    pub fn grow(&mut self, id: DiskId, size_gb: i64, store: &Store) -> Result<()> {
        let size = self.all.get_mut(&(store.name.clone(), id)).ok_or_else(missing)?;
        *size = size_gb.max(*size);
        Ok(())
    }

    /// Removes one; fine where there is none.
    pub fn remove(&mut self, id: DiskId, store: &Store) {
        self.all.remove(&(store.name.clone(), id));
    }

    /// Whether one is there.
    pub fn find(&self, id: DiskId, store: &Store) -> Result<()> {
        if self.all.contains_key(&(store.name.clone(), id)) { Ok(()) } else { Err(missing()) }
    }

    /// How large one is, in GiB, in whichever store it lies.
    pub fn size_gb(&self, id: DiskId) -> Option<i64> {
        self.all.iter().find(|((_, disk), _)| *disk == id).map(|(_, size)| *size)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.all.len()
    }
}

fn missing() -> EngineError {
    EngineError::Permanent("there is no such disk in the store".into())
}
