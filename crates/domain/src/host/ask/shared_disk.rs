//! Questions about disks that several hosts reach.

use super::question::questions;
use crate::host::Aim;
use crate::host::disk::DiskSpec;
use crate::host::shared_disk::{Reached, Store};
use crate::ids::DiskId;

questions! {
    /// What may be asked about disks that lie in a store.
    "shared_disk" {
        /// Whether the host reaches a store, and from where; a final error says what is missing.
        Reach "reach" {
            /// Which.
            store: Store,
        } -> Reached,
        /// Makes a disk there, whole or not at all: of an image, empty, or with a file system.
        Make "make" {
            /// The disk.
            disk: DiskSpec,
            /// Where it is to lie.
            store: Store,
        } -> (),
        /// Has a disk grow to at least so many GiB that nobody has open.
        Grow "grow" {
            /// Which disk.
            id: DiskId,
            /// Its size, in GiB.
            size_gb: i64,
            /// Where it lies.
            store: Store,
        } -> (),
        /// Removes a disk; fine where there is none.
        Remove "remove" {
            /// Which disk.
            id: DiskId,
            /// Where it lies.
            store: Store,
        } -> (),
        /// Hands a data disk to a machine that runs; fine where it has it, and where it does not run.
        Attach "attach" {
            /// Which machine, and what that was decided for.
            aim: Aim,
            /// Which disk.
            disk: DiskId,
            /// Where it lies.
            store: Store,
        } -> (),
    }
}
