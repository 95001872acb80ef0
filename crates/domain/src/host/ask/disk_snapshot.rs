//! Questions about snapshots of disks.

use super::question::questions;
use crate::Timestamp;
use crate::host::Aim;
use crate::host::disk::DiskSnapshotSpec;
use crate::ids::DiskSnapshotId;

questions! {
    /// What may be asked about snapshots of disks.
    "disk_snapshot" {
        /// Copies a disk as it is at one moment, in the machine that has it where that runs. None while it is copied; then
        /// the bytes that the copy takes.
        Make "make" {
            /// The snapshot.
            snapshot: DiskSnapshotSpec,
            /// The machine that has the disk, and what that was decided for.
            of: Option<Aim>,
        } -> Option<u64>,
        /// Removes a snapshot, and has the machine give it up that makes it; fine where there is none.
        Remove "remove" {
            /// Which.
            id: DiskSnapshotId,
            /// The machine that may be making it.
            of: Option<Aim>,
        } -> (),
        /// Moves a snapshot that no row owns to what was set aside on a day; fine where there is none.
        SetAside "set_aside" {
            /// Which.
            id: DiskSnapshotId,
            /// When that was found.
            at: Timestamp,
        } -> (),
    }
}
