//! Removes a tree, or everything in it except paths to keep.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use berth_domain::agent::error::code;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::error::{Refusal, Result};

/// How deep a tree to remove may be.
const MAX_DEPTH: usize = 256;

/// Whether to keep a path.
pub type Kept<'a> = &'a dyn Fn(&[u8]) -> bool;

/// Removes an entry of a directory, with everything in it. A file system mounted there stays.
pub fn remove(above: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
    remove_but(above, name, &[], &|_| false, 0).map(drop)
}

/// Removes everything in a directory except paths to keep; `path` is the directory's own path, for [`Kept`].
pub fn clear(directory: &OwnedFd, path: &[u8], kept: Kept<'_>) -> Result<()> {
    children(directory, path, kept, 0).map(drop)
}

/// Removes an entry; returns whether nothing of it is left.
fn remove_but(above: BorrowedFd<'_>, name: &[u8], path: &[u8], kept: Kept<'_>, depth: usize) -> Result<bool> {
    if depth == MAX_DEPTH {
        let message = format!("A tree that is replaced is more than {MAX_DEPTH} directories deep; remove it first.");
        return Err(Refusal::new(code::CONFLICT, message));
    }
    let Ok(stat) = rustix::fs::statat(above, name, AtFlags::SYMLINK_NOFOLLOW) else { return Ok(true) };
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        if !kept(path) {
            rustix::fs::unlinkat(above, name, AtFlags::empty())?;
        }
        return Ok(!kept(path));
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH;
    let directory = match rustix::fs::openat2(above, name, flags, Mode::empty(), resolve) {
        Ok(directory) => directory,
        // A file system is mounted there, such as /proc.
        Err(Errno::XDEV) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    let empty = children(&directory, path, kept, depth + 1)?;
    if empty && !kept(path) {
        rustix::fs::unlinkat(above, name, AtFlags::REMOVEDIR)?;
        return Ok(true);
    }
    Ok(false)
}

fn children(directory: &OwnedFd, path: &[u8], kept: Kept<'_>, depth: usize) -> Result<bool> {
    let mut empty = true;
    // Reads all names first: removing entries while reading a directory may hide others.
    let mut names = Vec::new();
    for found in Dir::read_from(directory)? {
        let found = found?;
        if !matches!(found.file_name().to_bytes(), b"." | b"..") {
            names.push(found.file_name().to_bytes().to_vec());
        }
    }
    for name in names {
        let below = [path, if path.is_empty() { b"" } else { b"/" }, &name].concat();
        empty &= remove_but(directory.as_fd(), &name, &below, kept, depth)?;
    }
    Ok(empty)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_that_is_too_deep_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let above = std::fs::File::open(folder.path()).unwrap();
        for (deep, code) in [(MAX_DEPTH, None), (MAX_DEPTH + 1, Some(code::CONFLICT))] {
            std::fs::create_dir_all(folder.path().join("d/".repeat(deep))).unwrap();
            let removed = remove(above.as_fd(), b"d");
            assert_eq!(removed.err().map(|refusal| refusal.code), code, "{deep}");
            assert_eq!(folder.path().join("d").exists(), code.is_some());
        }
    }
}
