//! One connection, in the hands of one request at a time.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker, ready};

use axum::http::StatusCode;
use bytes::Bytes;
use hyper_rustls::MaybeHttpsStream;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::coop::unconstrained;

use super::body::Body;
use super::head::{self, Head};
use super::{ClientError, Origin, Request, Response};

/// Most bytes of one read.
const READ: usize = 32 << 10;
/// Up to this size a body is copied behind its head, so that both go out together.
const TOGETHER: usize = 16 << 10;

thread_local! {
    /// Every read lands here and is copied out at once, so that a waiting request holds no buffer.
    static LANDING: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ].into());
}

/// A connection to a server.
pub enum Connection {
    /// Without TLS.
    Plain(TcpStream),
    /// With TLS.
    Tls(Box<dyn Secured>),
}

/// What a TLS stream can do.
pub trait Secured: AsyncRead + AsyncWrite + Send + Sync + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Sync + Unpin> Secured for T {}

impl From<MaybeHttpsStream<TokioIo<TcpStream>>> for Connection {
    fn from(stream: MaybeHttpsStream<TokioIo<TcpStream>>) -> Self {
        match stream {
            MaybeHttpsStream::Http(stream) => Self::Plain(stream.into_inner()),
            MaybeHttpsStream::Https(stream) => Self::Tls(Box::new(stream.into_inner())),
        }
    }
}

/// True if no byte of an answer came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silent(pub bool);

impl Connection {
    /// Whether an idle connection got nothing and did not end. Bytes without a request have no meaning.
    pub fn is_quiet(&mut self) -> bool {
        // Out of budget, a task would get "pending" without a look at the socket; here that would be an answer.
        let mut looking = pin!(unconstrained(poll_fn(|context| self.poll_read(context, |_| ()))));
        looking.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending()
    }

    /// Hands the next bytes to `take`; no bytes mean the end.
    pub fn poll_read<T>(&mut self, context: &mut Context<'_>, take: impl FnOnce(&[u8]) -> T) -> Poll<io::Result<T>> {
        LANDING.with_borrow_mut(|landing| {
            let mut landed = ReadBuf::new(landing);
            ready!(match self {
                Self::Plain(tcp) => Pin::new(tcp).poll_read(context, &mut landed),
                Self::Tls(tls) => Pin::new(&mut **tls).poll_read(context, &mut landed),
            })?;
            Poll::Ready(Ok(take(landed.filled())))
        })
    }

    fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(tcp) => Pin::new(tcp).poll_write(context, bytes),
            Self::Tls(tls) => Pin::new(&mut **tls).poll_write(context, bytes),
        }
    }

    /// Whether a failure to send also means that no more will be received.
    const fn ends_by(&self, sending: &Poll<io::Result<()>>) -> bool {
        matches!((self, sending), (Self::Tls(_), Poll::Ready(Err(_))))
    }

    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(_) => Poll::Ready(Ok(())),
            Self::Tls(tls) => Pin::new(&mut **tls).poll_flush(context),
        }
    }

    /// Sends a request and reads the head of its answer.
    pub async fn exchange(self, origin: &Arc<Origin>, request: &Request) -> Result<Response, (ClientError, Silent)> {
        let outgoing = Outgoing::new(request);
        let mut exchange = Exchange { outgoing, incoming: Vec::new(), silent: Silent(true), connection: self };
        let head = poll_fn(|context| {
            let polled = exchange.poll(context);
            if exchange.outgoing.is_sent() {
                request.sent.store(true, Ordering::Relaxed);
            }
            polled
        })
        .await;
        let Exchange { outgoing, incoming, silent, connection } = exchange;
        let head = head.map_err(|error| (error, silent))?;
        let reads_on = outgoing.is_sent() || head.status.is_success();
        let keeps = head.keeps && reads_on;
        let rest = (reads_on && !outgoing.is_sent()).then(|| Box::new(outgoing));
        let early = incoming.get(head.length..).unwrap_or_default();
        let body = Body::new(connection, head.framing, keeps.then(|| origin.keeper()), rest);
        let body = body.after(early).map_err(|error| (error, silent))?;
        Ok(Response { status: head.status, content_type: head.content_type, retry_after: head.retry_after, body })
    }
}

/// The part of a request that is still to be sent.
pub struct Outgoing {
    first: Bytes,
    second: Bytes,
    is_flushed: bool,
}

impl Outgoing {
    fn new(request: &Request) -> Self {
        let Request { head, body, .. } = request;
        if body.len() > TOGETHER {
            return Self { first: Bytes::copy_from_slice(head), second: body.clone(), is_flushed: false };
        }
        Self { first: [head, &body[..]].concat().into(), second: Bytes::new(), is_flushed: false }
    }

    const fn is_sent(&self) -> bool {
        self.first.is_empty() && self.second.is_empty() && self.is_flushed
    }

    /// Sends as much as the socket takes.
    pub fn poll(&mut self, connection: &mut Connection, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        for part in [&mut self.first, &mut self.second] {
            while !part.is_empty() {
                let sent = ready!(connection.poll_write(context, part))?;
                if sent == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                *part = part.split_off(sent);
            }
        }
        if !self.is_flushed {
            ready!(connection.poll_flush(context))?;
            self.is_flushed = true;
        }
        Poll::Ready(Ok(()))
    }
}

/// A request under way, until the head of its answer is there.
struct Exchange {
    outgoing: Outgoing,
    incoming: Vec<u8>,
    silent: Silent,
    connection: Connection,
}

impl Exchange {
    /// Sends and reads at once: a server may refuse before it has read everything, and close. One that accepts early
    /// still reads the rest.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Head, ClientError>> {
        let sending = if self.outgoing.is_sent() {
            Poll::Ready(Ok(()))
        } else {
            self.outgoing.poll(&mut self.connection, context)
        };
        loop {
            if let Some(head) = self.head()? {
                return Poll::Ready(Ok(head));
            }
            let incoming = &mut self.incoming;
            let reading = self.connection.poll_read(context, |bytes| {
                incoming.extend_from_slice(bytes);
                bytes.len()
            });
            let error = match reading {
                // After a failure to send, reads on: the server may have sent an answer before it closed.
                Poll::Pending if !self.connection.ends_by(&sending) => return Poll::Pending,
                Poll::Ready(Ok(1..)) => {
                    self.silent = Silent(false);
                    continue;
                }
                Poll::Ready(Ok(0)) => io::ErrorKind::UnexpectedEof.into(),
                Poll::Ready(Err(error)) => error,
                Poll::Pending => io::ErrorKind::BrokenPipe.into(),
            };
            return Poll::Ready(Err(error.into()));
        }
    }

    /// The head of the answer, after any interim heads.
    fn head(&mut self) -> Result<Option<Head>, ClientError> {
        while !self.incoming.is_empty() {
            match head::read(&self.incoming)? {
                Some(head) if head.status == StatusCode::SWITCHING_PROTOCOLS => return Err(ClientError::Malformed),
                Some(head) if head.status.is_informational() => drop(self.incoming.drain(..head.length)),
                head => return Ok(head),
            }
        }
        Ok(None)
    }
}
