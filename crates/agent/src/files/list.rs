//! Describes entries: a single one, or those of a directory.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use berth_domain::agent::runtime::{Entry, Exists, Listing};
use http::StatusCode;
use rustix::fs::{AtFlags, Dir, FileType, OFlags, Stat};
use rustix::io::Errno;
use rustix::time::Timespec;

use crate::body::{Answer, reply};
use crate::call::Call;
use crate::clock;
use crate::error::Result;
use crate::files::Base;
use crate::files::beneath::{Located, join, open};
use crate::files::details::Details;
use crate::files::stat::{Names, kind, mode};

/// The most entries of one answer.
const MAX_ENTRIES: u64 = 100_000;
const MAX_DEPTH: u64 = 64;

/// `GET files/list`.
pub async fn list(mut call: Call) -> Result<Answer> {
    let path = call.query.text("path").unwrap_or(".").to_owned();
    let depth = call.query.number("depth", 1..=MAX_DEPTH, 1);
    let limit = call.query.number("limit", 1..=MAX_ENTRIES, 10_000);
    let details = call.query.flag("details");
    let (_, worker) = call.acting()?;
    let work = move |base: &Base| Walk::run(base, &base.locate(&path)?, depth, limit, details);
    Ok(reply(StatusCode::OK, &worker.run(work).await?))
}

/// `GET files/stat`: describes a link itself, not its target.
pub async fn stat(mut call: Call) -> Result<Answer> {
    let path = call.query.required("path");
    let details = call.query.flag("details");
    let (_, worker) = call.acting()?;
    let work = move |base: &Base| describe(base, &base.locate_required(&path)?, details);
    Ok(reply(StatusCode::OK, &worker.run(work).await?))
}

/// `GET files/exists`: true also for a link that leads nowhere.
pub async fn exists(mut call: Call) -> Result<Answer> {
    let path = call.query.required("path");
    let (_, worker) = call.acting()?;
    let work = move |base: &Base| match base.open(&base.locate_required(&path)?, OFlags::PATH | OFlags::NOFOLLOW) {
        Ok(_) => Ok(true),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
        Err(error) => Err(error.into()),
    };
    let exists = worker.run(work).await?;
    Ok(reply(StatusCode::OK, &Exists { exists }))
}

/// The entry at a path; does not follow a link at its end.
pub fn entry_at(base: &Base, path: &Located) -> Result<Entry> {
    describe(base, path, false)
}

fn describe(base: &Base, path: &Located, details: bool) -> Result<Entry> {
    let file = base.open(path, OFlags::PATH | OFlags::NOFOLLOW)?;
    let stat = rustix::fs::fstat(&file)?;
    let target = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Symlink => rustix::fs::readlinkat(&file, "", Vec::new()).ok(),
        _ => None,
    };
    let target = target.map(|target| target.to_string_lossy().into_owned());
    let mut entry = entry(path.shown(), &stat, target, &Names::read("/etc/passwd"));
    if details {
        Details::read().add(base, &mut entry, &stat, Some(&file), Some(path));
    }
    Ok(entry)
}

fn entry(path: String, stat: &Stat, target: Option<String>, owners: &Names) -> Entry {
    let modified = Timespec { tv_sec: stat.st_mtime, tv_nsec: stat.st_mtime_nsec.cast_signed() };
    let name = if path == "/" { "/" } else { path.rsplit('/').next().unwrap_or_default() };
    Entry {
        name: name.to_owned(),
        kind: kind(stat),
        size: stat.st_size.unsigned_abs(),
        mode: mode(stat),
        owner: owners.name(stat.st_uid),
        modified_at: clock::of(modified).to_string(),
        target,
        group: None,
        resolved: None,
        attributes: None,
        path,
    }
}

/// A walk through a directory. It never follows a link, and descends by handles of directories.
struct Walk<'a> {
    base: &'a Base,
    owners: Names,
    details: Option<Details>,
    data: Vec<Entry>,
    limit: usize,
    truncated: bool,
}

impl<'a> Walk<'a> {
    fn run(base: &'a Base, path: &Located, depth: u64, limit: u64, details: bool) -> Result<Listing> {
        let root = base.open(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let (owners, details) = (Names::read("/etc/passwd"), details.then(Details::read));
        let mut walk = Self { base, owners, details, data: Vec::new(), limit, truncated: false };
        walk.directory(root, &path.shown(), depth)?;
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
            let shown = join(path, &String::from_utf8_lossy(&name));
            let target = target.map(|t| t.to_string_lossy().into_owned());
            let mut entry = entry(shown.clone(), &stat, target, &self.owners);
            if let Some(details) = &self.details {
                details.add_in(self.base, &mut entry, &stat, &directory, &name);
            }
            self.data.push(entry);
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
