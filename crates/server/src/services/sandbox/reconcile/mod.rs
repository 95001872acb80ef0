//! Making the world agree with the rows: sandboxes and their checkpoints, templates, what disks and memories nobody
//! needs, and the host as a whole.

mod capacity;
pub(super) mod host;
pub mod sandbox;
pub mod shared;
pub mod template;
pub mod warm;

pub(super) use crate::work::lifecycle::{StepError, fault};
