//! Processes of a sandbox: which there are, what they wrote, ending them.

use std::process::ExitCode;

use anyhow::{Result, bail};
use berth_client::{OutputEvent, Process, ProcessState, ProjectClient, output_bytes};
use clap::Args;
use futures::FutureExt;

use super::sink::{Reader, Sink};
use super::{exit, find};
use crate::context::Context;
use crate::output;

#[derive(Args)]
pub struct LogsArgs {
    /// Name or id
    sandbox: String,
    /// Process: berth sandbox ps
    pid: i32,
    /// Go on until the process ends
    #[arg(long, short)]
    follow: bool,
    /// Begin at this byte, counted since the process was started; the last 8 MiB are kept
    #[arg(long, default_value_t = 0)]
    offset: u64,
}

#[derive(Args)]
pub struct KillArgs {
    /// Name or id
    sandbox: String,
    /// Process: berth sandbox ps
    pid: i32,
    /// Send this signal, as SIGINT; without, SIGTERM, and SIGKILL after 5 s
    #[arg(long, short)]
    signal: Option<String>,
}

pub async fn list(context: &Context, project: &ProjectClient, sandbox: &str) -> Result<()> {
    let sandbox = find(project, sandbox).await?;
    let processes = project.runtime(&sandbox)?.processes().await?;
    output::print(context.json, &processes, |processes| {
        let rows = processes.data.iter().map(|process| {
            let cmd: String = process.cmd.chars().flat_map(char::escape_debug).take(100).collect();
            [process.pid.to_string(), state(process), output::age(&process.started_at), cmd]
        });
        output::table(["PID", "STATE", "AGE", "COMMAND"], rows, "No processes were started in it.");
    })
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
    let mut execution = project.runtime(&sandbox)?.logs(args.pid, args.offset, args.follow);
    let mut sink = Sink::standard();
    loop {
        let at_once = execution.next().now_or_never();
        let event = if let Some(event) = at_once {
            event?
        } else {
            sink.flush()?;
            execution.next().await?
        };
        let Some(event) = event else { break };
        let reader = match &event {
            event if context.json => sink.put(false, (super::exec::json_line(event)? + "\n").as_bytes())?,
            OutputEvent::Output { stderr, output } => sink.put(*stderr, &output_bytes(output)?)?,
            OutputEvent::Truncated { from } => {
                eprintln!("berth: output before byte {from} is gone; the last 8 MiB are kept.");
                Reader::There
            }
            OutputEvent::Error { message, .. } => {
                sink.flush()?;
                bail!(message.clone());
            }
            OutputEvent::Start { .. } | OutputEvent::Exit(_) => Reader::There,
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
    if !context.json {
        println!("{} {}", args.pid, args.signal.as_ref().map_or("ended".into(), |signal| format!("got {signal}")));
    }
    Ok(ExitCode::SUCCESS)
}
