//! Questions about layers of sandboxes' disks.

use super::question::questions;
use crate::host::image::ImageFile;
use crate::ids::LayerId;

questions! {
    /// What may be asked about layers.
    "layer" {
        /// Makes an empty layer on another one.
        Make "make" {
            /// Its id.
            id: LayerId,
            /// What it lies on.
            parent: LayerId,
        } -> (),
        /// Removes a layer; fine where there is none.
        Remove "remove" {
            /// Which.
            id: LayerId,
        } -> (),
        /// The file of a layer to which nobody writes any more: its length, and what it hashes to.
        File "file" {
            /// Of which.
            id: LayerId,
        } -> ImageFile,
        /// Makes room for a layer that comes from another host; false where it is there already. Who is at an earlier try is
        /// refused from then on.
        Expect "expect" {
            /// Which.
            id: LayerId,
            /// Its file.
            file: ImageFile,
        } -> bool,
        /// What a layer takes on the host, in bytes.
        Bytes "bytes" {
            /// Which.
            id: LayerId,
        } -> i64,
    }
}
