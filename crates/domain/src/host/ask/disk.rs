//! Questions about disks of VMs.

use super::question::questions;
use crate::Timestamp;
use crate::host::Aim;
use crate::host::disk::{BroughtDisk, DiskSpec};
use crate::ids::DiskId;

questions! {
    /// What may be asked about disks.
    "disk" {
        /// Makes a disk, whole or not at all.
        Make "make" {
            /// The disk.
            disk: DiskSpec,
        } -> (),
        /// Makes a disk of the file that was brought under its id, whole or not at all; nothing in it is executed.
        Bring "bring" {
            /// The disk.
            disk: BroughtDisk,
        } -> (),
        /// Has a disk grow to at least this size, in the machine that has it where that runs.
        Grow "grow" {
            /// Which.
            id: DiskId,
            /// In GiB.
            size_gb: i64,
            /// The machine that has it, and what that was decided for.
            of: Option<Aim>,
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
