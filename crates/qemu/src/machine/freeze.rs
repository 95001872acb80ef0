//! A guest's file systems, frozen for the moment at which copies of its disks begin.
//!
//! What the guest's programs wrote is on its disks before that moment, and file systems are as they would be unmounted. Only
//! an agent of the guest can do that: of any other guest a copy has what a loss of power would have left. A guest that stays
//! frozen stands still, and its agent thaws nothing by itself (QEMU, qga/qapi-schema.json, `guest-fsfreeze-freeze`). So a note
//! stands in the machine's folder from before the freeze until after the thaw: whoever comes after a service that died in
//! between thaws what that left.

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::path::Path;
use std::time::SystemTime;

use serde_json::json;

use super::guest::Guest;
use crate::error::at;
use crate::{Error, Result};

/// Tells that a guest may be frozen.
const NOTE: &str = "frozen";

/// Has the guest's agent freeze its file systems; how many it froze. None where the guest has no agent.
///
/// # Errors
/// The agent does not answer, or refuses. The guest may be frozen then: [`thaw`].
pub async fn freeze(dir: &Path) -> Result<Option<u64>> {
    let Some(mut guest) = Guest::of(dir).await? else { return Ok(None) };
    note(dir)?;
    Ok(guest.execute("guest-fsfreeze-freeze", json!({})).await?.as_u64())
}

/// Has the guest's agent thaw its file systems, if anybody had it freeze them. Where no agent listens at present the note
/// stays: one that died frozen is started again by its system, or by the next boot.
///
/// # Errors
/// The agent does not answer, or refuses: another call tries again.
pub async fn thaw(dir: &Path) -> Result<()> {
    if since(dir).is_none() {
        return Ok(());
    }
    let Some(mut guest) = Guest::of(dir).await? else { return Ok(()) };
    guest.execute("guest-fsfreeze-thaw", json!({})).await?;
    forget(dir)
}

/// Since when a guest may be frozen; none where nobody had it frozen, or it was thawed.
pub fn since(dir: &Path) -> Option<SystemTime> {
    dir.join(NOTE).symlink_metadata().and_then(|note| note.modified()).ok()
}

/// Removes the note: a guest that boots is not frozen.
pub(super) fn forget(dir: &Path) -> Result<()> {
    let note = dir.join(NOTE);
    match std::fs::remove_file(&note) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(at("cannot remove", &note)(error)),
        _ => Ok(()),
    }
}

/// Notes that the guest may be frozen from now on. QEMU may write into the folder: a link of this name is not followed.
fn note(dir: &Path) -> Result<()> {
    let path = dir.join(NOTE);
    match OpenOptions::new().write(true).create_new(true).open(&path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err::<(), Error>(at("cannot make", &path)(error)),
        _ => Ok(()),
    }
}
