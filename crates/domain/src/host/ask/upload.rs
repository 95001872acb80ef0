//! Questions about archives that were sent to build templates of.

use super::question::questions;
use crate::ids::UploadId;

questions! {
    /// What may be asked about uploads.
    "upload" {
        /// Removes an upload; fine where there is none.
        Remove "remove" {
            /// Which.
            id: UploadId,
        } -> (),
    }
}
