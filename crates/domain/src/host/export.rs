//! Disks as stand-alone files: what a host is asked to make of them, and what it sends.
//!
//! An export is a qcow2 file that builds on no other, of a moment that does not change. A snapshot and a project's image are
//! such a moment; a disk is one while no machine has it. The file is a cache of the host, named after what it is of, and
//! belongs to no row: whoever asks finds it made, or has it made, and asks for parts of it by what it hashes to.

use serde::{Deserialize, Serialize};

use crate::ids::{DiskId, DiskSnapshotId, ImageId, MachineId};

/// What is exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ExportSource {
    /// A disk that no running machine has.
    Disk {
        /// Which.
        id: DiskId,
        /// The machine of the VM that has it, if one has.
        of: Option<MachineId>,
    },
    /// A snapshot of a disk.
    Snapshot(DiskSnapshotId),
    /// A project's image.
    Image(ImageId),
}

/// A file that was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exported {
    /// How long it is, in bytes.
    pub bytes: u64,
    /// What it hashes to, in hexadecimal.
    pub sha256: String,
}

/// A part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Its first byte.
    pub from: u64,
    /// How many bytes it has.
    pub bytes: u64,
}

impl Exported {
    /// All of it.
    pub const fn whole(&self) -> Part {
        Part { from: 0, bytes: self.bytes }
    }

    /// Whether a part lies within it.
    pub fn has(&self, part: Part) -> bool {
        part.from.checked_add(part.bytes).is_some_and(|end| end <= self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_lies_within_the_file() {
        let file = Exported { bytes: 10, sha256: String::new() };
        assert!(file.has(file.whole()) && file.has(Part { from: 10, bytes: 0 }));
        for (from, bytes) in [(0, 11), (10, 1), (11, 0), (u64::MAX, 1)] {
            assert!(!file.has(Part { from, bytes }), "{from} {bytes}");
        }
    }
}
