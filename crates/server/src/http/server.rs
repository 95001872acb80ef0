//! The connections: HTTP/1.1, one task for each, on [event loops](super::event_loop).
//!
//! axum's own loop also guesses HTTP/2 without TLS, which nobody speaks to us. The guess costs every connection a second
//! buffer for as long as it lasts, and thousands of streams last long.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::edge::Edge;
use super::event_loop::EventLoops;

/// How long the head of a request may take, and how long a connection is kept that nobody uses.
const HEAD: Duration = Duration::from_mins(2);
/// Before connections are taken again where none can be.
const PAUSE: Duration = Duration::from_secs(1);

/// How long requests under way may take to end. Streams have no end of their own: they are cut then.
const DRAIN: Duration = Duration::from_secs(10);

/// Answers until told to end; then for a while until the requests under way are answered.
pub async fn serve(listener: TcpListener, edge: Edge, ending: CancellationToken) -> io::Result<()> {
    let loops = EventLoops::start()?;
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD);
    let connections = TaskTracker::new();
    while let Some(accepted) = ending.run_until_cancelled(listener.accept()).await {
        match accepted {
            Ok((stream, from)) => match stream.into_std() {
                Ok(stream) => {
                    let serving = connection(http.clone(), stream, from, edge.clone(), ending.clone());
                    loops.spawn(connections.track_future(serving));
                }
                Err(error) => tracing::debug!(%error, "a connection ended before it began"),
            },
            Err(error) if is_of_one(&error) => {}
            Err(error) => {
                tracing::error!(%error, "no connection can be taken; trying again");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
    drop(listener);
    connections.close();
    if timeout(DRAIN, connections.wait()).await.is_err() {
        tracing::info!(connections = connections.len(), "cut, because they did not end by themselves");
    }
    loops.end().await;
    Ok(())
}

/// Whether a failure is the connection's own, and says nothing of the next.
fn is_of_one(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

async fn connection(
    http: http1::Builder,
    stream: std::net::TcpStream,
    from: SocketAddr,
    edge: Edge,
    ending: CancellationToken,
) {
    // What is sent piece by piece, as output is, must not wait for the receipt of the piece before.
    let stream = match stream.set_nodelay(true).and_then(|()| TcpStream::from_std(stream)) {
        Ok(stream) => stream,
        Err(error) => {
            tracing::debug!(%error, "a connection ended before it began");
            return;
        }
    };
    let service = service_fn(move |request: Request<Incoming>| {
        let edge = edge.clone();
        async move {
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(ConnectInfo(from));
            Ok::<_, Infallible>(edge.answer(request).await)
        }
    });
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service).with_upgrades());
    let ended = if let Some(ended) = ending.run_until_cancelled(connection.as_mut()).await {
        ended
    } else {
        connection.as_mut().graceful_shutdown();
        connection.await
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke");
    }
}
