//! Room on the host's disk for what is copied.

use std::path::Path;

use berth_qemu::host;
use berth_qemu::machine::Drive;

use crate::Result;
use crate::error::{qemu_failed, transient};

/// What a file takes on the host, in bytes.
pub(super) fn taken(path: &Path) -> Result<u64> {
    let found = std::fs::metadata(path).map_err(transient)?;
    Ok(std::os::unix::fs::MetadataExt::blocks(&found) * 512)
}

/// What a disk takes with all that it lies on: at most what a copy of it that stands alone does.
pub(super) fn taken_by_all(drive: &Drive) -> Result<u64> {
    drive.bases.iter().chain([&drive.path]).map(|path| taken(path)).sum()
}

/// Whether the host has room for so many bytes in a folder, and more than is kept back after that.
pub(super) fn is_left(folder: &Path, bytes: u64, reserve: u64) -> Result<bool> {
    let (_, free) = host::disk(folder).map_err(qemu_failed)?;
    Ok(free.saturating_sub(bytes) >= reserve)
}
