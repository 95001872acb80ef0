//! The models' server behind every measured system: prepared bytes, in a process of its own.
//!
//! The words of a request say what answer it wants ([`Shape`]), because gateways rewrite requests but keep the text.

use std::io::{BufRead, BufReader};
use std::process::{ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{MissedTickBehavior, interval};

use super::http;
use crate::process::Running;

/// Its name among the arguments of this program.
pub const ARGUMENT: &str = "gateway-upstream";
/// Pieces of a stream.
pub const CHUNKS: u32 = 200;
/// Pieces of a short stream.
const FEW: u32 = 3;
/// Bytes of a flood: twice what Linux accepts from a writer whose reader does not read (`net.ipv4.tcp_wmem`).
const FLOOD: usize = 8 << 20;
/// Pause between two pieces.
const APART: Duration = Duration::from_millis(5);
/// The same in a stream that is held open.
const HELD_APART: Duration = Duration::from_secs(2);

/// The answer that a request wants.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Shape {
    /// An answer in one piece.
    Plain,
    /// [`CHUNKS`] pieces, each a write of its own.
    Stream,
    /// A stream that does not end.
    Hold,
    /// A short stream.
    Short,
    /// The same without its end: silence until the client leaves.
    Stuck,
    /// More than all buffers on the way hold, as fast as possible, then silence.
    Flood,
    /// Silence from the beginning.
    Quiet,
}

impl Shape {
    /// The words of a request for each shape; all have the same length.
    const WORDS: [(Self, &str); 7] = [
        (Self::Plain, "bench-plain"),
        (Self::Stream, "bench-chunk"),
        (Self::Hold, "bench-still"),
        (Self::Short, "bench-short"),
        (Self::Stuck, "bench-stuck"),
        (Self::Flood, "bench-flood"),
        (Self::Quiet, "bench-quiet"),
    ];

    /// Number of pieces, if fixed.
    pub const fn pieces(self) -> u32 {
        match self {
            Self::Stream => CHUNKS,
            Self::Short | Self::Stuck => FEW,
            Self::Plain | Self::Hold | Self::Flood | Self::Quiet => 0,
        }
    }

    /// The body of a request, about a kilobyte.
    pub fn body(self) -> String {
        self.body_to("tiny")
    }

    /// The same for another model.
    pub fn body_to(self, model: &str) -> String {
        let word = Self::WORDS.iter().find(|(shape, _)| *shape == self).map_or("", |(_, word)| *word);
        let text = format!("{word} {}", "The quick brown fox jumps over the lazy dog. ".repeat(18));
        let system = "You are a helpful assistant. Answer in one short sentence.";
        json!({
            "model": model,
            "messages": [{"role": "system", "content": system}, {"role": "user", "content": text}],
            "stream": self != Self::Plain,
            "temperature": 0.7,
            "max_tokens": 256,
        })
        .to_string()
    }

    fn of(body: &[u8]) -> Self {
        let said = http::find(body, b"bench-").map(|at| &body[at..]).unwrap_or_default();
        let says = |word: &str| said.starts_with(word.as_bytes());
        Self::WORDS.iter().find(|(_, word)| says(word)).map_or(Self::Plain, |(shape, _)| *shape)
    }
}

/// The running server.
pub struct Upstream {
    /// Its address, as `127.0.0.1:1234`.
    pub address: String,
    _process: Running,
    _output: BufReader<ChildStdout>,
}

impl Upstream {
    /// Starts it.
    pub fn start() -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut child = command.arg(ARGUMENT).stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take();
        let process = Running(child);
        let mut output = BufReader::new(output.context("its output")?);
        let mut address = String::new();
        output.read_line(&mut address)?;
        ensure!(!address.is_empty(), "the upstream of the measurement did not start");
        Ok(Self { address: address.trim().to_owned(), _process: process, _output: output })
    }
}

/// Serves for ever, on one thread; prints its address.
pub fn serve() -> Result<()> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(accept())
}

async fn accept() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    let answers = Arc::new(Answers::prepare());
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let answers = answers.clone();
        // A client that leaves ends the conversation.
        tokio::spawn(async move { drop(converse(stream, &answers).await) });
    }
}

/// Bytes of the answers.
struct Answers {
    models: Vec<u8>,
    plain: Vec<u8>,
    head: Vec<u8>,
    piece: Vec<u8>,
    /// Some large pieces.
    flood: Vec<u8>,
    /// The end of a stream, without and with its usage.
    ends: [Vec<u8>; 2],
}

impl Answers {
    fn prepare() -> Self {
        let usage = json!({"prompt_tokens": 190, "completion_tokens": 200, "total_tokens": 390});
        let text = "A fox jumps over a dog, which does not mind at all. ".repeat(4);
        let message = json!({"role": "assistant", "content": text});
        let choice = json!({"index": 0, "message": message, "logprobs": null, "finish_reason": "stop"});
        let plain = json!({"id": "chatcmpl-7d1f6a", "object": "chat.completion", "created": 1_700_000_000,
            "model": "tiny", "choices": [choice], "usage": usage});
        let piece = |choices: Value, usage: Value| {
            let mut chunk = json!({"id": "chatcmpl-7d1f6a", "object": "chat.completion.chunk",
                "created": 1_700_000_000, "model": "tiny", "choices": choices});
            if !usage.is_null() {
                chunk["usage"] = usage;
            }
            event(&chunk.to_string())
        };
        let choice = |delta: Value, reason: Value| json!([{"index": 0, "delta": delta, "finish_reason": reason}]);
        let long = choice(json!({"content": "word ".repeat(800)}), Value::Null);
        let finish = piece(choice(json!({}), json!("stop")), Value::Null);
        let done = [event("[DONE]"), b"0\r\n\r\n".to_vec()].concat();
        Self {
            models: whole(&json!({"object": "list", "data": [{"id": "tiny", "object": "model"}]})),
            plain: whole(&plain),
            head: b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n".to_vec(),
            piece: piece(choice(json!({"content": " word"}), Value::Null), Value::Null),
            flood: piece(long, Value::Null).repeat(16),
            ends: [[finish.clone(), done.clone()].concat(), [finish, piece(json!([]), usage), done].concat()],
        }
    }
}

fn whole(body: &Value) -> Vec<u8> {
    let body = body.to_string();
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}").into_bytes()
}

/// An event in a chunk of its own.
fn event(data: &str) -> Vec<u8> {
    let event = format!("data: {data}\n\n");
    format!("{:x}\r\n{event}\r\n", event.len()).into_bytes()
}

async fn converse(mut stream: TcpStream, answers: &Answers) -> Result<()> {
    let mut bytes = Vec::with_capacity(4096);
    loop {
        let end = loop {
            if let Some(end) = request(&bytes) {
                break end;
            }
            if stream.read_buf(&mut bytes).await? == 0 {
                return Ok(());
            }
        };
        answer(&mut stream, &bytes[..end], answers).await?;
        bytes.drain(..end);
    }
}

/// Size of the request at the beginning of these bytes, once it is complete.
fn request(bytes: &[u8]) -> Option<usize> {
    let head = http::head(bytes)?;
    let end = match http::length(&bytes[..head]) {
        Some(length) => head + length,
        None if http::header(&bytes[..head], "transfer-encoding").is_none() => head,
        None => http::find(&bytes[head..], http::LAST_CHUNK)? + head + http::LAST_CHUNK.len(),
    };
    (bytes.len() >= end).then_some(end)
}

async fn answer(stream: &mut TcpStream, request: &[u8], answers: &Answers) -> Result<()> {
    if request.starts_with(b"GET") {
        return Ok(stream.write_all(&answers.models).await?);
    }
    let body = &request[http::head(request).unwrap_or_default()..];
    match Shape::of(body) {
        Shape::Plain => stream.write_all(&answers.plain).await?,
        shape @ (Shape::Stream | Shape::Short) => {
            let asks_usage = http::find(body, b"include_usage").is_some();
            pieces(stream, answers, APART, Some(shape.pieces())).await?;
            stream.write_all(&answers.ends[usize::from(asks_usage)]).await?;
        }
        Shape::Hold => pieces(stream, answers, HELD_APART, None).await?,
        shape @ Shape::Stuck => {
            pieces(stream, answers, APART, Some(shape.pieces())).await?;
            left(stream).await?;
        }
        Shape::Flood => {
            flood(stream, answers).await?;
            left(stream).await?;
        }
        Shape::Quiet => left(stream).await?,
    }
    Ok(())
}

/// Sends the head and all of a flood.
async fn flood(stream: &mut TcpStream, answers: &Answers) -> Result<()> {
    stream.write_all(&answers.head).await?;
    for _ in 0..FLOOD.div_ceil(answers.flood.len()) {
        stream.write_all(&answers.flood).await?;
    }
    Ok(())
}

/// Waits until the client leaves.
async fn left(stream: &mut TcpStream) -> Result<()> {
    let mut unread = [0_u8; 64];
    while stream.read(&mut unread).await? > 0 {}
    // A reset frees the client's port at once. Otherwise the port would wait for a minute, and ports would run out.
    Ok(stream.set_zero_linger()?)
}

/// Sends the head and so many pieces; without a number, pieces without end.
async fn pieces(stream: &mut TcpStream, answers: &Answers, apart: Duration, number: Option<u32>) -> Result<()> {
    stream.write_all(&answers.head).await?;
    let mut ticks = interval(apart);
    // A late piece must not make the next one follow at once.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut sent = 0;
    while number.is_none_or(|number| sent < number) {
        ticks.tick().await;
        stream.write_all(&answers.piece).await?;
        sent = sent.saturating_add(1);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_known_by_what_it_says() {
        for (shape, _) in Shape::WORDS {
            assert!(Shape::of(shape.body().as_bytes()) == shape);
        }
    }

    #[test]
    fn a_request_ends_where_it_says() {
        let bytes = b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}GET";
        assert_eq!(request(bytes), Some(bytes.len() - 3));
        assert_eq!(request(&bytes[..bytes.len() - 4]), None);
        assert_eq!(request(b"GET / HTTP/1.1\r\n\r\n"), Some(18));
        let chunked = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n";
        assert_eq!(request(chunked), Some(chunked.len()));
    }
}
