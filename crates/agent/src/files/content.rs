//! The bytes of a file.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use berth_domain::agent::error::code;
use berth_domain::agent::runtime::Entry;
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use http_body_util::BodyExt;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::agent::Agent;
use crate::body::{Answer, Body, placed, typed};
use crate::call::Call;
use crate::error::{Refusal, Result};
use crate::events::{Feed, Feeding};
use crate::files::beneath::{Relative, make_parents, open};
use crate::files::list::entry_at;
use crate::files::range::{Range, Wanted};
use crate::place::Place;

/// Bytes of one read and one write.
const CHUNK: usize = 256 * 1024;
/// Links that may follow each other at the end of a path to write.
const MAX_LINKS: usize = 40;

/// `GET files/content`.
pub async fn read(mut call: Call) -> Result<Answer> {
    let path = call.query.required("path");
    call.query.finish()?;
    let wanted = Wanted::parse(call.headers.get(header::RANGE).and_then(|value| value.to_str().ok()));
    let open = move |place: &Place| begin(open_file(place, &Relative::parse_required(&path)?)?, wanted);
    let Begun { file, size, range, first } = call.agent.pool.run(call.agent.place()?, open).await?;
    let status = if range.partial { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
    let feed = Reading { agent: call.agent.clone(), file: Arc::new(file), first, next: range.start, end: range.end };
    let mut answer = typed(status, "application/octet-stream", Body::Chunks(Box::pin(Feeding::new(feed))));
    answer.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(range.end - range.start));
    answer.headers_mut().insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    if let Some(value) = range.content_range(size).and_then(|text| HeaderValue::try_from(text).ok()) {
        answer.headers_mut().insert(header::CONTENT_RANGE, value);
    }
    Ok(answer)
}

/// A file being read: its size, the range to send, and the first chunk of it.
///
/// The agent reads the first chunk before it tells the size: a small file that a writer truncates meanwhile is then as
/// long as what was read of it. Only a larger file breaks off where it became shorter.
struct Begun {
    file: OwnedFd,
    size: u64,
    range: Range,
    first: Bytes,
}

fn begin(file: OwnedFd, wanted: Wanted) -> Result<Begun> {
    let size = rustix::fs::fstat(&file)?.st_size.unsigned_abs();
    let range = wanted.within(size).ok_or_else(|| out_of_range(size))?;
    let first = read_chunk(&file, range.start, range.end)?;
    let met = range.start + first.len() as u64;
    if met >= range.end.min(range.start + CHUNK as u64) {
        return Ok(Begun { file, size, range, first });
    }
    if first.is_empty() && range.partial {
        return Err(out_of_range(rustix::fs::fstat(&file)?.st_size.unsigned_abs().min(range.start)));
    }
    Ok(Begun { file, size: met, range: Range { end: met, ..range }, first })
}

fn out_of_range(size: u64) -> Refusal {
    let message = format!("The file has {size} bytes; ask for one range within them, like bytes=0-99.");
    Refusal::new(code::RANGE_NOT_SATISFIABLE, message).with(header::CONTENT_RANGE, format!("bytes */{size}"))
}

/// The bytes from `start` to `end`, at most a chunk; less only where the file ends before.
fn read_chunk(file: &OwnedFd, start: u64, end: u64) -> io::Result<Bytes> {
    let wanted = usize::try_from(end.saturating_sub(start)).unwrap_or(CHUNK).min(CHUNK);
    let mut buffer = vec![0; wanted];
    let mut filled = 0;
    while filled < wanted {
        match rustix::io::pread(file, &mut buffer[filled..], start + filled as u64) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    buffer.truncate(filled);
    Ok(buffer.into())
}

fn open_file(place: &Place, path: &Relative) -> Result<OwnedFd> {
    // So as not to wait for the other end of a pipe.
    let file = open(place.root.as_fd(), path.as_str(), OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY, 0)?;
    match FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) {
        FileType::RegularFile => Ok(file),
        FileType::Directory => Err(Errno::ISDIR.into()),
        _ => Err(Refusal::new(code::CONFLICT, "There is no regular file at this path.")),
    }
}

struct Reading {
    agent: Arc<Agent>,
    file: Arc<OwnedFd>,
    /// The chunk that was read before the answer began.
    first: Bytes,
    next: u64,
    end: u64,
}

impl Feed for Reading {
    const KEEP_ALIVE: Option<Duration> = None;

    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        if self.next >= self.end {
            return None;
        }
        let first = std::mem::take(&mut self.first);
        if !first.is_empty() {
            self.next += first.len() as u64;
            return Some(Ok(first));
        }
        let (file, start, end) = (self.file.clone(), self.next, self.end);
        let work = move |_: &Place| Ok(read_chunk(&file, start, end)?);
        let place = self.agent.place.get()?;
        match self.agent.pool.run(place, work).await {
            Ok(bytes) if bytes.is_empty() => Some(Err(io::Error::other("the file became shorter"))),
            Ok(bytes) => {
                self.next += bytes.len() as u64;
                Some(Ok(bytes))
            }
            Err(refusal) => {
                self.next = self.end;
                Some(Err(io::Error::other(refusal.message)))
            }
        }
    }
}

/// `PUT files/content`.
pub async fn write(mut call: Call) -> Result<Answer> {
    let path = call.query.required("path");
    let mode = call.query.mode("mode");
    call.query.finish()?;
    let (agent, place) = (call.agent.clone(), call.agent.place()?.clone());
    let mut upload = agent.pool.run(&place, move |place| Upload::begin(place, &path, mode)).await?;
    let mut pending = Vec::new();
    loop {
        let data = match call.body.frame().await {
            Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
            Some(Err(_)) => {
                let message = "The body ended early; the file is as it was before.";
                return Err(Refusal::new(code::INVALID_REQUEST, message));
            }
            None => break,
        };
        pending.extend_from_slice(&data);
        if pending.len() >= CHUNK {
            let bytes = std::mem::take(&mut pending);
            upload = agent.pool.run(&place, move |_| upload.append(&bytes)).await?;
        }
    }
    let finish = move |place: &Place| upload.append(&pending)?.finish(place);
    let (new, entry) = agent.pool.run(&place, finish).await?;
    Ok(placed(new, "files/content", &entry))
}

/// A file that has no name until it is complete.
struct Upload {
    file: OwnedFd,
    above: OwnedFd,
    path: Relative,
    mode: u32,
    new: bool,
}

impl Upload {
    fn begin(place: &Place, path: &str, mode: Option<u32>) -> Result<Self> {
        let (path, above, old) = destination(place, Relative::parse_required(path)?)?;
        let file = open(above.as_fd(), ".", OFlags::WRONLY | OFlags::TMPFILE, 0o600)?;
        let mode = mode.or(old).unwrap_or(0o644);
        Ok(Self { file, above, path, mode, new: old.is_none() })
    }

    fn append(self, bytes: &[u8]) -> Result<Self> {
        write_all(&self.file, bytes)?;
        Ok(self)
    }

    /// Names the file, once it is on the disk: a reader sees the old file or the new one, also after a crash.
    fn finish(self, place: &Place) -> Result<(bool, Entry)> {
        rustix::fs::fchmod(&self.file, Mode::from_raw_mode(self.mode))?;
        rustix::fs::fsync(&self.file)?;
        let (_, name) = self.path.split()?;
        match link(&self.file, &self.above, name) {
            Err(Errno::EXIST) => self.replace(name)?,
            other => other?,
        }
        let directory = open(self.above.as_fd(), ".", OFlags::RDONLY | OFlags::DIRECTORY, 0);
        // A directory that the user may write but not read cannot be synced; the file is synced.
        if let Ok(directory) = directory {
            rustix::fs::fsync(&directory)?;
        }
        Ok((self.new, entry_at(place, &self.path)?))
    }

    /// Replaces the file of this name.
    fn replace(&self, name: &str) -> Result<()> {
        let temporary = loop {
            let mut random = [0; 8];
            rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
            let temporary = format!(".berth-{:016x}", u64::from_ne_bytes(random));
            match link(&self.file, &self.above, &temporary) {
                Ok(()) => break temporary,
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        };
        rustix::fs::renameat(&self.above, &temporary, &self.above, name).map_err(|error| {
            let _ = rustix::fs::unlinkat(&self.above, &temporary, AtFlags::empty());
            error.into()
        })
    }
}

/// Writes everything.
pub fn write_all(file: &OwnedFd, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(file, bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Where a write goes: the path behind all links, its directory, and the permissions of an existing file.
fn destination(place: &Place, mut path: Relative) -> Result<(Relative, OwnedFd, Option<u32>)> {
    for _ in 0..MAX_LINKS {
        if path.as_str().ends_with('/') {
            return Err(Errno::ISDIR.into());
        }
        let (parent, name) = path.split().map_err(|refusal| match path.shown().as_str() {
            "." => Errno::ISDIR.into(),
            _ => refusal,
        })?;
        let above = make_parents(place.root.as_fd(), &parent)?;
        let stat = match rustix::fs::statat(&above, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok((path, above, None)),
            other => other?,
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => return Ok((path, above, Some(stat.st_mode & 0o7777))),
            FileType::Directory => return Err(Errno::ISDIR.into()),
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(&above, name, Vec::new())?;
                let target = target.to_str().map_err(|_| Errno::INVAL)?;
                if target.starts_with('/') {
                    return Err(Errno::XDEV.into());
                }
                path = Relative::parse(&format!("{}/{target}", parent.as_str()))?;
            }
            _ => return Err(Refusal::new(code::CONFLICT, "There is no regular file at this path.")),
        }
    }
    Err(Errno::LOOP.into())
}

/// Gives a file without a name an unused one.
fn link(file: &OwnedFd, above: &OwnedFd, name: &str) -> rustix::io::Result<()> {
    let source = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::linkat(CWD, &source, above, name, AtFlags::SYMLINK_FOLLOW)
}
