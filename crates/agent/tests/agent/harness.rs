//! A running agent, and a client on its socket.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use berth_domain::agent::error::ErrorBody;
use berth_domain::agent::marker::{Answer, marker};
use berth_domain::agent::output;
use berth_domain::agent::runtime::OutputEvent;
use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::mpsc;

/// How long to wait for anything that happens at all.
pub const PATIENCE: Duration = Duration::from_mins(1);
pub const TOKEN: &str = "a-token";

type Error = Box<dyn std::error::Error + Send + Sync>;
/// The body of a request: complete, or through a channel.
pub type Upload = http_body_util::combinators::UnsyncBoxBody<Bytes, Error>;

pub fn whole(bytes: impl Into<Bytes>) -> Upload {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

struct Channel(mpsc::Receiver<Bytes>);

impl Body for Channel {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Error>>> {
        self.0.poll_recv(context).map(|next| next.map(|bytes| Ok(Frame::data(bytes))))
    }
}

/// A body that ends when its sender is dropped.
pub fn piecewise() -> (mpsc::Sender<Bytes>, Upload) {
    let (sender, receiver) = mpsc::channel(16);
    (sender, Channel(receiver).boxed_unsync())
}

/// A whole answer.
pub struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub bytes: Bytes,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or_else(|_| panic!("{} {:?}", self.status, self.bytes))
    }

    /// Asserts a refusal with a status and a code.
    #[track_caller]
    pub fn refused(&self, status: u16, code: &str) {
        let body: ErrorBody = serde_json::from_slice(&self.bytes).expect("a refusal");
        assert_eq!((self.status.as_u16(), body.code.as_str()), (status, code), "{}", body.message);
        assert!(!body.message.is_empty());
    }

    /// Asserts a refusal of these fields.
    #[track_caller]
    pub fn names(&self, fields: &[&str]) {
        self.refused(400, "invalid_request");
        let body: ErrorBody = serde_json::from_slice(&self.bytes).unwrap();
        assert_eq!(body.details.iter().map(|detail| detail.field.as_str()).collect::<Vec<_>>(), fields);
    }

    #[track_caller]
    pub fn ok(self) -> Self {
        assert!(self.status.is_success(), "{} {:?}", self.status, self.bytes);
        self
    }
}

/// Server-sent events as they come.
pub struct Events {
    body: Incoming,
    buffer: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub id: Option<String>,
    pub name: String,
    pub data: String,
}

impl Events {
    pub fn new(body: Incoming) -> Self {
        Self { body, buffer: Vec::new() }
    }

    /// The next event; nothing at the end.
    pub async fn next(&mut self) -> Option<Event> {
        tokio::time::timeout(PATIENCE, self.wait()).await.expect("an event in time")
    }

    async fn wait(&mut self) -> Option<Event> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|two| two == b"\n\n") {
                let block = String::from_utf8(self.buffer.drain(..end + 2).collect()).unwrap();
                let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
                if let Some(name) = field("event: ") {
                    let id = field("id: ");
                    return Some(Event { id, name, data: field("data: ").unwrap() });
                }
                continue;
            }
            let Some(frame) = self.body.frame().await else {
                assert!(self.buffer.is_empty(), "half an event");
                return None;
            };
            self.buffer.extend_from_slice(&frame.expect("an unbroken stream").into_data().unwrap());
        }
    }

    /// The next event of a process.
    pub async fn output(&mut self) -> Option<OutputEvent> {
        let event = self.next().await?;
        Some(OutputEvent::parse(&event.name, &event.data).unwrap_or_else(|e| panic!("{event:?} {e}")))
    }

    /// Everything to the end; exactly one event is a last one, and it comes last.
    pub async fn all(mut self) -> Vec<OutputEvent> {
        let mut all = Vec::new();
        while let Some(event) = self.output().await {
            all.push(event);
        }
        let last = all.iter().filter(|event| event.is_last()).count();
        assert!(last <= 1 && (last == 0 || all.last().unwrap().is_last()), "{all:?}");
        all
    }
}

/// The content of a frame of output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    Output { stderr: bool, offset: u64, bytes: Vec<u8> },
    Event(OutputEvent),
}

/// Frames of output as they come.
pub struct Frames {
    body: Incoming,
    buffer: Vec<u8>,
    pid: Option<i32>,
}

impl Frames {
    /// The next frame with content.
    pub async fn next(&mut self) -> Told {
        tokio::time::timeout(PATIENCE, self.wait()).await.expect("a frame in time")
    }

    async fn wait(&mut self) -> Told {
        loop {
            if let Some(header) = output::Header::parse(&self.buffer).unwrap()
                && self.buffer.len() >= output::HEADER_LEN + header.length
            {
                let bytes: Vec<u8> = self.buffer.drain(..output::HEADER_LEN + header.length).collect();
                let bytes = bytes[output::HEADER_LEN..].to_vec();
                match header.kind {
                    output::Kind::Nothing => continue,
                    output::Kind::Event => return Told::Event(output::event(&bytes).unwrap().expect("an event")),
                    kind => {
                        let stderr = kind == output::Kind::Stderr;
                        return Told::Output { stderr, offset: header.offset, bytes };
                    }
                }
            }
            let frame = self.body.frame().await.expect("no end without an exit");
            self.buffer.extend_from_slice(&frame.expect("an unbroken stream").into_data().unwrap());
        }
    }

    /// The next output.
    pub async fn output(&mut self) -> (bool, u64, Vec<u8>) {
        match self.next().await {
            Told::Output { stderr, offset, bytes } => (stderr, offset, bytes),
            other @ Told::Event(_) => panic!("{other:?}"),
        }
    }

    pub fn pid(&self) -> i32 {
        self.pid.expect("a start")
    }
}

/// One session with an agent.
#[derive(Clone)]
pub struct Client {
    sender: SendRequest<Upload>,
    pub token: Option<&'static str>,
}

impl Client {
    /// Sends a marker and begins a session on a stream.
    pub async fn greet(mut stream: UnixStream, nonce: [u8; 16]) -> Self {
        stream.write_all(&marker(nonce)).await.unwrap();
        let mut answer = Answer::to(nonce);
        let mut buffer = [0; 1024];
        let rest = loop {
            let n = tokio::time::timeout(PATIENCE, stream.read(&mut buffer)).await.expect("an answer").unwrap();
            assert!(n > 0, "the agent closed");
            if let Some(rest) = answer.feed(&buffer[..n]) {
                break rest;
            }
        };
        assert!(rest.is_empty(), "the agent speaks when it is spoken to");
        Self::begin(stream).await
    }

    /// Begins a session on a stream whose marker was answered.
    pub async fn begin(stream: UnixStream) -> Self {
        let (sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(berth_domain::agent::STREAM_WINDOW)
            .initial_connection_window_size(berth_domain::agent::SESSION_WINDOW)
            .handshake(TokioIo::new(stream))
            .await
            .unwrap();
        tokio::spawn(connection);
        Self { sender, token: Some(TOKEN) }
    }

    pub async fn send(&self, request: Request<Upload>) -> http::Response<Incoming> {
        self.try_send(request).await.unwrap()
    }

    pub async fn try_send(&self, mut request: Request<Upload>) -> hyper::Result<http::Response<Incoming>> {
        if let Some(token) = self.token {
            request.headers_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        }
        let mut sender = self.sender.clone();
        tokio::time::timeout(PATIENCE, sender.send_request(request)).await.expect("an answer in time")
    }

    pub async fn call(&self, request: Request<Upload>) -> Reply {
        let (parts, body) = self.send(request).await.into_parts();
        let bytes = tokio::time::timeout(PATIENCE, body.collect()).await.expect("a body in time").unwrap().to_bytes();
        Reply { status: parts.status, headers: parts.headers, bytes }
    }

    pub async fn get(&self, path: &str) -> Reply {
        self.call(request(Method::GET, path, whole(""))).await
    }

    pub async fn delete(&self, path: &str) -> Reply {
        self.call(request(Method::DELETE, path, whole(""))).await
    }

    pub async fn put(&self, path: &str, bytes: impl Into<Bytes>) -> Reply {
        self.call(request(Method::PUT, path, whole(bytes))).await
    }

    pub async fn post(&self, path: &str, body: Value) -> Reply {
        self.call(posting(path, &body)).await
    }

    /// Events of a request that the agent accepts.
    pub async fn events(&self, request: Request<Upload>) -> Events {
        let response = self.send(request).await;
        assert_eq!(
            (response.status(), &response.headers()["content-type"]),
            (StatusCode::OK, &"text/event-stream".parse().unwrap())
        );
        Events::new(response.into_body())
    }

    /// Runs a command and returns its output as frames.
    pub async fn frames(&self, body: Value) -> Frames {
        let mut request = posting("/runtime/commands", &body);
        request.headers_mut().insert("accept", output::CONTENT_TYPE.parse().unwrap());
        let response = self.send(request).await;
        assert_eq!(
            (response.status(), &response.headers()["content-type"]),
            (StatusCode::OK, &output::CONTENT_TYPE.parse().unwrap())
        );
        let mut frames = Frames { body: response.into_body(), buffer: Vec::new(), pid: None };
        let Told::Event(OutputEvent::Start { pid }) = frames.next().await else { panic!("no start") };
        frames.pid = Some(pid);
        frames
    }

    /// Runs a command and returns its events.
    pub async fn command(&self, body: Value) -> Events {
        self.events(posting("/runtime/commands", &body)).await
    }

    /// Runs a command to its end and returns all events.
    pub async fn run(&self, cmd: &str) -> Vec<OutputEvent> {
        self.command(json!({ "cmd": cmd })).await.all().await
    }

    /// Starts a process and returns its number.
    pub async fn start(&self, body: Value) -> i64 {
        let reply = self.post("/runtime/processes", body).await.ok();
        assert_eq!(reply.status, StatusCode::CREATED);
        reply.json()["pid"].as_i64().unwrap()
    }
}

pub fn request(method: Method, path: &str, body: Upload) -> Request<Upload> {
    Request::builder().method(method).uri(format!("http://agent{path}")).body(body).unwrap()
}

pub fn posting(path: &str, body: &Value) -> Request<Upload> {
    let mut request = request(Method::POST, path, whole(body.to_string()));
    request.headers_mut().insert("content-type", "application/json".parse().unwrap());
    request
}

/// An agent in a process of its own, with a workspace that goes with it.
pub struct Agent {
    process: Child,
    pub folder: TempDir,
    pub user: String,
}

impl Agent {
    /// The account of a test: another one than its own if the test may, so that permissions count.
    fn account() -> (String, u32) {
        let own = rustix::process::geteuid();
        let passwd = std::fs::read_to_string("/etc/passwd").unwrap();
        let find = |wanted: &dyn Fn(&[&str]) -> bool| {
            let line = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|fields| wanted(fields));
            line.map(|fields| (fields[0].to_owned(), fields[2].parse().unwrap()))
        };
        if own.is_root() {
            return find(&|fields| fields[0] == "nobody").expect("an account nobody");
        }
        find(&|fields| fields[2] == own.as_raw().to_string()).expect("an account of the test's own")
    }

    /// An agent without an identity.
    pub fn start_bare(more: &[&str]) -> Self {
        let folder = tempfile::Builder::new().prefix("berth-agent-").tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let (user, uid) = Self::account();
        let workspace = folder.path().join("work");
        std::fs::create_dir(&workspace).unwrap();
        std::os::unix::fs::chown(&workspace, Some(uid), None).unwrap();
        // The developer's shell may ignore signals, as nohup does.
        let process = Command::new("env")
            .arg("--default-signal")
            .arg(env!("CARGO_BIN_EXE_berth-agent"))
            .args(["--user", &user, "--root"])
            .arg(&workspace)
            .arg("--socket")
            .arg(folder.path().join("socket"))
            .args(more)
            .spawn()
            .unwrap();
        Self { process, folder, user }
    }

    /// An agent with an identity, and a session with it.
    pub async fn start() -> (Self, Client) {
        let agent = Self::start_bare(&[]);
        let client = agent.client().await;
        client.identify(json!({})).await.ok();
        (agent, client)
    }

    pub fn workspace(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.workspace().join(path)
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Writes a file, owned by the user.
    pub fn write(&self, path: &str, content: &[u8]) {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        self.give(&path);
    }

    /// Makes the user the owner of every part of a path.
    pub fn give(&self, path: &Path) {
        let (_, uid) = Self::account();
        for path in path.ancestors().take_while(|path| *path != self.workspace()) {
            std::os::unix::fs::lchown(path, Some(uid), None).unwrap();
        }
    }

    pub async fn connect(&self) -> UnixStream {
        let connecting = async {
            loop {
                match UnixStream::connect(self.folder.path().join("socket")).await {
                    Ok(stream) => return stream,
                    Err(_) => tokio::time::sleep(Duration::from_millis(2)).await,
                }
            }
        };
        tokio::time::timeout(PATIENCE, connecting).await.expect("an agent that listens")
    }

    pub async fn client(&self) -> Client {
        Client::greet(self.connect().await, [7; 16]).await
    }
}

impl Client {
    /// Gives the agent an identity, with other fields than usual.
    pub async fn identify(&self, other: Value) -> Reply {
        let mut body = json!({"sandbox_id": "s", "token": TOKEN, "hostname": "box", "machine_id": "0".repeat(32),
            "entropy": "AAAAAAAAAAAAAAAAAAAAAA==", "unix_micros": 1_790_000_000_000_000_i64});
        body.as_object_mut().unwrap().extend(other.as_object().unwrap().clone());
        let mut request = posting("/control/identity", &body);
        *request.method_mut() = Method::PUT;
        self.call(request).await
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // The agent ends what it started.
        let pid = rustix::process::Pid::from_child(&self.process);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.process.wait();
    }
}

/// Polls until a condition holds for which there is no notification.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    until_async(what, async || holds()).await;
}

/// The same for an async condition.
pub async fn until_async(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("{what} did not happen"));
}
