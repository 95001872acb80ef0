//! Tools for commands: what runs in a sandbox, and what it said.

use std::time::Duration;

use axum::http::{HeaderValue, header};
use berth_domain::agent::output::{CONTENT_TYPE, Frame, Frames};
use berth_domain::agent::runtime::{Exit, OutputEvent, Processes};
use berth_domain::mcp::command::{Asked, Input, LONGEST, OUTPUT, ReadOutput, Run, RunCode, Signal, ended};
use berth_domain::mcp::excerpt::Excerpt;
use berth_domain::mcp::sandbox::One;
use berth_domain::mcp::uri::Resource;
use berth_domain::{Code, Error, Result};
use futures::StreamExt;
use rmcp::model::ContentBlock;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use super::answer::Answer;
use super::caller::Inside;
use super::tool::{Call, Effect, Tool, invalid};
use crate::facade::api::said;

/// The largest list of processes that is read, in bytes.
const LISTED: usize = 4 << 20;
/// How much longer than a command is waited for its end: the agent ends it.
const LAST_WORD: Duration = Duration::from_secs(10);
/// Longest wait for output, in seconds.
const LONGEST_LOOK: u64 = 60;

/// They.
pub fn tools() -> Vec<Tool> {
    vec![
        Tool::new(
            "sandbox_run_command",
            "Run a command",
            "Runs a command with bash in a sandbox and answers what it printed and its exit code. Each starts in the home of \
             the user, in a shell of its own: chain with && what belongs together. Use background for servers. Long output \
             is cut in the middle; sandbox_read_output has the rest.",
            Effect::Runs,
            run,
        ),
        Tool::new(
            "sandbox_run_code",
            "Run code",
            "Runs a program in Python, JavaScript or Bash in a sandbox and answers what it printed and its exit code. Each \
             program starts afresh; files stay.",
            Effect::Runs,
            run_code,
        ),
        Tool::new(
            "sandbox_read_output",
            "Read output",
            "Answers what a process of a sandbox printed, from an offset on: of one in the background, or what was left out \
             of a longer answer.",
            Effect::Reads,
            read_output,
        ),
        Tool::new(
            "sandbox_processes",
            "List processes",
            "Lists the commands that were started in a sandbox, the newest first: number, state, exit.",
            Effect::Reads,
            processes,
        ),
        Tool::new(
            "sandbox_send_input",
            "Send input",
            "Writes to the input of a process that runs in the background.",
            Effect::Runs,
            send_input,
        ),
        Tool::new(
            "sandbox_signal",
            "End a process",
            "Sends a signal to a process of a sandbox and to those that it started; SIGTERM by default.",
            Effect::Changes,
            signal,
        ),
    ]
}

async fn run(call: Call, asked: Run) -> Result<Answer> {
    let sandbox = asked.sandbox_id.clone();
    execute(call, &sandbox, asked.asked().map_err(invalid)?).await
}

async fn run_code(call: Call, asked: RunCode) -> Result<Answer> {
    let sandbox = asked.sandbox_id.clone();
    execute(call, &sandbox, asked.asked().map_err(invalid)?).await
}

async fn execute(mut call: Call, sandbox: &str, asked: Asked) -> Result<Answer> {
    if !asked.waits {
        let started = call.caller.inside(sandbox, Inside::post("processes?root=true", &asked.request)?).await?;
        let process: Value = said(started, LISTED).await?;
        let output = output_of(sandbox, &process);
        return Ok(Answer::data(json!({"pid": process["pid"], "state": process["state"], "output": output})));
    }
    let limit = Duration::from_secs(asked.request.timeout_seconds.unwrap_or(LONGEST)) + LAST_WORD;
    let question = Inside::post("commands?root=true", &asked.request)?.with(header::ACCEPT, FRAMES);
    let stream = call.caller.inside(sandbox, question).await?;
    let heard = Heard::of(stream, Excerpt::new(OUTPUT, 0), Instant::now() + limit, &mut call).await?;
    if let (Some(pid), None, true) = (heard.pid, &heard.exit, call.given_up.is_cancelled()) {
        send(&call, sandbox, pid, "SIGKILL").await?;
    }
    Ok(heard.answer(sandbox))
}

/// Where the output of a process is a resource.
fn output_of(sandbox: &str, process: &Value) -> Value {
    let pid = process["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
    pid.map_or(Value::Null, |pid| Resource::Output { sandbox: sandbox.to_owned(), pid }.to_string().into())
}

const FRAMES: HeaderValue = HeaderValue::from_static(CONTENT_TYPE);

/// What was heard of a process.
struct Heard {
    pid: Option<i32>,
    output: Excerpt,
    exit: Option<Exit>,
    /// Whether older output is gone.
    lost: bool,
}

impl Heard {
    /// What comes until the process ends, until an instant, or until the call is given up.
    ///
    /// # Errors
    /// The stream makes no sense, or ends with a failure.
    async fn of(stream: axum::response::Response, output: Excerpt, until: Instant, call: &mut Call) -> Result<Self> {
        let mut heard = Self { pid: None, output, exit: None, lost: false };
        let (mut pieces, mut frames) = (stream.into_body().into_data_stream(), Frames::default());
        while heard.exit.is_none() {
            let piece = tokio::select! {
                piece = timeout_at(until, pieces.next()) => piece,
                // Who is to be ended has a number first.
                () = call.given_up.cancelled(), if heard.pid.is_some() => break,
            };
            let Ok(Some(piece)) = piece else { break };
            frames.feed(&piece.map_err(|error| broken(&error))?);
            while let Some(frame) = frames.pop().map_err(|error| broken(&error))? {
                if let Frame::Output { bytes, .. } = &frame {
                    call.progress.tell_output(bytes).await;
                }
                heard.take(frame)?;
            }
        }
        Ok(heard)
    }

    fn take(&mut self, frame: Frame<'_>) -> Result<()> {
        match frame {
            Frame::Output { bytes, .. } => self.output.push(bytes),
            Frame::Event(OutputEvent::Start { pid }) => self.pid = Some(pid),
            Frame::Event(OutputEvent::Exit(exit)) => self.exit = Some(exit),
            Frame::Event(OutputEvent::Truncated { from }) => {
                self.lost = true;
                self.output = Excerpt::new(OUTPUT, from);
            }
            Frame::Event(OutputEvent::Error { code, message }) => {
                return Err(Error::new(Code::Unavailable, format!("{message} ({code})")));
            }
            // Output comes in frames of its own.
            Frame::Event(OutputEvent::Output { .. }) | Frame::Nothing => {}
        }
        Ok(())
    }

    /// What is told of it: what it said, and below how it ended and where one reads on.
    fn answer(&self, sandbox: &str) -> Answer {
        let shown = self.output.shown();
        let mut end = match &self.exit {
            Some(exit) => ended(self.pid, exit),
            None => json!({"pid": self.pid, "state": "running"}),
        };
        end["next_offset"] = json!(self.output.end());
        if let Some(left_out) = &shown.left_out {
            end["left_out"] = json!({"from": left_out.start, "to": left_out.end});
            end["output"] = output_of(sandbox, &end);
        }
        if self.lost {
            end["older_output"] = json!("gone: a process keeps its last part alone");
        }
        let text = if shown.text.is_empty() { "(no output)".to_owned() } else { shown.text };
        Answer::text(text).and(ContentBlock::text(end.to_string()))
    }
}

fn broken(error: &impl std::fmt::Display) -> Error {
    Error::new(Code::Unavailable, format!("The output broke off: {error}. sandbox_processes tells what runs."))
}

async fn read_output(mut call: Call, asked: ReadOutput) -> Result<Answer> {
    let wait = asked.wait_seconds.unwrap_or(0);
    if wait > LONGEST_LOOK {
        return Err(invalid(format!("wait_seconds must be at most {LONGEST_LOOK}.")));
    }
    let (offset, sandbox) = (asked.offset.unwrap_or(0), &asked.sandbox_id);
    let began = Instant::now();
    let mut heard = look(&mut call, sandbox, asked.pid, offset, None).await?;
    if wait > 0 && heard.exit.is_none() && heard.output.end() == offset {
        heard = look(&mut call, sandbox, asked.pid, offset, Some(began + Duration::from_secs(wait))).await?;
    }
    heard.pid = Some(asked.pid);
    Ok(heard.answer(sandbox))
}

/// What a process said from an offset on: so far, or also what comes until an instant.
async fn look(call: &mut Call, sandbox: &str, pid: i32, offset: u64, until: Option<Instant>) -> Result<Heard> {
    let route = format!("processes/{pid}/logs?offset={offset}&follow={}", until.is_some());
    let stream = call.caller.inside(sandbox, Inside::get(&route).with(header::ACCEPT, FRAMES)).await?;
    let until = until.unwrap_or_else(|| Instant::now() + LAST_WORD);
    Heard::of(stream, Excerpt::new(OUTPUT, offset), until, call).await
}

/// All that is kept of what a process said, cut where it is too long.
pub async fn output(call: &mut Call, sandbox: &str, pid: i32) -> Result<String> {
    Ok(look(call, sandbox, pid, 0, None).await?.output.shown().text)
}

async fn processes(call: Call, asked: One) -> Result<Answer> {
    let list: Processes = said(call.caller.inside(&asked.sandbox_id, Inside::get("processes")).await?, LISTED).await?;
    let told = |process: &berth_domain::agent::runtime::Process| {
        json!({
            "pid": process.pid,
            "command": process.cmd.chars().take(200).collect::<String>(),
            "state": process.state,
            "started_at": process.started_at,
            "exit": process.exit,
            "output_bytes": process.output_bytes,
        })
    };
    Ok(Answer::data(json!({"data": list.data.iter().take(50).map(told).collect::<Vec<_>>()})))
}

async fn send_input(call: Call, asked: Input) -> Result<Answer> {
    let route = format!("processes/{}/stdin", asked.pid);
    let question = Inside {
        method: axum::http::Method::POST,
        route: &route,
        body: asked.input.into(),
        headers: vec![(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"))],
    };
    call.caller.inside(&asked.sandbox_id, question).await?;
    Ok(Answer::text("Written."))
}

async fn signal(call: Call, asked: Signal) -> Result<Answer> {
    let signal = asked.signal.as_deref().unwrap_or("SIGTERM");
    send(&call, &asked.sandbox_id, asked.pid, signal).await?;
    Ok(Answer::text(format!("{signal} is sent.")))
}

/// Sends a signal to a process and to those that it started.
async fn send(call: &Call, sandbox: &str, pid: i32, signal: &str) -> Result<()> {
    let route = format!("processes/{pid}/signal");
    call.caller.inside(sandbox, Inside::post(&route, &json!({"signal": signal}))?).await?;
    Ok(())
}
