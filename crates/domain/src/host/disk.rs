//! Disks of VMs, as a host is told of them.

use serde::{Deserialize, Serialize};

use crate::ids::{DiskId, DiskSnapshotId};

/// A disk to be made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DiskSpec {
    /// Its id: what it is called on the host.
    pub id: DiskId,
    /// Where its content comes from.
    pub source: DiskSource,
    /// Its size, in GiB.
    pub size_gb: i64,
}

/// Where a disk's content comes from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum DiskSource {
    /// A clone of an image.
    Image(String),
    /// What a snapshot has.
    Snapshot {
        /// Which.
        id: DiskSnapshotId,
        /// Whether it is of a root disk, as the disk that is made of it then is.
        is_root: bool,
    },
    /// Empty.
    Empty,
    /// A file system with this name.
    Filesystem(String),
}

/// A snapshot of a disk to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskSnapshotSpec {
    /// Its id: what it is called on the host.
    pub id: DiskSnapshotId,
    /// The disk that it is of.
    pub disk: DiskId,
}

/// A disk to be made of a file that was brought: a disk that builds on no other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BroughtDisk {
    /// Its id: what it is called on the host.
    pub id: DiskId,
    /// Its size, in GiB.
    pub size_gb: i64,
    /// The image as which a root disk boots; none of a data disk.
    pub image: Option<String>,
    /// Where somebody sent the file, a qcow2 or a raw disk that its sender made, of which nothing is believed: the slot of its
    /// conversion, from 0. Any other is a qcow2 that a host made.
    pub conversion: Option<u32>,
}
