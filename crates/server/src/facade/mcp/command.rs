//! Tools for commands: what runs in a sandbox, and what it said.

use std::time::Duration;

use axum::http::{HeaderValue, Method, header};
use berth_domain::agent::output::{CONTENT_TYPE, Frame, Frames};
use berth_domain::agent::runtime::{Exit, OutputEvent, Process, Processes};
use berth_domain::mcp::command::{Asked, Input, OUTPUT, ReadOutput, Run, RunCode, Signal, ended};
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
/// Output that comes in frames.
const FRAMES: HeaderValue = HeaderValue::from_static(CONTENT_TYPE);
/// How long what there is may take to come.
const AT_ONCE: Duration = Duration::from_secs(10);
/// How long more is waited for after the first: what a program prints together comes in pieces.
const TOGETHER: Duration = Duration::from_millis(200);

/// The tools for commands.
pub fn tools() -> Vec<Tool> {
    vec![
        Tool::new(
            "sandbox_run_command",
            "Run a command",
            "Runs a command with bash in a sandbox and answers what it printed and its exit code. Each starts in the home of \
             the account, in a shell of its own: chain with && what belongs together. One that takes longer than \
             wait_seconds goes on; sandbox_read_output tells the rest. Use background for servers. Long output is cut in \
             the middle. Search files with grep -rn, read parts of them with sed -n.",
            Effect::Runs,
            run,
        ),
        Tool::new(
            "sandbox_run_code",
            "Run code",
            "Runs a program in Python, JavaScript or Bash in a sandbox and answers what it printed and its exit code. Each \
             program starts afresh; files stay. For variables that stay, and for charts, use sandbox_run_cell.",
            Effect::Runs,
            run_code,
        ),
        Tool::new(
            "sandbox_read_output",
            "Read output",
            "Answers what a process of a sandbox printed: 24 KiB from an offset on, or its last bytes. With wait_seconds it \
             waits for output that is not there yet.",
            Effect::Reads,
            read_output,
        ),
        Tool::new(
            "sandbox_processes",
            "List processes",
            "Lists the last 50 commands that were started in a sandbox, the newest first: pid, state, exit.",
            Effect::Reads,
            processes,
        ),
        Tool::new(
            "sandbox_send_input",
            "Send input",
            "Writes to the input of a process that runs in the background, or ends it.",
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
    let Some(wait) = asked.wait else {
        let started = call.caller.inside(sandbox, Inside::post("processes?root=true", &asked.request)?).await?;
        let process: Process = said(started, LISTED).await?;
        let output = output_of(sandbox, Some(process.pid));
        return Ok(Answer::data(json!({"pid": process.pid, "state": process.state, "output": output})));
    };
    let question = Inside::post("commands?root=true", &asked.request)?.with(header::ACCEPT, FRAMES);
    let stream = call.caller.inside(sandbox, question).await?;
    let until = Until { end: Instant::now() + Duration::from_secs(wait), first: false, follows: true };
    let heard = Heard::of(None, Excerpt::new(OUTPUT, 0)).to(stream, until, &mut call).await?;
    if let (Some(pid), None, true) = (heard.pid, &heard.exit, call.given_up.is_cancelled()) {
        send(&call, sandbox, pid, "SIGKILL").await?;
    }
    Ok(heard.answer(sandbox))
}

/// Where the output of a process is a resource.
fn output_of(sandbox: &str, pid: Option<i32>) -> Value {
    pid.map_or(Value::Null, |pid| Resource::Output { sandbox: sandbox.to_owned(), pid }.to_string().into())
}

/// How long somebody listens.
#[derive(Clone, Copy)]
struct Until {
    /// At the latest until then.
    end: Instant,
    /// No longer than it takes for some output to come.
    first: bool,
    /// Whether what comes is heard, too; else all that there is has to come by then.
    follows: bool,
}

/// What was heard of a process.
struct Heard {
    pid: Option<i32>,
    output: Excerpt,
    exit: Option<Exit>,
    /// Whether older output is gone.
    lost: bool,
}

impl Heard {
    /// Nothing yet.
    const fn of(pid: Option<i32>, output: Excerpt) -> Self {
        Self { pid, output, exit: None, lost: false }
    }

    /// With what comes until the process ends, nothing more fits, somebody has listened long enough, or the call is given up.
    ///
    /// # Errors
    /// The stream makes no sense, or ends with a failure.
    async fn to(mut self, stream: axum::response::Response, mut until: Until, call: &mut Call) -> Result<Self> {
        let (mut pieces, mut frames) = (stream.into_body().into_data_stream(), Frames::default());
        let begun_by = until.end.max(Instant::now() + AT_ONCE);
        while self.exit.is_none() && !self.output.is_full() {
            // Who is to be told of, or ended, has a pid first.
            let end = if self.pid.is_some() { until.end } else { begun_by };
            let piece = tokio::select! {
                piece = timeout_at(end, pieces.next()) => piece,
                () = call.given_up.cancelled(), if self.pid.is_some() => break,
            };
            let piece = match piece {
                Ok(Some(piece)) => piece,
                Err(_) if until.follows && self.pid.is_some() => break,
                Ok(None) if !until.follows => break,
                _ => return Err(self.broken(&"it did not come to its end")),
            };
            frames.feed(&piece.map_err(|error| self.broken(&error))?);
            while let Some(frame) = frames.pop().map_err(|error| self.broken(&error))? {
                match &frame {
                    Frame::Output { bytes, .. } => call.progress.tell_output(bytes).await,
                    Frame::Nothing => call.progress.tell("still running").await,
                    Frame::Event(_) => {}
                }
                self.take(frame)?;
            }
            if until.first && !self.output.is_empty() {
                until = Until { end: until.end.min(Instant::now() + TOGETHER), first: false, ..until };
            }
        }
        Ok(self)
    }

    fn take(&mut self, frame: Frame<'_>) -> Result<()> {
        match frame {
            Frame::Output { bytes, .. } => self.output.push(bytes),
            Frame::Event(OutputEvent::Start { pid }) => self.pid = Some(pid),
            Frame::Event(OutputEvent::Exit(exit)) => self.exit = Some(exit),
            Frame::Event(OutputEvent::Truncated { from }) => {
                self.lost = true;
                self.output.skip_to(from);
            }
            Frame::Event(OutputEvent::Error { code, message }) => {
                return Err(self.broken(&format!("{message} ({code})")));
            }
            // Output comes in frames of its own.
            Frame::Event(OutputEvent::Output { .. }) | Frame::Nothing => {}
        }
        Ok(())
    }

    /// A failure, with what was heard before it.
    fn broken(&self, error: &impl std::fmt::Display) -> Error {
        let heard = self.output.shown(false).text;
        let heard = if heard.is_empty() { heard } else { format!(" It had printed:\n{heard}") };
        Error::new(
            Code::Unavailable,
            format!("The output broke off: {error}. sandbox_processes tells what runs.{heard}"),
        )
    }

    /// What is told of it: what it said, and below how it ended and where one reads on.
    fn answer(&self, sandbox: &str) -> Answer {
        let shown = self.output.shown(self.exit.is_none());
        let mut end = match &self.exit {
            Some(exit) => ended(self.pid, exit),
            // Whether it still runs stands behind what is not told.
            None if self.output.is_full() => json!({"pid": self.pid}),
            None => json!({"pid": self.pid, "state": "running"}),
        };
        let more = self.exit.is_none() || shown.next < self.output.end();
        if more {
            end["next_offset"] = json!(shown.next);
        }
        if self.exit.is_none() && !self.output.is_full() {
            end["next"] =
                json!("sandbox_read_output with wait_seconds and this next_offset, or sandbox_signal to end it");
        }
        if let Some(left_out) = &shown.left_out {
            end["left_out"] = json!({"from": left_out.start, "to": left_out.end});
            end["output"] = output_of(sandbox, self.pid);
        }
        if self.lost {
            end["older_output"] = json!("gone: a process keeps its last part alone");
        }
        let text = if shown.text.is_empty() { "(no output)".to_owned() } else { shown.text };
        Answer::text(text).and(ContentBlock::text(end.to_string()))
    }
}

async fn read_output(mut call: Call, asked: ReadOutput) -> Result<Answer> {
    let (output, wait) = asked.asked().map_err(invalid)?;
    let (sandbox, pid, began) = (&asked.sandbox_id, asked.pid, Instant::now());
    let mut heard = look(&mut call, sandbox, pid, output, None).await?;
    if wait > 0 && heard.exit.is_none() && heard.output.is_empty() {
        let until = Until { end: began + Duration::from_secs(wait), first: true, follows: true };
        let (output, _) = asked.asked().map_err(invalid)?;
        heard = look(&mut call, sandbox, pid, output, Some(until)).await?;
    }
    Ok(heard.answer(sandbox))
}

/// What a process said, from where an excerpt begins: so far, or also what comes.
async fn look(call: &mut Call, sandbox: &str, pid: i32, output: Excerpt, until: Option<Until>) -> Result<Heard> {
    let route = format!("processes/{pid}/logs?offset={}&follow={}", output.end(), until.is_some());
    let stream = call.caller.inside(sandbox, Inside::get(&route).with(header::ACCEPT, FRAMES)).await?;
    let until = until.unwrap_or_else(|| Until { end: Instant::now() + AT_ONCE, first: false, follows: false });
    Heard::of(Some(pid), output).to(stream, until, call).await
}

/// The beginning and the end of what is kept of what a process said.
pub async fn output(call: &mut Call, sandbox: &str, pid: i32) -> Result<String> {
    Ok(look(call, sandbox, pid, Excerpt::new(OUTPUT, 0), None).await?.output.shown(false).text)
}

async fn processes(call: Call, asked: One) -> Result<Answer> {
    let list: Processes = said(call.caller.inside(&asked.sandbox_id, Inside::get("processes")).await?, LISTED).await?;
    let told = |process: &Process| {
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
    let route = format!("processes/{}/stdin?eof={}", asked.pid, asked.end == Some(true));
    let question = Inside {
        method: Method::POST,
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
