//! One function for each verb. Each owns its transaction: intent, audit and event become true together,
//! and the worker is woken by the commit.

pub mod admin;
pub mod backup;
pub mod backup_schedule;
pub mod disk;
pub mod disk_import;
pub mod disk_snapshot;
pub mod export;
pub mod firewall;
mod holder;
pub mod image;
pub mod project_image;
pub mod reinstall;
pub mod rescue;
pub mod resize;
mod size;
pub mod vm;
pub mod with_disks;

use berth_domain::{Code, Error};

/// The 404 of a VM.
pub(super) fn vm_not_found() -> Error {
    Error::new(Code::VmNotFound, "There is no such VM in this project.")
}

/// The 404 of a volume or disk.
pub(super) fn volume_not_found() -> Error {
    Error::new(Code::VolumeNotFound, "There is no such disk in this project.")
}
