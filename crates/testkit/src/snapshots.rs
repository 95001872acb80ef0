//! What a simulated host has of snapshots of disks.

use std::collections::HashMap;

use berth_domain::ids::DiskSnapshotId;

/// Bytes that each takes.
const BYTES: u64 = 1 << 20;

#[derive(Default)]
pub struct Snapshots {
    /// Snapshots, with the looks that a running machine still needs; none where one is whole.
    all: HashMap<DiskSnapshotId, Option<u32>>,
    /// How often a running machine is looked at before one is whole.
    pub looks: u32,
}

impl Snapshots {
    /// One is made, or looked at: of a file at once, by a machine in its time.
    pub fn make(&mut self, id: DiskSnapshotId, runs: bool) -> Option<u64> {
        let left = self.all.entry(id).or_insert(Some(self.looks));
        *left = left.filter(|looks| runs && *looks > 0).map(|looks| looks - 1);
        left.is_none().then_some(BYTES)
    }

    /// Whether one is there and whole.
    pub fn is_whole(&self, id: DiskSnapshotId) -> bool {
        self.all.get(&id).is_some_and(Option::is_none)
    }

    /// Removes one; whether it was there.
    pub fn remove(&mut self, id: DiskSnapshotId) -> bool {
        self.all.remove(&id).is_some()
    }

    /// All of them.
    pub fn all(&self) -> Vec<DiskSnapshotId> {
        self.all.keys().copied().collect()
    }

    /// How many are whole, and how many are not.
    pub fn counts(&self) -> (usize, usize) {
        let whole = self.all.values().filter(|left| left.is_none()).count();
        (whole, self.all.len() - whole)
    }
}
