//! Questions about images of VMs.

use super::question::questions;
use crate::host::image::ImageInfo;

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
        /// Removes an image; fine where there is none.
        Remove "remove" {
            /// Its id.
            id: String,
        } -> (),
    }
}
