//! Questions about disks of VMs.

use super::question::questions;
use crate::Timestamp;
use crate::host::disk::DiskSpec;
use crate::ids::DiskId;

questions! {
    /// What may be asked about disks.
    "disk" {
        /// Makes a disk, whole or not at all.
        Make "make" {
            /// The disk.
            disk: DiskSpec,
        } -> (),
        /// Removes a disk; fine where there is none.
        Remove "remove" {
            /// Which.
            id: DiskId,
        } -> (),
        /// Moves a disk that no row owns to what was set aside on a day; fine where there is none.
        SetAside "set_aside" {
            /// Which.
            id: DiskId,
            /// When that was found.
            at: Timestamp,
        } -> (),
    }
}
