//! The bytes of a file.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use berth_domain::agent::error::code;
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;

use crate::body::{Answer, Body, typed};
use crate::call::Call;
use crate::error::{Refusal, Result};
use crate::events::{Feed, Feeding};
use crate::files::range::{Range, Wanted};
use crate::files::{Base, Worker};

/// Bytes of one read and one write.
pub const CHUNK: usize = 256 * 1024;
/// The most bytes of a file that does not tell its size.
const MAX_UNSIZED: u64 = 256 * 1024 * 1024;

/// `GET files/content`.
pub async fn read(mut call: Call) -> Result<Answer> {
    let path = call.query.required("path");
    let (_, worker) = call.acting()?;
    let wanted = Wanted::parse(call.headers.get(header::RANGE).and_then(|value| value.to_str().ok()));
    let open = move |base: &Base| begin(open_file(base, &path)?, wanted);
    let Begun { file, size, range, first } = worker.run(open).await?;
    let status = if range.partial { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
    let sized = size.is_some();
    let feed = Reading { worker, file: Arc::new(file), first, next: range.start, end: range.end, sized };
    let mut answer = typed(status, "application/octet-stream", Body::Chunks(Box::pin(Feeding::new(feed))));
    let Some(size) = size else { return Ok(answer) };
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
/// long as what was read of it. Only a larger file breaks off where it became shorter. A file that claims to be empty
/// and is not, as the kernel's own are, is sent to its end: where that is, is known if the first chunk has all of it.
struct Begun {
    file: OwnedFd,
    size: Option<u64>,
    range: Range,
    first: Bytes,
}

fn begin(file: OwnedFd, wanted: Wanted) -> Result<Begun> {
    let size = rustix::fs::fstat(&file)?.st_size.unsigned_abs();
    let range = wanted.within(size).ok_or_else(|| out_of_range(size))?;
    if size == 0 {
        return begin_unsized(file);
    }
    let first = read_chunk(&file, range.start, range.end)?;
    let met = range.start + first.len() as u64;
    if met >= range.end.min(range.start + CHUNK as u64) {
        return Ok(Begun { file, size: Some(size), range, first });
    }
    if first.is_empty() && range.partial {
        return Err(out_of_range(rustix::fs::fstat(&file)?.st_size.unsigned_abs().min(range.start)));
    }
    Ok(Begun { file, size: Some(met), range: Range { end: met, ..range }, first })
}

fn begin_unsized(file: OwnedFd) -> Result<Begun> {
    let first = read_chunk(&file, 0, CHUNK as u64)?;
    let size = (first.len() < CHUNK).then_some(first.len() as u64);
    let range = Range { start: 0, end: size.unwrap_or(MAX_UNSIZED), partial: false };
    Ok(Begun { file, size, range, first })
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

fn open_file(base: &Base, path: &str) -> Result<OwnedFd> {
    let path = base.locate_required(path)?;
    // So as not to wait for the other end of a pipe.
    let file = base.open(&path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
    match FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) {
        FileType::RegularFile => Ok(file),
        FileType::Directory => Err(Errno::ISDIR.into()),
        _ => Err(Refusal::new(code::CONFLICT, "There is no regular file at this path.")),
    }
}

struct Reading {
    worker: Worker,
    file: Arc<OwnedFd>,
    /// The chunk that was read before the answer began.
    first: Bytes,
    next: u64,
    end: u64,
    /// Whether the end is where the file has to end.
    sized: bool,
}

impl Feed for Reading {
    const KEEP_ALIVE: Option<Duration> = None;

    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        if self.next >= self.end {
            let endless = !std::mem::replace(&mut self.sized, true);
            return endless.then(|| Err(io::Error::other("the file has no end")));
        }
        let first = std::mem::take(&mut self.first);
        if !first.is_empty() {
            self.next += first.len() as u64;
            return Some(Ok(first));
        }
        let (file, start, end) = (self.file.clone(), self.next, self.end);
        let work = move |_: &Base| Ok(read_chunk(&file, start, end)?);
        match self.worker.run(work).await {
            Ok(bytes) if bytes.is_empty() && !self.sized => None,
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
