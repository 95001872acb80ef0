//! Packs a tree into a tar stream.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};

use berth_domain::agent::error::code;
use berth_domain::fields::Fields;
use bytes::Bytes;
use futures_core::Stream;
use http::StatusCode;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use tar::{Builder, EntryType, Header};
use tokio::sync::mpsc;

use crate::body::{Answer, Body, typed};
use crate::call::Call;
use crate::error::{Refusal, Result};
use crate::files::Base;
use crate::files::beneath::Located;
use crate::files::change::path;

/// Bytes of one chunk of the body.
const CHUNK: usize = 128 * 1024;
/// Chunks that wait for the client.
const AHEAD: usize = 4;
/// How deep a tree may be.
const MAX_DEPTH: usize = 512;

/// `POST files/archive`.
pub async fn archive(mut call: Call) -> Result<Answer> {
    let (_, worker) = call.acting()?;
    let body = call.json().await?;
    let mut fields = Fields::of(&body);
    let wanted = fields.required("path", path);
    let wanted = fields.finish(wanted)?;
    let top = worker.run(move |base| Top::open(base, &base.locate_required(&wanted)?)).await?;
    let (packing, answer) = packing();
    worker.run_long(move |_, _| packing.run(|builder| top.write(builder)))?;
    Ok(answer)
}

/// The writer of an archive, and the answer that carries it.
pub fn packing() -> (Packing, Answer) {
    let (chunks, receiver) = mpsc::channel(AHEAD);
    let body = Body::Chunks(Box::pin(Received(receiver)));
    (Packing(chunks), typed(StatusCode::OK, "application/x-tar", body))
}

/// Writes an archive.
pub struct Packing(mpsc::Sender<io::Result<Bytes>>);

impl Packing {
    /// Writes the archive. Blocks while the client does not read.
    pub fn run(self, write: impl FnOnce(&mut Builder<Out>) -> io::Result<()>) {
        let mut builder = Builder::new(Out { chunks: self.0.clone(), pending: Vec::new() });
        let written = write(&mut builder).and_then(|()| builder.into_inner()?.flush());
        if let Err(error) = written {
            // If the client reads on, it learns that the archive is incomplete.
            let _ = self.0.blocking_send(Err(error));
        }
    }
}

struct Received(mpsc::Receiver<io::Result<Bytes>>);

impl Stream for Received {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context)
    }
}

/// The root of what is packed.
struct Top {
    file: OwnedFd,
    stat: Stat,
    name: String,
}

impl Top {
    fn open(base: &Base, path: &Located) -> Result<Self> {
        let file = base.open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
        let stat = rustix::fs::fstat(&file)?;
        let name = path.shown().rsplit('/').next().unwrap_or_default().to_owned();
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile | FileType::Directory => Ok(Self { file, stat, name }),
            _ => Err(Refusal::new(code::CONFLICT, "Only files and directories can be packed.")),
        }
    }

    fn write(self, builder: &mut Builder<Out>) -> io::Result<()> {
        match FileType::from_raw_mode(self.stat.st_mode) {
            FileType::Directory => directory(builder, &self.file, Path::new(""), 0),
            _ => file(builder, self.file, &self.stat, Path::new(&self.name)),
        }
    }
}

/// Gathers bytes into chunks; fails once the client is gone.
pub struct Out {
    chunks: mpsc::Sender<io::Result<Bytes>>,
    pending: Vec<u8>,
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.pending.extend_from_slice(bytes);
        if self.pending.len() >= CHUNK {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let chunk = Bytes::from(std::mem::take(&mut self.pending));
        if chunk.is_empty() {
            return Ok(());
        }
        self.chunks.blocking_send(Ok(chunk)).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

fn directory(builder: &mut Builder<Out>, handle: &OwnedFd, path: &Path, depth: usize) -> io::Result<()> {
    use std::os::unix::ffi::OsStrExt;
    if depth >= MAX_DEPTH {
        return Err(io::Error::other("the tree is too deep"));
    }
    for found in Dir::read_from(handle)? {
        let found = found?;
        let name = found.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        let path = path.join(std::ffi::OsStr::from_bytes(name));
        entry(builder, handle.as_fd(), name, &path, depth)?;
    }
    Ok(())
}

fn entry(builder: &mut Builder<Out>, above: BorrowedFd<'_>, name: &[u8], path: &Path, depth: usize) -> io::Result<()> {
    use std::os::unix::ffi::OsStrExt;
    // An entry that vanished meanwhile is not packed.
    let Ok(stat) = rustix::fs::statat(above, name, AtFlags::SYMLINK_NOFOLLOW) else { return Ok(()) };
    let enter = |flags: OFlags| {
        let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        rustix::fs::openat(above, name, flags, Mode::empty())
    };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {
            let handle = enter(OFlags::empty())?;
            let stat = rustix::fs::fstat(&handle)?;
            file(builder, handle, &stat, path)
        }
        FileType::Directory => {
            let mut header = header(&stat, EntryType::Directory, 0);
            builder.append_data(&mut header, path, io::empty())?;
            directory(builder, &enter(OFlags::DIRECTORY)?, path, depth + 1)
        }
        FileType::Symlink => {
            let target = rustix::fs::readlinkat(above, name, Vec::new())?;
            let mut header = header(&stat, EntryType::Symlink, 0);
            builder.append_link(&mut header, path, std::ffi::OsStr::from_bytes(target.to_bytes()))
        }
        // Pipes, sockets and devices have no content.
        _ => Ok(()),
    }
}

/// Packs a file.
pub fn file(builder: &mut Builder<Out>, handle: OwnedFd, stat: &Stat, path: &Path) -> io::Result<()> {
    let size = stat.st_size.unsigned_abs();
    let mut header = header(stat, EntryType::Regular, size);
    // The header has told the size: a file that grows is cut, one that shrinks is padded.
    let content = std::fs::File::from(handle).chain(io::repeat(0)).take(size);
    builder.append_data(&mut header, path, content)
}

/// The header of an entry with such properties.
pub fn header(stat: &Stat, kind: EntryType, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(stat.st_mode & 0o7777);
    header.set_uid(stat.st_uid.into());
    header.set_gid(stat.st_gid.into());
    header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or(0));
    header.set_size(size);
    header
}
