//! Snapshots of sandboxes. Commands take a snapshot's name or id.

use std::time::Instant;

use anyhow::Result;
use berth_client::{NewSnapshot, Page, ProjectClient, Snapshot};
use clap::{Args, Subcommand};

use super::find::find as find_sandbox;
use super::{durable, show};
use crate::context::Context;
use crate::id::is_id;
use crate::made;
use crate::output;
use crate::pick::{Noun, candidates};
use crate::several::{self, Doomed, find_all};
use crate::typed::retold;
use crate::wait::WaitArgs;
use crate::watch::ListArgs;

/// Seconds to wait for a snapshot.
const LONGEST: u64 = 300;
const SNAPSHOT: Noun = Noun { one: "snapshot", list: "berth sandbox snapshot list" };

#[derive(Subcommand)]
pub enum SnapshotCommand {
    /// Take a snapshot of a sandbox, which goes on, and wait until it is ready
    Create(CreateArgs),
    /// List the snapshots of a sandbox, or of the project
    #[command(visible_alias = "ls")]
    List {
        /// Sandbox, by name or id
        sandbox: Option<String>,
        #[command(flatten)]
        args: ListArgs,
    },
    /// Show one snapshot
    #[command(visible_alias = "get")]
    Show {
        /// Name or id
        snapshot: String,
    },
    /// Delete snapshots; sandboxes and templates made of them stay
    #[command(visible_alias = "rm")]
    Delete {
        /// Names or ids
        #[arg(required = true)]
        snapshots: Vec<String>,
        #[command(flatten)]
        waiting: WaitArgs,
    },
}

#[derive(Args)]
pub struct CreateArgs {
    /// Sandbox, by name or id
    sandbox: String,
    /// Name
    #[arg(long)]
    name: Option<String>,
    /// Keep the memory, too: restoring it continues the running programs
    #[arg(long)]
    include_memory: bool,
    /// Keep all of it on a second host or with backups, too: it outlives its host. Waits until it is there
    #[arg(long)]
    durable: bool,
    #[command(flatten)]
    waiting: WaitArgs,
}

/// Runs the typed command.
pub async fn run(context: &Context, project: &ProjectClient, command: SnapshotCommand) -> Result<()> {
    match command {
        SnapshotCommand::Create(args) => create(context, project, args).await,
        SnapshotCommand::List { sandbox: None, args } => {
            args.show(context.look, Some(project), async |page| project.snapshots(page).await, show::snapshots).await
        }
        SnapshotCommand::List { sandbox: Some(sandbox), args } => {
            let sandbox = find_sandbox(project, &sandbox).await?;
            let ask = async |page| project.sandbox_snapshots(&sandbox.id, page).await;
            args.show(context.look, Some(project), ask, show::snapshots).await
        }
        SnapshotCommand::Show { snapshot } => one(context, &find(project, &snapshot, None).await?),
        SnapshotCommand::Delete { snapshots, waiting } => delete(context, project, &snapshots, waiting).await,
    }
}

async fn delete(context: &Context, project: &ProjectClient, texts: &[String], waiting: WaitArgs) -> Result<()> {
    let found = find_all(texts, async |text: &str| find(project, text, None).await).await?;
    let doomed =
        found.into_iter().map(|Snapshot { id, name, .. }| Doomed { name: name.unwrap_or_else(|| id.clone()), id });
    let ask = async |id: &str| project.delete_snapshot(id).await;
    let look = async |id: &str| project.snapshot(id).await.map(|snapshot| snapshot.status);
    several::delete(context, doomed.collect(), (waiting, LONGEST), ask, look).await
}

fn one(context: &Context, snapshot: &Snapshot) -> Result<()> {
    output::rows(context.look, snapshot, |snapshot| show::snapshots(std::slice::from_ref(snapshot)))
}

async fn create(context: &Context, project: &ProjectClient, args: CreateArgs) -> Result<()> {
    let sandbox = find_sandbox(project, &args.sandbox).await?;
    let request = NewSnapshot { name: args.name, include_memory: args.include_memory, durable: args.durable };
    let made = project.create_snapshot(&sandbox.id, &request).await;
    let mut snapshot = made.map_err(|error| retold(error, &[("name", "--name")]))?;
    if args.waiting.wanted(true) {
        let look = async |id: &str| project.snapshot(id).await;
        let (begun, longest) = (Instant::now(), args.waiting.longest(LONGEST));
        snapshot = made::wait(snapshot, Some(longest), context.is_quiet(), look).await?;
        if args.durable {
            let (id, left) = (snapshot.id.clone(), longest.saturating_sub(begun.elapsed().as_secs()));
            let name = snapshot.name.clone().unwrap_or_else(|| id.clone());
            let look = async || Ok(project.snapshot(&id).await?);
            snapshot = durable::wait(context, (snapshot, &name), left, |snapshot| &snapshot.more, look).await?;
        }
    }
    one(context, &snapshot)
}

/// The snapshot with a name or an id; one of the given sandbox wins over others with that name.
pub async fn find(project: &ProjectClient, text: &str, sandbox: Option<&str>) -> Result<Snapshot> {
    if is_id(text) {
        return Ok(project.snapshot(text).await?);
    }
    let found = Page::all(async |page| project.snapshots_named(text, page).await).await?;
    let mut found = candidates(text, found, async |page| project.snapshots(page).await).await?;
    let own = |snapshot: &Snapshot| sandbox.is_some() && snapshot.sandbox_id.as_deref() == sandbox;
    if found.iter().any(own) {
        found.retain(own);
    }
    SNAPSHOT.of(found, text, |snapshot| &snapshot.id, |snapshot| snapshot.name.as_deref() == Some(text))
}
