//! The connections: HTTP/1.1, with TLS or without, one task for each, on [event loops](super::event_loop).
//!
//! axum's own loop also guesses HTTP/2 without TLS, which no client of Berth speaks. The guess costs every connection a
//! second buffer while it lasts, and thousands of streams last long.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::ConnectInfo;
use axum::http::{HeaderValue, Request, StatusCode, header};
use futures::future::join_all;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::edge::{Edge, Secure};
use super::event_loop::EventLoops;
use super::from_standby::FromStandby;
use super::pass_on::Front;
use super::seated::Seated;
use super::seats::{Seats, Ticket};
use super::taken::Taken;
use super::tls::Certificate;
use crate::config::Http;

/// Pause before the service accepts again after it could not accept a connection.
const PAUSE: Duration = Duration::from_secs(1);
/// How long requests under way may take to end. Streams have no end of their own; the service cuts them then.
pub const DRAIN: Duration = Duration::from_secs(10);
/// How long a client that greets the service at its end may take to say who it is: its request is still answered.
const GREETING: Duration = Duration::from_secs(1);
/// How long a standby keeps a connection that it does not use, and more.
const KEPT: Duration = Duration::from_mins(2);
/// Bytes, and headers, that a standby may add to a head.
const ADDED: (usize, usize) = (4 << 10, 16);
/// The most headers of a request, hyper's default.
const MOST_HEADERS: usize = 100;
/// The longest head of a request, in bytes: a stranger may make the service hold that much for as long as a head may
/// take.
const LONGEST_HEAD: usize = 64 << 10;
/// Tells browsers to use this name over TLS only, for a year (RFC 6797).
const HSTS: HeaderValue = HeaderValue::from_static("max-age=31536000");

/// An address at which the service answers.
pub struct Door {
    /// Accepts connections.
    pub listener: TcpListener,
    /// What is behind it.
    pub answers: Answers,
    /// The certificate, where it speaks TLS.
    pub certificate: Option<Arc<Certificate>>,
    /// Its seats.
    pub seats: Arc<Seats>,
    /// Its settings.
    pub house: House,
}

/// What answers at a door.
#[derive(Clone)]
pub enum Answers {
    /// The routes of an active service.
    Edge(Edge),
    /// The same, where standbys pass requests on.
    FromStandby(FromStandby),
    /// The active replica, to which a standby passes requests on.
    PassedOn(Front),
}

impl Answers {
    async fn answer(&self, request: axum::extract::Request) -> axum::response::Response {
        match self {
            Self::Edge(edge) => edge.answer(request).await,
            // Boxed, so that the futures of most requests are no larger for them.
            Self::FromStandby(edges) => Box::pin(edges.answer(request)).await,
            Self::PassedOn(front) => Box::pin(front.answer(request)).await,
        }
    }

    /// Whether a connection is the client's own: what it speaks is what the client speaks.
    const fn faces_clients(&self) -> bool {
        !matches!(self, Self::FromStandby(_))
    }
}

/// Settings for the connections of a door.
#[derive(Clone)]
pub struct House {
    /// How long the head of a request may take: the first from the beginning of the connection, others from their own.
    head: Duration,
    /// How long a body may stall.
    grace: Duration,
    /// How long a client may read nothing of an answer.
    unread: Duration,
    http: http1::Builder,
}

impl House {
    /// From the configuration.
    pub fn new(http: &Http) -> Self {
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(Duration::from_secs(http.idle_seconds));
        builder.max_buf_size(LONGEST_HEAD);
        let seconds = [http.head_seconds, http.body_grace_seconds, http.unread_seconds];
        let [head, grace, unread] = seconds.map(Duration::from_secs);
        Self { head, grace, unread, http: builder }
    }

    /// From the configuration, for standbys: they keep connections for later, and add to the heads of requests.
    pub fn of_replicas(http: &Http) -> Self {
        let mut house = Self { head: KEPT, ..Self::new(http) };
        house.http.header_read_timeout(KEPT).max_buf_size(LONGEST_HEAD + ADDED.0).max_headers(MOST_HEADERS + ADDED.1);
        house
    }
}

/// Answers at every door until told to end; then waits for the requests under way, for as long as `drain`.
pub async fn serve(doors: Vec<Door>, drain: Duration, ending: CancellationToken) -> io::Result<()> {
    let loops = EventLoops::start()?;
    let connections = TaskTracker::new();
    join_all(doors.into_iter().map(|door| accept(door, &loops, &connections, &ending))).await;
    connections.close();
    if timeout(drain, connections.wait()).await.is_err() {
        tracing::info!(connections = connections.len(), "cut, because they did not end by themselves");
    }
    loops.end().await;
    Ok(())
}

async fn accept(door: Door, loops: &EventLoops, connections: &TaskTracker, ending: &CancellationToken) {
    let Door { listener, answers, certificate, seats, house } = door;
    while let Some(accepted) = ending.run_until_cancelled(listener.accept()).await {
        match accepted {
            Ok((stream, from)) => {
                let Some(ticket) = seats.enter(from.ip()) else {
                    tracing::debug!(%from, "a connection is refused: there are as many as there may be");
                    continue;
                };
                match stream.into_std() {
                    Ok(stream) => {
                        let (answers, certificate) = (answers.clone(), certificate.clone());
                        let (ticket, all) = (Arc::new(ticket), connections.clone());
                        let guest = Guest { ticket, from, answers, certificate, connections: all };
                        let serving = connection(house.clone(), stream, guest, ending.clone());
                        loops.spawn(connections.track_future(serving));
                    }
                    Err(error) => tracing::debug!(%error, "a connection ended before it began"),
                }
            }
            Err(error) if is_of_one(&error) => {}
            Err(error) => {
                tracing::error!(%error, "no connection can be taken; trying again");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Whether a failure to accept concerns only this connection, and not the next.
fn is_of_one(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// A new connection.
struct Guest {
    ticket: Arc<Ticket>,
    from: SocketAddr,
    answers: Answers,
    certificate: Option<Arc<Certificate>>,
    connections: TaskTracker,
}

async fn connection(house: House, stream: std::net::TcpStream, guest: Guest, ending: CancellationToken) {
    // Output that is sent piece by piece must not wait until the client acknowledges the piece before.
    let stream = match stream.set_nodelay(true).and_then(|()| TcpStream::from_std(stream)) {
        Ok(stream) => Taken::new(stream, house.unread),
        Err(error) => {
            tracing::debug!(%error, "a connection ended before it began");
            return;
        }
    };
    let silent = async {
        tokio::time::sleep(house.head).await;
        if guest.ticket.was_asked() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        // Input that came in time is read, however late this thread is.
        biased;
        () = greet(&house, stream, &guest, &ending) => {}
        () = guest.ticket.cut() => tracing::debug!(from = %guest.from, "a connection is cut: another one came"),
        () = silent => tracing::debug!(from = %guest.from, "a connection is cut: nothing was asked in time"),
    }
}

async fn greet(house: &House, stream: Taken<TcpStream>, guest: &Guest, ending: &CancellationToken) {
    match &guest.certificate {
        None => speak(house, stream, guest, ending).await,
        // Boxed: with the room for TLS, a connection without it would be three times as large.
        Some(certificate) => Box::pin(greet_over_tls(certificate, house, stream, guest, ending)).await,
    }
}

async fn greet_over_tls(
    certificate: &Certificate,
    house: &House,
    stream: Taken<TcpStream>,
    guest: &Guest,
    ending: &CancellationToken,
) {
    let ended = async {
        ending.cancelled().await;
        tokio::time::sleep(GREETING).await;
    };
    let greeted = tokio::select! {
        greeted = certificate.acceptor().accept(stream) => Some(greeted),
        () = ended => None,
    };
    match greeted {
        Some(Ok(stream)) => speak(house, stream, guest, ending).await,
        Some(Err(error)) => tracing::debug!(%error, from = %guest.from, "a connection does not speak TLS as we do"),
        None => {}
    }
}

async fn speak<S>(house: &House, stream: S, guest: &Guest, ending: &CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Guest { ticket, from, answers, certificate, connections } = guest;
    let is_secure = certificate.is_some() && answers.faces_clients();
    let service = service_fn(move |request: Request<Incoming>| {
        let (asked, answers) = (ticket.asked(), answers.clone());
        async move {
            let mut request = request.map(|body| asked.body(body));
            request.extensions_mut().insert(ConnectInfo(*from));
            if is_secure {
                request.extensions_mut().insert(Secure);
            }
            let answer = answers.answer(request).await;
            let mut answer = if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
                asked.hands_on();
                answer
            } else {
                answer.map(|body| asked.answer(body))
            };
            if is_secure {
                answer.headers_mut().insert(header::STRICT_TRANSPORT_SECURITY, HSTS);
            }
            Ok::<_, Infallible>(answer)
        }
    });
    let stream = Seated::new(stream, ticket.clone(), house.head, house.grace, connections.token());
    let mut connection = pin!(house.http.serve_connection(TokioIo::new(stream), service).with_upgrades());
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
