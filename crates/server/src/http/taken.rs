//! Connections whose client has to take what the service sends.
//!
//! What a client does not take stays with the service: in the connection's buffer, which holds the rest of an answer,
//! and in everything held until the answer is out. So the service cuts a client that takes nothing for `[http]
//! unread_seconds`. Only time in which something waits to be written counts: a silent stream lasts. A client that takes
//! anything gets the whole time again, since it may have a slow reader of its own.
//!
//! This is the innermost stream, below TLS, so it sees every byte that leaves the service. Bytes that the kernel has
//! accepted count as taken: for a client that stops, the kernel holds some MiB at most, and it accepts more once a
//! third of them has gone.
//!
//! A write that completes at once does not read the clock. The first write that has to wait notes the time. The timer
//! is made once; when it fires during a later wait, it is set to the end of that wait.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

/// A stream that is cut if its client takes nothing.
pub struct Taken<S> {
    stream: S,
    /// How long the client may take nothing.
    patience: Duration,
    /// Since when the client has taken nothing of the bytes that wait.
    since: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl<S> Taken<S> {
    /// A stream whose client may take nothing for so long.
    pub const fn new(stream: S, patience: Duration) -> Self {
        Self { stream, patience, since: None, timer: None }
    }

    /// The result of a write, or an error if it has waited too long.
    fn judge(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.since = None;
            return written;
        }
        let end = *self.since.get_or_insert_with(Instant::now) + self.patience;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(end)));
        while timer.as_mut().poll(cx).is_ready() {
            if Instant::now() >= end {
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "nothing of an answer was taken")));
            }
            timer.as_mut().reset(end);
        }
        Poll::Pending
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Taken<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Taken<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.judge(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.judge(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    /// Bytes that may wait for the reader beside those being written.
    const ROOM: usize = 4;
    const SHORT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_hours(1);

    fn connection(patience: Duration) -> (Taken<DuplexStream>, DuplexStream) {
        let (stream, client) = duplex(ROOM);
        (Taken::new(stream, patience), client)
    }

    #[tokio::test]
    async fn who_takes_nothing_is_cut() {
        let (mut stream, mut client) = connection(SHORT);
        assert_eq!(stream.write_all(&[1; ROOM + 1]).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        let mut taken = [0; ROOM];
        client.read_exact(&mut taken).await.unwrap();
        // A reader that reads on gets more.
        stream.write_all(&[1; ROOM]).await.unwrap();
    }

    #[tokio::test]
    async fn what_has_nothing_to_say_lasts() {
        let (mut stream, mut client) = connection(SHORT);
        for _ in 0..2 {
            // However long they stay unread, nothing waits behind them.
            stream.write_all(&[1; ROOM]).await.unwrap();
            tokio::time::sleep(2 * SHORT).await;
            client.read_exact(&mut [0; ROOM]).await.unwrap();
        }
    }

    #[tokio::test]
    async fn who_takes_anything_has_the_whole_time_again() {
        let (mut stream, mut client) = connection(LONG);
        stream.write_all(&[1; ROOM]).await.unwrap();
        assert!(stream.write(&[1]).now_or_never().is_none());
        let first = stream.since.unwrap();
        assert!(stream.write(&[1]).now_or_never().is_none());
        assert_eq!(stream.since, Some(first), "it is the same wait");
        client.read_u8().await.unwrap();
        stream.write_all(&[1]).await.unwrap();
        assert_eq!(stream.since, None);
        // The timer of the first wait must not end another one.
        stream.timer = Some(Box::pin(sleep_until(Instant::now())));
        tokio::time::sleep(SHORT).await;
        assert!(stream.write(&[1]).now_or_never().is_none());
        assert!(stream.timer.is_some_and(|timer| timer.deadline() == stream.since.unwrap() + LONG));
    }
}
