//! What the operator tells the engine of VMs.

use crate::HostSettings;

/// What the engine may take of its host.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What every engine of the host is told.
    pub host: HostSettings,
    /// Virtual CPUs on offer for each core.
    pub cpu_overcommit: f64,
    /// Memory on offer for each byte of the host's.
    pub memory_overcommit: f64,
    /// Disk on offer for each byte of the data folder's file system (disks are sparse).
    pub disk_overcommit: f64,
    /// Free space below which no new disk is made, in GiB.
    pub disk_reserve_gb: i64,
    /// Largest file of an image that is accepted, both as uploaded and as stored, in GiB.
    pub image_file_gb: i64,
    /// Largest disk that an accepted image may give a guest, in GiB.
    pub image_virtual_gb: i64,
    /// How long converting an image, or a disk that somebody sent, may take, in seconds.
    pub image_seconds: i64,
    /// Whether machines begin with captured boots; where nothing is said, those that are emulated do.
    pub captured_boots: Option<bool>,
}
