//! Replicas for tests: routes, the doors of an active replica and of a standby, and bytes on connections.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use axum::{Json, Router, middleware};
use berth_domain::ids::{HostId, KeyId, ProjectId};
use berth_domain::{Error, Result};
use berth_host::clock::Clock;
use berth_host::link::{Authority, HostName, replica};
use futures::StreamExt;
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Mutex, mpsc, watch};
use tokio_util::sync::{CancellationToken, DropGuard};
use uuid::Uuid;

use crate::config::Http;
use crate::db::Tx;
use crate::http::auth::{AnyOf, Caller, Gate, Grant, OrgScope, Person, Scope};
use crate::http::client_address::{ClientAddress, TrustedProxies};
use crate::http::edge::{Edge, Hot, Rooms, Secure};
use crate::http::envelope::{RequestId, envelope};
use crate::http::from_standby::FromStandby;
use crate::http::limit::Window;
use crate::http::pass_on::{Active, Front, PassOn};
use crate::http::passed::Way;
use crate::http::seats::Seats;
use crate::http::server::{Answers, Door, House, serve};
use crate::http::tls::Certificate;
use crate::http::who::Who;

/// Lets nobody in: the routes of these tests ask for no credential.
struct Shut;

fn shut<T>() -> Result<T> {
    Err(Error::internal("nobody is let in"))
}

#[async_trait]
impl Gate for Shut {
    async fn caller(&self, _: &str, _: ClientAddress) -> Result<Who> {
        shut()
    }

    async fn key(&self, _: KeyId, _: ClientAddress) -> Result<Who> {
        shut()
    }

    async fn keys_of(&self, _: ProjectId, _: AnyOf) -> Result<Vec<KeyId>> {
        shut()
    }

    async fn refused(&self, _: &str, _: &Error, _: &RequestId) {}

    async fn org(&self, _: Person, _: &str) -> Result<OrgScope> {
        shut()
    }

    async fn project(&self, _: Caller, _: &str, _: &str) -> Result<Scope> {
        shut()
    }

    async fn home(&self, _: Caller, _: Option<&str>) -> Result<Scope> {
        shut()
    }

    async fn recheck(&self, _: &Who, _: Grant) -> Result<()> {
        shut()
    }

    async fn confirm(&self, _: &mut Tx, _: &Who, _: Grant) -> Result<()> {
        shut()
    }

    fn admit(&self, _: &Who, _: Option<&Scope>) -> Result<Option<Window>> {
        shut()
    }
}

/// What a route tells its test, and what the test has it say.
pub struct Wires {
    /// What routes read, and when they were left.
    pub heard: mpsc::UnboundedReceiver<String>,
    /// What the streamed answer says next.
    pub say: mpsc::UnboundedSender<&'static str>,
}

#[derive(Clone)]
struct Ends {
    heard: mpsc::UnboundedSender<String>,
    said: Arc<Mutex<mpsc::UnboundedReceiver<&'static str>>>,
    name: &'static str,
}

/// Tells that whoever asked has left.
struct Left(mpsc::UnboundedSender<String>);

impl Drop for Left {
    fn drop(&mut self) {
        let _ = self.0.send("left".into());
    }
}

/// What was asked, with two headers of one name, and some that concern the connection.
async fn echo(request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map(|body| body.to_bytes().len());
    let pairs = parts.headers.iter().map(|(n, v)| (n.to_string(), json!(v.to_str().unwrap())));
    let told = json!({
        "method": parts.method.as_str(),
        "target": parts.uri.to_string(),
        "headers": pairs.collect::<serde_json::Map<_, _>>(),
        "bytes": body.ok(),
        "client": parts.extensions.get::<ClientAddress>().and_then(|c| c.known()),
        "secure": parts.extensions.get::<Secure>().is_some(),
    });
    let mut answer = (StatusCode::CREATED, Json(told)).into_response();
    for (name, value) in [("set-cookie", "a"), ("set-cookie", "b"), ("keep-alive", "x"), ("x-own", "1")] {
        answer.headers_mut().append(name, value.parse().unwrap());
    }
    answer.headers_mut().insert(header::CONNECTION, "x-own".parse().unwrap());
    answer
}

/// Says what it is told to, piece by piece.
async fn stream(State(ends): State<Ends>) -> Body {
    let (left, said) = (Left(ends.heard), ends.said);
    Body::from_stream(futures::stream::unfold((left, said), |(left, said)| async {
        let piece = said.lock().await.recv().await?;
        Some((Ok::<_, std::io::Error>(Bytes::from(piece)), (left, said)))
    }))
}

/// Tells each piece of a body as it comes.
async fn upload(State(ends): State<Ends>, request: Request) -> StatusCode {
    let mut pieces = request.into_body().into_data_stream();
    while let Some(piece) = pieces.next().await {
        let told = piece.map_or_else(|_| "broken".into(), |piece| String::from_utf8_lossy(&piece).into_owned());
        let _ = ends.heard.send(told);
    }
    StatusCode::NO_CONTENT
}

/// Answers nothing.
async fn wait(State(ends): State<Ends>) {
    let _left = Left(ends.heard.clone());
    let _ = ends.heard.send("waits".into());
    std::future::pending::<()>().await;
}

/// Says back in capitals what it hears.
async fn shout(State(ends): State<Ends>, mut request: Request) -> Response {
    let upgrade = hyper::upgrade::on(&mut request);
    let left = Left(ends.heard);
    tokio::spawn(async move {
        let _left = left;
        let mut stream = TokioIo::new(upgrade.await.unwrap());
        let mut bytes = [0; 64];
        while let Ok(length @ 1..) = stream.read(&mut bytes).await {
            stream.write_all(&bytes[..length].to_ascii_uppercase()).await.unwrap();
        }
    });
    (StatusCode::SWITCHING_PROTOCOLS, [("connection", "upgrade"), ("upgrade", "shout")]).into_response()
}

fn edge(name: &'static str) -> (Edge, Wires) {
    let (heard, hearing) = mpsc::unbounded_channel();
    let (say, said) = mpsc::unbounded_channel();
    let router = Router::new()
        .route("/echo/{*path}", any(echo))
        .route("/api/v1/admin/users", any(echo))
        .route("/metrics", any(echo))
        .route("/stream", get(stream))
        .route("/upload", any(upload))
        .route("/wait", post(wait))
        .route("/shout", get(shout))
        .route("/name", get(|State(ends): State<Ends>| async move { ends.name }))
        .route("/healthz", get(|| async {}))
        .with_state(Ends { heard, said: Arc::new(Mutex::new(said)), name })
        .layer(middleware::from_fn(envelope));
    let edge = Edge::new(router, Arc::new(Shut), Hot::default(), TrustedProxies::default());
    (edge, Wires { heard: hearing, say })
}

/// Opens a door for as long as the guard lives.
async fn open(answers: Answers, certificate: Option<Certificate>) -> (SocketAddr, DropGuard) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (seats, house) = (Seats::new(64, 64, Vec::new()), House::of_replicas(&Http::default()));
    let door = Door { listener, answers, certificate: certificate.map(Arc::new), seats, house };
    let ending = CancellationToken::new();
    tokio::spawn(serve(vec![door], Duration::ZERO, ending.clone()));
    (address, ending.drop_guard())
}

/// An active replica.
pub struct Replica {
    /// Where and who it is.
    pub active: Active,
    /// What its routes say.
    pub wires: Wires,
    /// A door of its own, for clients.
    pub own: SocketAddr,
    _open: [DropGuard; 2],
}

impl Replica {
    /// Ends without a word.
    pub fn die(self) -> Wires {
        self.wires
    }
}

/// A platform: its authority, which of its replicas is active, and a standby.
pub struct World {
    /// The authority of all replicas.
    pub authority: Arc<Authority>,
    /// Which one is active.
    pub active: watch::Sender<Option<Active>>,
    /// The standby's main door, and that of administration.
    pub standby: [SocketAddr; 2],
    _open: [DropGuard; 2],
}

/// What replicas are called.
pub fn name(number: u128) -> HostName {
    HostName { id: HostId(Uuid::from_u128(number)), enrolment: 1 }
}

impl World {
    /// Nobody is active.
    pub async fn start() -> Self {
        Self::behind(TrustedProxies::default).await
    }

    /// The same behind these proxies.
    pub async fn behind(trusted: impl Fn() -> TrustedProxies) -> Self {
        let authority = Arc::new(Authority::make(Clock::default().now()).unwrap());
        let (active, told) = watch::channel(None);
        let pass_on = PassOn::new(authority.clone(), Clock::default(), told, trusted());
        let door = |way, administration| {
            let rooms = Rooms::Without { metrics: false, administration };
            let metrics: super::super::Metrics = Arc::new(|| "berth_http_connections 1\n".into());
            open(Answers::PassedOn(Front { pass_on: pass_on.clone(), way, rooms, metrics }), None)
        };
        let (main, admin) = (door(Way::Main, true).await, door(Way::Admin, false).await);
        Self { authority, active, standby: [main.0, admin.0], _open: [main.1, admin.1] }
    }

    /// The same with a replica that is active.
    pub async fn with_active() -> (Self, Replica) {
        let world = Self::start().await;
        let replica = world.replica(1, "first").await;
        world.active.send_replace(Some(replica.active.clone()));
        (world, replica)
    }

    /// A replica that would be active.
    pub async fn replica(&self, number: u128, called: &'static str) -> Replica {
        let (edge, wires) = edge(called);
        let (config, _) = replica::serving(&self.authority, name(number), Clock::default().now()).unwrap();
        let answers = Answers::FromStandby(FromStandby::new(&edge, true));
        let (address, open_to_standbys) = open(answers, Some(Certificate::made(config))).await;
        let (own, open_to_clients) = open(Answers::Edge(edge), None).await;
        let active = Active { address: address.to_string(), name: name(number) };
        Replica { active, wires, own, _open: [open_to_standbys, open_to_clients] }
    }

    /// A URL of the standby's main door.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.standby[0])
    }

    /// A connection to the standby's main door, on which this was sent.
    pub async fn connection(&self, sent: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.standby[0]).await.unwrap();
        stream.write_all(sent.as_bytes()).await.unwrap();
        stream
    }

    /// What the standby answers to a client at this address: the status, headers and JSON.
    pub async fn asked(&self, from: [u8; 4], path: &str, headers: &[(&str, &str)]) -> (u16, HeaderMap, Value) {
        let client = reqwest::Client::builder().tls_certs_only([]).local_address(std::net::IpAddr::from(from));
        let request = client.build().unwrap().get(self.url(path));
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        read(request).await
    }
}

/// Sends a request: the status, headers and JSON of its answer.
pub async fn read(request: reqwest::RequestBuilder) -> (u16, HeaderMap, Value) {
    let answer = request.send().await.unwrap();
    let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
    let text = answer.text().await.unwrap();
    (status, headers, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

/// A client that has connections of its own.
pub fn client() -> reqwest::Client {
    reqwest::Client::builder().tls_certs_only([]).pool_max_idle_per_host(0).build().unwrap()
}

/// Reads until these bytes have come.
pub async fn until(stream: &mut TcpStream, wanted: &str) -> String {
    let mut text = String::new();
    while !text.contains(wanted) {
        let mut bytes = [0; 1024];
        let length = stream.read(&mut bytes).await.unwrap();
        assert!(length > 0, "it ends before {wanted:?}: {text}");
        text.push_str(&String::from_utf8_lossy(&bytes[..length]));
    }
    text
}

/// An address at which nobody listens, for as long as the socket lives.
pub fn nowhere() -> (SocketAddr, TcpSocket) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    (socket.local_addr().unwrap(), socket)
}
