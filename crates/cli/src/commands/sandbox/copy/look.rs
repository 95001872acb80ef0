//! Examines a path inside before anything is copied.

use anyhow::Result;
use berth_client::{Entry, EntryType, Runtime};

/// The entry at a path inside, after following a link; nothing if it does not exist.
pub async fn look(runtime: &Runtime, path: &str) -> Result<Option<Entry>> {
    let found = match runtime.stat(path).await {
        Err(error) if error.code() == Some("not_found") => return Ok(None),
        found => found?,
    };
    if found.kind != EntryType::Symlink {
        return Ok(Some(found));
    }
    // Listing a path follows a link to a directory.
    Ok(Some(match runtime.list(path, 1, 1).await {
        Ok(_) => Entry { kind: EntryType::Directory, ..found },
        Err(error) if matches!(error.code(), Some("not_a_directory" | "not_found")) => {
            Entry { kind: EntryType::File, mode: "0644".into(), ..found }
        }
        Err(error) => return Err(error.into()),
    }))
}
