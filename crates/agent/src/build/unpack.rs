//! Unpacks a layer or a copy onto the disk.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use berth_domain::agent::control::Unpacked;
use bytes::Bytes;
use http::StatusCode;
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use tar::{Archive, Entry, EntryType};
use tokio::sync::mpsc;

use super::remove::{clear, remove};
use super::root::{Root, parts};
use crate::agent::Agent;
use crate::body::{Answer, reply};
use crate::call::Call;
use crate::error::{Refusal, Result};
use crate::files::Pool;
use crate::files::extended::Extended;
use crate::files::extract::{create, fill, make_room};
use crate::files::incoming::{AHEAD, In, broken, feed};

/// The most directories whose times are set at the end.
const MAX_TIMES: usize = 100_000;
/// Prefix of a whiteout: an entry that removes another.
const WHITEOUT: &[u8] = b".wh.";
/// Removes everything that earlier layers put into the directory.
const OPAQUE: &[u8] = b".wh..wh..opq";

/// `POST /control/unpack`.
pub async fn unpack(mut call: Call) -> Result<Answer> {
    let path = call.query.text("path").unwrap_or("/").to_owned();
    let keep = call.query.flag("keep");
    let mode = call.query.mode("mode");
    let owner = call.query.text("owner").map(ToOwned::to_owned);
    call.query.finish()?;
    let agent = call.agent.clone();
    let (chunks, receiver) = mpsc::channel(AHEAD);
    let work = move || {
        let mut unpacking = Unpacking::new(&agent, path, keep, owner.as_deref(), mode)?;
        unpacking.run(In { chunks: receiver, current: Bytes::new() })?;
        Ok::<_, Refusal>(unpacking.done)
    };
    let worker = tokio::task::spawn_blocking(work);
    feed(call.body, chunks).await;
    Ok(reply(StatusCode::OK, &worker.await.map_err(Refusal::internal)??))
}

/// The properties to give an entry.
struct Looks {
    uid: u32,
    gid: u32,
    mode: u32,
    mtime: i64,
    attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

struct Unpacking {
    root: Root,
    pool: Arc<Pool>,
    base: Vec<u8>,
    keep: bool,
    owner: Option<(u32, u32)>,
    mode: Option<u32>,
    /// Whether the agent may change owners.
    privileged: bool,
    /// Hashes of the paths of this layer: its own whiteouts do not remove them.
    own: HashSet<u64>,
    hasher: RandomState,
    times: Vec<(Vec<u8>, i64)>,
    extended: Extended,
    done: Unpacked,
}

impl Unpacking {
    fn new(agent: &Agent, base: String, keep: bool, owner: Option<&str>, mode: Option<u32>) -> Result<Self> {
        let root = Root::of(agent)?;
        let owner = owner.map(|owner| root.account(owner)).transpose()?.map(|account| (account.uid, account.gid));
        Ok(Self {
            root,
            pool: agent.pool.clone(),
            base: base.into_bytes(),
            keep,
            owner,
            mode,
            privileged: rustix::process::geteuid().is_root(),
            own: HashSet::new(),
            hasher: RandomState::new(),
            times: Vec::new(),
            extended: Extended::default(),
            done: Unpacked::default(),
        })
    }

    fn run(&mut self, reader: In) -> Result<()> {
        let pool = self.pool.clone();
        let base = self.base.clone();
        pool.pass(|| self.parent(&base)).map_err(|failure| match failure {
            Failure::Elsewhere => Refusal::path("The path leads onto another file system."),
            Failure::Refused(refusal) => refusal,
        })?;
        let mut archive = Archive::new(reader);
        for entry in archive.entries().map_err(broken)?.raw(true) {
            self.entry(entry.map_err(broken)?)?;
        }
        for (path, mtime) in std::mem::take(&mut self.times).into_iter().rev() {
            let Ok(directory) = self.root.open(&path, OFlags::RDONLY | OFlags::DIRECTORY) else { continue };
            pool.pass(|| rustix::fs::futimens(&directory, &times(mtime)))?;
        }
        Ok(())
    }

    fn entry(&mut self, mut entry: Entry<'_, In>) -> Result<()> {
        if self.extended.take(&mut entry)? {
            return Ok(());
        }
        let extended = std::mem::take(&mut self.extended);
        match self.place(extended, &mut entry) {
            Ok(true) => self.done.entries += 1,
            // A file system mounted there is no part of the disk.
            Ok(false) | Err(Failure::Elsewhere) => self.done.skipped += 1,
            Err(Failure::Refused(refusal)) => return Err(refusal),
        }
        Ok(())
    }

    /// Puts an entry in its place; returns whether it did, or skipped it.
    fn place(&mut self, extended: Extended, entry: &mut Entry<'_, In>) -> Result<bool, Failure> {
        let named = extended.path.clone().unwrap_or_else(|| entry.path_bytes().into_owned());
        let path = self.path(&named)?;
        let Some((above_path, name)) = split(&path) else { return Ok(false) };
        let pool = self.pool.clone();
        let above = pool.pass(|| self.parent(above_path))?;
        if !self.keep && name.starts_with(WHITEOUT) {
            return Ok(pool.pass(|| self.take_away(&above, above_path, name)).map(|()| true)?);
        }
        self.remember(&path);
        let looks = self.looks(&extended, entry);
        match entry.header().entry_type() {
            EntryType::Regular | EntryType::Continuous => self.file(&above, name, &looks, entry)?,
            EntryType::Directory => pool.pass(|| self.directory(&above, name, &path, &looks))?,
            EntryType::Symlink => {
                let target = extended.link.or_else(|| entry.link_name_bytes().map(std::borrow::Cow::into_owned));
                let target = target.ok_or_else(|| broken("it has a link without a target"))?;
                pool.pass(|| self.symlink(&above, name, &target, &looks))?;
            }
            EntryType::Link => {
                let target = extended.link.or_else(|| entry.link_name_bytes().map(std::borrow::Cow::into_owned));
                let target = self.path(&target.ok_or_else(|| broken("it has a link without a target"))?)?;
                pool.pass(|| self.link(&above, name, &target))?;
            }
            // Devices and pipes come from the kernel, not from an image.
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The path of a name, from the root; no honest archive has a `..` in a name.
    fn path(&self, name: &[u8]) -> Result<Vec<u8>> {
        if parts(name).any(|part| part == b"..") || name.contains(&0) {
            let name = String::from_utf8_lossy(name);
            return Err(broken(format!("it has an entry {name:?}, which would lead elsewhere")));
        }
        let all = parts(&self.base).chain(parts(name)).collect::<Vec<_>>();
        Ok(all.join(&b'/'))
    }

    fn looks(&self, extended: &Extended, entry: &Entry<'_, In>) -> Looks {
        let header = entry.header();
        let number = |value: std::io::Result<u64>| value.ok().and_then(|id| u32::try_from(id).ok()).unwrap_or(0);
        let (uid, gid) = self.owner.unwrap_or_else(|| {
            let uid = extended.uid.unwrap_or_else(|| number(header.uid()));
            (uid, extended.gid.unwrap_or_else(|| number(header.gid())))
        });
        let mode = self.mode.unwrap_or_else(|| header.mode().unwrap_or(0o644) & 0o7777);
        let seconds = header.mtime().ok().and_then(|seconds| i64::try_from(seconds).ok());
        let mtime = extended.mtime.or(seconds).unwrap_or(0);
        Looks { uid, gid, mode, mtime, attributes: extended.attributes.clone() }
    }

    /// Opens a directory, and makes it if it is missing.
    fn parent(&self, path: &[u8]) -> Result<OwnedFd, Failure> {
        let own = |made: &OwnedFd| match self.owner {
            Some((uid, gid)) if self.privileged => Ok(chown(made, b"", uid, gid)?),
            _ => Ok(()),
        };
        match self.root.make(path, &mut { own }) {
            Err(_) if self.is_elsewhere(path) => Err(Failure::Elsewhere),
            other => Ok(other?),
        }
    }

    /// Whether a path leads onto another file system.
    fn is_elsewhere(&self, path: &[u8]) -> bool {
        self.root.open(path, OFlags::PATH).is_err_and(|error| error == Errno::XDEV)
    }

    fn digest(&self, path: &[u8]) -> u64 {
        self.hasher.hash_one(path)
    }

    /// Notes that a path and its parents belong to this layer.
    fn remember(&mut self, path: &[u8]) {
        if self.keep {
            return;
        }
        let mut path = path;
        while self.own.insert(self.digest(path)) {
            match split(path) {
                Some((above, _)) => path = above,
                None => break,
            }
        }
    }

    fn take_away(&self, above: &OwnedFd, path: &[u8], name: &[u8]) -> Result<()> {
        if name == OPAQUE {
            let directory = self.root.open(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
            return clear(&directory, path, &|below| self.own.contains(&self.digest(below)));
        }
        let name = &name[WHITEOUT.len()..];
        // Other names of this form are internal notes of union file systems.
        if name.is_empty() || name.starts_with(WHITEOUT) || matches!(name, b"." | b"..") {
            return Ok(());
        }
        let whole = [path, if path.is_empty() { b"" } else { b"/" }, name].concat();
        if self.own.contains(&self.digest(&whole)) {
            return Ok(());
        }
        remove(above.as_fd(), name)
    }

    /// Removes what is in the way of an entry that is no directory.
    fn make_room(&self, above: &OwnedFd, name: &[u8]) -> Result<()> {
        if self.keep { make_room(above, name) } else { remove(above.as_fd(), name) }
    }

    fn file(&self, above: &OwnedFd, name: &[u8], looks: &Looks, entry: &mut Entry<'_, In>) -> Result<()> {
        let file = self.pool.pass(|| {
            self.make_room(above, name)?;
            create(above, name)
        })?;
        fill(&self.pool, &file, entry)?;
        self.pool.pass(|| {
            self.settle(&file, looks)?;
            Ok(rustix::fs::futimens(&file, &times(looks.mtime))?)
        })
    }

    /// Sets the owner first: changing it removes special permissions and attributes.
    fn settle(&self, file: &OwnedFd, looks: &Looks) -> Result<()> {
        if self.privileged {
            rustix::fs::fchown(file, Some(Uid::from_raw(looks.uid)), Some(Gid::from_raw(looks.gid)))?;
        }
        rustix::fs::fchmod(file, Mode::from_raw_mode(looks.mode))?;
        for (name, value) in &looks.attributes {
            match rustix::fs::fsetxattr(file, name.as_slice(), value, XattrFlags::empty()) {
                // Some file systems have no attributes, and some accounts may not set them.
                Ok(()) | Err(Errno::OPNOTSUPP | Errno::PERM) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn directory(&mut self, above: &OwnedFd, name: &[u8], path: &[u8], looks: &Looks) -> Result<(), Failure> {
        let there = rustix::fs::statat(above, name, AtFlags::SYMLINK_NOFOLLOW).ok();
        let kind = there.map(|stat| FileType::from_raw_mode(stat.st_mode));
        let led_to = || self.root.open(path, OFlags::PATH | OFlags::DIRECTORY);
        match kind {
            Some(FileType::Directory) if self.keep => return Ok(()),
            Some(FileType::Directory) => {}
            // A copy follows a link to a directory.
            Some(FileType::Symlink) if self.keep && led_to().is_ok() => return Ok(()),
            Some(_) if self.keep => return Err(Refusal::from(Errno::NOTDIR).into()),
            Some(_) => {
                remove(above.as_fd(), name)?;
                rustix::fs::mkdirat(above, name, Mode::from_raw_mode(0o700))?;
            }
            None => rustix::fs::mkdirat(above, name, Mode::from_raw_mode(0o700))?,
        }
        let directory = match self.root.open(path, OFlags::RDONLY | OFlags::DIRECTORY) {
            Err(Errno::XDEV) => return Err(Failure::Elsewhere),
            other => other?,
        };
        self.settle(&directory, looks)?;
        if self.times.len() < MAX_TIMES {
            self.times.push((path.to_vec(), looks.mtime));
        }
        Ok(())
    }

    fn symlink(&self, above: &OwnedFd, name: &[u8], target: &[u8], looks: &Looks) -> Result<()> {
        self.make_room(above, name)?;
        rustix::fs::symlinkat(target, above, name)?;
        if self.privileged {
            chown(above, name, looks.uid, looks.gid)?;
        }
        Ok(rustix::fs::utimensat(above, name, &times(looks.mtime), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn link(&self, above: &OwnedFd, name: &[u8], target: &[u8]) -> Result<()> {
        let Some((target_above, target_name)) = split(target) else {
            return Err(broken("it has a link to the root"));
        };
        let target_above = self.root.open(target_above, OFlags::PATH | OFlags::DIRECTORY)?;
        if is_same((above, name), (&target_above, target_name)) {
            return Ok(());
        }
        self.make_room(above, name)?;
        Ok(rustix::fs::linkat(&target_above, target_name, above, name, AtFlags::empty())?)
    }
}

/// Whether two names are already the same file, as where `bin` leads to `usr/bin`.
fn is_same(one: (&OwnedFd, &[u8]), other: (&OwnedFd, &[u8])) -> bool {
    let file = |(above, name): (&OwnedFd, &[u8])| {
        let found = rustix::fs::statat(above, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Some((found.st_dev, found.st_ino))
    };
    file(one).is_some_and(|found| file(other) == Some(found))
}

/// Why an entry was not put in its place.
enum Failure {
    /// It belongs on another file system.
    Elsewhere,
    Refused(Refusal),
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self::Refused(errno.into())
    }
}

/// The directory of a path and the name in it; none of the root.
fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    if path.is_empty() {
        return None;
    }
    let slash = path.iter().rposition(|byte| *byte == b'/');
    Some(slash.map_or((&b""[..], path), |at| (&path[..at], &path[at + 1..])))
}

fn chown(directory: &OwnedFd, name: &[u8], uid: u32, gid: u32) -> rustix::io::Result<()> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
    rustix::fs::chownat(directory, name, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)), flags)
}

fn times(seconds: i64) -> Timestamps {
    let time = Timespec { tv_sec: seconds, tv_nsec: 0 };
    Timestamps { last_access: time, last_modification: time }
}
