//! The byte stream to the host, and one session on it.
//!
//! ```text
//!            marker: answer it               preface
//!  scanning ───────────────────► answered ──────────► session (HTTP/2)
//!     ▲                           │  ▲ another marker   │
//!     │                           └──┘                  │ end, or broken
//!     └───────────────────────────────── reopen ◄───────┘
//! ```

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use berth_domain::agent::marker::{Found, Scanner, marker};
use berth_domain::agent::{MAX_FRAME, MAX_HEADERS, MAX_STREAMS, SESSION_WINDOW, STREAM_WINDOW};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufWriter, ReadBuf};
use tokio::net::UnixStream;

use crate::agent::Agent;
use crate::port::Port;
use crate::server;

/// Bytes gathered into one write: each write costs a notification of the host.
const WRITE_BUFFER: usize = 32 * 1024;

/// The connection to the host.
#[derive(Clone)]
pub enum Wire {
    /// A virtio-serial port.
    Port(Arc<Port>),
    /// A unix socket, for tests.
    Socket(Arc<UnixStream>),
}

impl Wire {
    fn poll_some(&self, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::Port(port) => port.poll_read(context, buffer),
            Self::Socket(socket) => loop {
                ready!(socket.poll_read_ready(context))?;
                match socket.try_read(buffer) {
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                    other => return Poll::Ready(other),
                }
            },
        }
    }
}

/// A wire, with bytes that were read from it too early.
struct Stream {
    wire: Wire,
    early: Vec<u8>,
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.early.is_empty() {
            let n = self.early.len().min(buffer.remaining());
            buffer.put_slice(&self.early[..n]);
            self.early.drain(..n);
            return Poll::Ready(Ok(()));
        }
        let n = ready!(self.wire.poll_some(context, buffer.initialize_unfilled()))?;
        buffer.advance(n);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &self.wire {
            Wire::Port(port) => port.poll_write(context, bytes),
            Wire::Socket(socket) => loop {
                ready!(socket.poll_write_ready(context))?;
                match socket.try_write(bytes) {
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                    other => return Poll::Ready(other),
                }
            },
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Why serving on a wire ended.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// The other end is closed.
    Closed,
    /// The session ended; another one may follow.
    Session,
}

/// Waits for a session on a wire and serves it to its end.
pub async fn serve(agent: &Arc<Agent>, wire: Wire) -> io::Result<End> {
    let mut stream = Stream { wire: wire.clone(), early: Vec::new() };
    let mut scanner = Scanner::default();
    let mut buffer = vec![0; 4096];
    let early = loop {
        match scanner.next() {
            Some(Found::Marker(nonce)) => stream.write_all(&marker(nonce)).await?,
            Some(Found::Session(early)) => break early,
            None => match stream.read(&mut buffer).await? {
                0 => return Ok(End::Closed),
                n => scanner.feed(&buffer[..n]),
            },
        }
    };
    let io = TokioIo::new(BufWriter::with_capacity(WRITE_BUFFER, Stream { wire, early }));
    let handler = hyper::service::service_fn(|request| server::handle(agent.clone(), request));
    let session = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(SESSION_WINDOW)
        .max_frame_size(MAX_FRAME)
        .max_header_list_size(MAX_HEADERS)
        .max_concurrent_streams(MAX_STREAMS)
        .serve_connection(io, handler);
    // The result does not matter: the host knows it, and the next session begins with a marker.
    let _ = session.await;
    Ok(End::Session)
}
