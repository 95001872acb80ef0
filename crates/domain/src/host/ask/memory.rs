//! Questions about captured memories.

use super::question::questions;
use crate::host::image::ImageFile;
use crate::ids::MemoryId;

questions! {
    /// What may be asked about memories.
    "memory" {
        /// Removes a memory; fine where there is none.
        Remove "remove" {
            /// Which.
            id: MemoryId,
        } -> (),
        /// What is sent of a memory that goes to another host: its length, and what it hashes to.
        File "file" {
            /// Of which.
            id: MemoryId,
        } -> ImageFile,
        /// Makes room for a memory that comes from another host; false where it is there already. Who is at an earlier try is
        /// refused from then on.
        Expect "expect" {
            /// Which.
            id: MemoryId,
            /// What is sent of it.
            file: ImageFile,
        } -> bool,
    }
}
