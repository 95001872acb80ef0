//! What a copy takes from the disk, as an archive.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use berth_domain::agent::control::Pack;
use berth_domain::agent::error::code;
use berth_domain::fields::{Fields, boolean, text};
use berth_domain::sandbox::dockerfile::pattern::Pattern;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use serde_json::Value;
use tar::{Builder, EntryType};

use super::root::Root;
use crate::body::Answer;
use crate::error::{Refusal, Result};
use crate::files::archive::{Out, file, header, packing};
use crate::server::Call;

/// How deep a tree may be.
const MAX_DEPTH: usize = 256;
const MAX_SOURCES: usize = 1000;
/// Paths that patterns may stand for.
const MAX_FOUND: usize = 100_000;

/// `POST /control/pack`.
pub async fn pack(call: Call) -> Result<Answer> {
    let agent = call.agent.clone();
    let wanted = parse(&call.json().await?)?;
    let look = move || {
        let root = Root::of(&agent)?;
        find(&root, &wanted)
    };
    let found = tokio::task::spawn_blocking(look).await.map_err(Refusal::internal)??;
    let (packing, answer) = packing();
    tokio::task::spawn_blocking(move || {
        packing.run(|out| found.into_iter().try_for_each(|taken| taken.write(out)));
    });
    Ok(answer)
}

fn parse(body: &Value) -> Result<Pack> {
    let mut fields = Fields::of(body);
    let sources = fields.list("sources", MAX_SOURCES, |value| text(value).map(ToOwned::to_owned)).unwrap_or_default();
    let to = fields.required("to", |value| match text(value)? {
        path if path.starts_with('/') => Ok(path.to_owned()),
        _ => Err("must be an absolute path".to_owned()),
    });
    let into = fields.required("into", boolean).unwrap_or_default();
    Ok(fields.finish(to.map(|to| Pack { sources, to, into }))?)
}

/// Something that is taken, and where it goes.
struct Taken {
    handle: OwnedFd,
    to: PathBuf,
}

fn find(root: &Root, wanted: &Pack) -> Result<Vec<Taken>> {
    let to = Path::new(wanted.to.trim_matches('/'));
    let into = wanted.into || to.as_os_str().is_empty();
    let (mut taken, mut files) = (Vec::new(), 0);
    for source in &wanted.sources {
        let missing = || Refusal::not_found(format!("There is no '{source}' to copy from; check its path."));
        let pattern = Pattern::parse(source).map_err(|message| Refusal::field("sources", message))?;
        let paths = match pattern.literal() {
            Some(path) => vec![path],
            None => matching(root, &pattern)?,
        };
        if paths.is_empty() {
            return Err(missing());
        }
        for path in paths {
            let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
            let handle = match root.open(path.as_bytes(), flags) {
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Err(missing()),
                other => other?,
            };
            let kind = FileType::from_raw_mode(rustix::fs::fstat(&handle)?.st_mode);
            let name = Path::new(&path).file_name().unwrap_or_default();
            let to = if into && kind != FileType::Directory { to.join(name) } else { to.to_owned() };
            files += usize::from(kind != FileType::Directory);
            taken.push(Taken { handle, to });
        }
    }
    if files > 1 && !into {
        let message = format!("Several files are copied to one; write '{}/', so that it is a directory.", wanted.to);
        return Err(Refusal::field("to", message));
    }
    Ok(taken)
}

/// The paths that a pattern stands for, in the order of their names.
fn matching(root: &Root, pattern: &Pattern) -> Result<Vec<String>> {
    let (start, depth) = pattern.within();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let Ok(directory) = root.open(start.as_bytes(), flags) else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    walk(&directory, &start, depth.unwrap_or(MAX_DEPTH), pattern, &mut found)?;
    found.sort();
    Ok(found)
}

fn walk(directory: &OwnedFd, path: &str, depth: usize, pattern: &Pattern, found: &mut Vec<String>) -> Result<()> {
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let bytes = entry.file_name().to_bytes();
        // Patterns are text, and stand for names that are.
        let Some(name) = std::str::from_utf8(bytes).ok().filter(|name| !matches!(*name, "." | "..")) else { continue };
        let below = if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") };
        if pattern.matches(&below) {
            if found.len() == MAX_FOUND {
                return Err(Refusal::new(code::TOO_MANY, format!("A pattern stands for more than {MAX_FOUND} files.")));
            }
            found.push(below.clone());
        }
        if depth > 1
            && let Ok(inner) = enter(directory, bytes, OFlags::DIRECTORY)
        {
            walk(&inner, &below, depth - 1, pattern, found)?;
        }
    }
    Ok(())
}

/// Opens what a directory holds, unless it is a link or on another file system.
fn enter(directory: &OwnedFd, name: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    rustix::fs::openat2(directory, name, flags, Mode::empty(), resolve)
}

impl Taken {
    fn write(self, out: &mut Builder<Out>) -> io::Result<()> {
        let stat = rustix::fs::fstat(&self.handle)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                if !self.to.as_os_str().is_empty() {
                    let mut header = header(&stat, EntryType::Directory, 0);
                    out.append_data(&mut header, &self.to, io::empty())?;
                }
                content(out, &self.handle, &self.to, 0)
            }
            FileType::RegularFile => file(out, self.handle, &stat, &self.to),
            _ => Ok(()),
        }
    }
}

fn content(out: &mut Builder<Out>, directory: &OwnedFd, to: &Path, depth: usize) -> io::Result<()> {
    if depth >= MAX_DEPTH {
        return Err(io::Error::other("the tree is too deep"));
    }
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        let stat = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let to = to.join(OsStr::from_bytes(name));
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => match enter(directory, name, OFlags::empty()) {
                Ok(handle) => file(out, handle, &stat, &to)?,
                Err(Errno::XDEV) => {}
                Err(error) => return Err(error.into()),
            },
            FileType::Directory => match enter(directory, name, OFlags::DIRECTORY) {
                Ok(handle) => {
                    let mut header = header(&stat, EntryType::Directory, 0);
                    out.append_data(&mut header, &to, io::empty())?;
                    content(out, &handle, &to, depth + 1)?;
                }
                // What is mounted there is no part of the disk.
                Err(Errno::XDEV) => {}
                Err(error) => return Err(error.into()),
            },
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(directory, name, Vec::new())?;
                let mut header = header(&stat, EntryType::Symlink, 0);
                out.append_link(&mut header, &to, OsStr::from_bytes(target.to_bytes()))?;
            }
            _ => {}
        }
    }
    Ok(())
}
