//! The side of the service: one connection to a host, made again where it broke.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use berth_domain::Timestamp;
use berth_domain::host::join::Presence;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::sync::{Mutex, Notify};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::dial::dial;
use super::{Authority, CERTIFICATE, CONNECTION_WINDOW, HostName, MOST, PRESENCE, STREAM_WINDOW, TERM, spoken, tls};
use crate::clock::Clock;
use crate::vm::Console;
use crate::wire::{Carrier, OLDEST};

/// The longest pause between two tries.
const LONGEST: Duration = Duration::from_secs(8);

/// How long a service waits for a host.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For a connection, and for what a host says of itself.
    pub answer: Duration,
    /// A host that is silent for this long is asked whether it is there.
    pub ping: Duration,
    /// After that it has so long to answer, or the connection is given up with all questions on it.
    pub pong: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { answer: Duration::from_secs(5), ping: Duration::from_secs(5), pong: Duration::from_secs(10) }
    }
}

/// What sends on a connection.
type Sender = SendRequest<Full<Bytes>>;

/// Says in which term a service asks now.
pub type InTerm = Box<dyn Fn() -> i64 + Send + Sync>;

/// A line to one host.
pub struct Line {
    address: String,
    name: HostName,
    authority: Arc<Authority>,
    clock: Clock,
    patience: Patience,
    in_term: InTerm,
    /// The latest term of which the host said that it was asked in it, and that it answers in no earlier one.
    refused_for: AtomicI64,
    /// The version that the host said last that it speaks.
    spoken: AtomicU32,
    state: Mutex<State>,
    closed: CancellationToken,
    ended: Arc<Notify>,
}

#[derive(Default)]
struct State {
    open: Option<Open>,
    /// How many connections there were.
    dialed: u64,
    /// When and why the last try failed, and how long the next one waits.
    failed: Option<(Instant, String, Duration)>,
}

struct Open {
    number: u64,
    sender: Sender,
    _connection: AbortOnDropHandle<()>,
}

impl Line {
    /// A line to the host that has this name at `host:port`, of a service that asks in this term.
    pub fn new(
        (address, name): (String, HostName),
        authority: Arc<Authority>,
        clock: Clock,
        patience: Patience,
        in_term: InTerm,
    ) -> Self {
        let (closed, refused_for, spoken) = (CancellationToken::new(), AtomicI64::new(0), AtomicU32::new(OLDEST));
        let (state, ended) = (Mutex::default(), Arc::default());
        Self { address, name, authority, clock, patience, in_term, refused_for, spoken, state, closed, ended }
    }

    /// The later term that the host was asked in, where it refused this service for that since the last call.
    pub fn refused_for(&self) -> Option<i64> {
        Some(self.refused_for.swap(0, Ordering::SeqCst)).filter(|term| *term > 0)
    }

    /// What the host says of itself.
    ///
    /// # Errors
    /// It cannot be reached, or says something else.
    pub async fn presence(&self) -> io::Result<Presence> {
        let said = self.exchange(Method::GET, PRESENCE, Bytes::new()).await?;
        serde_json::from_slice(&said).map_err(io::Error::other)
    }

    /// Has the host make another key and gives it a certificate for that; returns when that one ends.
    ///
    /// # Errors
    /// It cannot be reached, or does not take it; it goes on with what it has.
    pub async fn renew(&self) -> io::Result<Timestamp> {
        let csr = self.exchange(Method::POST, CERTIFICATE, Bytes::new()).await?;
        let csr = String::from_utf8_lossy(&csr);
        let (pem, until) = self.authority.host(self.name, &csr, self.clock.now()).map_err(io::Error::other)?;
        self.exchange(Method::PUT, CERTIFICATE, pem.into()).await?;
        Ok(until)
    }

    /// Returns when a connection has ended.
    pub async fn ended(&self) {
        self.ended.notified().await;
    }

    /// Ends the connection, and all questions on it; there is no other one.
    pub fn close(&self) {
        self.closed.cancel();
    }

    async fn exchange(&self, method: Method, path: &str, body: Bytes) -> io::Result<Bytes> {
        let asked = async {
            let request = Request::builder().method(method).uri(format!("https://host.berth{path}"));
            let request = request.body(Full::new(body)).map_err(io::Error::other)?;
            let response = self.send(request).await?;
            let status = response.status();
            let text = Limited::new(response.into_body(), MOST).collect().await.map_err(io::Error::other)?.to_bytes();
            if status == StatusCode::OK {
                return Ok(text);
            }
            Err(io::Error::other(format!("the host refuses {path}: {}", String::from_utf8_lossy(&text))))
        };
        timeout(self.patience.answer, asked).await?
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> io::Result<Response<Incoming>> {
        let mut is_again = false;
        loop {
            let (number, sender) = self.sender().await?;
            match self.send_by(sender, request.clone()).await? {
                // The connection was about to end, and the request is not sent.
                Err(error) if !is_again && (error.is_canceled() || error.is_closed()) => self.let_go(number).await,
                Ok(response) => {
                    self.note(&response);
                    return Ok(response);
                }
                Err(error) => return Err(io::Error::other(error)),
            }
            is_again = true;
        }
    }

    /// Notes what the host says beside its answer.
    fn note(&self, response: &Response<Incoming>) {
        let said = |name| response.headers().get(name).and_then(|said| said.to_str().ok());
        let later = said(TERM).and_then(|term| term.parse().ok());
        if let Some(later) = later.filter(|_| response.status() == StatusCode::CONFLICT) {
            self.refused_for.fetch_max(later, Ordering::SeqCst);
        }
        self.spoken.store(spoken(response.headers()), Ordering::SeqCst);
    }

    async fn send_by(
        &self,
        mut sender: Sender,
        mut request: Request<Full<Bytes>>,
    ) -> io::Result<hyper::Result<Response<Incoming>>> {
        request.headers_mut().insert(TERM, (self.in_term)().into());
        let sent = async {
            sender.ready().await?;
            sender.send_request(request).await
        };
        self.closed.run_until_cancelled(sent).await.ok_or_else(closed)
    }

    /// Gives up a connection, unless another one has its place by now.
    async fn let_go(&self, number: u64) {
        self.state.lock().await.open.take_if(|open| open.number == number);
    }

    /// The connection that is there, or a new one; soon after a failure that failure, so that many who ask do not make
    /// as many tries.
    async fn sender(&self) -> io::Result<(u64, Sender)> {
        let mut state = self.state.lock().await;
        if self.closed.is_cancelled() {
            return Err(closed());
        }
        if let Some(open) = state.open.as_ref().filter(|open| !open.sender.is_closed()) {
            return Ok((open.number, open.sender.clone()));
        }
        state.open = None;
        if let Some((at, why, pause)) = &state.failed
            && at.elapsed() < *pause
        {
            return Err(io::Error::other(why.clone()));
        }
        match timeout(self.patience.answer, self.dial()).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok((sender, connection)) => {
                let number = state.dialed + 1;
                let open = Open { number, sender: sender.clone(), _connection: connection };
                *state = State { open: Some(open), dialed: number, failed: None };
                Ok((number, sender))
            }
            Err(error) => {
                let pause = state.failed.as_ref().map_or(LONGEST / 16, |(_, _, pause)| (*pause * 2).min(LONGEST));
                state.failed = Some((Instant::now(), error.to_string(), pause));
                Err(error)
            }
        }
    }

    async fn dial(&self) -> io::Result<(Sender, AbortOnDropHandle<()>)> {
        let stream = dial(&self.authority, (self.name, &self.address), self.clock.now(), tls::HTTP2).await?;
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(self.patience.ping)
            .keep_alive_timeout(self.patience.pong)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(io::Error::other)?;
        let (ends, ended) = (self.closed.clone(), self.ended.clone());
        let connection = tokio::spawn(async move {
            if let Some(Err(error)) = ends.run_until_cancelled(connection).await {
                tracing::debug!(%error, "a connection to a host has ended");
            }
            ended.notify_one();
        });
        Ok((sender, AbortOnDropHandle::new(connection)))
    }
}

fn closed() -> io::Error {
    io::Error::other("the host was removed")
}

#[async_trait]
impl Carrier for Line {
    async fn connect(&self) -> io::Result<Box<dyn Console>> {
        let request = Request::builder().method(Method::CONNECT).uri("host.berth:443");
        let mut response = self.send(request.body(Full::default()).map_err(io::Error::other)?).await?;
        if response.status() != StatusCode::OK {
            return Err(io::Error::other(format!("the host answers {}", response.status())));
        }
        let stream = hyper::upgrade::on(&mut response).await.map_err(io::Error::other)?;
        Ok(Box::new(TokioIo::new(stream)))
    }

    fn spoken(&self) -> u32 {
        self.spoken.load(Ordering::SeqCst)
    }
}
