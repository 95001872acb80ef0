//! Images that a project makes of its root disks, and that it alone sees and uses.
//!
//! ```text
//!   pending ─► ready ─► deleting ─► (gone)
//!      │  └──► failed ─────▲
//!      └───────────────────┘
//! ```
//!
//! An image is made in two moves. First the disk is copied, as for a snapshot and by the same hands: whoever has the disk
//! copies it, its VM may run, and what was begun is given up by the same hand. The snapshot belongs to the image and nobody
//! sees it. Then the image's own worker makes the image of it, and the snapshot goes. So a disk knows one way to be copied, and
//! whatever is interrupted is found or begun anew by whom it belongs to.

use serde_json::Value;

use super::disk::DiskStatus;
use super::disk_snapshot::DiskSnapshotStatus;
use crate::error::{Error, Result};
use crate::fields::{Fields, id, sized};
use crate::ids::DiskId;
use crate::words;

/// Most characters of a name.
const NAME: usize = 100;
/// Between two looks at a disk that is being copied, in milliseconds: who copies it wakes the image, too.
pub const LOOK_MILLIS: i64 = 5_000;

words! {
    /// Where a project's image stands.
    ProjectImageStatus {
        /// Accepted, or being made.
        Pending = "pending",
        /// Can be cloned.
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
    /// What the worker does for a project's image.
    ProjectImageStep {
        /// Make it of its snapshot.
        Make = "make",
        /// Record that its disk could not be copied.
        Fail = "fail",
        /// Remove its files, and record that it is gone.
        Remove = "remove",
    }
}

/// What comes next for an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// This step.
    Take(ProjectImageStep),
    /// Its disk is still being copied.
    Wait,
    /// Nothing, until somebody wishes something.
    Rest,
}

/// What comes next for an image, and for the snapshot that it is made of; none where that is gone.
pub const fn next(status: ProjectImageStatus, snapshot: Option<DiskSnapshotStatus>) -> Next {
    use DiskSnapshotStatus as Of;
    use ProjectImageStatus as Is;
    match (status, snapshot) {
        (Is::Pending, Some(Of::Pending)) => Next::Wait,
        (Is::Pending, Some(Of::Ready)) => Next::Take(ProjectImageStep::Make),
        (Is::Pending, _) => Next::Take(ProjectImageStep::Fail),
        (Is::Deleting, _) => Next::Take(ProjectImageStep::Remove),
        (Is::Ready | Is::Failed | Is::Deleted, _) => Next::Rest,
    }
}

/// Whether an image may be made of a disk.
pub fn on_create(status: DiskStatus, disk: DiskId) -> Result<()> {
    super::disk_snapshot::on_create(status, FIELD, disk)
}

/// The field that names the disk.
pub const FIELD: &str = "from_root_disk";

/// A request for an image of a root disk volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateProjectImage {
    /// The disk.
    pub disk: DiskId,
    /// Name for people.
    pub name: String,
}

impl TryFrom<&Value> for CreateProjectImage {
    type Error = Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let disk = f.required(FIELD, id);
        let name = f.required("name", sized(1, NAME));
        f.finish(disk.zip(name).map(|(disk, name)| Self { disk, name }))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_image_waits_for_its_copy_and_ends_with_it() {
        use DiskSnapshotStatus as Of;
        use ProjectImageStatus as Is;
        for &of in Of::ALL {
            let came = match of {
                Of::Pending => Next::Wait,
                Of::Ready => Next::Take(ProjectImageStep::Make),
                Of::Failed | Of::Deleting | Of::Deleted => Next::Take(ProjectImageStep::Fail),
            };
            assert_eq!(next(Is::Pending, Some(of)), came, "{of}");
            assert_eq!(next(Is::Deleting, Some(of)), Next::Take(ProjectImageStep::Remove));
            for rests in [Is::Ready, Is::Failed, Is::Deleted] {
                assert_eq!(next(rests, Some(of)), Next::Rest, "{rests} {of}");
            }
        }
        assert_eq!(next(Is::Pending, None), Next::Take(ProjectImageStep::Fail));
    }

    #[test]
    fn a_disk_and_a_name_are_given() {
        let disk = "01939f2e-7c00-7abc-8def-0123456789ab";
        let read = |body: Value| CreateProjectImage::try_from(&body);
        let longest = "é".repeat(NAME);
        assert_eq!(read(json!({"from_root_disk": disk, "name": longest})).unwrap().name, longest);
        for (body, field) in [
            (json!({"name": "a"}), "from_root_disk"),
            (json!({"from_root_disk": "x", "name": "a"}), "from_root_disk"),
            (json!({"from_root_disk": disk}), "name"),
            (json!({"from_root_disk": disk, "name": ""}), "name"),
            (json!({"from_root_disk": disk, "name": "é".repeat(NAME + 1)}), "name"),
            (json!({"from_root_disk": disk, "name": "a", "size_gb": 1}), "size_gb"),
        ] {
            assert_eq!(read(body).unwrap_err().details[0].field, field);
        }
    }
}
