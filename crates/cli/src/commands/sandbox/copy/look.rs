//! Looks at a path inside before anything is copied.

use anyhow::Result;
use berth_client::{Entry, EntryType, Runtime};

/// What a path inside is, a link being what it leads to; nothing if it is not there.
pub async fn look(runtime: &Runtime, path: &str) -> Result<Option<Entry>> {
    let found = match runtime.stat(path).await {
        Err(error) if error.code() == Some("not_found") => return Ok(None),
        found => found?,
    };
    if found.kind != EntryType::Symlink {
        return Ok(Some(found));
    }
    // A list follows the link, if it leads to a directory.
    Ok(Some(match runtime.list(path, 1, 1).await {
        Ok(_) => Entry { kind: EntryType::Directory, ..found },
        Err(error) if matches!(error.code(), Some("not_a_directory" | "not_found")) => {
            Entry { kind: EntryType::File, mode: "0644".into(), ..found }
        }
        Err(error) => return Err(error.into()),
    }))
}
