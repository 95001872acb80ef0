//! The stream of a connection: it holds its seat while it lasts, and must bring a request's head in time.
//!
//! A connection that becomes a WebSocket is handed on with its stream, and its task ends. The stream lasts, so it holds
//! the seat, and the service waits for the stream when it ends.
//!
//! Between two requests a connection may be silent for a while. Once the next head has begun, it has as long as the
//! head of a new connection: else every single byte would buy a stranger the whole idle time again.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::seats::Ticket;

/// How long the service discards what a client sends behind an answer, in multiples of the time that a body may stall.
/// Closing a connection with unread input resets it, and a client that is still sending then loses the answer that told
/// it to stop (RFC 9112, section 9.6). The default gives the 30 s of nginx's `lingering_time`.
const LINGER: u32 = 3;
/// Bytes discarded at a time.
const WASTE: usize = 16 * 1024;

/// A stream with its seat.
pub struct Seated<S> {
    stream: S,
    ticket: Arc<Ticket>,
    /// How long the head of a request may take.
    head: Duration,
    /// How long a body may stall.
    grace: Duration,
    /// Number of requests that had come when the present head began.
    number: u32,
    /// When the first byte of an unfinished head came.
    began: Option<Instant>,
    /// Deadline of the head.
    end: Option<Pin<Box<Sleep>>>,
    lingering: Option<Lingering>,
    _counted: TaskTrackerToken,
}

/// Deadlines for discarding unread input.
struct Lingering {
    /// The input has stalled for as long as a body may.
    stalled: Pin<Box<Sleep>>,
    /// It has taken too long in all.
    end: Instant,
}

impl<S> Seated<S> {
    /// A stream with this seat; `counted` lives as long as the stream. `head` is how long the head of a request may
    /// take, `grace` how long a body may stall.
    pub fn new(stream: S, ticket: Arc<Ticket>, head: Duration, grace: Duration, counted: TaskTrackerToken) -> Self {
        Self { stream, ticket, head, grace, number: 0, began: None, end: None, lingering: None, _counted: counted }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Seated<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let number = this.ticket.requests();
        if number != this.number {
            (this.number, this.began, this.end) = (number, None, None);
        }
        let before = buf.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(cx, buf);
        if read.is_ready() {
            // Input after a complete body is the next head.
            if buf.filled().len() > before && this.ticket.has_said_all() {
                this.began.get_or_insert_with(Instant::now);
            }
            return read;
        }
        let Some(began) = this.began.filter(|_| !this.ticket.is_under_way()) else { return Poll::Pending };
        let end = began + this.head;
        ready!(this.end.get_or_insert_with(|| Box::pin(sleep_until(end))).as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the head of a request did not come in time")))
    }
}

impl<S: AsyncRead + Unpin> Seated<S> {
    /// Discards the rest of a refused body until its sender closes or stalls, or takes too long.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Self { stream, lingering, grace, .. } = self;
        let now = Instant::now();
        let lingering = lingering.get_or_insert_with(|| Lingering {
            stalled: Box::pin(sleep_until(now + *grace)),
            end: now + *grace * LINGER,
        });
        let mut waste = [0; WASTE];
        loop {
            let mut read = ReadBuf::new(&mut waste);
            match Pin::new(&mut *stream).poll_read(cx, &mut read) {
                Poll::Ready(Ok(())) if !read.filled().is_empty() => {
                    let now = Instant::now();
                    if now >= lingering.end {
                        return Poll::Ready(());
                    }
                    lingering.stalled.as_mut().reset(lingering.end.min(now + *grace));
                }
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => return lingering.stalled.as_mut().poll(cx),
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Seated<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
        if self.ticket.left_unread() {
            ready!(self.poll_linger(cx));
        }
        Poll::Ready(Ok(()))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
