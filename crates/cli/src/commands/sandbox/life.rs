//! What happens to sandboxes: pause, resume, restore, fork, deletion.

use std::time::{Duration, Instant};

use anyhow::Result;
use berth_client::{ForkSandbox, ProjectClient, Sandbox};
use clap::Args;

use super::{find, show, snapshot};
use crate::context::Context;
use crate::failure::Failure;
use crate::output;
use crate::progress::{Progress, called, wait_sandbox};

/// Between two looks at what is being deleted.
const LOOK: Duration = Duration::from_millis(200);

#[derive(Args)]
pub struct VerbArgs {
    /// Names or ids
    #[arg(required = true)]
    sandboxes: Vec<String>,
    #[command(flatten)]
    waiting: Waiting,
}

/// Whether to wait, and for how long.
#[derive(Args)]
pub struct Waiting {
    /// Return at once; otherwise when it is done
    #[arg(long)]
    no_wait: bool,
    /// Seconds to wait at most
    #[arg(long, default_value_t = 300, value_name = "SECONDS")]
    wait_timeout: u64,
}

#[derive(Args)]
pub struct RestoreArgs {
    /// Name or id
    sandbox: String,
    /// Snapshot, by name or id
    snapshot: String,
    #[command(flatten)]
    waiting: Waiting,
}

#[derive(Args)]
pub struct ForkArgs {
    /// Name or id
    sandbox: String,
    /// How many, 1 to 100
    #[arg(long, short = 'n', default_value_t = 1)]
    count: u32,
    /// Their name; several get -1, -2, … behind it
    #[arg(long)]
    name: Option<String>,
    /// Go on where the memory is, with what runs
    #[arg(long)]
    include_memory: bool,
    /// A snapshot instead of the live state, by name or id
    #[arg(long)]
    snapshot: Option<String>,
    #[command(flatten)]
    waiting: Waiting,
}

#[derive(Args)]
pub struct DeleteArgs {
    /// Names or ids
    #[arg(required = true)]
    sandboxes: Vec<String>,
    /// Wait until they are gone
    #[arg(long, short)]
    wait: bool,
    /// Seconds to wait at most
    #[arg(long, default_value_t = 300, value_name = "SECONDS")]
    wait_timeout: u64,
}

impl Waiting {
    async fn until(&self, context: &Context, project: &ProjectClient, id: &str, phase: &str) -> Result<Sandbox> {
        if self.no_wait {
            return Ok(project.sandbox(id).await?);
        }
        wait_sandbox(project, id, phase, self.wait_timeout, context.json).await
    }
}

/// `pause` or `resume`, which leads to `goal`.
pub async fn verb(context: &Context, project: &ProjectClient, args: VerbArgs, verb: &str, goal: &str) -> Result<()> {
    let mut asked = Vec::new();
    for name in &args.sandboxes {
        let sandbox = find(project, name).await?;
        project.sandbox_verb(&sandbox.id, verb).await?;
        asked.push(sandbox.id);
    }
    for id in asked {
        say(context, &args.waiting.until(context, project, &id, goal).await?)?;
    }
    Ok(())
}

fn say(context: &Context, sandbox: &Sandbox) -> Result<()> {
    output::print(context.json, sandbox, |sandbox| println!("{} {}", called(sandbox), sandbox.phase))
}

pub async fn restore(context: &Context, project: &ProjectClient, args: RestoreArgs) -> Result<()> {
    let sandbox = find(project, &args.sandbox).await?;
    let snapshot = snapshot::find(project, &args.snapshot, Some(&sandbox.id)).await?;
    project.restore_sandbox(&sandbox.id, &snapshot.id).await?;
    say(context, &args.waiting.until(context, project, &sandbox.id, "Ready").await?)
}

pub async fn fork(context: &Context, project: &ProjectClient, args: ForkArgs) -> Result<()> {
    let sandbox = find(project, &args.sandbox).await?;
    let snapshot_id = match &args.snapshot {
        Some(text) => Some(snapshot::find(project, text, Some(&sandbox.id)).await?.id),
        None => None,
    };
    let request = ForkSandbox { count: args.count, name: args.name, include_memory: args.include_memory, snapshot_id };
    let mut forks = project.fork_sandbox(&sandbox.id, &request).await?;
    if !args.waiting.no_wait {
        for fork in &mut forks {
            *fork = wait_sandbox(project, &fork.id, "Ready", args.waiting.wait_timeout, context.json).await?;
        }
    }
    let templates = super::templates(context, project).await?;
    output::print(context.json, &forks, |forks| show::table(forks, &templates))
}

pub async fn delete(context: &Context, project: &ProjectClient, args: DeleteArgs) -> Result<()> {
    let mut asked = Vec::new();
    for name in &args.sandboxes {
        let sandbox = find(project, name).await?;
        project.delete_sandbox(&sandbox.id).await?;
        asked.push(sandbox);
    }
    for sandbox in asked {
        if args.wait {
            gone(project, &sandbox, args.wait_timeout, context.json).await?;
        }
        if !context.json {
            println!("{} {}", called(&sandbox), if args.wait { "deleted" } else { "is being deleted" });
        }
    }
    Ok(())
}

async fn gone(project: &ProjectClient, sandbox: &Sandbox, seconds: u64, quiet: bool) -> Result<()> {
    let mut progress = Progress::new(quiet);
    let begun = Instant::now();
    loop {
        match project.sandbox(&sandbox.id).await {
            Err(error) if error.status() == Some(404) => break,
            found => progress.show(format!("{}: {}", called(sandbox), found?.phase)),
        }
        if begun.elapsed() > Duration::from_secs(seconds) {
            return Err(Failure::late(format!("{} is still there after {seconds} s", called(sandbox))));
        }
        tokio::time::sleep(LOOK).await;
    }
    progress.finish();
    Ok(())
}
