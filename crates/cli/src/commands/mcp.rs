//! `berth mcp`: the Model Context Protocol over standard input and output, for clients that start a program.
//!
//! Each line is a message. It is carried to the service, and what that answers is written as it comes; so a client has the
//! same tools either way, and nothing of them is known here.

use std::collections::HashMap;

use anyhow::Result;
use berth_client::Mcp;
use futures::StreamExt;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};

use crate::context::Context;

/// The longest message, in bytes: a file to write, in base64.
const LONGEST: u64 = 32 << 20;
/// Answers that wait to be written.
const WAITING: usize = 64;
/// What a message that cannot be read is answered with.
const UNREADABLE: i64 = -32700;
/// What a request is answered with that could not be carried.
const NOT_CARRIED: i64 = -32603;

/// Runs the typed command.
pub async fn run(context: &Context) -> Result<()> {
    let (answers, mut written) = mpsc::channel::<Value>(WAITING);
    let mut carried =
        Carried { mcp: context.mcp().await?, answers, tasks: JoinSet::new(), running: HashMap::new(), version: None };
    let writer = tokio::spawn(async move {
        let mut output = tokio::io::stdout();
        while let Some(answer) = written.recv().await {
            let line = format!("{answer}\n");
            if output.write_all(line.as_bytes()).await.is_err() || output.flush().await.is_err() {
                return;
            }
        }
    });
    let mut input = BufReader::new(tokio::io::stdin());
    while let Some(line) = line(&mut input).await? {
        carried.take(&line).await;
    }
    // Who asks and leaves in one go, as a shell does, gets its answers.
    while carried.tasks.join_next().await.is_some() {}
    drop(carried);
    writer.await?;
    Ok(())
}

/// The next line with anything on it; none at the end.
async fn line(input: &mut (impl AsyncBufReadExt + Unpin)) -> Result<Option<Vec<u8>>> {
    loop {
        let mut line = Vec::new();
        (&mut *input).take(LONGEST).read_until(b'\n', &mut line).await?;
        if line.is_empty() {
            return Ok(None);
        }
        if !line.trim_ascii().is_empty() {
            return Ok(Some(line));
        }
    }
}

/// Requests under way.
struct Carried {
    mcp: Mcp,
    answers: mpsc::Sender<Value>,
    tasks: JoinSet<String>,
    /// By the ids of their requests, as JSON.
    running: HashMap<String, AbortHandle>,
    /// The version that a handshake agreed on.
    version: Option<String>,
}

impl Carried {
    async fn take(&mut self, line: &[u8]) {
        while let Some(Ok(ended)) = self.tasks.try_join_next() {
            self.running.remove(&ended);
        }
        let message: Value = match serde_json::from_slice(line) {
            Ok(message) => message,
            Err(error) => return self.answer(failure(&Value::Null, UNREADABLE, &format!("No JSON: {error}"))).await,
        };
        match message["method"].as_str() {
            // A handshake is over before anything else is asked.
            Some("initialize") => self.greet(message).await,
            Some("notifications/cancelled") => self.give_up(message).await,
            _ => self.carry(message),
        }
    }

    async fn answer(&self, answer: Value) {
        // Nobody reads any more: then the end of the input is near.
        let _ = self.answers.send(answer).await;
    }

    async fn greet(&mut self, message: Value) {
        let (mcp, answers, version) = (self.mcp.clone(), self.answers.clone(), self.version.clone());
        let agreed = carry(mcp, answers, message, version).await;
        self.version = agreed.or(self.version.take());
    }

    /// Tells the service, and closes the connection: which of them counts depends on the version.
    async fn give_up(&mut self, message: Value) {
        let Some(task) = self.running.remove(&message["params"]["requestId"].to_string()) else { return };
        carry(self.mcp.clone(), self.answers.clone(), message, self.version.clone()).await;
        task.abort();
    }

    fn carry(&mut self, message: Value) {
        let id = message["id"].to_string();
        let (mcp, answers, version) = (self.mcp.clone(), self.answers.clone(), self.version.clone());
        let task = self.tasks.spawn({
            let id = id.clone();
            async move {
                carry(mcp, answers, message, version).await;
                id
            }
        });
        self.running.insert(id, task);
    }
}

/// Carries a message to the service, and what is answered back. Returns the version that the answer to a handshake names.
async fn carry(mcp: Mcp, answers: mpsc::Sender<Value>, message: Value, version: Option<String>) -> Option<String> {
    let mut agreed = None;
    let failed = match mcp.send(&message, version.as_deref()).await {
        Err(error) => Some(error),
        Ok(mut stream) => loop {
            match stream.next().await {
                None => break None,
                Some(Err(error)) => break Some(error),
                Some(Ok(answer)) => {
                    agreed = answer["result"]["protocolVersion"].as_str().map(str::to_owned).or(agreed);
                    if answers.send(answer).await.is_err() {
                        break None;
                    }
                }
            }
        },
    };
    if let Some(error) = failed.filter(|_| !message["id"].is_null()) {
        // Whoever does not read any more needs no answer.
        let _ = answers.send(failure(&message["id"], NOT_CARRIED, &error.to_string())).await;
    }
    agreed
}

fn failure(id: &Value, code: i64, message: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})
}
