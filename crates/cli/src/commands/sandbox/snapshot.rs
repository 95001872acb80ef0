//! Snapshots of sandboxes. A snapshot is named by its name or its id.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use berth_client::{NewSnapshot, Page, ProjectClient, Snapshot};
use clap::{Args, Subcommand};

use super::show;
use crate::context::Context;
use crate::failure::Failure;
use crate::output;
use crate::pick::{is_id, only};
use crate::progress::Progress;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(200);

#[derive(Subcommand)]
pub enum SnapshotCommand {
    /// Keep the state of a sandbox, which goes on
    Create(CreateArgs),
    /// List the snapshots of a sandbox, or of the project
    #[command(visible_alias = "ls")]
    List {
        /// Sandbox, by name or id
        sandbox: Option<String>,
    },
    /// Show one snapshot
    #[command(visible_alias = "get")]
    Show {
        /// Name or id
        snapshot: String,
    },
    /// Delete snapshots; what was made of them stays
    #[command(visible_alias = "rm")]
    Delete {
        /// Names or ids
        #[arg(required = true)]
        snapshots: Vec<String>,
    },
}

#[derive(Args)]
pub struct CreateArgs {
    /// Sandbox, by name or id
    sandbox: String,
    /// Name
    #[arg(long)]
    name: Option<String>,
    /// Keep the memory, too: what runs goes on where it is restored
    #[arg(long)]
    include_memory: bool,
    /// Return at once; otherwise when it is Ready
    #[arg(long)]
    no_wait: bool,
    /// Seconds to wait at most
    #[arg(long, default_value_t = 300, value_name = "SECONDS")]
    wait_timeout: u64,
}

/// Does what was typed.
pub async fn run(context: &Context, project: &ProjectClient, command: SnapshotCommand) -> Result<()> {
    match command {
        SnapshotCommand::Create(args) => create(context, project, args).await,
        SnapshotCommand::List { sandbox: None } => {
            let snapshots = project.snapshots(Page::default()).await?;
            output::list(context.json, &snapshots, show::snapshots)
        }
        SnapshotCommand::List { sandbox: Some(sandbox) } => {
            let sandbox = super::find(project, &sandbox).await?;
            let snapshots = project.sandbox_snapshots(&sandbox.id, Page::default()).await?;
            output::list(context.json, &snapshots, show::snapshots)
        }
        SnapshotCommand::Show { snapshot } => one(context, &find(project, &snapshot, None).await?),
        SnapshotCommand::Delete { snapshots } => {
            for text in snapshots {
                let snapshot = find(project, &text, None).await?;
                project.delete_snapshot(&snapshot.id).await?;
                if !context.json {
                    println!("{text} is being deleted");
                }
            }
            Ok(())
        }
    }
}

fn one(context: &Context, snapshot: &Snapshot) -> Result<()> {
    output::print(context.json, snapshot, |snapshot| show::snapshots(std::slice::from_ref(snapshot)))
}

async fn create(context: &Context, project: &ProjectClient, args: CreateArgs) -> Result<()> {
    let sandbox = super::find(project, &args.sandbox).await?;
    let request = NewSnapshot { name: args.name, include_memory: args.include_memory };
    let mut snapshot = project.create_snapshot(&sandbox.id, &request).await?;
    if !args.no_wait {
        snapshot = ready(project, snapshot, args.wait_timeout, context.json).await?;
    }
    one(context, &snapshot)
}

async fn ready(project: &ProjectClient, mut snapshot: Snapshot, seconds: u64, quiet: bool) -> Result<Snapshot> {
    let mut progress = Progress::new(quiet);
    let begun = Instant::now();
    while snapshot.status != "Ready" {
        let name = snapshot.name.as_deref().unwrap_or(&snapshot.id);
        if snapshot.status == "Failed" {
            bail!("{name} failed: {}", snapshot.message.unwrap_or_default());
        }
        if begun.elapsed() > Duration::from_secs(seconds) {
            return Err(Failure::late(format!("{name} is still {} after {seconds} s", snapshot.status)));
        }
        progress.show(format!("{name}: {}", snapshot.status));
        tokio::time::sleep(LOOK).await;
        snapshot = project.snapshot(&snapshot.id).await?;
    }
    progress.finish();
    Ok(snapshot)
}

/// The snapshot of a name or an id; a sandbox's own wins over others of that name.
pub async fn find(project: &ProjectClient, text: &str, sandbox: Option<&str>) -> Result<Snapshot> {
    if is_id(text) {
        return Ok(project.snapshot(text).await?);
    }
    let mut found = Page::all(async |page| project.snapshots_named(text, page).await).await?;
    let own = |snapshot: &Snapshot| sandbox.is_some() && snapshot.sandbox_id.as_deref() == sandbox;
    if found.iter().any(own) {
        found.retain(own);
    }
    only(found, "snapshot", text, "berth sandbox snapshot list")
}
