//! An agent that is played: it says back what it is sent.

use std::path::{Path, PathBuf};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use berth_domain::agent::marker::{Found, Scanner, marker};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

/// Where it listens, in a folder.
pub fn play(folder: &Path) -> PathBuf {
    let socket = folder.join("agent.sock");
    let listener = UnixListener::bind(&socket).expect("a socket");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(session(stream));
        }
    });
    socket
}

async fn session(mut stream: UnixStream) {
    let (mut scanner, mut buffer) = (Scanner::default(), [0; 4096]);
    let first = loop {
        let read = stream.read(&mut buffer).await.expect("bytes");
        scanner.feed(&buffer[..read]);
        match scanner.next() {
            Some(Found::Marker(nonce)) => stream.write_all(&marker(nonce)).await.expect("a host"),
            Some(Found::Session(bytes)) => break bytes,
            None => {}
        }
    };
    let (read, write) = stream.into_split();
    let io = TokioIo::new(tokio::io::join(std::io::Cursor::new(first).chain(read), write));
    let service = TowerToHyperService::new(Router::new().fallback(answer));
    // Whoever leaves has heard enough.
    let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new()).serve_connection(io, service).await;
}

async fn answer(request: Request) -> Response {
    let target = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
    if target.starts_with("/control/") {
        return Body::from("{}").into_response();
    }
    let token = request.headers().get("authorization").cloned();
    let mut response = Response::new(request.into_body());
    response.headers_mut().insert("asked", target.parse().expect("a header"));
    if let Some(token) = token {
        response.headers_mut().insert("token", token);
    }
    response
}
