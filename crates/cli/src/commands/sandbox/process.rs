//! Processes of a sandbox: lists them, shows their output, ends them.

use std::process::ExitCode;

use anyhow::{Result, bail};
use berth_client::{Form, OutputEvent, Piece, Process, ProcessState, ProjectClient, output_bytes};
use clap::Args;
use futures::FutureExt;

use super::exit;
use super::find::find;
use super::sink::{Reader, Sink};
use crate::context::Context;
use crate::output::{self, Table};

#[derive(Args)]
pub struct LogsArgs {
    /// Name or id
    sandbox: String,
    /// Process: berth sandbox ps
    pid: i32,
    /// Continue until the process ends
    #[arg(long, short)]
    follow: bool,
    /// Begin at this byte of the output since its start; the last 8 MiB are kept
    #[arg(long, default_value_t = 0)]
    offset: u64,
}

#[derive(Args)]
pub struct KillArgs {
    /// Name or id
    sandbox: String,
    /// Process: berth sandbox ps
    pid: i32,
    /// Send this signal, as SIGINT; by default SIGTERM, and SIGKILL after 5 s
    #[arg(long, short)]
    signal: Option<String>,
}

pub async fn list(context: &Context, project: &ProjectClient, sandbox: &str) -> Result<()> {
    let sandbox = find(project, sandbox).await?;
    let processes = project.runtime(&sandbox)?.processes().await?;
    output::rows(context.look, &processes, |processes| {
        let rows = processes.data.iter().map(|process| {
            [process.pid.to_string(), state(process), output::age(&process.started_at), shown(&process.cmd)]
        });
        Table::new(["PID", "STATE", "AGE", "COMMAND"], rows, "No processes were started in it.").cut()
    })
}

/// A command line for a person's terminal: without control characters, and with its quotes as they are.
fn shown(cmd: &str) -> String {
    let mut text = String::new();
    for c in cmd.chars().take(100) {
        match c {
            '\'' | '"' | '\\' => text.push(c),
            other => text.extend(other.escape_debug()),
        }
    }
    text
}

fn state(process: &Process) -> String {
    match (process.state, process.exit.as_ref().and_then(exit::code_of)) {
        (ProcessState::Running, _) => "running".into(),
        (ProcessState::Exited, Some(code)) => format!("exited {code}"),
        (ProcessState::Exited, None) => "exited".into(),
    }
}

pub async fn logs(context: &Context, project: &ProjectClient, args: LogsArgs) -> Result<()> {
    let sandbox = find(project, &args.sandbox).await?;
    let form = if context.look.is_json() { Form::Lines } else { Form::Bytes };
    let mut execution = project.runtime(&sandbox)?.logs(args.pid, args.offset, args.follow, form);
    let mut sink = Sink::standard();
    loop {
        let at_once = execution.next_piece().now_or_never();
        let piece = if let Some(piece) = at_once {
            piece?
        } else {
            sink.flush()?;
            execution.next_piece().await?
        };
        let Some(piece) = piece else { break };
        let reader = match &piece {
            Piece::Bytes { stderr, bytes, .. } => sink.put(*stderr, bytes)?,
            Piece::Event(event) if context.look.is_json() => {
                sink.put(false, (super::exec::json_line(event)? + "\n").as_bytes())?
            }
            Piece::Event(OutputEvent::Output { stderr, output }) => sink.put(*stderr, &output_bytes(output)?)?,
            Piece::Event(OutputEvent::Truncated { from }) => {
                eprintln!("berth: output before byte {from} is gone; the last 8 MiB are kept.");
                Reader::There
            }
            Piece::Event(OutputEvent::Error { message, .. }) => {
                sink.flush()?;
                bail!(message.clone());
            }
            Piece::Event(OutputEvent::Start { .. } | OutputEvent::Exit(_)) => Reader::There,
        };
        if reader == Reader::Left {
            break;
        }
    }
    sink.flush()?;
    Ok(())
}

pub async fn kill(context: &Context, project: &ProjectClient, args: KillArgs) -> Result<ExitCode> {
    let sandbox = find(project, &args.sandbox).await?;
    let runtime = project.runtime(&sandbox)?;
    match &args.signal {
        Some(signal) => runtime.signal(args.pid, signal).await?,
        None => runtime.end_process(args.pid).await?,
    }
    let (pid, how) = (args.pid.to_string(), args.signal.map_or("ended".into(), |signal| format!("got {signal}")));
    output::done(context.look, &pid, &pid, &format!("{pid} {how}"));
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_shown_as_it_was_typed_and_obeyed_by_no_terminal() {
        assert_eq!(shown(r#"sh -c 'exit 7' "a\b""#), r#"sh -c 'exit 7' "a\b""#);
        assert_eq!(shown("a\x1b[2J\nb"), "a\\u{1b}[2J\\nb");
        assert_eq!(shown(&"x".repeat(200)).len(), 100);
    }
}
