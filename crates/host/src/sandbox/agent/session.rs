//! Beginning a session on a stream that may hold anything: see [`berth_domain::agent::marker`].

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use aws_lc_rs::rand;
use berth_domain::agent::marker::{Answer, Nonce, marker};
use berth_domain::agent::{MAX_FRAME, SESSION_WINDOW, STREAM_WINDOW};
use bytes::{Buf, Bytes};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::{AgentError, Session, gone};

/// Waiting for the answer to the first marker, before it is sent again; twice as long each time. A guest that
/// begins anew throws away what came before it noticed.
const AGAIN: Duration = Duration::from_millis(8);
/// Longest wait between two markers.
const SELDOM: Duration = Duration::from_secs(1);
/// Markers without filler. One that meets the rest of an old frame is swallowed by it.
const BARE: u32 = 7;
/// While something is under way, a guest that says nothing for this long is asked, and then given up.
const SILENCE: Duration = Duration::from_secs(10);

/// Begins a session on a machine's stream. A machine that boots answers when it is up.
pub async fn connect(mut stream: UnixStream, patience: Duration) -> Result<Session, AgentError> {
    let rest = synchronise(&mut stream, Instant::now() + patience).await?;
    begin(Rewound { rest, stream }).await
}

/// Begins a session on a stream on which nothing was said yet.
pub async fn begin(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Result<Session, AgentError> {
    let (sender, connection) = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(SESSION_WINDOW)
        .max_frame_size(MAX_FRAME)
        .keep_alive_interval(SILENCE)
        .keep_alive_timeout(SILENCE)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(gone)?;
    let (end, ended) = watch::channel(false);
    tokio::spawn(async move {
        // How it ended is told to whoever used it.
        let _ = connection.await;
        end.send_replace(true);
    });
    Ok(Session { sender, ended })
}

/// Sends markers until the agent answers one; gives what came after its answer.
async fn synchronise(stream: &mut UnixStream, deadline: Instant) -> Result<Bytes, AgentError> {
    let mut nonce = Nonce::default();
    rand::fill(&mut nonce).map_err(gone)?;
    let mut answer = Answer::to(nonce);
    let mut buffer = vec![0; 4096];
    for round in 0u32.. {
        let wait = AGAIN.saturating_mul(1 << round.min(16)).min(SELDOM);
        let until = deadline.min(Instant::now() + wait);
        let sent = timeout_at(deadline, send(stream, nonce, round >= BARE)).await;
        sent.map_err(|_| AgentError::Timeout)?.map_err(gone)?;
        while let Ok(read) = timeout_at(until, stream.read(&mut buffer)).await {
            match read.map_err(gone)? {
                0 => return Err(AgentError::Gone("the machine ended".into())),
                n => {
                    if let Some(rest) = answer.feed(&buffer[..n]) {
                        return Ok(rest.into());
                    }
                }
            }
        }
        if Instant::now() >= deadline {
            break;
        }
    }
    Err(AgentError::Timeout)
}

async fn send(stream: &mut UnixStream, nonce: Nonce, fill: bool) -> io::Result<()> {
    if fill {
        stream.write_all(&vec![0; MAX_FRAME as usize + 16]).await?;
    }
    stream.write_all(&marker(nonce)).await
}

/// A stream whose first bytes were read already.
struct Rewound {
    rest: Bytes,
    stream: UnixStream,
}

impl AsyncRead for Rewound {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.rest.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buf);
        }
        let n = self.rest.len().min(buf.remaining());
        buf.put_slice(&self.rest[..n]);
        self.rest.advance(n);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Rewound {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
