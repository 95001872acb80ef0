//! `berth sandbox run`: makes a sandbox for one program.

use std::process::ExitCode;

use anyhow::{Result, anyhow};
use berth_client::ProjectClient;
use clap::Args;

use super::create::{OnTimeout, Origin, refused};
use super::exec::{How, inside};
use super::exit;
use super::forward::Signals;
use crate::context::Context;
use crate::progress::{called, wait_sandbox};
use crate::span;

/// Idle seconds after which the service deletes a sandbox whose caller is gone.
const FORGOTTEN: u64 = 300;

#[derive(Args)]
pub struct RunArgs {
    #[command(flatten)]
    how: How,
    #[command(flatten, next_help_heading = "The sandbox")]
    origin: Origin,
    /// Keep the sandbox afterwards
    #[arg(long)]
    keep: bool,
    /// How long to wait at most until it is Ready, as 90s or 5m
    #[arg(long, default_value = "5m", value_name = "SPAN", value_parser = span::parse)]
    wait_timeout: u64,
    /// Program and its arguments; for shell syntax use sh -c '…'
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

pub async fn run(context: &Context, project: &ProjectClient, args: RunArgs) -> ExitCode {
    begin(context, project, args).await.unwrap_or_else(|error| exit::failed(&error, context.look.is_json()))
}

async fn begin(context: &Context, project: &ProjectClient, args: RunArgs) -> Result<ExitCode> {
    let mut request = args.origin.request(project).await?;
    if !args.keep {
        request.idle_timeout_seconds = Some(FORGOTTEN);
        request.on_timeout = Some(OnTimeout::Delete.word());
    }
    let mut signals = Signals::listen()?;
    let sandbox = project.create_sandbox(&request).await.map_err(|error| refused(error, &request))?;
    let ready = tokio::select! {
        ready = wait_sandbox(project, &sandbox.id, "Ready", args.wait_timeout, true) => ready,
        name = signals.next() => Err(anyhow!("{name} came before the sandbox was Ready")),
    };
    let done = match ready.and_then(|sandbox| Ok(project.runtime(&sandbox)?)) {
        Ok(runtime) => inside(context, &runtime, &args.how, args.command, signals).await,
        Err(error) => Err(error),
    };
    if args.keep {
        eprintln!("berth: the sandbox is kept: berth sandbox exec {} -- …", called(&sandbox));
    } else if let Err(error) = project.delete_sandbox(&sandbox.id).await {
        eprintln!(
            "berth: the sandbox could not be deleted: {error}. It goes after {FORGOTTEN} s, or with: \
                 berth sandbox delete {}",
            sandbox.id
        );
    }
    done
}
