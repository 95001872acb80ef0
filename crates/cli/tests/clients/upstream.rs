//! A server of models that play scenes, each below a path of its own, and tells how many endless streams are open.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures::{Stream, StreamExt, stream};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// Between two pieces of a stream, so that each is written by itself.
const PACE: Duration = Duration::from_millis(5);
/// How long `limited` refuses a conversation: nearly the second that its `Retry-After` says.
const REFUSES: Duration = Duration::from_millis(900);
/// What `echo` says, in pieces.
const PIECES: [&str; 3] = ["Hello", " from", " Berth"];
/// 0.1, 0.2, 0.3 as numbers of 32 bits, little endian, in base64.
const ENCODED: &str = "zczMPc3MTD6amZk+";

/// A running upstream.
pub struct Upstream {
    /// Its address.
    pub base: String,
    server: JoinHandle<()>,
}

impl Upstream {
    /// Starts one.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let base = format!("http://{}", listener.local_addr().expect("an address"));
        let router = Router::new()
            .route("/open", get(open))
            .route("/{scene}/v1/models", get(models))
            .route("/{scene}/v1/chat/completions", post(chat))
            .route("/{scene}/v1/embeddings", post(embeddings))
            .with_state(Arc::<Stage>::default());
        let server = tokio::spawn(async move {
            axum::serve(listener, router).await.expect("the upstream answers");
        });
        Self { base, server }
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.server.abort();
    }
}

#[derive(Default)]
struct Stage {
    open: AtomicUsize,
    refused: Mutex<HashMap<String, Instant>>,
}

impl Stage {
    /// Whether a conversation is refused: for a while from its first try on.
    fn refuses(&self, conversation: String) -> bool {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.entry(conversation).or_insert_with(Instant::now).elapsed() < REFUSES
    }
}

/// An open stream; who leaves drops it.
struct Open(Arc<Stage>);

impl Open {
    fn new(stage: Arc<Stage>) -> Self {
        stage.open.fetch_add(1, Ordering::SeqCst);
        Self(stage)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn open(State(stage): State<Arc<Stage>>) -> Json<Value> {
    Json(json!({"open": stage.open.load(Ordering::SeqCst)}))
}

async fn models(Path(scene): Path<String>) -> Json<Value> {
    Json(json!({"object": "list", "data": [{"id": scene, "object": "model", "created": 1, "owned_by": "acme"}]}))
}

async fn embeddings(Json(body): Json<Value>) -> Json<Value> {
    let encoded = body["encoding_format"] == "base64";
    let embedding = if encoded { json!(ENCODED) } else { json!([0.1, 0.2, 0.3]) };
    Json(json!({
        "object": "list",
        "model": "embed",
        "data": [{"object": "embedding", "index": 0, "embedding": embedding}],
        "usage": {"prompt_tokens": 1, "total_tokens": 1},
    }))
}

async fn chat(State(stage): State<Arc<Stage>>, Path(scene): Path<String>, Json(body): Json<Value>) -> Response {
    if scene == "limited" && stage.refuses(body["messages"].to_string()) {
        let error = json!({"message": "slow down", "type": "rate_limit_error", "param": null, "code": "slow"});
        let headers = [(header::RETRY_AFTER, "1")];
        return (StatusCode::TOO_MANY_REQUESTS, headers, Json(json!({"error": error}))).into_response();
    }
    if body["stream"] != true {
        return Json(whole()).into_response();
    }
    if scene == "endless" {
        let endless = stream::unfold(Open::new(stage), |open| async move { Some((Ok(said("and on ")), open)) });
        return streamed(endless);
    }
    let mut events = match scene.as_str() {
        "tools" => call(),
        "broken" | "cut" => PIECES[..2].iter().map(|piece| Ok(said(piece))).collect(),
        _ => PIECES.iter().map(|piece| Ok(said(piece))).chain([Ok(chunk(json!({}), json!("stop")))]).collect(),
    };
    let asks_usage = body["stream_options"]["include_usage"] == true;
    match scene.as_str() {
        "broken" => events.push(Ok(event(&json!({"error": {"message": "out of memory", "type": "server_error"}})))),
        "cut" => events.push(Err(io::Error::other("cut"))),
        _ => events.extend(asks_usage.then(|| Ok(counted())).into_iter().chain([Ok("data: [DONE]\n\n".into())])),
    }
    streamed(stream::iter(events))
}

/// An answer that comes piece by piece; an error cuts the connection.
fn streamed(events: impl Stream<Item = io::Result<String>> + Send + 'static) -> Response {
    let paced = events.then(|event| async {
        tokio::time::sleep(PACE).await;
        event
    });
    ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(paced)).into_response()
}

fn usage() -> Value {
    json!({"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8})
}

fn whole() -> Value {
    let message = json!({"role": "assistant", "content": PIECES.concat()});
    json!({
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "echo",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": usage(),
    })
}

fn event(data: &Value) -> String {
    format!("data: {data}\n\n")
}

fn chunk(delta: Value, finish_reason: Value) -> String {
    let choice = json!({"index": 0, "delta": delta, "finish_reason": finish_reason});
    event(&with_choices(json!([choice])))
}

fn with_choices(choices: Value) -> Value {
    json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "echo", "choices": choices})
}

fn said(piece: &str) -> String {
    chunk(json!({"role": "assistant", "content": piece}), Value::Null)
}

fn counted() -> String {
    let mut last = with_choices(json!([]));
    last["usage"] = usage();
    event(&last)
}

/// A call of a tool, its arguments in pieces.
fn call() -> Vec<io::Result<String>> {
    let function = json!({"name": "get_weather", "arguments": ""});
    let first = json!({"index": 0, "id": "call_1", "type": "function", "function": function});
    let rest = ["{\"city\":", "\"Paris\"}"].map(|part| json!({"index": 0, "function": {"arguments": part}}));
    let calls = [first]
        .into_iter()
        .chain(rest)
        .map(|call| chunk(json!({"role": "assistant", "tool_calls": [call]}), Value::Null));
    calls.chain([chunk(json!({}), json!("tool_calls"))]).map(Ok).collect()
}
