//! Questions about captured memories.

use super::question::questions;
use crate::ids::MemoryId;

questions! {
    /// What may be asked about memories.
    "memory" {
        /// Removes a memory; fine where there is none.
        Remove "remove" {
            /// Which.
            id: MemoryId,
        } -> (),
    }
}
