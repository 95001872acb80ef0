//! Servers inside a sandbox, reached by path: `{connect_url}/ports/{port}/…`.
//!
//! A request goes through a tunnel of its own to the port on the guest's loopback, as HTTP/1.1; upgrades
//! (WebSockets) pass. The caller's credential stays here. The tunnel has to be there in time; the server in there may
//! take as long for its answer as it likes.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use berth_domain::{Code, Error};
use berth_host::sandbox::agent::AgentError;
use bytes::Bytes;
use futures::TryStreamExt;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf, copy_bidirectional};
use tokio::time::Instant;
use tokio_util::io::{CopyToBytes, SinkWriter, StreamReader};
use tokio_util::sync::PollSender;

use super::forward::{Reply, Size, bounded, make_harmless, open, refusal};
use super::inside::{Inside, no_longer};
use crate::http::envelope::{ApiError, keep_shape};
use crate::http::from_within::OnBehalf;

/// Pieces under way to the guest.
const UNDER_WAY: usize = 16;
/// What a server says of its origin. Here that is the service's own, which is not its to speak for; cookies pass, because
/// browsers get here only through `berth sandbox port`, where the origin is the server's own.
const OF_THE_ORIGIN: [&str; 6] =
    ["alt-svc", "clear-site-data", "nel", "report-to", "service-worker-allowed", "strict-transport-security"];
/// How long after its beginning a sandbox's server may take until it listens: a template's command begins with it.
const COMING_UP: Duration = Duration::from_secs(10);
/// Between two tries to reach it.
const AGAIN: Duration = Duration::from_millis(100);
/// Headers that are a credential of the service, where nothing else showed who asks.
const CREDENTIALS: [&str; 2] = ["authorization", "x-api-key"];
/// Headers that concern one connection only (RFC 9110, section 7.6.1), and those that are never the server's to read.
const PRIVATE: [&str; 9] = [
    "x-access-token",
    "e2b-traffic-access-token",
    "connection",
    "keep-alive",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "sec-websocket-protocol",
];

/// Sends a request to a server in the sandbox.
pub(super) async fn reach(inside: Inside, port: u16, path: &str, mut request: Request<Body>) -> Reply {
    let inside = Arc::new(inside);
    let tunnel = patient(inside.connection.since.into(), || tunnel(&inside, port)).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(tunnel)).await.map_err(broken)?;
    tokio::spawn(async move {
        // How it ended is told to whoever reads the answer.
        let _ = connection.with_upgrades().await;
    });
    let upgrade = upgrade_of(request.headers());
    let outer = upgrade.is_some().then(|| hyper::upgrade::on(&mut request));
    // As every body it has to keep coming, and ends when its sender may not send it any more.
    let (parts, body) = request.into_parts();
    let (body, refusal) = bounded(&parts, body, Size::Unlimited).await?;
    let body = if body.is_end_stream() { body } else { inside.clone().guarded(body) };
    let asked = inner(Request::from_parts(parts, body), port, path, upgrade.as_ref())?;
    let answer = tokio::select! {
        answer = sender.send_request(asked) => answer,
        () = inside.over() => return Err(no_longer().into()),
    };
    let answer = answer.map_err(|error| refusal.get().unwrap_or_else(|| broken(error)))?;
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
        return Ok(switch(inside, answer, outer));
    }
    let (parts, body) = answer.into_parts();
    let mut told = told(&parts.headers);
    make_harmless(&mut told);
    // A page in there may have scripts, but in an origin of its own.
    told.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox allow-scripts allow-forms"));
    let body = inside.guarded(body);
    // What a server in there refuses is its own to say.
    Ok(keep_shape((parts.status, told, body).into_response()))
}

fn broken(error: hyper::Error) -> Error {
    let message = "The server in the sandbox ended the connection before it answered.";
    Error { cause: Some(error.to_string()), ..Error::new(Code::PortRefused, message) }
}

fn upgrade_of(headers: &HeaderMap) -> Option<HeaderValue> {
    let wants = headers.get(header::CONNECTION)?.to_str().ok()?.to_ascii_lowercase().contains("upgrade");
    headers.get(header::UPGRADE).filter(|_| wants).cloned()
}

fn inner(request: Request<Body>, port: u16, path: &str, upgrade: Option<&HeaderValue>) -> Result<Request<Body>, Error> {
    let (parts, body) = request.into_parts();
    let query = parts.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let uri: Uri =
        format!("/{path}{query}").parse().map_err(|_| Error::new(Code::InvalidRequest, "The path is not valid."))?;
    let mut inner = Request::new(body);
    *inner.method_mut() = parts.method;
    *inner.uri_mut() = uri;
    *inner.headers_mut() = public(&parts.headers);
    if parts.extensions.get::<OnBehalf>().is_none() {
        for name in CREDENTIALS {
            inner.headers_mut().remove(name);
        }
    }
    let host = HeaderValue::from_str(&format!("localhost:{port}")).map_err(|e| Error::internal(e.to_string()))?;
    inner.headers_mut().insert(header::HOST, host);
    if let Some(upgrade) = upgrade {
        inner.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        inner.headers_mut().insert(header::UPGRADE, upgrade.clone());
    }
    Ok(inner)
}

fn public(headers: &HeaderMap) -> HeaderMap {
    let is_private = |name: &HeaderName| PRIVATE.contains(&name.as_str()) || name == header::UPGRADE;
    let pairs = headers.iter().filter(|(name, _)| !is_private(name));
    pairs.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// What of the headers of a server in there its client is told.
fn told(headers: &HeaderMap) -> HeaderMap {
    let mut told = public(headers);
    for name in OF_THE_ORIGIN {
        told.remove(name);
    }
    told
}

/// Joins the two upgraded connections until one of them ends.
fn switch(inside: Arc<Inside>, mut answer: Response<Incoming>, outer: Option<hyper::upgrade::OnUpgrade>) -> Response {
    let mut told = told(answer.headers());
    told.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    if let Some(upgrade) = answer.headers().get(header::UPGRADE) {
        told.insert(header::UPGRADE, upgrade.clone());
    }
    let guest = hyper::upgrade::on(&mut answer);
    tokio::spawn(async move {
        let Some(outer) = outer else { return };
        let (Ok(outer), Ok(guest)) = (outer.await, guest.await) else { return };
        let (mut outer, mut guest) = (TokioIo::new(outer), TokioIo::new(guest));
        tokio::select! {
            () = inside.over() => {}
            // Whoever ended it knows.
            _ = copy_bidirectional(&mut outer, &mut guest) => {}
        }
        let _ = outer.shutdown().await;
    });
    (StatusCode::SWITCHING_PROTOCOLS, told).into_response()
}

/// Connects to a server in a sandbox; in one that has just begun the server is waited for.
async fn patient<T, F>(begun: Instant, connect: impl Fn() -> F) -> Result<T, ApiError>
where
    F: Future<Output = Result<T, ApiError>>,
{
    loop {
        match connect().await {
            Err(ApiError(error)) if error.code == Code::PortRefused && begun.elapsed() < COMING_UP => {
                tokio::time::sleep(AGAIN).await;
            }
            done => return done,
        }
    }
}

/// A connection to a port on the guest's loopback.
async fn tunnel(inside: &Inside, port: u16) -> Result<Tunnel, ApiError> {
    let (sender, body) = tokio::sync::mpsc::channel::<Bytes>(UNDER_WAY);
    let body = tokio_stream::wrappers::ReceiverStream::new(body);
    let request = Request::post(format!("http://agent/tunnel/{port}"))
        .header(header::AUTHORIZATION, inside.authorization()?)
        .body(Body::from_stream(futures::StreamExt::map(body, Ok::<_, io::Error>)))
        .map_err(|error| Error::internal(error.to_string()))?;
    let (parts, body) = open(inside, request).await?.into_parts();
    if !parts.status.is_success() {
        return Err(refusal(parts.status, body).await);
    }
    let bytes = body.into_data_stream().map_err(io::Error::other);
    let sink = futures::SinkExt::sink_map_err(PollSender::new(sender), |_| {
        io::Error::other(AgentError::Gone("the tunnel ended".into()))
    });
    let writer = SinkWriter::new(CopyToBytes::new(sink));
    Ok(Tunnel { reader: Box::pin(StreamReader::new(bytes)), writer: Box::pin(writer) })
}

/// The two directions of a tunnel as one stream.
struct Tunnel {
    reader: Pin<Box<dyn AsyncRead + Send>>,
    writer: Pin<Box<dyn AsyncWrite + Send>>,
}

impl AsyncRead for Tunnel {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.reader.as_mut().poll_read(cx, buf)
    }
}

impl AsyncWrite for Tunnel {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.writer.as_mut().poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writer.as_mut().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writer.as_mut().poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Connects to what refuses so many times: how it ended, and how often it was asked.
    async fn connected(begun: Instant, refusals: u32, code: Code) -> (Result<(), ApiError>, u32) {
        let asked = Cell::new(0);
        let connect = || {
            asked.set(asked.get() + 1);
            std::future::ready(if asked.get() > refusals { Ok(()) } else { Err(ApiError(Error::new(code, "No."))) })
        };
        (patient(begun, connect).await, asked.get())
    }

    #[tokio::test]
    async fn a_server_in_a_sandbox_that_has_just_begun_is_waited_for() {
        let now = Instant::now();
        let begun = now.checked_sub(COMING_UP).expect("a machine that runs for longer");
        assert!(matches!(connected(now, 2, Code::PortRefused).await, (Ok(()), 3)));
        // In one that has been there for longer, and of other errors, nothing is waited for.
        assert!(matches!(connected(begun, 2, Code::PortRefused).await, (Err(_), 1)));
        assert!(matches!(connected(now, 2, Code::SandboxPaused).await, (Err(_), 1)));
        // It is not waited for without an end.
        let (ended, _) = connected(begun + AGAIN * 3, u32::MAX, Code::PortRefused).await;
        assert!(ended.is_err_and(|ApiError(error)| error.code == Code::PortRefused));
    }

    #[test]
    fn a_server_in_there_says_nothing_of_the_service_s_origin() {
        let mut headers = HeaderMap::new();
        for name in OF_THE_ORIGIN.iter().chain(&PRIVATE).chain(&["upgrade", "set-cookie", "content-type"]) {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static("x"));
        }
        let told = told(&headers);
        let mut names: Vec<_> = told.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["content-type", "set-cookie"]);
    }
}
