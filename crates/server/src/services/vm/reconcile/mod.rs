//! Making the world agree with the rows: VMs, disks, backups, and the host as a whole.

pub mod backup;
pub mod backup_schedule;
pub mod brought_disk;
mod capacity;
pub mod disk;
pub mod disk_snapshot;
mod disk_travel;
mod download;
pub mod drain;
pub mod fence;
pub(super) mod host;
pub mod image;
pub mod image_travel;
pub mod project_image;
mod reach;
mod shared_disk;
mod transfer;
pub mod vm;
mod wanted;

pub(super) use crate::work::lifecycle::{StepError, fault};
