//! The side of the host: a listener that lets services in.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use berth_domain::host::join::Presence;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::{CERTIFICATE, CONNECTION_WINDOW, LinkError, MOST, PRESENCE, Papers, SPOKEN, STREAM_WINDOW, TERM, Terms};
use crate::Host;
use crate::wire::{VERSION, serve};

/// How long somebody may take to say who they are.
const GREETING: Duration = Duration::from_secs(10);
/// How many connections there may be at a time; a service has one.
const CONNECTIONS: usize = 64;
/// How many questions a connection may have at a time.
const QUESTIONS: u32 = 16_384;
/// A service that is silent for this long is asked whether it is there.
const PING: Duration = Duration::from_secs(10);
/// After that it has so long to answer.
const PONG: Duration = Duration::from_secs(20);
/// How long questions may take to end once the host stops.
const DRAIN: Duration = Duration::from_secs(2);
/// Pause after a connection that could not be taken.
const PAUSE: Duration = Duration::from_millis(100);

/// What a host says of itself at this moment.
pub type About = dyn Fn() -> Presence + Send + Sync;

/// What a host does for services.
pub struct Door {
    host: Arc<Host>,
    papers: Arc<Papers>,
    terms: Arc<Terms>,
    about: Box<About>,
}

impl Door {
    /// A door to a host with these papers, which was asked in these terms.
    pub fn new(
        host: Arc<Host>,
        papers: Arc<Papers>,
        terms: Terms,
        about: impl Fn() -> Presence + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self { host, papers, terms: Arc::new(terms), about: Box::new(about) })
    }

    /// Lets services in until told to stop; then questions have a moment to end.
    pub async fn listen(self: Arc<Self>, listener: TcpListener, stop: CancellationToken) {
        let (mut inside, places) = (JoinSet::new(), Arc::new(Semaphore::new(CONNECTIONS)));
        while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
            while inside.try_join_next().is_some() {}
            let (stream, from) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a connection cannot be taken");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            let Ok(place) = places.clone().try_acquire_owned() else {
                tracing::warn!(%from, "too many connections; one more is refused");
                continue;
            };
            let (door, stop) = (self.clone(), stop.clone());
            inside.spawn(async move {
                let _place = place;
                if let Err(error) = door.admit(stream, stop).await {
                    tracing::info!(%from, %error, "a connection has ended");
                }
            });
        }
        drop(listener);
        let _ = timeout(DRAIN, async { while inside.join_next().await.is_some() {} }).await;
    }

    async fn admit(self: Arc<Self>, stream: TcpStream, stop: CancellationToken) -> io::Result<()> {
        let _ = stream.set_nodelay(true);
        let acceptor = TlsAcceptor::from(self.papers.config());
        let stream = timeout(GREETING, acceptor.accept(stream)).await??;
        let mut http = http2::Builder::new(TokioExecutor::new());
        http.timer(TokioTimer::new())
            .max_concurrent_streams(QUESTIONS)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .keep_alive_interval(PING)
            .keep_alive_timeout(PONG);
        let service = service_fn(move |request| {
            let door = self.clone();
            async move { Ok::<_, Infallible>(door.answer(request).await) }
        });
        let mut connection = std::pin::pin!(http.serve_connection(TokioIo::new(stream), service));
        tokio::select! {
            served = connection.as_mut() => return served.map_err(io::Error::other),
            () = stop.cancelled() => connection.as_mut().graceful_shutdown(),
        }
        connection.await.map_err(io::Error::other)
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let term = term_of(&request);
        match self.terms.admit(term) {
            Ok(true) => self.answer_in(term, request).await,
            Ok(false) => {
                let mut refusal = said(StatusCode::CONFLICT, "another service of the platform asks this host by now");
                refusal.headers_mut().insert(TERM, self.terms.latest().into());
                refusal
            }
            Err(error) => said(StatusCode::INTERNAL_SERVER_ERROR, format!("the term cannot be noted: {error}")),
        }
    }

    async fn answer_in(&self, term: i64, mut request: Request<Incoming>) -> Response<Full<Bytes>> {
        match (request.method(), request.uri().path()) {
            (&Method::CONNECT, _) => {
                let (host, terms, stream) = (self.host.clone(), self.terms.clone(), hyper::upgrade::on(&mut request));
                tokio::spawn(async move {
                    let Ok(stream) = stream.await else { return };
                    tokio::select! {
                        // First: what is there to be read of a question does nothing once a later term was heard of.
                        biased;
                        () = terms.outdone(term) => tracing::info!(term, "a question of an earlier term is dropped"),
                        served = serve(&host, TokioIo::new(stream)) => if let Err(error) = served {
                            tracing::debug!(%error, "a question has ended");
                        },
                    }
                });
                said(StatusCode::OK, Bytes::new())
            }
            (&Method::GET, PRESENCE) => match serde_json::to_vec(&(self.about)()) {
                Ok(said_of) => said(StatusCode::OK, said_of),
                Err(error) => said(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
            },
            (&Method::POST, CERTIFICATE) => answered(self.papers.ask()),
            (&Method::PUT, CERTIFICATE) => match Limited::new(request.into_body(), MOST).collect().await {
                Ok(body) => {
                    let pem = String::from_utf8_lossy(&body.to_bytes()).into_owned();
                    answered(self.papers.take(pem).map(|()| String::new()))
                }
                Err(error) => said(StatusCode::BAD_REQUEST, error.to_string()),
            },
            _ => said(StatusCode::NOT_FOUND, "there is nothing here"),
        }
    }
}

/// In which term somebody asks; one of a version that does not say asks in none.
fn term_of(request: &Request<Incoming>) -> i64 {
    let said = request.headers().get(TERM).and_then(|said| said.to_str().ok()?.parse().ok());
    said.unwrap_or_default()
}

fn answered(outcome: Result<String, LinkError>) -> Response<Full<Bytes>> {
    match outcome {
        Ok(text) => said(StatusCode::OK, text),
        Err(error) => said(StatusCode::CONFLICT, error.to_string()),
    }
}

fn said(status: StatusCode, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(SPOKEN, VERSION.into());
    response
}
