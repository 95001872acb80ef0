//! Sandboxes. All commands take a sandbox's name or id.

pub mod copy;
mod create;
mod durable;
mod exec;
mod exit;
mod find;
mod forward;
mod life;
mod port;
mod process;
mod run;
mod show;
mod sink;
mod snapshot;
mod terminal;
mod words;

use std::process::ExitCode;

use anyhow::Result;
use berth_client::{ChangeSandbox, List, ProjectClient, Sandbox, SandboxFilter};
use clap::{Args, Subcommand};

use self::find::find;
use crate::context::Context;
use crate::id::is_id;
use crate::progress::wait_sandbox;
use crate::typed::retold;
use crate::{pairs, span, status};

#[derive(Subcommand)]
pub enum SandboxCommand {
    /// Create a sandbox, and wait until it is Ready
    Create(create::CreateArgs),
    /// List sandboxes
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Show one sandbox
    #[command(visible_alias = "get")]
    Show {
        /// Name or id
        sandbox: String,
    },
    /// Run a program in a sandbox as if it ran here
    Exec(exec::ExecArgs),
    /// Create a sandbox, run a program in it, and delete it
    Run(run::RunArgs),
    /// Copy files and directories into a sandbox or out of it
    Cp(copy::CopyArgs),
    /// Open a shell in a sandbox
    Shell(terminal::ShellArgs),
    /// List the processes that clients started in a sandbox
    Ps {
        /// Name or id
        sandbox: String,
    },
    /// Show what a process wrote
    Logs(process::LogsArgs),
    /// End a process, or send it a signal
    Kill(process::KillArgs),
    /// Snapshots
    #[command(subcommand)]
    Snapshot(snapshot::SnapshotCommand),
    /// Take a sandbox back to a snapshot
    Restore(life::RestoreArgs),
    /// Copy a sandbox into new ones; it goes on itself
    Fork(life::ForkArgs),
    /// Pause sandboxes; they keep everything
    Pause(life::PauseArgs),
    /// Resume paused sandboxes
    Resume(life::VerbArgs),
    /// Change timeouts, metadata or network
    Update(UpdateArgs),
    /// Show the URL of a server inside, or serve it at an address here
    Port(port::PortArgs),
    /// Show what a sandbox uses
    #[command(visible_alias = "metrics")]
    Stats {
        /// Name or id
        sandbox: String,
        /// How far back, as 30m; at most 30d
        #[arg(long, default_value = "5m")]
        window: String,
        /// Length of a step, as 10s
        #[arg(long, default_value = "10s")]
        resolution: String,
    },
    /// Wait until a sandbox has a phase
    Wait {
        /// Name or id
        sandbox: String,
        /// The phase
        #[arg(long, visible_alias = "status", default_value = "Ready", value_parser = status::of_sandbox(), ignore_case = true)]
        phase: String,
        /// Longest wait, as 90s or 5m
        #[arg(long, visible_alias = "wait-timeout", value_name = "SPAN", default_value = "5m", value_parser = span::parse)]
        timeout: u64,
    },
    /// Delete sandboxes for good; their snapshots stay
    #[command(visible_alias = "rm")]
    Delete(life::VerbArgs),
}

#[derive(Args)]
pub struct ListArgs {
    /// Only this phase
    #[arg(long, visible_alias = "status", value_parser = status::of_sandbox(), ignore_case = true)]
    phase: Option<String>,
    /// Only of this template, by name or id
    #[arg(long)]
    template: Option<String>,
    /// Only with this pair: KEY=VALUE, repeated
    #[arg(long = "metadata", value_name = "KEY=VALUE")]
    metadata: Vec<String>,
    #[command(flatten)]
    page: crate::page::PageArgs,
    #[command(flatten)]
    watching: crate::watch::WatchArgs,
}

#[derive(Args)]
pub struct UpdateArgs {
    /// Name or id
    sandbox: String,
    /// How long it lives from now on, as 1h
    #[arg(long, value_name = "TIME")]
    timeout: Option<String>,
    /// How long it may be idle, as 15m
    #[arg(long, value_name = "TIME")]
    idle_timeout: Option<String>,
    /// What happens then: pause keeps everything, or delete
    #[arg(long, value_enum)]
    on_timeout: Option<create::OnTimeout>,
    /// Resume it whenever somebody uses it while it is paused; --auto-resume=false ends that
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    auto_resume: Option<bool>,
    /// All its metadata from now on: KEY=VALUE, repeated
    #[arg(long = "metadata", value_name = "KEY=VALUE")]
    metadata: Vec<String>,
    /// No metadata from now on
    #[arg(long, conflicts_with = "metadata")]
    no_metadata: bool,
    #[command(flatten, next_help_heading = "Network")]
    network: create::ChangeNetworkArgs,
}

/// Runs the typed command.
pub async fn run(context: &Context, command: SandboxCommand) -> Result<ExitCode> {
    let project = &context.project()?;
    match command {
        SandboxCommand::Create(args) => create::create(context, project, args).await?,
        SandboxCommand::List(args) => list(context, project, args).await?,
        SandboxCommand::Show { sandbox } => show::one(context, project, &find(project, &sandbox).await?).await?,
        SandboxCommand::Exec(args) => return Ok(exec::exec(context, project, args).await),
        SandboxCommand::Run(args) => return Ok(run::run(context, project, args).await),
        SandboxCommand::Cp(args) => return copy::copy(project, args).await,
        SandboxCommand::Shell(args) => return Ok(terminal::shell(project, args).await),
        SandboxCommand::Ps { sandbox } => process::list(context, project, &sandbox).await?,
        SandboxCommand::Logs(args) => process::logs(context, project, args).await?,
        SandboxCommand::Kill(args) => return process::kill(context, project, args).await,
        SandboxCommand::Snapshot(command) => snapshot::run(context, project, command).await?,
        SandboxCommand::Restore(args) => life::restore(context, project, args).await?,
        SandboxCommand::Fork(args) => life::fork(context, project, args).await?,
        SandboxCommand::Pause(args) => life::pause(context, project, args).await?,
        SandboxCommand::Resume(args) => life::resume(context, project, args).await?,
        SandboxCommand::Update(args) => update(context, project, args).await?,
        SandboxCommand::Port(args) => port::port(context, project, args).await?,
        SandboxCommand::Stats { sandbox, window, resolution } => {
            let sandbox = find(project, &sandbox).await?;
            show::metrics(context, &project.sandbox_metrics(&sandbox.id, &window, &resolution).await?)?;
        }
        SandboxCommand::Wait { sandbox, phase, timeout } => {
            // A deleted sandbox has only its id, and waiting for its deletion must still work.
            let id = if is_id(&sandbox) { sandbox } else { find(project, &sandbox).await?.id };
            let sandbox = wait_sandbox(project, &id, &phase, timeout, context.is_quiet()).await?;
            show::one(context, project, &sandbox).await?;
        }
        SandboxCommand::Delete(args) => life::delete(context, project, args).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(context: &Context, project: &ProjectClient, args: ListArgs) -> Result<()> {
    let filter = SandboxFilter {
        page: Some(args.page.page),
        limit: Some(args.page.limit),
        phase: args.phase,
        template: args.template,
        name: None,
        metadata: pairs::pairs(&args.metadata, "metadata")?,
    };
    let ask = async || Ok(project.sandboxes(&filter).await?);
    let show = async |all: &List<Sandbox>| show::list(context, all, &show::templates(context, project).await?);
    args.watching.show(Some(project), ask, show).await
}

async fn update(context: &Context, project: &ProjectClient, args: UpdateArgs) -> Result<()> {
    let sandbox = find(project, &args.sandbox).await?;
    let metadata = pairs::pairs(&args.metadata, "metadata")?;
    let change = ChangeSandbox {
        timeout_seconds: args.timeout.as_deref().map(span::seconds).transpose()?,
        idle_timeout_seconds: args.idle_timeout.as_deref().map(span::seconds).transpose()?,
        on_timeout: args.on_timeout.map(create::OnTimeout::word),
        auto_resume: args.auto_resume,
        metadata: (args.no_metadata || !metadata.is_empty()).then_some(metadata),
        network: args.network.change(),
    };
    let changed = project.update_sandbox(&sandbox.id, &change).await.map_err(|e| retold(e, create::WORDS))?;
    show::one(context, project, &changed).await
}

/// The id of the snapshot with a name or an id.
pub async fn find_snapshot(project: &ProjectClient, text: &str) -> Result<String> {
    Ok(snapshot::find(project, text, None).await?.id)
}
