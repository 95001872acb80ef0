//! The gateway to models through its public API, over upstreams that do what a test wrote.

#![expect(clippy::expect_used, clippy::panic, reason = "a test may end with a panic")]

mod admission;
mod chat;
mod errors;
mod failover;
mod limit;
mod model;
mod routing;
mod speech;
mod stream;
#[cfg(feature = "traces")]
mod trace;
mod traps;
mod usage;

use std::time::Duration;

use berth_domain::gateway::Model;
use berth_server::config::Config;
use berth_testkit::{Platform, Upstream};
use reqwest::header::HeaderMap;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use tokio::task::JoinSet;

const CHAT: &str = "/v1/chat/completions";

/// A platform with models, and an API key of its administrator's project.
pub(crate) struct Gateway {
    pub(crate) platform: Platform,
    pub(crate) key: String,
    http: reqwest::Client,
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

/// An answer that is being read.
pub(crate) struct Live {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    response: reqwest::Response,
    text: Vec<u8>,
}

/// What stands in the books.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Booked {
    pub(crate) requests: u64,
    pub(crate) prompt: u64,
    pub(crate) completion: u64,
    pub(crate) cost: f64,
    pub(crate) estimated: bool,
}

/// The model `tiny` over these base URLs, where it is called `upstream-tiny`; with these keys changed.
pub(crate) fn tiny(urls: &[String], change: Value) -> Model {
    let upstreams: Vec<_> = urls.iter().map(|url| json!({"url": url, "model": "upstream-tiny"})).collect();
    let mut body = json!({"id": "tiny", "upstreams": upstreams});
    for (key, value) in change.as_object().into_iter().flatten() {
        body[key] = value.clone();
    }
    Model::try_from(&body).expect("a model")
}

/// A request to `tiny`.
pub(crate) fn ask(text: &str) -> Value {
    json!({"model": "tiny", "messages": [{"role": "user", "content": text}]})
}

/// The same for a stream.
pub(crate) fn ask_stream(text: &str) -> Value {
    let mut body = ask(text);
    body["stream"] = json!(true);
    body
}

/// What must not take forever.
pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    let Ok(value) = tokio::time::timeout(Duration::from_mins(1), future).await else {
        panic!("not within a minute");
    };
    value
}

impl Gateway {
    /// The model `tiny` over one upstream.
    pub(crate) async fn over(upstream: &Upstream) -> Self {
        Self::with(vec![tiny(&[upstream.url()], json!({}))]).await
    }

    /// The model `tiny` over two addresses of an upstream, with these keys changed: who fails over asks it twice.
    pub(crate) async fn over_twice(upstream: &Upstream, change: Value) -> Self {
        let urls = [upstream.url(), upstream.another_url().await];
        Self::with(vec![tiny(&urls, change)]).await
    }

    /// These models.
    pub(crate) async fn with(models: Vec<Model>) -> Self {
        Self::configured(models, |_| {}).await
    }

    /// These models, with another configuration.
    pub(crate) async fn configured(models: Vec<Model>, change: impl FnOnce(&mut Config)) -> Self {
        let platform = Platform::start_with(|config| {
            config.models = models;
            // A slow machine must not add comments where a test counts bytes.
            config.gateway.keep_alive_millis = 600_000;
            change(config);
        });
        Self::of(platform.await).await
    }

    /// A platform that runs.
    pub(crate) async fn of(platform: Platform) -> Self {
        let made = platform.admin.post("/api_keys", json!({"name": "app", "scopes": ["inference"]})).await;
        assert_eq!(made.status, 201, "{made:?}");
        let key = made.body["key"].as_str().expect("a key").to_owned();
        let http = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build().expect("a client");
        Self { platform, key, http }
    }

    /// The id of the key's project.
    pub(crate) fn project(&self) -> &str {
        self.platform.admin.project_id()
    }

    /// A request without a credential.
    pub(crate) fn bare(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("{}{path}", self.platform.admin.base))
    }

    /// A request with the key.
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.bare(method, path).bearer_auth(&self.key)
    }

    /// A JSON body, its bytes as they are.
    pub(crate) fn posting(&self, path: &str, body: impl Into<reqwest::Body>) -> RequestBuilder {
        self.request(Method::POST, path).header("content-type", "application/json").body(body)
    }

    pub(crate) async fn send(&self, request: RequestBuilder) -> Reply {
        within(async {
            let response = request.send().await.expect("an answer");
            let (status, headers) = (response.status().as_u16(), response.headers().clone());
            Reply { status, headers, body: response.bytes().await.expect("a whole body").to_vec() }
        })
        .await
    }

    pub(crate) async fn post(&self, path: &str, body: impl Into<reqwest::Body>) -> Reply {
        self.send(self.posting(path, body)).await
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.send(self.request(Method::GET, path)).await
    }

    /// A chat completion, awaited.
    pub(crate) async fn chat(&self, body: &Value) -> Reply {
        self.post(CHAT, body.to_string()).await
    }

    /// A chat completion whose answer is read piece by piece.
    pub(crate) async fn open(&self, body: &Value) -> Live {
        let response = within(self.posting(CHAT, body.to_string()).send()).await.expect("an answer");
        Live { status: response.status().as_u16(), headers: response.headers().clone(), response, text: Vec::new() }
    }

    /// A chat completion on its way, which a test may abort.
    pub(crate) fn spawn(&self, body: &Value) -> tokio::task::JoinHandle<u16> {
        let request = self.posting(CHAT, body.to_string());
        tokio::spawn(async move {
            let response = request.send().await.expect("an answer");
            let status = response.status().as_u16();
            response.bytes().await.expect("a whole body");
            status
        })
    }

    /// Sets the limits of the project.
    pub(crate) async fn limit(&self, limits: Value) {
        let path = format!("/api/v1/admin/projects/{}/quota", self.project());
        let admin = &self.platform.admin;
        let answer = admin.send(admin.request(Method::PUT, &path).json(&limits)).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }

    /// Everything that stands in the books, of one group or of all.
    pub(crate) async fn booked(&self, group: Option<&str>) -> Booked {
        let answer = self.platform.admin.get("/usage?window=24h&resolution=1h&group_by=model").await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let rows = answer.body["data"].as_array().expect("rows");
        let rows = rows.iter().filter(|row| group.is_none_or(|group| row["group"] == group));
        let mut sum = Booked { requests: 0, prompt: 0, completion: 0, cost: 0.0, estimated: false };
        for row in rows {
            sum.requests += row["requests"].as_u64().expect("requests");
            sum.prompt += row["prompt_tokens"].as_u64().expect("tokens");
            sum.completion += row["completion_tokens"].as_u64().expect("tokens");
            sum.cost += row["cost"].as_f64().expect("a cost");
            sum.estimated |= row["estimated"] == true || row["estimated"].as_u64().is_some_and(|count| count > 0);
        }
        sum
    }

    /// The books, once so many requests stand there.
    pub(crate) async fn books(&self, requests: u64) -> Booked {
        within(async {
            loop {
                let booked = self.booked(None).await;
                if booked.requests >= requests {
                    return booked;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await
    }

    /// Waits until so many requests to `tiny` have to wait for a place.
    pub(crate) async fn waiting(&self, count: usize) {
        let line = format!("berth_model_queue{{model=\"tiny\"}} {count}");
        within(async {
            loop {
                let metrics = self.send(self.bare(Method::GET, "/metrics")).await.text();
                if metrics.lines().any(|told| told == line) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
    }

    /// Waits until no request is under way at the upstreams of `tiny`, as administrators see it.
    pub(crate) async fn idle(&self) {
        let idle = |admin: berth_testkit::Caller| async move {
            let model = admin.get("/api/v1/admin/models/tiny").await;
            assert_eq!(model.status, 200, "{model:?}");
            model.body["upstreams"].as_array().expect("upstreams").iter().all(|u| u["in_flight"] == 0)
        };
        self.platform.admin.until("idle upstreams", idle).await;
    }
}

impl Reply {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Asserts a refusal in OpenAI's envelope.
    #[track_caller]
    pub(crate) fn refused(&self, status: u16, code: &str) {
        assert_eq!((self.status, self.json()["error"]["code"].as_str()), (status, Some(code)), "{}", self.text());
        self.is_refusal();
    }

    /// Asserts that the body is OpenAI's envelope, and that it fits the status.
    #[track_caller]
    pub(crate) fn is_refusal(&self) {
        let body = self.json();
        assert_eq!(body.as_object().map(serde_json::Map::len), Some(1), "{}", self.text());
        let error = body["error"].as_object().expect("an error");
        let mut keys: Vec<_> = error.keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(keys, ["code", "message", "param", "type"], "{}", self.text());
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{}", self.text());
        assert!(error["type"].is_string(), "{}", self.text());
        assert!(self.header("content-type").is_some_and(|kind| kind.starts_with("application/json")), "{self:?}");
        assert!(self.header("x-request-id").is_some(), "{self:?}");
    }

    /// Asserts that nothing of this stands anywhere in the answer.
    #[track_caller]
    pub(crate) fn hides(&self, secrets: &[&str]) {
        let all = format!("{:?}\n{}", self.headers, self.text());
        for secret in secrets {
            assert!(!all.contains(secret), "{secret} stands in {all}");
        }
    }
}

impl Live {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Everything that came so far.
    pub(crate) fn so_far(&self) -> String {
        String::from_utf8_lossy(&self.text).into_owned()
    }

    /// Reads the next piece; false at the end. A connection that breaks is a failure.
    pub(crate) async fn more(&mut self) -> bool {
        let piece = within(self.response.chunk()).await.expect("a stream that does not break");
        let Some(bytes) = piece else { return false };
        self.text.extend_from_slice(&bytes);
        true
    }

    /// Reads until this is there.
    pub(crate) async fn until(&mut self, text: &str) {
        while !self.so_far().contains(text) {
            assert!(self.more().await, "{text} is not in {}", self.so_far());
        }
    }

    /// Reads to the end.
    pub(crate) async fn rest(mut self) -> String {
        while self.more().await {}
        self.so_far()
    }
}

/// The data of the events of a stream, comments left out.
pub(crate) fn events(text: &str) -> Vec<String> {
    let text = text.replace("\r\n", "\n");
    let data = |event: &str| event.lines().find_map(|line| line.strip_prefix("data: ")).map(str::to_owned);
    text.split("\n\n").filter_map(data).collect()
}

/// Asserts that a stream ends by telling of a failure, and does not look complete; answers the error.
#[track_caller]
pub(crate) fn broke_off(text: &str) -> Value {
    assert!(!text.contains("[DONE]"), "{text}");
    assert!(text.ends_with("\n\n"), "{text}");
    let all = events(text);
    let last: Value = serde_json::from_str(all.last().expect("an event")).expect("JSON");
    let error = &last["error"];
    assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{text}");
    for key in ["type", "param", "code"] {
        assert!(error.get(key).is_some(), "{key}: {text}");
    }
    let told = all.iter().filter(|data| data.contains("\"error\"")).count();
    assert_eq!(told, 1, "{text}");
    error.clone()
}

/// Sends requests at the same time.
pub(crate) fn many(gateway: &Gateway, count: usize, body: &Value) -> JoinSet<Reply> {
    let mut tasks = JoinSet::new();
    for _ in 0..count {
        let request = gateway.posting(CHAT, body.to_string());
        tasks.spawn(async move {
            let response = request.send().await.expect("an answer");
            let (status, headers) = (response.status().as_u16(), response.headers().clone());
            Reply { status, headers, body: response.bytes().await.expect("a whole body").to_vec() }
        });
    }
    tasks
}

pub(crate) async fn next(tasks: &mut JoinSet<Reply>) -> Reply {
    within(tasks.join_next()).await.expect("a task").expect("an answer")
}

pub(crate) fn retry_after(reply: &Reply) -> u64 {
    reply.header("retry-after").and_then(|text| text.parse().ok()).expect("a Retry-After")
}

/// A request of somebody else's project.
pub(crate) async fn stranger(gateway: &Gateway, name: &str) -> impl Fn(&Value) -> RequestBuilder {
    let other = gateway.platform.sign_up(name).await;
    let project = other.project_id().to_owned();
    let request = gateway.bare(Method::POST, CHAT).bearer_auth(&other.token).header("x-project-id", project);
    move |body| request.try_clone().expect("a request").json(body)
}

/// Another project of the administrator's organization: its id.
pub(crate) async fn sibling(gateway: &Gateway, name: &str) -> String {
    gateway.platform.admin.another_project(name).await.project_id().to_owned()
}

/// A request of another project of the administrator's organization.
pub(crate) fn of_sibling(gateway: &Gateway, project: &str, body: &Value) -> RequestBuilder {
    let request = gateway.bare(Method::POST, CHAT).bearer_auth(&gateway.platform.admin.token);
    request.header("x-project-id", project).json(body)
}
