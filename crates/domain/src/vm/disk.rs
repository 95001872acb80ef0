//! Disks: root disk volumes and data disks.
//!
//! ```text
//!   pending ─► provisioning ─► ready ─► deleting ─► (gone)
//!                   └─► failed ──────────▲
//! ```

use crate::error::{Code, Error, Result};
use crate::words;

words! {
    /// What a disk is for.
    DiskKind {
        /// Boots a VM; cloned from an image.
        Root = "root",
        /// Holds data.
        Data = "data",
    }
}

words! {
    /// How a disk is handed to the guest.
    DiskType {
        /// Raw, as the guest likes.
        Block = "block",
        /// An ext4 file system, mounted by its name.
        Filesystem = "filesystem",
    }
}

words! {
    /// Where a disk stands (specification, Root disk volume).
    DiskStatus {
        /// Accepted.
        Pending = "pending",
        /// Being made.
        Provisioning = "provisioning",
        /// Usable.
        Ready = "ready",
        /// Could not be made.
        Failed = "failed",
        /// Being removed.
        Deleting = "deleting",
        /// Gone; never shown.
        Deleted = "deleted",
    }
}

/// What a request to delete a disk does. `vm` tells whether a VM holds or reserves it.
///
/// `Ok(true)` records the wish, `Ok(false)` means it is already under way.
pub fn on_delete(status: DiskStatus, held: bool) -> Result<bool> {
    if held {
        return Err(Error::new(
            Code::DiskInUse,
            "The disk is attached to a VM. Delete that VM first, or detach the disk.",
        ));
    }
    Ok(status != DiskStatus::Deleting)
}

/// Sizes in GiB (specification, Limits).
pub mod size {
    /// Smallest and largest root disk.
    pub const ROOT: (i64, i64) = (20, 2048);
    /// Smallest and largest data disk.
    pub const DATA: (i64, i64) = (10, 2048);
}
