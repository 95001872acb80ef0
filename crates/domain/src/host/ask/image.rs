//! Questions about images of VMs.

use super::question::questions;
use crate::host::image::{ImageImport, ImageInfo};

questions! {
    /// What may be asked about images.
    "image" {
        /// The images at hand, by what they say of themselves.
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
        /// Removes an image; fine where there is none.
        Remove "remove" {
            /// Its id.
            id: String,
        } -> (),
    }
}
