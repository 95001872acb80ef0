//! Questions about layers of sandboxes' disks.

use super::question::questions;
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
        /// What a layer takes on the host, in bytes.
        Bytes "bytes" {
            /// Which.
            id: LayerId,
        } -> i64,
    }
}
