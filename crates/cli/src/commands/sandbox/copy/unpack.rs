//! Unpacks a tar stream into a directory of this machine, and never outside it.
//!
//! An archive out of a sandbox may be hostile. The `tar` crate reads blocks. This file puts long names and extended
//! headers together itself, because they must be bounded, whatever their sizes claim. It refuses sparse files: a few
//! bytes of one could fill this disk. It also decides where an entry goes. A path may have only ordinary parts; the
//! walk along it starts from a handle on the directory, with `RESOLVE_BENEATH` and without following links, so that
//! neither an earlier entry nor anything already there leads it astray. A link may lead up only in its first parts, and
//! no higher than the directory: it lies in real directories, so counting is enough; all further parts are names, which
//! at most lead to other such links.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use tar::{Archive, Entry, EntryType, PaxExtensions};

/// The deepest path.
const DEEPEST: usize = 512;
/// The most bytes of a name or of an extended header.
const LONGEST: u64 = 64 << 10;
/// Number of reasons that are kept.
const REASONS: usize = 20;

/// The result of unpacking.
#[derive(Debug, Default)]
pub struct Unpacked {
    /// How many entries were refused.
    pub refused: usize,
    /// The reasons for the first of them.
    pub reasons: Vec<String>,
}

/// Unpacks a stream into an existing directory.
pub fn unpack(stream: impl Read, directory: &Path) -> io::Result<Unpacked> {
    let root = rustix::fs::openat(CWD, directory, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut unpacking = Unpacking { root, modes: BTreeMap::new(), done: Unpacked::default() };
    let mut archive = Archive::new(stream);
    let mut names = Names::default();
    for entry in archive.entries()?.raw(true) {
        let mut entry = entry?;
        match entry.header().entry_type() {
            EntryType::GNULongName => names.path = Some(until_nul(bounded(&mut entry)?)),
            EntryType::GNULongLink => names.link = Some(until_nul(bounded(&mut entry)?)),
            EntryType::XHeader => names.read(&bounded(&mut entry)?)?,
            EntryType::XGlobalHeader => {}
            EntryType::GNUSparse => return Err(sparse()),
            _ => unpacking.next(&mut entry, std::mem::take(&mut names))?,
        }
    }
    unpacking.finish()
}

/// What extended headers say of the next entry.
#[derive(Default)]
struct Names {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
}

impl Names {
    fn read(&mut self, bytes: &[u8]) -> io::Result<()> {
        for extension in PaxExtensions::new(bytes) {
            let extension = extension?;
            match extension.key_bytes() {
                b"path" => self.path = Some(extension.value_bytes().to_vec()),
                b"linkpath" => self.link = Some(extension.value_bytes().to_vec()),
                b"size" => return Err(invalid("the archive tells the size of a file in a way that is not read here")),
                key if key.starts_with(b"GNU.sparse") => return Err(sparse()),
                _ => {}
            }
        }
        Ok(())
    }
}

fn bounded(entry: &mut Entry<'_, impl Read>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    entry.take(LONGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LONGEST { Err(invalid("the archive has a name that is too long")) } else { Ok(bytes) }
}

fn until_nul(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.truncate(bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len()));
    bytes
}

fn sparse() -> io::Error {
    invalid("the archive has a file with holes, which is not unpacked: it may fill this disk")
}

fn invalid(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

fn path_of(bytes: Vec<u8>) -> PathBuf {
    PathBuf::from(OsString::from_vec(bytes))
}

/// Why an entry could not be unpacked.
enum Trouble {
    /// It is refused, and the others go on.
    Entry(String),
    /// Unpacking cannot go on.
    All(io::Error),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::All(error)
    }
}

impl From<Errno> for Trouble {
    fn from(error: Errno) -> Self {
        match error {
            Errno::LOOP | Errno::XDEV | Errno::NOTDIR | Errno::EXIST | Errno::ISDIR | Errno::NOTEMPTY => {
                Self::Entry(format!("something else is in its place ({error})"))
            }
            other => Self::All(other.into()),
        }
    }
}

fn refused<T>(reason: &str) -> Result<T, Trouble> {
    Err(Trouble::Entry(reason.to_owned()))
}

struct Unpacking {
    root: OwnedFd,
    /// Permissions of directories, set once nothing more goes into them.
    modes: BTreeMap<PathBuf, u32>,
    done: Unpacked,
}

impl Unpacking {
    /// Unpacks the next entry, or skips a refused one.
    fn next(&mut self, entry: &mut Entry<'_, impl Read>, names: Names) -> io::Result<()> {
        let name = path_of(names.path.unwrap_or_else(|| entry.path_bytes().into_owned()));
        let link = names.link.or_else(|| entry.link_name_bytes().map(Cow::into_owned)).map(path_of);
        match self.entry(entry, &name, link.as_deref()) {
            Err(Trouble::Entry(reason)) => self.refuse(&name, &reason),
            Err(Trouble::All(error)) => {
                return Err(io::Error::new(error.kind(), format!("{}: {error}", shown(&name))));
            }
            Ok(()) => {}
        }
        Ok(())
    }

    fn entry(&mut self, entry: &mut Entry<'_, impl Read>, name: &Path, link: Option<&Path>) -> Result<(), Trouble> {
        let parts = parts(name)?;
        let Some((last, above)) = parts.split_last() else { return Ok(()) };
        let mode = entry.header().mode().unwrap_or(0o644) & 0o777;
        let kind = entry.header().entry_type();
        match kind {
            EntryType::Directory => {
                self.directory(&parts)?;
                self.modes.insert(parts.iter().collect(), mode);
            }
            EntryType::Regular | EntryType::Continuous => {
                let above = self.directory(above)?;
                clear(&above, last)?;
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let mut file = File::from(rustix::fs::openat(&above, last, flags, Mode::from_raw_mode(mode))?);
                io::copy(entry, &mut file)?;
            }
            EntryType::Symlink => {
                let Some(target) = link else { return refused("it leads nowhere") };
                if !stays(target, above.len()) {
                    return refused(&format!("it leads out of the directory, to {}", shown(target)));
                }
                let above = self.directory(above)?;
                clear(&above, last)?;
                rustix::fs::symlinkat(target, &above, last)?;
            }
            EntryType::Link => {
                let Some(target) = link else { return refused("it leads nowhere") };
                self.hard_link(&parts_of_target(target)?, above, last)?;
            }
            _ => return refused("it is a device or a pipe"),
        }
        Ok(())
    }

    fn hard_link(&self, target: &[PathBuf], above: &[PathBuf], last: &Path) -> Result<(), Trouble> {
        let Some((target_last, target_above)) = target.split_last() else { return refused("it leads nowhere") };
        let from = self.open(target_above)?;
        // A link was checked for the depth of its own place; another name for it could be at another depth.
        let is_file = |stat: rustix::fs::Stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if !rustix::fs::statat(&from, target_last, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(is_file) {
            return refused("the file that it is a hard link to is no regular file here");
        }
        let above = self.directory(above)?;
        clear(&above, last)?;
        match rustix::fs::linkat(&from, target_last, &above, last, AtFlags::empty()) {
            // It names itself, and was just removed.
            Err(Errno::NOENT) => refused("the file that it is a hard link to is not there"),
            done => Ok(done?),
        }
    }

    /// The directory of a path; makes missing ones.
    fn directory(&self, parts: &[PathBuf]) -> Result<OwnedFd, Trouble> {
        let mut at = self.root.try_clone()?;
        for part in parts {
            match rustix::fs::mkdirat(&at, part, Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => at = enter(&at, part)?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(at)
    }

    fn open(&self, parts: &[PathBuf]) -> Result<OwnedFd, Trouble> {
        parts.iter().try_fold(self.root.try_clone()?, |at, part| Ok(enter(&at, part)?))
    }

    fn refuse(&mut self, name: &Path, reason: &str) {
        self.done.refused += 1;
        if self.done.reasons.len() < REASONS {
            self.done.reasons.push(format!("{} is left out: {reason}", shown(name)));
        }
    }

    fn finish(self) -> io::Result<Unpacked> {
        // Deeper directories first: a directory may become inaccessible to its owner.
        for (path, mode) in self.modes.iter().rev() {
            let parts: Vec<PathBuf> = path.iter().map(PathBuf::from).collect();
            // A thing that replaced the directory meanwhile keeps its own permissions.
            if let Ok(directory) = self.open(&parts) {
                rustix::fs::fchmod(&directory, Mode::from_raw_mode(*mode))?;
            }
        }
        Ok(self.done)
    }
}

fn enter(at: &impl AsFd, part: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    match rustix::fs::openat2(at, part, flags, Mode::empty(), resolve) {
        // Kernels before 5.6: each part is a single name, and links are not followed either.
        Err(Errno::NOSYS) => rustix::fs::openat(at, part, flags, Mode::empty()),
        done => done,
    }
}

/// Removes what a file or a link replaces; a directory stays, and is in the way.
fn clear(above: &impl AsFd, name: &Path) -> Result<(), Trouble> {
    match rustix::fs::unlinkat(above, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => refused("a directory is in its place"),
        Err(error) => Err(error.into()),
    }
}

/// The names of a path.
fn parts(path: &Path) -> Result<Vec<PathBuf>, Trouble> {
    let mut parts = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => parts.push(name.into()),
            Component::CurDir => {}
            _ => return refused("its path leads out of the directory"),
        }
    }
    if parts.len() > DEEPEST { refused("its path is too deep") } else { Ok(parts) }
}

fn parts_of_target(target: &Path) -> Result<Vec<PathBuf>, Trouble> {
    parts(target).or_else(|_| refused(&format!("it leads out of the directory, to {}", shown(target))))
}

/// Whether the target of a link, which lies in a directory of this depth, stays below the root.
fn stays(target: &Path, depth: usize) -> bool {
    let (mut up, mut down) = (0, false);
    for component in target.components() {
        match component {
            Component::ParentDir if !down => up += 1,
            Component::Normal(_) => down = true,
            Component::CurDir => {}
            _ => return false,
        }
    }
    up <= depth
}

/// A name for a person's terminal: without control characters.
fn shown(path: &Path) -> String {
    path.to_string_lossy().chars().flat_map(char::escape_debug).take(300).collect()
}

#[cfg(test)]
#[path = "unpack_tests.rs"]
mod tests;
