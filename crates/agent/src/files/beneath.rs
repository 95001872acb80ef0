//! Paths, which the kernel resolves beneath the workspace, or from the machine's root where a request says so.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::error::{Refusal, Result};

/// How often to try a path again that changed while the kernel resolved it.
const TRIES: usize = 64;
/// The kernel's limit for a path, in bytes, with the NUL at its end.
const MAX_PATH: usize = 4096;

/// A path that looks safe. One beneath a directory is not absolute, has no NUL and does not lead out by its text; the
/// kernel checks the rest. One from the machine's root begins with `/`, and has no `.` and no `..`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    text: String,
    /// Whether the kernel resolves it from the machine's root.
    machine: bool,
}

impl Located {
    /// Parses a path beneath a directory; `.` and the empty text mean the directory.
    pub fn parse(text: &str) -> Result<Self> {
        if text.starts_with('/') {
            return Err(Refusal::path("Paths are relative to the workspace; leave the first '/' out."));
        }
        check(text)?;
        let mut depth = 0_usize;
        for part in text.split('/') {
            match part {
                "" | "." => {}
                ".." => depth = depth.checked_sub(1).ok_or(Errno::XDEV)?,
                _ => depth += 1,
            }
        }
        Ok(Self { text: if text.is_empty() { ".".to_owned() } else { text.to_owned() }, machine: false })
    }

    /// The same, and it must name something within the directory.
    pub fn parse_required(text: &str) -> Result<Self> {
        required(text)?;
        Self::parse(text)
    }

    /// Parses a path from the machine's root. A relative one begins at `home`, as does `~`; a `..` takes the name
    /// before it away, as a shell's `cd` does, and stays at the root.
    pub fn from_root(home: &str, text: &str) -> Result<Self> {
        check(text)?;
        let whole = match text.strip_prefix('~') {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => format!("{home}{rest}"),
            _ if text.starts_with('/') => text.to_owned(),
            _ => format!("{home}/{text}"),
        };
        let mut parts = Vec::new();
        for part in whole.split('/') {
            match part {
                "" | "." => {}
                ".." => drop(parts.pop()),
                part => parts.push(part),
            }
        }
        // A slash at the end says that a directory is meant.
        let end = if whole.ends_with('/') && !parts.is_empty() { "/" } else { "" };
        let text = format!("/{}{end}", parts.join("/"));
        check(&text)?;
        Ok(Self { text, machine: true })
    }

    /// What a link in an open directory leads to by its text: the kernel resolves it.
    pub fn behind(&self, above: &OwnedFd, target: &str) -> Result<Self> {
        if !self.machine {
            if target.starts_with('/') {
                return Err(Errno::XDEV.into());
            }
            return Self::parse(&format!("{}/{target}", self.text));
        }
        let text = if target.starts_with('/') { target.to_owned() } else { format!("{}/{target}", real(above)?) };
        check(&text)?;
        Ok(Self { text, machine: true })
    }

    /// The real path of a name in an open directory, for one whose text led over links.
    pub fn settled(self, above: &OwnedFd, name: &str) -> Result<Self> {
        if !self.machine {
            return Ok(self);
        }
        let real = real(above)?;
        Ok(Self { text: format!("{}/{name}", real.trim_end_matches('/')), machine: true })
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether it begins at the machine's root.
    pub fn is_machine(&self) -> bool {
        self.machine
    }

    /// Opens it; one that does not begin at the machine's root is beneath `root`.
    pub fn open(&self, root: BorrowedFd<'_>, flags: OFlags, mode: u32) -> rustix::io::Result<OwnedFd> {
        let resolve = if self.machine { ResolveFlags::empty() } else { ResolveFlags::BENEATH };
        resolve_at(root, &self.text, flags, mode, resolve)
    }

    /// The directory and the name in it.
    pub fn split(&self) -> Result<(Self, &str)> {
        let path = self.text.trim_end_matches('/');
        let (parent, name) = path.rsplit_once('/').unwrap_or((".", path));
        if matches!(name, "" | "." | "..") {
            return Err(Refusal::path("The path must end with a name."));
        }
        let top = if self.machine { "/" } else { "." };
        Ok((Self { text: if parent.is_empty() { top } else { parent }.to_owned(), machine: self.machine }, name))
    }

    /// Opens its parent directory, and returns the name in it.
    pub fn parent(&self, root: BorrowedFd<'_>) -> Result<(OwnedFd, &str)> {
        let (parent, name) = self.split()?;
        Ok((parent.open(root, OFlags::PATH | OFlags::DIRECTORY, 0)?, name))
    }

    /// Makes every missing directory of it, and opens the last.
    pub fn make(&self, root: BorrowedFd<'_>) -> Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        match self.open(root, flags, 0) {
            Err(Errno::NOENT) => {}
            other => return Ok(other?),
        }
        let mut done = Self { text: if self.machine { "/" } else { "." }.to_owned(), machine: self.machine };
        for part in self.text.split('/').filter(|part| !part.is_empty()) {
            let above = done.open(root, flags, 0)?;
            if !matches!(part, "." | "..") {
                match rustix::fs::mkdirat(&above, part, Mode::from_raw_mode(0o755)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(e) => return Err(e.into()),
                }
            }
            done.text = join(&done.text, part);
        }
        Ok(self.open(root, flags, 0)?)
    }

    /// Its text without empty parts and `.`, as users see it; `.` for the workspace, absolute from the machine's root.
    pub fn shown(&self) -> String {
        let parts = self.text.split('/').filter(|part| !matches!(*part, "" | ".")).collect::<Vec<_>>().join("/");
        match (self.machine, parts.is_empty()) {
            (true, _) => format!("/{parts}"),
            (false, true) => ".".to_owned(),
            (false, false) => parts,
        }
    }
}

/// The path of a name in a directory that is shown as `parent`.
pub fn join(parent: &str, name: &str) -> String {
    match parent {
        "." => name.to_owned(),
        "/" => format!("/{name}"),
        parent => format!("{parent}/{name}"),
    }
}

/// The absolute path of something that is open, without links.
pub fn real(open: &OwnedFd) -> Result<String> {
    let path = rustix::fs::readlink(named(open), Vec::new())?;
    path.into_string().map_err(|_| Errno::INVAL.into())
}

/// The path at which the kernel shows an open file: it leads to that file, whatever is put in its place meanwhile.
pub fn named(open: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", open.as_raw_fd())
}

fn check(text: &str) -> Result<()> {
    if text.contains('\0') {
        return Err(Refusal::path("A path must not contain the character NUL."));
    }
    if text.len() >= MAX_PATH {
        return Err(Errno::NAMETOOLONG.into());
    }
    Ok(())
}

/// Refuses the empty text.
pub fn required(text: &str) -> Result<()> {
    if text.is_empty() { Err(Refusal::path("A path must not be empty.")) } else { Ok(()) }
}

/// Opens a path beneath a directory.
pub fn open(root: BorrowedFd<'_>, path: &str, flags: OFlags, mode: u32) -> rustix::io::Result<OwnedFd> {
    resolve_at(root, path, flags, mode, ResolveFlags::BENEATH)
}

fn resolve_at(
    root: BorrowedFd<'_>,
    path: &str,
    flags: OFlags,
    mode: u32,
    resolve: ResolveFlags,
) -> rustix::io::Result<OwnedFd> {
    let resolve = resolve | ResolveFlags::NO_MAGICLINKS;
    for _ in 0..TRIES {
        match rustix::fs::openat2(root, path, flags | OFlags::CLOEXEC, Mode::from_raw_mode(mode), resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            other => return other,
        }
    }
    Err(Errno::AGAIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn paths_that_lead_out_by_their_words_are_refused() {
        for bad in ["/", "/etc", "..", "a/../..", "./..", "a/b/../../../c", "a\0", "no/../../etc"] {
            assert_eq!(Located::parse(bad).unwrap_err().code, "invalid_path", "{bad:?}");
        }
        for fine in ["", ".", "a/..", "a//b", "..a", "a/b/../../c", "...", "a/"] {
            assert!(Located::parse(fine).is_ok(), "{fine:?}");
        }
        assert!(Located::parse(&"a".repeat(4095)).is_ok());
        assert_eq!(Located::parse(&"a".repeat(4096)).unwrap_err().code, "invalid_path");
        assert_eq!(Located::parse_required("").unwrap_err().code, "invalid_path");
    }

    #[test]
    fn a_path_splits_into_its_directory_and_its_name() {
        for (path, parent, name) in [("a", ".", "a"), ("a/b/", "a", "b"), ("./a", ".", "a"), ("a/../b", "a/..", "b")] {
            let path = Located::parse(path).unwrap();
            let (above, below) = path.split().unwrap();
            assert_eq!((above.as_str(), below), (parent, name));
        }
        for bad in ["", ".", "a/..", "a/.", "./"] {
            assert!(Located::parse(bad).unwrap().split().is_err(), "{bad:?}");
        }
        assert_eq!(Located::parse("./a//b/").unwrap().shown(), "a/b");
        assert_eq!(Located::parse("./").unwrap().shown(), ".");
    }

    #[test]
    fn a_path_from_the_root_is_absolute_and_clean() {
        let whole = |text: &str| Located::from_root("/home/me", text).unwrap();
        for (text, shown) in [
            ("/", "/"),
            ("", "/home/me"),
            (".", "/home/me"),
            ("~", "/home/me"),
            ("~/a//b", "/home/me/a/b"),
            ("~other", "/home/me/~other"),
            ("a/../../x", "/home/x"),
            ("/../../etc/./passwd", "/etc/passwd"),
            ("/a/..", "/"),
            ("/new/", "/new"),
        ] {
            assert_eq!(whole(text).shown(), shown, "{text:?}");
            assert!(whole(text).is_machine());
        }
        assert!(whole("/new/").as_str().ends_with('/') && !whole("/a/../").as_str().ends_with("//"));
        let (above, name) = whole("/etc").split().map(|(above, name)| (above.shown(), name.to_owned())).unwrap();
        assert_eq!((above.as_str(), name.as_str()), ("/", "etc"));
        assert!(whole("/").split().is_err());
        assert!(Located::from_root("/", "nul\0").is_err());
        assert!(Located::from_root("/", &"a".repeat(4094)).is_ok());
        assert!(Located::from_root("/", &"a".repeat(4095)).is_err(), "with the slash it is too long");
    }

    proptest! {
        #[test]
        fn what_is_taken_from_the_root_has_no_steps_back(text in "[a./~]{0,20}") {
            let path = Located::from_root("/h", &text).unwrap();
            prop_assert!(path.as_str().starts_with('/'));
            prop_assert!(path.as_str().split('/').all(|part| !matches!(part, "." | "..")));
        }

        #[test]
        fn what_passes_stays_within(text in "[a./]{0,20}") {
            if let Ok(path) = Located::parse(&text) {
                let mut depth = 0_i32;
                for part in path.as_str().split('/') {
                    depth += match part { "" | "." => 0, ".." => -1, _ => 1 };
                    prop_assert!(depth >= 0);
                }
            }
        }
    }
}
