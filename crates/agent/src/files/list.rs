//! Describes entries: a single one, or those of a directory.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use berth_domain::agent::runtime::{Entry, EntryType, Exists, Listing};
use http::StatusCode;
use rustix::fs::{AtFlags, Dir, FileType, OFlags, Stat};
use rustix::io::Errno;
use rustix::time::Timespec;

use crate::accounts;
use crate::body::{Answer, reply};
use crate::call::Call;
use crate::clock;
use crate::error::Result;
use crate::files::beneath::{Relative, open};
use crate::place::Place;

/// The most entries of one answer.
const MAX_ENTRIES: u64 = 100_000;
const MAX_DEPTH: u64 = 64;

/// Names of owners, read once per answer.
pub struct Owners(HashMap<u32, String>);

impl Owners {
    /// Reads them.
    pub fn read() -> Self {
        let passwd = accounts::read(Path::new("/etc/passwd")).unwrap_or_default();
        // If several names have one number, the first counts.
        let mut owners = HashMap::new();
        for (name, uid) in accounts::names(&passwd) {
            owners.entry(uid).or_insert_with(|| name.to_owned());
        }
        Self(owners)
    }

    fn name(&self, uid: u32) -> String {
        self.0.get(&uid).cloned().unwrap_or_else(|| uid.to_string())
    }
}

/// `GET files/list`.
pub async fn list(mut call: Call) -> Result<Answer> {
    let path = call.query.text("path").unwrap_or(".").to_owned();
    let depth = call.query.number("depth", 1..=MAX_DEPTH, 1);
    let limit = call.query.number("limit", 1..=MAX_ENTRIES, 10_000);
    call.query.finish()?;
    let work = move |place: &Place| Walk::run(place, &Relative::parse(&path)?, depth, limit);
    let listing = call.agent.pool.run(call.agent.place()?, work).await?;
    Ok(reply(StatusCode::OK, &listing))
}

/// `GET files/stat`: describes a link itself, not its target.
pub async fn stat(mut call: Call) -> Result<Answer> {
    let path = call.query.required("path");
    call.query.finish()?;
    let work = move |place: &Place| entry_at(place, &Relative::parse_required(&path)?);
    let entry = call.agent.pool.run(call.agent.place()?, work).await?;
    Ok(reply(StatusCode::OK, &entry))
}

/// `GET files/exists`: true also for a link that leads nowhere.
pub async fn exists(mut call: Call) -> Result<Answer> {
    let path = call.query.required("path");
    call.query.finish()?;
    let work = move |place: &Place| {
        let path = Relative::parse_required(&path)?;
        match open(place.root.as_fd(), path.as_str(), OFlags::PATH | OFlags::NOFOLLOW, 0) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    };
    let exists = call.agent.pool.run(call.agent.place()?, work).await?;
    Ok(reply(StatusCode::OK, &Exists { exists }))
}

/// The entry at a path; does not follow a link at its end.
pub fn entry_at(place: &Place, path: &Relative) -> Result<Entry> {
    let file = open(place.root.as_fd(), path.as_str(), OFlags::PATH | OFlags::NOFOLLOW, 0)?;
    let stat = rustix::fs::fstat(&file)?;
    let target = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Symlink => rustix::fs::readlinkat(&file, "", Vec::new()).ok(),
        _ => None,
    };
    Ok(entry(path.shown(), &stat, target.map(|t| t.to_string_lossy().into_owned()), &Owners::read()))
}

fn entry(path: String, stat: &Stat, target: Option<String>, owners: &Owners) -> Entry {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => EntryType::File,
        FileType::Directory => EntryType::Directory,
        FileType::Symlink => EntryType::Symlink,
        _ => EntryType::Other,
    };
    let modified = Timespec { tv_sec: stat.st_mtime, tv_nsec: stat.st_mtime_nsec.cast_signed() };
    Entry {
        name: path.rsplit('/').next().unwrap_or_default().to_owned(),
        path,
        kind,
        size: stat.st_size.unsigned_abs(),
        mode: format!("{:04o}", stat.st_mode & 0o7777),
        owner: owners.name(stat.st_uid),
        modified_at: clock::of(modified).to_string(),
        target,
    }
}

/// A walk through a directory. It never follows a link, and descends by handles of directories.
struct Walk {
    owners: Owners,
    data: Vec<Entry>,
    limit: usize,
    truncated: bool,
}

impl Walk {
    fn run(place: &Place, path: &Relative, depth: u64, limit: u64) -> Result<Listing> {
        let root = open(place.root.as_fd(), path.as_str(), OFlags::RDONLY | OFlags::DIRECTORY, 0)?;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let mut walk = Self { owners: Owners::read(), data: Vec::new(), limit, truncated: false };
        let shown = path.shown();
        walk.directory(root, if shown == "." { "" } else { &shown }, depth)?;
        Ok(Listing { data: walk.data, truncated: walk.truncated })
    }

    fn directory(&mut self, directory: OwnedFd, path: &str, depth: u64) -> Result<()> {
        for name in self.names(directory.as_fd())? {
            if self.data.len() >= self.limit {
                self.truncated = true;
                return Ok(());
            }
            // An entry that vanished meanwhile is left out.
            let Ok(stat) = rustix::fs::statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            let kind = FileType::from_raw_mode(stat.st_mode);
            let target = match kind {
                FileType::Symlink => rustix::fs::readlinkat(&directory, &name, Vec::new()).ok(),
                _ => None,
            };
            let shown = String::from_utf8_lossy(&name).into_owned();
            let shown = if path.is_empty() { shown } else { format!("{path}/{shown}") };
            let target = target.map(|t| t.to_string_lossy().into_owned());
            self.data.push(entry(shown.clone(), &stat, target, &self.owners));
            if kind == FileType::Directory && depth > 1 {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
                // A directory that the user may not read is listed without its content.
                if let Ok(below) = open(directory.as_fd(), &name_text(&name), flags, 0) {
                    self.directory(below, &shown, depth - 1)?;
                }
            }
        }
        Ok(())
    }

    /// Sorted names in a directory, no more than could be needed.
    fn names(&mut self, directory: BorrowedFd<'_>) -> Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        for found in Dir::read_from(directory)? {
            let name = found?.file_name().to_bytes().to_vec();
            if matches!(name.as_slice(), b"." | b"..") {
                continue;
            }
            if names.len() >= usize::try_from(MAX_ENTRIES).unwrap_or(usize::MAX) {
                self.truncated = true;
                break;
            }
            names.push(name);
        }
        names.sort_unstable();
        Ok(names)
    }
}

/// A name as text; one that is not UTF-8 then names no file.
fn name_text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}
