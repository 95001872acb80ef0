//! The connections to one active replica: made when they are needed, used again, and given up with it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response, Uri};
use berth_host::clock::Clock;
use berth_host::link::{Authority, HostName, replica};
use futures::future::BoxFuture;
use hyper::body::Incoming;
use hyper::rt::{Executor, Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::client::legacy::{Client, Error};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;
use tower::Service;

/// How long the active replica may take to let a standby in.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// How long a connection that nobody uses is kept: shorter than the active replica does, so that no request is sent on one
/// that ends at that moment.
const IDLE: Duration = Duration::from_secs(30);
/// How long requests at a replica may go on once another one is active; it ends itself after as long.
const FAREWELL: Duration = Duration::from_secs(10);
/// Most headers of an answer: those of a server in a sandbox, and the service's own.
const MOST_HEADERS: usize = 256;

/// The active replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Active {
    /// Where it takes what standbys pass on, `host:port`.
    pub address: String,
    /// What its certificate calls it.
    pub name: HostName,
}

/// The connections to one active replica.
pub struct Line {
    active: Active,
    pool: Client<Dialler, Body>,
    cut: CancellationToken,
}

impl Line {
    /// No connection yet.
    pub fn new(active: Active, authority: Arc<Authority>, clock: Clock) -> Self {
        let cut = CancellationToken::new();
        let dialler = Dialler(Arc::new(Destination { active: active.clone(), authority, clock }));
        let mut pool = Client::builder(UntilCut(cut.clone()));
        pool.pool_timer(TokioTimer::new()).pool_idle_timeout(IDLE).http1_max_headers(MOST_HEADERS);
        // A request without a host is none of the active replica's.
        pool.set_host(false);
        Self { active, pool: pool.build(dialler), cut }
    }

    /// Whether it leads to this replica.
    pub fn leads_to(&self, active: &Active) -> bool {
        self.active == *active
    }

    /// Sends a request, on a connection that is there or on a new one. One that certainly was not sent, because its
    /// connection ended before, is sent again on another.
    pub async fn send(&self, request: Request<Body>) -> Result<Response<Incoming>, Error> {
        self.pool.request(request).await
    }

    /// Returns when it was given up.
    pub async fn cut(self: Arc<Self>) {
        self.cut.cancelled().await;
    }

    /// Gives it up: what is under way has a while to end.
    pub fn give_up(&self) {
        let cut = self.cut.clone();
        tokio::spawn(async move {
            tokio::time::sleep(FAREWELL).await;
            cut.cancel();
        });
    }
}

/// Runs connections until they are cut.
#[derive(Clone)]
struct UntilCut(CancellationToken);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for UntilCut {
    fn execute(&self, connection: F) {
        let cut = self.0.clone();
        TokioExecutor::new().execute(async move {
            cut.run_until_cancelled(connection).await;
        });
    }
}

struct Destination {
    active: Active,
    authority: Arc<Authority>,
    clock: Clock,
}

/// Makes the connections.
#[derive(Clone)]
struct Dialler(Arc<Destination>);

impl Destination {
    async fn reach(&self) -> io::Result<TlsStream<TcpStream>> {
        let Active { address, name } = &self.active;
        let reached = timeout(PATIENCE, replica::reach(&self.authority, *name, address, self.clock.now()));
        let reached = reached.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        reached.inspect_err(|error| tracing::debug!(%error, address, "the active replica cannot be reached"))
    }
}

impl Service<Uri> for Dialler {
    type Response = Stream;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Stream>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let destination = self.0.clone();
        Box::pin(async move { Ok(Stream(TokioIo::new(destination.reach().await?))) })
    }
}

/// A connection, as the client library wants it.
struct Stream(TokioIo<TlsStream<TcpStream>>);

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl Write for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, slices)
    }
}
