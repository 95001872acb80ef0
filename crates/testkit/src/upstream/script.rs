//! The steps of an upstream's answer: good answers, and every bad one.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;

/// Tokens of a good answer, as its upstream reports them: of the prompt, and of the answer.
pub const TOKENS: (u64, u64) = (7, 5);

/// A step of an answer. Status and headers leave with the first step that sends something.
#[derive(Clone, Debug)]
pub enum Step {
    /// The status; 200 without this step.
    Status(u16),
    /// A header.
    Header(String, String),
    /// Sends status and headers of a chunked answer.
    Head,
    /// The whole body, with its length, unless a header gives another length.
    Body(Vec<u8>),
    /// A chunk of a body without a length.
    Chunk(Vec<u8>),
    /// A chunk that is sent only if the request asked for usage in its stream.
    Usage(Vec<u8>),
    /// Half a chunk: the announced length is twice the real one.
    Half(Vec<u8>),
    /// The same chunk many times.
    Flood(Vec<u8>, u64),
    /// The same chunk again and again, with a pause, until the client leaves.
    Drip(Vec<u8>, Duration),
    /// Bytes that need not be HTTP.
    Raw(Vec<u8>),
    /// Waits until the gate is open.
    Hold(Gate),
    /// Waits until the client leaves.
    Hang,
    /// Ends the connection with a reset.
    Cut,
    /// Closes the connection properly, whatever was announced.
    Close,
    /// Ends the answer properly; the end of a script does so, too.
    End,
}

/// Holds a step until the test opens it.
#[derive(Clone, Debug)]
pub struct Gate(Arc<watch::Sender<bool>>);

impl Gate {
    /// A closed gate.
    pub fn new() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }

    /// Opens the gate for good.
    pub fn open(&self) {
        self.0.send_replace(true);
    }

    /// Waits until it is open.
    pub async fn passed(&self) {
        let mut opened = self.0.subscribe();
        opened.wait_for(|open| *open).await.expect("a gate that is held");
    }
}

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}

/// An answer to one request.
#[derive(Clone, Debug, Default)]
pub struct Script(pub(super) Vec<Step>);

impl From<Vec<Step>> for Script {
    fn from(steps: Vec<Step>) -> Self {
        Self(steps)
    }
}

/// An event of a stream.
pub fn event(data: &Value) -> String {
    format!("data: {data}\n\n")
}

/// A chunk of a completion with this choice alone.
fn chunk(choice: &Value) -> Value {
    json!({
        "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "upstream-tiny",
        "choices": [choice],
    })
}

/// An event with some content.
pub fn delta(text: &str) -> String {
    event(&chunk(&json!({"index": 0, "delta": {"content": text}, "finish_reason": null})))
}

/// The event that says that a choice is complete.
pub fn stop() -> String {
    event(&chunk(&json!({"index": 0, "delta": {}, "finish_reason": "stop"})))
}

/// The counts of a good answer.
fn usage() -> Value {
    json!({"prompt_tokens": TOKENS.0, "completion_tokens": TOKENS.1, "total_tokens": TOKENS.0 + TOKENS.1})
}

impl Script {
    /// An answer with this status.
    pub fn new(status: u16) -> Self {
        Self(vec![Step::Status(status)])
    }

    /// Adds a step.
    #[must_use]
    pub fn step(mut self, step: Step) -> Self {
        self.0.push(step);
        self
    }

    /// Adds the steps of another script.
    #[must_use]
    pub fn and(mut self, rest: Self) -> Self {
        self.0.extend(rest.0);
        self
    }

    /// Adds a header, before any step that sends something.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        let is_head = |step: &&Step| matches!(step, Step::Status(_) | Step::Header(..));
        let at = self.0.iter().take_while(is_head).count();
        self.0.insert(at, Step::Header(name.into(), value.into()));
        self
    }

    /// Adds the whole body.
    #[must_use]
    pub fn body(self, bytes: impl Into<Vec<u8>>) -> Self {
        self.step(Step::Body(bytes.into()))
    }

    /// Adds a chunk.
    #[must_use]
    pub fn chunk(self, bytes: impl Into<Vec<u8>>) -> Self {
        self.step(Step::Chunk(bytes.into()))
    }

    /// Adds an event with some content.
    #[must_use]
    pub fn delta(self, text: &str) -> Self {
        self.chunk(delta(text))
    }

    /// Adds the end of a complete stream: finish reason, usage if the request asked for it, `[DONE]`.
    #[must_use]
    pub fn done(self) -> Self {
        self.chunk(stop()).usage().chunk("data: [DONE]\n\n")
    }

    /// Adds the event with the counts, which is sent if the request asked for it.
    #[must_use]
    pub fn usage(self) -> Self {
        let mut counts = chunk(&Value::Null);
        counts["choices"] = json!([]);
        counts["usage"] = usage();
        self.step(Step::Usage(event(&counts).into_bytes()))
    }

    /// Adds a wait for a gate.
    #[must_use]
    pub fn hold(self, gate: &Gate) -> Self {
        self.step(Step::Hold(gate.clone()))
    }

    /// Adds silence until the client leaves.
    #[must_use]
    pub fn hang(self) -> Self {
        self.step(Step::Hang)
    }

    /// Adds a reset.
    #[must_use]
    pub fn cut(self) -> Self {
        self.step(Step::Cut)
    }

    /// Adds a proper end of the connection.
    #[must_use]
    pub fn close(self) -> Self {
        self.step(Step::Close)
    }

    /// A JSON body with exactly these bytes.
    pub fn json(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self::new(status).header("content-type", "application/json").body(body)
    }

    /// An error in the form of OpenAI's servers.
    pub fn error(status: u16, message: &str) -> Self {
        let error = json!({"message": message, "type": "upstream_type", "param": null, "code": "upstream_code"});
        Self::json(status, json!({"error": error}).to_string())
    }

    /// An HTML page, as proxies in front of upstreams send it.
    pub fn html(status: u16) -> Self {
        let page = "<!DOCTYPE html><html><head><title>Proxy</title></head><body><h1>Bad day</h1></body></html>";
        Self::new(status).header("content-type", "text/html; charset=utf-8").body(page)
    }

    /// A whole completion: bytes with odd white space, an unknown field, usage.
    pub fn chat(text: &str) -> Self {
        Self::json(200, Self::completion(text))
    }

    /// The body of [`Script::chat`].
    pub fn completion(text: &str) -> String {
        let (text, usage) = (Value::from(text), usage());
        format!(
            "{{ \"id\":\"chatcmpl-1\", \"object\":\"chat.completion\",\"created\":1700000000,\n \
             \"model\":\"upstream-tiny\",\"choices\":[{{\"index\":0,\"message\":{{\"role\":\"assistant\",\
             \"content\":{text}}},\"finish_reason\":\"stop\"}}],\t\"usage\":{usage},\
             \"x_unknown\":{{\"b\":1.0,\"a\":1e2}} }}\n"
        )
    }

    /// The beginning of a stream: status and headers, nothing of the body.
    pub fn sse() -> Self {
        Self::new(200).header("content-type", "text/event-stream")
    }

    /// A whole stream: the role, the pieces, a finish reason, usage if the request asked for it, `[DONE]`.
    pub fn stream(pieces: &[&str]) -> Self {
        let role = chunk(&json!({"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": null}));
        let begun = Self::sse().chunk(event(&role));
        pieces.iter().fold(begun, |script, piece| script.delta(piece)).done()
    }

    /// The bytes of its body, with or without the parts for requests that ask for usage.
    pub fn bytes(&self, with_usage: bool) -> Vec<u8> {
        let bytes = self.0.iter().flat_map(|step| match step {
            Step::Body(bytes) | Step::Chunk(bytes) => bytes.as_slice(),
            Step::Usage(bytes) if with_usage => bytes.as_slice(),
            _ => &[],
        });
        bytes.copied().collect()
    }
}
