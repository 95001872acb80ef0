//! What has come so far of what another host has: files and folders whose names tell whose they are, and that nobody sees yet.
//!
//! The next try of the same removes what an earlier one left; what is tried no more goes once it is old.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// How the names end.
pub(super) const TRAVELLING: &str = ".travelling";
/// Age after which nobody is at it: whatever comes makes it young.
const OLD: Duration = Duration::from_hours(24);

/// What is under way in a folder, of that whose name begins so.
pub(super) fn under_way(folder: &Path, beginning: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let is_one = |name: &str| name.strip_prefix(beginning).is_some_and(|rest| rest.ends_with(TRAVELLING));
    entries.filter(|entry| entry.file_name().to_str().is_some_and(is_one)).map(|entry| entry.path()).collect()
}

/// Removes what nobody brings any more.
pub(super) fn forget(folder: &Path, beginning: &str) {
    let age = |path: &PathBuf| path.metadata().and_then(|found| found.modified()).ok()?.elapsed().ok();
    for path in under_way(folder, beginning).into_iter().filter(|path| age(path).is_some_and(|age| age > OLD)) {
        // What stays is tried again with the next search.
        let gone = if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
        tracing::info!(path = %path.display(), ?gone, "what nobody brings any more is removed");
    }
}
