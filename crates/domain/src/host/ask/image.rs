//! Questions about images of VMs.

use super::question::questions;
use crate::Timestamp;
use crate::host::image::{ImageImport, ImageInfo, ImageOfSnapshot};
use crate::ids::ImageId;

questions! {
    /// What may be asked about images.
    "image" {
        /// The platform's images at hand, by what they say of themselves.
        List "list" {} -> Vec<ImageInfo>,
        /// An image, if it is at hand and whole.
        Find "find" {
            /// Its id.
            id: String,
        } -> Option<ImageInfo>,
        /// Takes in the foreign image that was brought under its id; nothing in it is executed.
        Import "import" {
            /// What it becomes.
            import: ImageImport,
        } -> ImageInfo,
        /// Makes a project's image of a snapshot of a root disk, which boots as that disk's own image does; one that is there
        /// stays as it is.
        Make "make" {
            /// The image.
            image: ImageOfSnapshot,
        } -> ImageInfo,
        /// Moves a project's image that no row owns to what was set aside on a day; fine where there is none.
        SetAside "set_aside" {
            /// Which.
            id: ImageId,
            /// When that was found.
            at: Timestamp,
        } -> (),
        /// Removes an image; fine where there is none.
        Remove "remove" {
            /// Its id.
            id: String,
        } -> (),
    }
}
