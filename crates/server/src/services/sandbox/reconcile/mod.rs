//! Making the world agree with the rows: sandboxes and their checkpoints, templates, what disks and memories nobody
//! needs, what goes from host to host and to the store of backups, and the host as a whole.

pub(super) mod archive;
mod capacity;
pub(super) mod drain;
pub(super) mod durable;
pub(super) mod guest_travel;
pub(super) mod host;
pub(super) mod layer_copy;
mod memory_travel;
pub mod sandbox;
pub mod shared;
pub mod template;
pub mod warm;

pub(super) use crate::work::lifecycle::{StepError, fault};
