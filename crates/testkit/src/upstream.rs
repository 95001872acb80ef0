//! A scripted upstream: a models' server over a bare socket.
//!
//! No library stands between a script and the wire, so that it can do everything wrong: cut a chunk in half, never
//! answer, send a gigabyte without a line break. It records the requests, and whether the client stayed.

mod script;
mod wire;

use std::collections::VecDeque;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;
use serde_json::Value;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

pub use script::{Gate, Script, Step, TOKENS, delta, event, stop};

/// A received request.
#[derive(Clone, Debug)]
pub struct Received {
    /// Its method.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// Its headers, in their order, names in lower case.
    pub headers: Vec<(String, String)>,
    /// Its body.
    pub body: Vec<u8>,
}

impl Received {
    /// A header, by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON; null if it is not JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

type Answers = Arc<dyn Fn(&Received) -> Script + Send + Sync>;

/// The state so far.
#[derive(Default)]
struct State {
    queue: VecDeque<Script>,
    answers: Option<Answers>,
    requests: Vec<Received>,
    probes: Vec<Received>,
    unhealthy: bool,
    accepted: usize,
    connections: usize,
    open: usize,
    most: usize,
    cancelled: usize,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    sent: AtomicU64,
    changed: watch::Sender<u64>,
}

impl Shared {
    fn look<T>(&self, at: impl FnOnce(&State) -> T) -> T {
        at(&self.state.lock().expect("the state"))
    }

    fn change<T>(&self, with: impl FnOnce(&mut State) -> T) -> T {
        let result = with(&mut self.state.lock().expect("the state"));
        self.changed.send_modify(|count| *count += 1);
        result
    }

    /// Records a request and chooses its answer. Health probes use up no script.
    fn receive(&self, request: Received) -> Script {
        self.change(|state| {
            state.open += 1;
            state.most = state.most.max(state.open);
            if request.method != "POST" {
                state.probes.push(request);
                return if state.unhealthy { Script::error(503, "not now") } else { models() };
            }
            let next = state.queue.pop_front();
            let script = next.unwrap_or_else(|| state.answers.as_ref().map_or_else(|| good(&request), |a| a(&request)));
            state.requests.push(request);
            script
        })
    }
}

fn models() -> Script {
    Script::json(200, r#"{"object":"list","data":[]}"#)
}

fn good(request: &Received) -> Script {
    if request.json()["stream"] == true { Script::stream(&["Hel", "lo"]) } else { Script::chat("Hello") }
}

/// A scripted upstream. Dropping it closes its port.
pub struct Upstream {
    address: SocketAddr,
    shared: Arc<Shared>,
    servers: Mutex<Vec<JoinHandle<()>>>,
}

impl Upstream {
    /// Starts an upstream that answers well: with a completion, or with a stream if the request asks for one.
    pub async fn start() -> Self {
        let shared = Arc::new(Shared::default());
        let (address, server) = listen(&shared).await;
        Self { address, shared, servers: Mutex::new(vec![server]) }
    }

    /// Its base URL.
    pub fn url(&self) -> String {
        url(self.address)
    }

    /// Its host and port.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Another base URL of it, on another port: for its callers another upstream, but with the same scripts and
    /// records.
    pub async fn another_url(&self) -> String {
        let (address, server) = listen(&self.shared).await;
        self.servers.lock().expect("the servers").push(server);
        url(address)
    }

    /// A base URL that refuses connections for the life of this process.
    pub fn refused_url() -> String {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a port");
        let address = socket.local_addr().expect("an address");
        // A bound port without a listener refuses connections, and no other process gets it.
        std::mem::forget(socket);
        url(address)
    }

    /// Answers one request with this, after the answers given before.
    pub fn then(&self, script: Script) -> &Self {
        self.shared.change(|state| state.queue.push_back(script));
        self
    }

    /// The answer for requests without one of their own.
    pub fn always(&self, script: Script) -> &Self {
        self.answers(move |_| script.clone())
    }

    /// Chooses the answer by the request, if it has none of its own.
    pub fn answers(&self, by: impl Fn(&Received) -> Script + Send + Sync + 'static) -> &Self {
        self.shared.change(|state| state.answers = Some(Arc::new(by)));
        self
    }

    /// Sets the health that probes (everything but POST) see.
    pub fn healthy(&self, healthy: bool) {
        self.shared.change(|state| state.unhealthy = !healthy);
    }

    /// A closed gate.
    pub fn gate(&self) -> Gate {
        Gate::new()
    }

    /// Every request that a script answered, in order.
    pub fn requests(&self) -> Vec<Received> {
        self.shared.look(|state| state.requests.clone())
    }

    /// How many requests scripts answered.
    pub fn count(&self) -> usize {
        self.shared.look(|state| state.requests.len())
    }

    /// The newest of those requests.
    pub fn last(&self) -> Received {
        self.shared.look(|state| state.requests.last().cloned()).expect("a request")
    }

    /// Every probe.
    pub fn probes(&self) -> Vec<Received> {
        self.shared.look(|state| state.probes.clone())
    }

    /// How many requests are under way.
    pub fn open(&self) -> usize {
        self.shared.look(|state| state.open)
    }

    /// The most requests that were under way at the same time.
    pub fn most(&self) -> usize {
        self.shared.look(|state| state.most)
    }

    /// How many clients left before the end of their answer.
    pub fn cancelled(&self) -> usize {
        self.shared.look(|state| state.cancelled)
    }

    /// How many connections are open.
    pub fn connections(&self) -> usize {
        self.shared.look(|state| state.connections)
    }

    /// How many connections were accepted.
    pub fn accepted(&self) -> usize {
        self.shared.look(|state| state.accepted)
    }

    /// Bytes of answers that the kernel accepted.
    pub fn sent(&self) -> u64 {
        self.shared.sent.load(Ordering::Relaxed)
    }

    /// Waits until a check succeeds, for a minute at most.
    pub async fn until(&self, check: impl Fn(&Self) -> bool) {
        let mut changes = self.shared.changed.subscribe();
        let wait = async {
            while !check(self) {
                // The counting of bytes sends no notification.
                let _ = tokio::time::timeout(Duration::from_millis(10), changes.changed()).await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(60), wait).await;
        assert!(waited.is_ok(), "not within a minute: {self:?}");
    }
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.state.lock().expect("the state");
        let mut shown = f.debug_struct("Upstream");
        shown.field("requests", &state.requests.len()).field("open", &state.open);
        shown.field("cancelled", &state.cancelled).field("scripts", &state.queue.len());
        shown.field("connections", &state.connections).finish()
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        for server in self.servers.lock().expect("the servers").iter() {
            server.abort();
        }
    }
}

fn url(address: SocketAddr) -> String {
    format!("http://{address}/v1")
}

async fn listen(shared: &Arc<Shared>) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
    let address = listener.local_addr().expect("an address");
    (address, tokio::spawn(serve(listener, shared.clone())))
}

/// Serves connections; they end with this task.
async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (stream, _) = accepted.expect("a connection");
                connections.spawn(converse(stream, Connection::new(shared.clone())));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// A connection; it counts while it lives.
struct Connection(Arc<Shared>);

impl Connection {
    fn new(shared: Arc<Shared>) -> Self {
        shared.change(|state| {
            state.connections += 1;
            state.accepted += 1;
        });
        Self(shared)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.change(|state| state.connections -= 1);
    }
}

/// A request; it counts while it is under way.
struct UnderWay<'a> {
    shared: &'a Shared,
    over: AtomicBool,
    left: bool,
}

impl UnderWay<'_> {
    /// Stops counting it before its last bytes go out: to a client that has read them it is no longer under way.
    fn ends(&self) {
        if !self.over.swap(true, Ordering::Relaxed) {
            self.shared.change(|state| state.open -= 1);
        }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let still = !self.over.load(Ordering::Relaxed);
        self.shared.change(|state| {
            state.open -= usize::from(still);
            state.cancelled += usize::from(self.left);
        });
    }
}

/// Answers the requests of a connection, one after the other.
async fn converse(mut stream: TcpStream, connection: Connection) {
    let shared = &*connection.0;
    let _ = stream.set_nodelay(true);
    let mut buffer = Vec::new();
    loop {
        let (mut reader, mut writer) = stream.split();
        let Some(request) = wire::read(&mut reader, &mut buffer).await else { return };
        let asks_usage = request.json()["stream_options"]["include_usage"] == true;
        let script = shared.receive(request);
        let mut under_way = UnderWay { shared, over: AtomicBool::new(false), left: false };
        let end = tokio::select! {
            biased;
            () = wire::left(&mut reader, &mut buffer) => wire::End::Left,
            end = wire::play(&mut writer, script, asks_usage, &under_way) => end,
        };
        under_way.left = matches!(end, wire::End::Left);
        drop(under_way);
        match end {
            wire::End::Whole => {}
            wire::End::Left | wire::End::Closed => return,
            wire::End::Reset => {
                let _ = set_socket_linger(&stream, Some(Duration::ZERO));
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn ask(upstream: &Upstream, body: &'static str) -> reqwest::Result<(u16, Vec<u8>)> {
        let url = format!("{}/chat/completions", upstream.url());
        let answer = reqwest::Client::new().post(url).body(body).send().await?;
        let status = answer.status().as_u16();
        Ok((status, answer.bytes().await?.to_vec()))
    }

    #[tokio::test]
    async fn good_answers_and_notes() {
        let upstream = Upstream::start().await;
        let whole = ask(&upstream, "{}").await.expect("an answer");
        assert_eq!(whole, (200, Script::chat("Hello").bytes(false)));
        let stream = ask(&upstream, r#"{"stream":true,"stream_options":{"include_usage":true}}"#).await;
        assert_eq!(stream.expect("an answer").1, Script::stream(&["Hel", "lo"]).bytes(true));
        upstream.then(Script::error(418, "no"));
        assert_eq!(ask(&upstream, "{}").await.expect("an answer").0, 418);
        upstream.until(|u| u.open() == 0).await;
        assert_eq!((upstream.count(), upstream.cancelled(), upstream.most()), (3, 0, 1));
        assert_eq!(upstream.requests()[0].path, "/v1/chat/completions");
        assert!(serde_json::from_str::<Value>(&Script::completion("a \"quote\"")).is_ok());
    }

    #[tokio::test]
    async fn bad_answers() {
        let upstream = Upstream::start().await;
        for bad in [Script::default().close(), Script::default().cut(), Script::sse().chunk("x").cut()] {
            upstream.then(bad);
            assert!(ask(&upstream, "{}").await.is_err());
        }
        upstream.then(Script::sse().step(Step::Half(b"x".into())).close());
        assert!(ask(&upstream, "{}").await.is_err());
        upstream.then(Script::new(200).header("content-length", "9").body("half").close());
        assert!(ask(&upstream, "{}").await.is_err());
        let refused = reqwest::get(Upstream::refused_url()).await.expect_err("a refusal");
        assert!(refused.is_connect(), "{refused:?}");
        assert_eq!(upstream.cancelled(), 0);
    }

    #[tokio::test]
    async fn a_client_that_leaves_is_noted() {
        let upstream = Upstream::start().await;
        let gate = upstream.gate();
        upstream.then(Script::sse().chunk("x").hold(&gate)).then(Script::default().hang());
        let url = format!("{}/chat/completions", upstream.url());
        let mut answer = reqwest::Client::new().post(&url).send().await.expect("an answer");
        assert_eq!(answer.chunk().await.expect("more").expect("bytes"), "x");
        assert_eq!(upstream.open(), 1);
        drop(answer);
        upstream.until(|u| u.cancelled() == 1).await;
        let waiting = tokio::spawn(reqwest::Client::new().post(&url).send());
        upstream.until(|u| u.open() == 1).await;
        waiting.abort();
        upstream.until(|u| u.cancelled() == 2 && u.open() == 0 && u.connections() == 0).await;
    }
}
