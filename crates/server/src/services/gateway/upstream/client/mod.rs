//! The client for upstreams: HTTP/1.1, connections that are kept, bytes as they are.
//!
//! hyper's client gives each connection a task and channels to it. Here a connection belongs to the one request that
//! uses it, and that request's own task reads and writes it: no piece of an answer changes threads on its way, a
//! waiting stream holds no buffer, and dropping an answer closes its connection. An open stream of the gateway took 34
//! KB with hyper's client and takes 16 with this one.
//!
//! Connecting and TLS stay with the libraries. The client follows no redirects, decompresses nothing, keeps no cookies,
//! and ignores the environment's proxies.

mod body;
mod connection;
mod head;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::http::{HeaderValue, StatusCode, Uri};
use bytes::Bytes;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::{ClientConfig, RootCertStore};
use tokio::runtime::{Handle, Id};
use tower::Service;

pub use body::Body;
use connection::{Connection, Silent};

/// How long connecting may take, over all addresses of a server.
const CONNECT: Duration = Duration::from_secs(5);
/// The same with TLS and with resolving the name, where a resolver may take 5 s for each name server that is away.
const READY: Duration = Duration::from_secs(15);
/// How long a kept connection takes at most to show that it was closed: one round trip suffices.
const STALE: Duration = Duration::from_secs(1);
/// How long an unused connection is kept; common servers close theirs after 5 to 75 seconds.
const IDLE: Duration = Duration::from_secs(30);

/// What can go wrong between here and an upstream.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No connection was made.
    #[error("no connection: {0}")]
    Connect(Box<dyn std::error::Error + Send + Sync>),
    /// The connection ended before the answer did.
    #[error("the connection broke: {0}")]
    Broken(#[from] std::io::Error),
    /// The answer is not HTTP/1.
    #[error("the answer is no HTTP")]
    Malformed,
}

/// A request as it goes over the connection.
pub struct Request {
    /// Request line and headers, with the blank line behind them.
    pub head: Vec<u8>,
    /// The body.
    pub body: Bytes,
    /// Whether the server has all of it, as far as the client knows.
    sent: Arc<AtomicBool>,
}

impl Request {
    /// A request of which nothing was sent.
    pub fn new(head: Vec<u8>, body: Bytes) -> Self {
        Self::telling(head, body, Arc::default())
    }

    /// A request that sets `sent` once the server has all of it.
    pub const fn telling(head: Vec<u8>, body: Bytes, sent: Arc<AtomicBool>) -> Self {
        Self { head, body, sent }
    }

    /// Whether the server has all of it, as far as the client knows: then it may be at work.
    pub fn is_sent(&self) -> bool {
        self.sent.load(Ordering::Relaxed)
    }
}

/// An answer, as far as the gateway reads it.
pub struct Response {
    /// Its status.
    pub status: StatusCode,
    /// The type of its body.
    pub content_type: Option<HeaderValue>,
    /// The seconds after which to ask again.
    pub retry_after: Option<u64>,
    /// Its body.
    pub body: Body,
}

/// Connections without a request, and since when.
type Idle = Vec<(Instant, Connection)>;

/// A server, and its idle connections. A connection stays with the runtime that watches its socket: on another runtime,
/// every piece of an answer would wake a task across threads.
pub struct Origin {
    uri: Uri,
    idle: Mutex<HashMap<Id, Idle>>,
}

impl Origin {
    /// The server of a URL.
    pub fn new(uri: Uri) -> Arc<Self> {
        Arc::new(Self { uri, idle: Mutex::default() })
    }

    fn idle(&self) -> MutexGuard<'_, HashMap<Id, Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The idle connection that was used last; so the others may grow old.
    fn take(&self) -> Option<Connection> {
        let mut idle = self.idle();
        let idle = idle.get_mut(&Handle::current().id())?;
        while let Some((since, mut connection)) = idle.pop() {
            if since.elapsed() < IDLE && connection.is_quiet() {
                return Some(connection);
            }
        }
        None
    }

    /// The keeper of a connection of the present runtime.
    fn keeper(self: &Arc<Self>) -> Keeper {
        Keeper { origin: self.clone(), watcher: Handle::current().id() }
    }

    /// Closes connections that are too old or that the server closed.
    pub fn tidy(&self) {
        self.idle().retain(|_, idle| {
            idle.retain_mut(|(since, connection)| since.elapsed() < IDLE && connection.is_quiet());
            !idle.is_empty()
        });
    }
}

/// Gives a connection back for the next request, whichever runtime read the last answer.
pub struct Keeper {
    origin: Arc<Origin>,
    watcher: Id,
}

impl Keeper {
    fn keep(self, connection: Connection) {
        self.origin.idle().entry(self.watcher).or_default().push((Instant::now(), connection));
    }
}

/// The client.
pub struct Client(HttpsConnector<HttpConnector>);

impl Client {
    /// A client that trusts the certificate authorities of this machine.
    pub fn new() -> anyhow::Result<Self> {
        Ok(Self::trusting(trust()?))
    }

    fn trusting(config: ClientConfig) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT));
        let builder = HttpsConnectorBuilder::new().with_tls_config(config).https_or_http().enable_http1();
        Self(builder.wrap_connector(tcp))
    }

    /// Sends a request. Dropping the future or the body of the answer ends the request at the upstream, too.
    ///
    /// The server may have closed a kept connection a moment before. If it ends at once and without a byte of an
    /// answer, the request goes out once more over a new one. If it ends later, the server failed.
    pub async fn send(&self, origin: &Arc<Origin>, request: &Request) -> Result<Response, ClientError> {
        if let Some(kept) = origin.take() {
            let began = Instant::now();
            match kept.exchange(origin, request).await {
                Err((ClientError::Broken(_), Silent(true))) if began.elapsed() < STALE => {}
                answer => return answer.map_err(|(error, _)| error),
            }
        }
        let connection = self.connect(&origin.uri).await?;
        connection.exchange(origin, request).await.map_err(|(error, _)| error)
    }

    async fn connect(&self, uri: &Uri) -> Result<Connection, ClientError> {
        let mut connector = self.0.clone();
        let connecting = async {
            std::future::poll_fn(|context| connector.poll_ready(context)).await?;
            connector.call(uri.clone()).await
        };
        let connected = tokio::time::timeout(READY, connecting).await.map_err(|late| ClientError::Connect(late.into()));
        Ok(connected?.map_err(ClientError::Connect)?.into())
    }
}

/// The certificate authorities of this machine; read once.
fn roots() -> Arc<RootCertStore> {
    static ROOTS: LazyLock<Arc<RootCertStore>> = LazyLock::new(|| {
        let found = rustls_native_certs::load_native_certs();
        for error in &found.errors {
            tracing::warn!(%error, "a certificate of this machine cannot be read");
        }
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(found.certs);
        Arc::new(roots)
    });
    ROOTS.clone()
}

fn trust() -> anyhow::Result<ClientConfig> {
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let config = ClientConfig::builder_with_provider(provider.into()).with_safe_default_protocol_versions()?;
    Ok(config.with_root_certificates(roots()).with_no_client_auth())
}

#[cfg(test)]
mod tests;
