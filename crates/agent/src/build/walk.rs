//! Walks through a tree of the disk without following links or leaving its file system.

use std::ffi::OsStr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{Dir, DirEntry, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// Visits everything in a directory that has a path. The visitor gets the parent directory, the entry in it, its path,
/// and its depth, from 1. If the visitor opens and returns a directory, the walk goes on in it.
pub fn walk<E: From<Errno>>(
    top: OwnedFd,
    path: &Path,
    mut visit: impl FnMut(BorrowedFd<'_>, &DirEntry, &Path, usize) -> Result<Option<OwnedFd>, E>,
) -> Result<(), E> {
    let mut levels = vec![(Dir::new(top)?, path.to_owned())];
    loop {
        let depth = levels.len();
        let Some((directory, path)) = levels.last_mut() else { return Ok(()) };
        let Some(entry) = directory.next() else {
            levels.pop();
            continue;
        };
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        let below = path.join(OsStr::from_bytes(name));
        if let Some(opened) = visit(directory.fd()?, &entry, &below, depth)? {
            levels.push((Dir::new(opened)?, below));
        }
    }
}

/// Opens an entry of a directory, unless it is a link or on another file system.
pub fn enter(above: BorrowedFd<'_>, name: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    rustix::fs::openat2(above, name, flags, Mode::empty(), resolve)
}

/// Opens an entry if it is a directory of the same file system.
pub fn directory(above: BorrowedFd<'_>, entry: &DirEntry) -> rustix::io::Result<Option<OwnedFd>> {
    // Some file systems do not tell the type of an entry.
    if !matches!(entry.file_type(), FileType::Directory | FileType::Unknown) {
        return Ok(None);
    }
    match enter(above, entry.file_name().to_bytes(), OFlags::DIRECTORY) {
        Err(Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => Ok(None),
        other => other.map(Some),
    }
}
