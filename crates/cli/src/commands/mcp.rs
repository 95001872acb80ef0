//! `berth mcp`: the Model Context Protocol over standard input and output, for clients that start a program.
//!
//! Each line is a message. It is carried to the service, and what that answers is written as it comes; so a client has the
//! same tools either way, and nothing of them is known here.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::Result;
use berth_client::Mcp;
use futures::StreamExt;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

use crate::context::Context;

/// The longest message that is read, in bytes: more than the service takes, which says so.
const LONGEST: u64 = 8 << 20;
/// How long it may take to tell the service that a call is given up.
const GIVING_UP: Duration = Duration::from_secs(2);
/// Answers that wait to be written.
const WAITING: usize = 64;
/// What a message that cannot be read is answered with.
const UNREADABLE: i64 = -32700;
/// What something else than a message is answered with.
const INVALID: i64 = -32600;
/// What a request is answered with that could not be carried.
const NOT_CARRIED: i64 = -32603;

/// Runs the typed command.
pub async fn run(context: &Context) -> Result<()> {
    let (answers, mut written) = mpsc::channel::<Value>(WAITING);
    let mut carried =
        Carried { mcp: context.mcp().await?, answers, tasks: JoinSet::new(), running: HashMap::new(), version: None };
    let mut writer = tokio::spawn(async move {
        let mut output = tokio::io::stdout();
        while let Some(answer) = written.recv().await {
            let line = format!("{answer}\n");
            if output.write_all(line.as_bytes()).await.is_err() || output.flush().await.is_err() {
                return;
            }
        }
    });
    let mut signals = Signals::new()?;
    let ended = tokio::select! {
        served = carried.serve() => served,
        // Nobody hears any more, or is to: what runs is given up.
        _ = &mut writer => Ok(()),
        () = signals.asked_to_end() => Ok(()),
    };
    carried.give_all_up().await;
    drop(carried);
    if !writer.is_finished() {
        // Who does not read what is left does not keep this from ending.
        let _ = timeout(GIVING_UP, writer).await;
    }
    ended
}

/// How a client ends a program.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
    /// A client that is gone shows in what is written, and does not end this before what runs is given up.
    _pipe: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
            _pipe: signal(SignalKind::pipe())?,
        })
    }

    async fn asked_to_end(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            _ = self.hang_up.recv() => {}
        }
    }
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
    /// Carries what is read, to its end. Who asks and leaves in one go, as a shell does, gets its answers.
    async fn serve(&mut self) -> Result<()> {
        let mut input = BufReader::new(tokio::io::stdin());
        while let Some(line) = line(&mut input).await? {
            self.take(&line).await;
        }
        while self.tasks.join_next().await.is_some() {}
        Ok(())
    }

    /// Gives up what still runs.
    async fn give_all_up(&mut self) {
        while let Some(Ok(ended)) = self.tasks.try_join_next() {
            self.running.remove(&ended);
        }
        let ids: Vec<String> = self.running.keys().cloned().collect();
        for id in ids {
            if let Ok(request) = serde_json::from_str::<Value>(&id) {
                let method = "notifications/cancelled";
                self.give_up(json!({"jsonrpc": "2.0", "method": method, "params": {"requestId": request}}));
            }
        }
        let all = async { while self.tasks.join_next().await.is_some() {} };
        let _ = timeout(GIVING_UP, all).await;
    }

    async fn take(&mut self, line: &[u8]) {
        while let Some(Ok(ended)) = self.tasks.try_join_next() {
            self.running.remove(&ended);
        }
        let message: Value = match serde_json::from_slice(line) {
            Ok(message) => message,
            Err(error) => return self.answer(failure(&Value::Null, UNREADABLE, &format!("No JSON: {error}"))).await,
        };
        if !message.is_object() {
            return self.answer(failure(&Value::Null, INVALID, "A message is an object; there are no batches.")).await;
        }
        match message["method"].as_str() {
            // A handshake is over before anything else is asked.
            Some("initialize") => self.greet(message).await,
            Some("notifications/cancelled") => self.give_up(message),
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
    fn give_up(&mut self, message: Value) {
        let id = message["params"]["requestId"].to_string();
        let Some(task) = self.running.remove(&id) else { return };
        let (mcp, answers, version) = (self.mcp.clone(), self.answers.clone(), self.version.clone());
        self.tasks.spawn(async move {
            let _ = timeout(GIVING_UP, carry(mcp, answers, message, version)).await;
            task.abort();
            id
        });
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
