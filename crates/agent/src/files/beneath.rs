//! Paths, which the kernel resolves beneath the workspace.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::error::{Refusal, Result};
use crate::place::Place;

/// How often to try a path again that changed while the kernel resolved it.
const TRIES: usize = 64;
/// The kernel's limit for a path, in bytes, with the NUL at its end.
const MAX_PATH: usize = 4096;

/// A path that looks safe: not absolute, without NUL, and not leading out by its text. The kernel checks the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relative(String);

impl Relative {
    /// Parses a path; `.` and the empty text mean the workspace.
    pub fn parse(text: &str) -> Result<Self> {
        if text.starts_with('/') {
            return Err(Refusal::path("Paths are relative to the workspace; leave the first '/' out."));
        }
        if text.contains('\0') {
            return Err(Refusal::path("A path must not contain the character NUL."));
        }
        if text.len() >= MAX_PATH {
            return Err(Errno::NAMETOOLONG.into());
        }
        let mut depth = 0_usize;
        for part in text.split('/') {
            match part {
                "" | "." => {}
                ".." => depth = depth.checked_sub(1).ok_or(Errno::XDEV)?,
                _ => depth += 1,
            }
        }
        Ok(Self(if text.is_empty() { ".".to_owned() } else { text.to_owned() }))
    }

    /// Parses a path that must name something within the workspace.
    pub fn parse_required(text: &str) -> Result<Self> {
        if text.is_empty() {
            return Err(Refusal::path("A path must not be empty."));
        }
        Self::parse(text)
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The directory and the name in it.
    pub fn split(&self) -> Result<(Self, &str)> {
        let path = self.0.trim_end_matches('/');
        let (parent, name) = path.rsplit_once('/').unwrap_or((".", path));
        if matches!(name, "" | "." | "..") {
            return Err(Refusal::path("The path must end with a name."));
        }
        Ok((Self(if parent.is_empty() { ".".to_owned() } else { parent.to_owned() }), name))
    }

    /// Its text without empty parts and `.`, as users see it; `.` for the workspace.
    pub fn shown(&self) -> String {
        let parts = self.0.split('/').filter(|part| !matches!(*part, "" | ".")).collect::<Vec<_>>();
        if parts.is_empty() { ".".to_owned() } else { parts.join("/") }
    }
}

/// Opens a path beneath a directory.
pub fn open(root: BorrowedFd<'_>, path: &str, flags: OFlags, mode: u32) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    for _ in 0..TRIES {
        match rustix::fs::openat2(root, path, flags | OFlags::CLOEXEC, Mode::from_raw_mode(mode), resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            other => return other,
        }
    }
    Err(Errno::AGAIN)
}

/// Opens a directory as a base for other paths.
pub fn open_directory(place: &Place, path: &str) -> Result<OwnedFd> {
    use std::os::fd::AsFd;
    let path = Relative::parse(path)?;
    Ok(open(place.root.as_fd(), path.as_str(), OFlags::PATH | OFlags::DIRECTORY, 0)?)
}

/// Opens the parent directory of a path, and returns the name in it.
pub fn parent<'a>(root: BorrowedFd<'_>, path: &'a Relative) -> Result<(OwnedFd, &'a str)> {
    let (parent, name) = path.split()?;
    Ok((open(root, parent.as_str(), OFlags::PATH | OFlags::DIRECTORY, 0)?, name))
}

/// Makes every missing directory of a path, and opens the last.
pub fn make_parents(root: BorrowedFd<'_>, path: &Relative) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    match open(root, path.as_str(), flags, 0) {
        Err(Errno::NOENT) => {}
        other => return Ok(other?),
    }
    let mut done = String::new();
    for part in path.as_str().split('/').filter(|part| !part.is_empty()) {
        let above = open(root, if done.is_empty() { "." } else { &done }, flags, 0)?;
        if !matches!(part, "." | "..") {
            match rustix::fs::mkdirat(&above, part, Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(e) => return Err(e.into()),
            }
        }
        done.push_str(if done.is_empty() { "" } else { "/" });
        done.push_str(part);
    }
    Ok(open(root, path.as_str(), flags, 0)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn paths_that_lead_out_by_their_words_are_refused() {
        for bad in ["/", "/etc", "..", "a/../..", "./..", "a/b/../../../c", "a\0", "no/../../etc"] {
            assert_eq!(Relative::parse(bad).unwrap_err().code, "invalid_path", "{bad:?}");
        }
        for fine in ["", ".", "a/..", "a//b", "..a", "a/b/../../c", "...", "a/"] {
            assert!(Relative::parse(fine).is_ok(), "{fine:?}");
        }
        assert!(Relative::parse(&"a".repeat(4095)).is_ok());
        assert_eq!(Relative::parse(&"a".repeat(4096)).unwrap_err().code, "invalid_path");
        assert_eq!(Relative::parse_required("").unwrap_err().code, "invalid_path");
    }

    #[test]
    fn a_path_splits_into_its_directory_and_its_name() {
        for (path, parent, name) in [("a", ".", "a"), ("a/b/", "a", "b"), ("./a", ".", "a"), ("a/../b", "a/..", "b")] {
            let path = Relative::parse(path).unwrap();
            let (above, below) = path.split().unwrap();
            assert_eq!((above.as_str(), below), (parent, name));
        }
        for bad in ["", ".", "a/..", "a/.", "./"] {
            assert!(Relative::parse(bad).unwrap().split().is_err(), "{bad:?}");
        }
        assert_eq!(Relative::parse("./a//b/").unwrap().shown(), "a/b");
        assert_eq!(Relative::parse("./").unwrap().shown(), ".");
    }

    proptest! {
        #[test]
        fn what_passes_stays_within(text in "[a./]{0,20}") {
            if let Ok(path) = Relative::parse(&text) {
                let mut depth = 0_i32;
                for part in path.as_str().split('/') {
                    depth += match part { "" | "." => 0, ".." => -1, _ => 1 };
                    prop_assert!(depth >= 0);
                }
            }
        }
    }
}
