//! Making the world agree with the rows: VMs, disks, and the host as a whole.

mod capacity;
pub mod disk;
pub mod disk_snapshot;
mod download;
mod host;
pub mod image;
pub mod project_image;
mod reach;
pub mod vm;

pub(super) use crate::work::lifecycle::{StepError, fault};
