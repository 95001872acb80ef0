//! Disks: root disk volumes and data disks.
//!
//! ```text
//!   pending ─► provisioning ─► ready ─► deleting ─► (gone)
//!                   └─► failed ──────────▲
//! ```
//!
//! A disk that is `ready` grows when its owner asks for that, and shrinks never. Three sizes tell how far that came: what
//! is wanted, what the disk has its place on the host for, and what it is ([`Extent`]). Between any two of them a crash
//! costs a repetition.

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
    /// What is under way for a disk that is ready (extension).
    DiskChange {
        /// It becomes larger.
        Growing = "growing",
        /// It comes to a machine that runs.
        Attaching = "attaching",
        /// A guest that runs is to let go of it.
        Detaching = "detaching",
    }
}

words! {
    /// What a disk of a machine that runs does.
    Move {
        /// It is the VM's, and the machine may not have it yet.
        In = "in",
        /// It is the VM's until the guest has let go of it.
        Out = "out",
    }
}

/// How long a guest may take to let go of a disk, in seconds: many times what one takes that listens.
pub const LETTING_GO: i64 = 20;

words! {
    /// What the worker does next for a disk.
    DiskStep {
        /// Take a place on the host, or fail for the lack of one.
        Place = "place",
        /// Make it, or record why it cannot be made.
        Make = "make",
        /// Copy it into a snapshot, or record why it cannot be copied.
        Snapshot = "snapshot",
        /// Bring it to the host of its VM.
        Travel = "travel",
        /// Have it grow, or record why it cannot.
        Grow = "grow",
        /// Remove it, and record that it is gone.
        Remove = "remove",
    }
}

/// How large a disk is to be, has its place on the host for, and is, in GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// What its owner asked for.
    pub wanted_gb: i64,
    /// What counts against the host.
    pub placed_gb: i64,
    /// What it was made or grown to.
    pub made_gb: i64,
}

impl Extent {
    /// That of a disk that was never asked to grow.
    pub const fn of(size_gb: i64) -> Self {
        Self { wanted_gb: size_gb, placed_gb: size_gb, made_gb: size_gb }
    }

    /// Whether it is smaller than it is to be.
    pub const fn grows(self) -> bool {
        self.made_gb < self.wanted_gb
    }

    /// How much more of the host it needs than it has its place for.
    pub const fn unplaced_gb(self) -> i64 {
        self.wanted_gb - self.placed_gb
    }

    /// It has its place.
    #[must_use]
    pub const fn placed(self) -> Self {
        Self { placed_gb: self.wanted_gb, ..self }
    }

    /// The host has no place for what is wanted: the wish goes back to what it has.
    #[must_use]
    pub const fn refused(self) -> Self {
        Self { wanted_gb: self.placed_gb, ..self }
    }

    /// It grew to this size. A larger one may be wanted by now.
    #[must_use]
    pub const fn grown(self, size_gb: i64) -> Self {
        let made_gb = if size_gb > self.made_gb { size_gb } else { self.made_gb };
        Self { made_gb, ..self }
    }

    /// It cannot grow to this size, and is as large as it was. A larger one may be wanted by now: that is tried, too.
    #[must_use]
    pub const fn stunted(self, size_gb: i64) -> Self {
        let wanted_gb = if self.wanted_gb > size_gb { self.wanted_gb } else { self.made_gb };
        Self { wanted_gb, placed_gb: self.made_gb, ..self }
    }
}

/// The next step for a disk whose VM does not take it itself; none where it is at rest. A snapshot that was asked for
/// before comes before what changes the disk. What a VM has made, or made anew, its own worker leaves alone.
pub const fn next(status: DiskStatus, is_vms: bool, grows: bool, has_snapshot: bool) -> Option<DiskStep> {
    match status {
        DiskStatus::Pending | DiskStatus::Provisioning if is_vms => None,
        DiskStatus::Ready | DiskStatus::Deleting if has_snapshot => Some(DiskStep::Snapshot),
        DiskStatus::Pending => Some(DiskStep::Place),
        DiskStatus::Provisioning => Some(DiskStep::Make),
        DiskStatus::Deleting => Some(DiskStep::Remove),
        DiskStatus::Ready if grows => Some(DiskStep::Grow),
        DiskStatus::Ready | DiskStatus::Failed | DiskStatus::Deleted => None,
    }
}

/// Whether a disk may be asked to become this large, in GiB.
pub fn on_resize(status: DiskStatus, wanted_gb: i64, size_gb: i64) -> Result<()> {
    if status != DiskStatus::Ready {
        return Err(Error::new(
            Code::InvalidStatus,
            format!("The disk is {status}. Only a disk that is ready can grow."),
        ));
    }
    if size_gb <= wanted_gb {
        return Err(Error::field(
            "size_gb",
            format!("must be larger than {wanted_gb}, the size of the disk: a disk never shrinks"),
        ));
    }
    Ok(())
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

    /// Smallest and largest disk of a kind.
    pub const fn of(kind: super::DiskKind) -> (i64, i64) {
        match kind {
            super::DiskKind::Root => ROOT,
            super::DiskKind::Data => DATA,
        }
    }
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

    #[test]
    fn a_disk_grows_and_never_shrinks() {
        assert!(on_resize(DiskStatus::Ready, 20, 21).is_ok());
        for size_gb in [20, 19] {
            assert_eq!(on_resize(DiskStatus::Ready, 20, size_gb).unwrap_err().details[0].field, "size_gb");
        }
        for &status in DiskStatus::ALL.iter().filter(|status| **status != DiskStatus::Ready) {
            assert_eq!(on_resize(status, 20, 21).unwrap_err().code, Code::InvalidStatus);
        }
    }

    #[test]
    fn only_a_disk_that_is_ready_grows() {
        assert_eq!(next(DiskStatus::Ready, false, true, false), Some(DiskStep::Grow));
        assert_eq!(next(DiskStatus::Ready, false, false, false), None);
        for &status in DiskStatus::ALL.iter().filter(|status| **status != DiskStatus::Ready) {
            assert_eq!(next(status, false, true, false), next(status, false, false, false));
        }
    }

    #[test]
    fn what_a_vm_has_made_its_own_worker_leaves_alone() {
        for &status in DiskStatus::ALL {
            let is_unmade = matches!(status, DiskStatus::Pending | DiskStatus::Provisioning);
            let alone = next(status, false, false, false);
            assert_eq!(next(status, true, false, false), alone.filter(|_| !is_unmade), "{status}");
            assert!(!is_unmade || alone.is_some(), "{status}");
        }
    }

    #[test]
    fn what_is_there_is_copied_before_it_changes() {
        for &status in DiskStatus::ALL {
            let is_copied = matches!(status, DiskStatus::Ready | DiskStatus::Deleting);
            assert_eq!(next(status, false, true, true) == Some(DiskStep::Snapshot), is_copied, "{status}");
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Happens {
        Asked(i64),
        Placed,
        Refused,
        Grown,
        Stunted,
    }

    fn happens() -> impl Strategy<Value = Happens> {
        prop_oneof![
            (1_i64..50).prop_map(Happens::Asked),
            Just(Happens::Placed),
            Just(Happens::Refused),
            Just(Happens::Grown),
            Just(Happens::Stunted),
        ]
    }

    proptest! {
        /// Whatever happens in whatever order, a disk has its place before it grows, and comes to rest.
        #[test]
        fn a_disk_has_its_place_before_it_grows(all in prop::collection::vec(happens(), 0..30)) {
            let (mut extent, mut asked) = (Extent::of(20), 0);
            for what in all {
                let before = extent;
                extent = match what {
                    Happens::Asked(more) => Extent { wanted_gb: extent.wanted_gb + more, ..extent },
                    Happens::Placed => { asked = extent.wanted_gb; extent.placed() }
                    Happens::Refused => extent.refused(),
                    Happens::Grown if asked <= extent.placed_gb => extent.grown(asked),
                    Happens::Stunted => extent.stunted(asked),
                    Happens::Grown => extent,
                };
                prop_assert!(extent.made_gb >= before.made_gb && extent.made_gb <= extent.placed_gb);
                prop_assert!(extent.placed_gb <= extent.wanted_gb && extent.unplaced_gb() >= 0);
            }
            let placed = extent.placed();
            prop_assert!(!placed.grown(placed.placed_gb).grows() && !extent.stunted(extent.wanted_gb).grows());
        }

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
