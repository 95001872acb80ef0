//! What tells a machine that came from another host, or waits for one, from those that were told to go on: the socket at which it
//! took its disks stays in its folder until then.

use std::io::ErrorKind;
use std::path::Path;

use super::files::FILLED;
use crate::Result;
use crate::error::at;

/// Whether a machine came from another host, or waits for one, and was never told to go on.
pub(super) fn is_filled(dir: &Path) -> bool {
    dir.join(FILLED).exists()
}

/// Has a machine that came be like any other.
pub(super) fn settle(dir: &Path) -> Result<()> {
    let socket = dir.join(FILLED);
    match std::fs::remove_file(&socket) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(at("cannot remove", &socket)(error)),
        _ => Ok(()),
    }
}
