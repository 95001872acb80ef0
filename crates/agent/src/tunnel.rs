//! A connection to a server inside the sandbox: bytes in both directions, each of which ends by itself.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use berth_domain::agent::error::code;
use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::body::{Answer, Body, typed};
use crate::call::Call;
use crate::error::{Refusal, Result};
use crate::events::{Feed, Feeding};

/// How long a server may take to accept.
const PATIENCE: Duration = Duration::from_secs(10);
const CHUNK: usize = 64 * 1024;

/// `POST /tunnel/{port}`.
pub async fn tunnel(call: Call) -> Result<Answer> {
    let port = match call.parameter.parse::<u16>() {
        Ok(port) if port > 0 => port,
        _ => return Err(Refusal::field("port", "must be an integer from 1 to 65535")),
    };
    let (reader, writer) = connect(port).await?.into_split();
    let sending = tokio::spawn(send(call.body, writer));
    let feed = Receiving { reader, sending, done: false };
    let body = Body::Chunks(Box::pin(Feeding::new(feed)));
    Ok(typed(StatusCode::OK, "application/octet-stream", body))
}

async fn connect(port: u16) -> Result<TcpStream> {
    let attempt = async {
        match TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await {
            Ok(stream) => Ok(stream),
            Err(_) => TcpStream::connect((Ipv6Addr::LOCALHOST, port)).await,
        }
    };
    let stream = timeout(PATIENCE, attempt).await.ok().and_then(io::Result::ok).ok_or_else(|| {
        let message = format!("Nothing listens on port {port} of the sandbox; start a server there.");
        Refusal::new(code::PORT_REFUSED, message)
    })?;
    // Sending small pieces early matters more than sending few.
    let _ = stream.set_nodelay(true);
    Ok(stream)
}

/// Carries what the client sends, until it ends.
async fn send(mut body: Incoming, mut writer: OwnedWriteHalf) {
    while let Some(Ok(frame)) = body.frame().await {
        let Ok(bytes) = frame.into_data() else { continue };
        if writer.write_all(&bytes).await.is_err() {
            return;
        }
    }
    let _ = writer.shutdown().await;
}

struct Receiving {
    reader: OwnedReadHalf,
    sending: JoinHandle<()>,
    /// The server has sent everything; the client may still send.
    done: bool,
}

/// If the client leaves before the server's end, the other direction ends, too.
impl Drop for Receiving {
    fn drop(&mut self) {
        if !self.done {
            self.sending.abort();
        }
    }
}

impl Feed for Receiving {
    const KEEP_ALIVE: Option<Duration> = None;

    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        let mut buffer = BytesMut::with_capacity(CHUNK);
        match self.reader.read_buf(&mut buffer).await {
            Ok(0) => {
                self.done = true;
                None
            }
            Ok(_) => Some(Ok(buffer.freeze())),
            Err(error) => Some(Err(error)),
        }
    }
}
