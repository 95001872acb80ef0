//! Disks: root disk volumes and data disks.
//!
//! ```text
//!   pending ─► provisioning ─► ready ─► deleting ─► (gone)
//!                   └─► failed ──────────▲
//! ```

use std::collections::HashSet;

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

words! {
    /// What the worker does next for a disk.
    DiskStep {
        /// Take a place on the host, or fail for the lack of one.
        Place = "place",
        /// Make it, or record why it cannot be made.
        Make = "make",
        /// Remove it, and record that it is gone.
        Remove = "remove",
    }
}

/// The next step for a disk that no VM's creation makes; none where it is at rest.
pub const fn next(status: DiskStatus) -> Option<DiskStep> {
    match status {
        DiskStatus::Pending => Some(DiskStep::Place),
        DiskStatus::Provisioning => Some(DiskStep::Make),
        DiskStatus::Deleting => Some(DiskStep::Remove),
        DiskStatus::Ready | DiskStatus::Failed | DiskStatus::Deleted => None,
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

/// Where the file systems of a VM's data disks are mounted, in their order: `/mnt/<name>`, and `/mnt/<name>-2` and so
/// on where another disk of the VM has that place already, because names may occur twice in a project.
pub fn mount_points(names: &[&str]) -> Vec<String> {
    let mut taken: HashSet<String> = HashSet::new();
    names
        .iter()
        .enumerate()
        .map(|(index, name)| {
            // A number must not take the place of a disk that is really called so.
            let free = |place: &String| !taken.contains(place) && !names[index + 1..].contains(&place.as_str());
            let first = Some((*name).to_owned()).filter(|place| !taken.contains(place));
            let place = first.or_else(|| (2..=names.len() + 1).map(|n| format!("{name}-{n}")).find(free));
            let place = place.unwrap_or_else(|| (*name).to_owned());
            taken.insert(place.clone());
            format!("/mnt/{place}")
        })
        .collect()
}

/// Sizes in GiB (specification, Limits).
pub mod size {
    /// Smallest and largest root disk.
    pub const ROOT: (i64, i64) = (20, 2048);
    /// Smallest and largest data disk.
    pub const DATA: (i64, i64) = (10, 2048);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn equal_names_get_places_of_their_own() {
        assert_eq!(mount_points(&["d", "e"]), ["/mnt/d", "/mnt/e"]);
        assert_eq!(mount_points(&["d", "d", "d"]), ["/mnt/d", "/mnt/d-2", "/mnt/d-3"]);
        assert_eq!(mount_points(&["d", "d", "d-2"]), ["/mnt/d", "/mnt/d-3", "/mnt/d-2"]);
        assert_eq!(mount_points(&["d-2", "d", "d"]), ["/mnt/d-2", "/mnt/d", "/mnt/d-3"]);
        assert_eq!(mount_points(&[]), Vec::<String>::new());
    }

    proptest! {
        #[test]
        fn no_two_disks_of_a_vm_share_a_place(names in prop::collection::vec("[ab](-[23])?", 0..8)) {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let places = mount_points(&names);
            let distinct: HashSet<_> = places.iter().collect();
            prop_assert_eq!(distinct.len(), names.len());
            for (place, name) in places.iter().zip(&names) {
                let own = format!("/mnt/{name}");
                prop_assert!(place.starts_with(&own));
            }
        }
    }
}
