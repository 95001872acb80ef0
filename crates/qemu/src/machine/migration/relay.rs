//! What stands between QEMU and whoever carries what it sends.
//!
//! A write of a guest waits for the other side while its disk is mirrored, and the last part of its memory goes while it stands
//! still. QEMU waits without end: a connection that breaks ends that, and the guest goes on; one that falls silent does not. So
//! one that falls silent is broken here.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

use crate::{Error, Result};

/// How long the other side may be silent that was told something.
pub(super) const SILENCE: Duration = Duration::from_secs(10);
/// Bytes that are carried at once.
const PIECE: usize = 256 << 10;

/// What QEMU's end is connected to, and the end that is handed out.
pub(super) fn ends() -> Result<(UnixStream, UnixStream)> {
    UnixStream::pair().map_err(|e| Error::io("cannot make sockets", e))
}

/// What is heard first from the other side; none where it ended before that.
pub(super) async fn greeting(other: &mut UnixStream) -> Option<Vec<u8>> {
    let mut piece = vec![0; PIECE];
    let read = other.read(&mut piece).await.ok().filter(|read| *read > 0)?;
    piece.truncate(read);
    Some(piece)
}

/// Carries bytes until either side ends, or the other one takes nothing for so long. One that answers must not be silent for
/// so long either that was told something.
pub(super) async fn carry(
    what: &str,
    (mut qemu, other): (UnixStream, UnixStream),
    greeting: &[u8],
    answers: bool,
    patience: Duration,
) {
    if qemu.write_all(greeting).await.is_err() {
        return;
    }
    let ((mut from_qemu, mut to_qemu), (mut from_other, mut to_other)) = (qemu.into_split(), other.into_split());
    let told: Mutex<Option<Instant>> = Mutex::new(None);
    let told = || told.lock().unwrap_or_else(PoisonError::into_inner);
    let tell = || {
        told().get_or_insert_with(Instant::now);
    };
    let silent = async {
        loop {
            tokio::time::sleep(patience / 10).await;
            if answers && told().is_some_and(|since| since.elapsed() > patience) {
                return;
            }
        }
    };
    tokio::select! {
        _ = pass(&mut from_qemu, &mut to_other, patience, tell) => {}
        _ = pass(&mut from_other, &mut to_qemu, patience, || *told() = None) => {}
        () = silent => tracing::warn!(what, "who takes this does not answer; it is not sent any more"),
    }
}

async fn pass(
    from: &mut OwnedReadHalf,
    to: &mut OwnedWriteHalf,
    patience: Duration,
    heard: impl Fn(),
) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    loop {
        let read = from.read(&mut piece).await?;
        if read == 0 {
            return Ok(());
        }
        heard();
        timeout(patience, to.write_all(&piece[..read])).await??;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_does_not_answer_is_left_and_who_was_told_nothing_is_not() {
        let patience = Duration::from_millis(50);
        let ((mut qemu, its), (near, mut far)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        let carried = tokio::spawn(async move { carry("a disk", (its, near), b"hello", true, patience).await });
        let mut hello = [0; 5];
        qemu.read_exact(&mut hello).await.unwrap();
        assert_eq!(&hello, b"hello");
        let mut heard = [0; 3];
        qemu.write_all(b"one").await.unwrap();
        far.read_exact(&mut heard).await.unwrap();
        far.write_all(b"two").await.unwrap();
        qemu.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"two");
        assert!(tokio::time::timeout(patience * 4, qemu.read(&mut heard)).await.is_err(), "nobody waits");
        qemu.write_all(b"end").await.unwrap();
        assert_eq!(qemu.read(&mut heard).await.unwrap(), 0);
        carried.await.unwrap();
    }

    #[tokio::test]
    async fn who_takes_nothing_is_left_and_who_has_nothing_to_answer_is_not() {
        let patience = Duration::from_millis(50);
        let ((mut qemu, its), (near, mut far)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        tokio::spawn(async move { carry("a memory", (its, near), &[], false, patience).await });
        qemu.write_all(b"one").await.unwrap();
        far.read_exact(&mut [0; 3]).await.unwrap();
        assert!(tokio::time::timeout(patience * 4, qemu.read(&mut [0])).await.is_err(), "nobody waits");
        let mut written = 0;
        while qemu.write_all(&[0; 4096]).await.is_ok() {
            written += 4096;
            assert!(written < 1 << 30, "it goes on");
        }
    }

    #[tokio::test]
    async fn what_ends_on_one_side_ends_on_the_other() {
        let ((qemu, its), (near, mut far)) = (UnixStream::pair().unwrap(), ends().unwrap());
        tokio::spawn(async move { carry("a disk", (its, near), &[], true, SILENCE).await });
        drop(qemu);
        assert_eq!(far.read(&mut [0]).await.unwrap(), 0);
        let (mut near, far) = ends().unwrap();
        drop(far);
        assert!(greeting(&mut near).await.is_none());
    }
}
