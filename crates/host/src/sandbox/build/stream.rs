//! Between what reads and writes in threads, and streams.

use std::io::{self, Read, Write};

use bytes::Bytes;
use futures::StreamExt;
use tokio::sync::{mpsc, oneshot};
use tokio_util::io::ReaderStream;

use super::build_machine::Tar;
use super::{BuildError, build_machine::BuildMachine, build_machine::Unpack};

/// Bytes of one chunk.
const CHUNK: usize = 128 * 1024;
/// Chunks that wait for who reads them.
const AHEAD: usize = 4;

type Written = Result<(), berth_oci::Error>;

/// Unpacks what is written in a thread. What its writer says is told before what unpacking makes of half an archive.
pub async fn unpack(
    machine: &mut dyn BuildMachine,
    how: Unpack,
    write: impl FnOnce(&mut dyn Write) -> Written + Send + 'static,
) -> Result<(), BuildError> {
    let (tar, written) = start(write);
    let unpacked = machine.unpack(tar, how).await;
    let written = written.await.unwrap_or(Ok(()));
    match (written, unpacked) {
        (Err(berth_oci::Error::Io(_)), Err(error)) => Err(error),
        (Err(error), _) => Err(error.into()),
        (Ok(()), unpacked) => unpacked,
    }
}

/// Unpacks what a reader gives.
pub async fn unpack_from(
    machine: &mut dyn BuildMachine,
    how: Unpack,
    mut reader: impl Read + Send + 'static,
) -> Result<(), BuildError> {
    let copy = move |out: &mut dyn Write| {
        let mut buffer = vec![0; CHUNK];
        loop {
            match reader.read(&mut buffer).map_err(berth_oci::Error::from_stream)? {
                0 => return Ok(()),
                n => out.write_all(&buffer[..n])?,
            }
        }
    };
    unpack(machine, how, copy).await
}

/// An archive without members: all that is unpacked is the directory it goes to.
pub fn empty() -> Tar {
    ReaderStream::new(tokio::io::AsyncReadExt::take(tokio::io::repeat(0), 1024)).boxed()
}

fn start(write: impl FnOnce(&mut dyn Write) -> Written + Send + 'static) -> (Tar, oneshot::Receiver<Written>) {
    let (chunks, received) = mpsc::channel(AHEAD);
    let (tell, told) = oneshot::channel();
    tokio::task::spawn_blocking(move || {
        let mut out = Out { chunks: chunks.clone(), pending: Vec::new() };
        let written = write(&mut out).and_then(|()| Ok(out.flush()?));
        if written.is_err() {
            // Half an archive must not look like a whole one.
            let _ = chunks.blocking_send(Err(io::Error::other("the archive cannot be written")));
        }
        // Nobody listens any more where the build was called off.
        let _ = tell.send(written);
    });
    (stream_of(received), told)
}

fn stream_of(received: mpsc::Receiver<io::Result<Bytes>>) -> Tar {
    futures::stream::unfold(received, async |mut received| received.recv().await.map(|chunk| (chunk, received))).boxed()
}

/// Gathers bytes into chunks; an error once nobody wants them.
struct Out {
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
