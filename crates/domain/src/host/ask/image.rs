//! Questions about images of VMs.

use super::question::questions;
use crate::Timestamp;
use crate::host::image::{Arrival, Edition, ImageFile, ImageImport, ImageInfo, ImageOfSnapshot};
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
        /// The editions of the platform's images at hand.
        Editions "editions" {} -> Vec<Edition>,
        /// What an image consists of, if it is whole and of that edition.
        Files "files" {
            /// Which.
            edition: Edition,
        } -> Vec<ImageFile>,
        /// Makes room for an image that comes from another host. What came of an earlier try for it goes, and who is at that
        /// is refused from then on.
        Expect "expect" {
            /// What comes.
            arrival: Arrival,
        } -> (),
        /// Makes an image of what came, whole or not at all; fine where it is at hand already. A later edition stays.
        Adopt "adopt" {
            /// What came.
            arrival: Arrival,
        } -> (),
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
