//! Questions about snapshots of disks that several hosts reach.

use super::question::questions;
use crate::host::Aim;
use crate::host::disk::{DiskSnapshotSpec, DiskSpec};
use crate::host::shared_disk::Store;

questions! {
    /// What may be asked about snapshots of disks that lie in a store.
    "shared_snapshot" {
        /// Keeps in the store what a disk is at one moment, in the machine that has it where that runs: the bytes that it takes.
        Make "make" {
            /// The snapshot.
            snapshot: DiskSnapshotSpec,
            /// The machine that has the disk, and what that was decided for.
            of: Option<Aim>,
            /// Where both lie.
            store: Store,
        } -> u64,
        /// Copies a disk of a store as it is at one moment into a snapshot that lies on the host as a file: the bytes that it takes.
        Copy "copy" {
            /// The snapshot.
            snapshot: DiskSnapshotSpec,
            /// The machine that has the disk, and what that was decided for.
            of: Option<Aim>,
            /// Where the disk lies.
            store: Store,
        } -> u64,
        /// Makes a disk of a snapshot, whole or not at all.
        Restore "restore" {
            /// The disk.
            disk: DiskSpec,
            /// Where both lie.
            store: Store,
        } -> (),
        /// Removes a snapshot, wherever it lies, and what is half made of it; fine where there is none. What was made of it stays.
        Remove "remove" {
            /// The snapshot.
            snapshot: DiskSnapshotSpec,
            /// Where its disk lies.
            store: Store,
        } -> (),
    }
}
