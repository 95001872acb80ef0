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

    /// Whether it may be of a disk of so many GiB: its content, and the tables of qcow2 beside that. What a host says of a file
    /// is its own word.
    pub fn may_be_of(&self, size_gb: i64) -> bool {
        self.bytes <= most_of(size_gb)
    }

    /// Whether a part lies within it.
    pub fn has(&self, part: Part) -> bool {
        part.from.checked_add(part.bytes).is_some_and(|end| end <= self.bytes)
    }
}

/// Most bytes of the file of a disk of so many GiB: a sixty-fourth of it and a GiB are far more than tables take.
fn most_of(size_gb: i64) -> u64 {
    let content = u64::try_from(size_gb).unwrap_or_default() << 30;
    content + (content >> 6) + (1 << 30)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_no_more_than_its_disk_and_some_tables() {
        let of = |bytes| Exported { bytes, sha256: String::new() };
        let most = (64 << 30) + (1 << 30) + (1 << 30);
        assert!(of(0).may_be_of(64) && of(most).may_be_of(64) && !of(most + 1).may_be_of(64));
        assert!(of(1 << 30).may_be_of(-1) && !of(u64::MAX).may_be_of(2048));
    }

    #[test]
    fn a_part_lies_within_the_file() {
        let file = Exported { bytes: 10, sha256: String::new() };
        assert!(file.has(file.whole()) && file.has(Part { from: 10, bytes: 0 }));
        for (from, bytes) in [(0, 11), (10, 1), (11, 0), (u64::MAX, 1)] {
            assert!(!file.has(Part { from, bytes }), "{from} {bytes}");
        }
    }
}
