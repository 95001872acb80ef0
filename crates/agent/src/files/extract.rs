//! Unpacks a tar stream beneath a directory.
//!
//! The `tar` crate reads headers. The kernel resolves every path beneath the directory, including links that earlier
//! entries made, like any other path. Names and headers are bounded, whatever sizes they claim.

use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};

use berth_domain::agent::runtime::Extracted;
use bytes::Bytes;
use http::StatusCode;
use rustix::fs::{AtFlags, Mode, OFlags, Timespec, Timestamps};
use rustix::io::Errno;
use tar::{Archive, Entry, EntryType};
use tokio::sync::{mpsc, oneshot};

use crate::body::{Answer, reply};
use crate::call::Call;
use crate::error::{Refusal, Result};
use crate::files::Pool;
use crate::files::beneath::Located;
use crate::files::extended::Extended;
use crate::files::incoming::{AHEAD, In, broken, feed};
use crate::files::upload::write_all;

/// The most directories whose permissions are set at the end.
const MAX_MODES: usize = 100_000;

/// `POST files/extract`.
pub async fn extract(mut call: Call) -> Result<Answer> {
    let path = call.query.text("path").unwrap_or(".").to_owned();
    let (_, worker) = call.acting()?;
    let root = worker.run(move |base| base.locate(&path)?.make(base.root())).await?;
    let (chunks, receiver) = mpsc::channel(AHEAD);
    let (tell, told) = oneshot::channel();
    worker.run_long(move |_, pool| {
        let reader = In { chunks: receiver, current: Bytes::new() };
        drop(tell.send(Extraction { root, pool, modes: Vec::new(), extended: Extended::default() }.run(reader)));
    })?;
    feed(call.body, chunks).await;
    let entries = told.await.unwrap_or_else(|_| Err(Refusal::internal("a worker ended")))?;
    Ok(reply(StatusCode::OK, &Extracted { entries }))
}

struct Extraction<'a> {
    root: OwnedFd,
    pool: &'a Pool,
    /// Permissions of directories, set once nothing more goes into them.
    modes: Vec<(Located, u32)>,
    extended: Extended,
}

impl Extraction<'_> {
    fn run(mut self, reader: In) -> Result<u64> {
        let mut archive = Archive::new(reader);
        let mut count = 0;
        for entry in archive.entries().map_err(broken)?.raw(true) {
            count += u64::from(self.entry(entry.map_err(broken)?)?);
        }
        for (path, mode) in std::mem::take(&mut self.modes).into_iter().rev() {
            let directory = path.open(self.root.as_fd(), OFlags::RDONLY | OFlags::DIRECTORY, 0)?;
            self.pool.pass(|| rustix::fs::fchmod(&directory, Mode::from_raw_mode(mode)))?;
        }
        Ok(count)
    }

    /// Unpacks an entry; returns false if it was only a header of another one.
    fn entry(&mut self, mut entry: Entry<'_, In>) -> Result<bool> {
        if self.extended.take(&mut entry)? {
            return Ok(false);
        }
        let extended = std::mem::take(&mut self.extended);
        let path = relative(&extended.path.unwrap_or_else(|| entry.path_bytes().into_owned()))?;
        // The target directory itself exists.
        if path.shown() != "." {
            let link = extended.link.or_else(|| entry.link_name_bytes().map(std::borrow::Cow::into_owned));
            self.place(&path, link, &mut entry)?;
        }
        Ok(true)
    }

    fn place(&mut self, path: &Located, link: Option<Vec<u8>>, entry: &mut Entry<'_, In>) -> Result<()> {
        let (above, name) = path.split()?;
        let above = self.pool.pass(|| above.make(self.root.as_fd()))?;
        match entry.header().entry_type() {
            EntryType::Regular | EntryType::Continuous => self.file(&above, name, entry),
            EntryType::Directory => self.directory(&above, name, path, entry),
            EntryType::Symlink => {
                let target = link.ok_or_else(|| broken("it has a link without a target"))?;
                self.pool.pass(|| {
                    make_room(&above, name.as_bytes())?;
                    Ok(rustix::fs::symlinkat(target, &above, name)?)
                })
            }
            EntryType::Link => {
                let target = relative(&link.ok_or_else(|| broken("it has a link without a target"))?)?;
                let (target_above, target_name) = target.split()?;
                let flags = OFlags::PATH | OFlags::DIRECTORY;
                let target_above = target_above.open(self.root.as_fd(), flags, 0)?;
                self.pool.pass(|| {
                    make_room(&above, name.as_bytes())?;
                    Ok(rustix::fs::linkat(&target_above, target_name, &above, name, AtFlags::empty())?)
                })
            }
            _ => Err(broken("it has a device, a pipe or an entry of unknown type")),
        }
    }

    fn file(&self, above: &OwnedFd, name: &str, entry: &mut Entry<'_, In>) -> Result<()> {
        let mode = entry.header().mode().map_err(broken)? & 0o7777;
        let file = self.pool.pass(|| {
            make_room(above, name.as_bytes())?;
            create(above, name.as_bytes())
        })?;
        fill(self.pool, &file, entry)?;
        let seconds = entry.header().mtime().ok().and_then(|seconds| i64::try_from(seconds).ok()).unwrap_or(0);
        let time = Timespec { tv_sec: seconds, tv_nsec: 0 };
        self.pool.pass(|| {
            rustix::fs::futimens(&file, &Timestamps { last_access: time, last_modification: time })?;
            Ok(rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?)
        })
    }

    fn directory(&mut self, above: &OwnedFd, name: &str, path: &Located, entry: &Entry<'_, In>) -> Result<()> {
        let mode = entry.header().mode().map_err(broken)? & 0o7777;
        match self.pool.pass(|| rustix::fs::mkdirat(above, name, Mode::from_raw_mode(0o755))) {
            Ok(()) => {}
            Err(Errno::EXIST) => {
                path.open(self.root.as_fd(), OFlags::PATH | OFlags::DIRECTORY, 0)?;
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        }
        if mode != 0o755 && self.modes.len() < MAX_MODES {
            self.modes.push((path.clone(), mode));
        }
        Ok(())
    }
}

/// Removes what a file or a link replaces; a directory stays, and is in the way.
pub fn make_room(above: &OwnedFd, name: &[u8]) -> Result<()> {
    match rustix::fs::unlinkat(above, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Makes a file where nothing is, for now readable by its owner alone.
pub fn create(above: &OwnedFd, name: &[u8]) -> Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(above, name, flags, Mode::from_raw_mode(0o600))?)
}

/// Writes the content of an entry into a file.
pub fn fill(pool: &Pool, file: &OwnedFd, entry: &mut Entry<'_, In>) -> Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let n = entry.read(&mut buffer).map_err(broken)?;
        if n == 0 {
            return Ok(());
        }
        pool.pass(|| write_all(file, &buffer[..n]))?;
    }
}

fn relative(bytes: &[u8]) -> Result<Located> {
    let text = std::str::from_utf8(bytes).map_err(|_| broken("it has a name that is not UTF-8"))?;
    Located::parse_required(text)
}
