//! The way to upstreams: one pool of connections, bytes as they are.
//!
//! hyper's own client, without what a client for applications adds: no redirects are followed, nothing is
//! decompressed, no cookie is kept, and the environment's proxies do not apply.

use std::time::Duration;

use axum::http::Request;
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::{ClientConfig, RootCertStore};

/// How long a connection may take to come about.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a connection is kept that nobody uses; common servers close theirs after 5 to 75 seconds.
const IDLE: Duration = Duration::from_secs(30);

/// What may go wrong on the way.
pub type HttpError = hyper_util::client::legacy::Error;

/// The client.
#[derive(Clone)]
pub struct Http(Client<HttpsConnector<HttpConnector>, Full<Bytes>>);

impl Http {
    /// A client that trusts whom this machine trusts.
    pub fn new() -> anyhow::Result<Self> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT));
        let connector =
            HttpsConnectorBuilder::new().with_tls_config(trust()?).https_or_http().enable_http1().wrap_connector(tcp);
        let mut builder = Client::builder(TokioExecutor::new());
        builder.pool_timer(TokioTimer::new()).pool_idle_timeout(IDLE);
        Ok(Self(builder.build(connector)))
    }

    /// Sends a request. Dropping the future, or the body of the answer, ends it at the upstream, too.
    pub async fn send(&self, request: Request<Full<Bytes>>) -> Result<hyper::Response<Incoming>, HttpError> {
        self.0.request(request).await
    }
}

fn trust() -> anyhow::Result<ClientConfig> {
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::warn!(%error, "a certificate of this machine cannot be read");
    }
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let config = ClientConfig::builder_with_provider(provider.into()).with_safe_default_protocol_versions()?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}
