//! Snapshots of disks. Commands take a snapshot's name or id.

use anyhow::Result;
use berth_client::{DiskSnapshot, NewDiskSnapshot, Page, ProjectClient};
use clap::{Args, Subcommand};

use super::find::{find_data, find_root};
use crate::context::Context;
use crate::id::is_id;
use crate::made;
use crate::output::{self, Table};
use crate::page::PageArgs;
use crate::pick::{Noun, candidates};
use crate::several::{self, Doomed, find_all};
use crate::typed::retold;
use crate::wait::WaitArgs;

/// Seconds to wait for a snapshot: what a large disk holds takes a while to copy.
const LONGEST: u64 = 1800;
const SNAPSHOT: Noun = Noun { one: "snapshot", list: "berth disk snapshot list" };

#[derive(Subcommand)]
pub enum SnapshotCommand {
    /// Take a snapshot of a disk, whose VM may run and goes on, and wait until it is ready
    Create(CreateArgs),
    /// List the snapshots of a disk, or of the project
    #[command(visible_alias = "ls")]
    List {
        /// Disk, by name or id
        disk: Option<String>,
        /// A root disk volume
        #[arg(long, requires = "disk")]
        root: bool,
        #[command(flatten)]
        page: PageArgs,
    },
    /// Show one snapshot
    #[command(visible_alias = "show")]
    Get {
        /// Name or id
        snapshot: String,
    },
    /// Delete snapshots; the disks that they are of stay, and so do those made of them
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
    /// Disk, by name or id
    disk: String,
    /// A root disk volume
    #[arg(long)]
    root: bool,
    /// Name: small letters, digits and hyphens, at most 20; that of the disk by default
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    waiting: WaitArgs,
}

/// Runs the typed command.
pub async fn run(context: &Context, project: &ProjectClient, command: SnapshotCommand) -> Result<()> {
    match command {
        SnapshotCommand::Create(args) => create(context, project, args).await,
        SnapshotCommand::List { disk: None, page, .. } => {
            output::list(context.look, &project.disk_snapshots(page.into()).await?, show)
        }
        SnapshotCommand::List { disk: Some(disk), root, page } => {
            let (disk, _) = find_disk(project, &disk, root).await?;
            output::list(context.look, &project.disk_snapshots_of(&disk, page.into()).await?, show)
        }
        SnapshotCommand::Get { snapshot } => one(context, &find(project, &snapshot).await?),
        SnapshotCommand::Delete { snapshots, waiting } => delete(context, project, &snapshots, waiting).await,
    }
}

/// The id of a disk, and what a request calls it that takes both kinds.
async fn find_disk(project: &ProjectClient, text: &str, root: bool) -> Result<(String, NewDiskSnapshot)> {
    let id = if root { find_root(project, text).await?.id } else { find_data(project, text).await?.id };
    let named = Some(id.clone());
    let request = if root {
        NewDiskSnapshot { root_disk_id: named, ..NewDiskSnapshot::default() }
    } else {
        NewDiskSnapshot { disk_id: named, ..NewDiskSnapshot::default() }
    };
    Ok((id, request))
}

async fn create(context: &Context, project: &ProjectClient, args: CreateArgs) -> Result<()> {
    let (_, request) = find_disk(project, &args.disk, args.root).await?;
    let request = NewDiskSnapshot { name: args.name, ..request };
    let words = &[("name", "--name"), ("disk_id", "DISK"), ("root_disk_id", "DISK")];
    let made = project.create_disk_snapshot(&request).await;
    let mut snapshot = made.map_err(|error| retold(error, words))?;
    if args.waiting.wanted(true) {
        let look = async |id: &str| project.disk_snapshot(id).await;
        snapshot = made::wait(snapshot, Some(args.waiting.longest(LONGEST)), context.is_quiet(), look).await?;
    }
    one(context, &snapshot)
}

async fn delete(context: &Context, project: &ProjectClient, texts: &[String], waiting: WaitArgs) -> Result<()> {
    let found = find_all(texts, async |text: &str| find(project, text).await).await?;
    let doomed = found.into_iter().map(|DiskSnapshot { id, name, .. }| Doomed { name, id });
    let ask = async |id: &str| project.delete_disk_snapshot(id).await;
    let look = async |id: &str| project.disk_snapshot(id).await.map(|snapshot| snapshot.status);
    several::delete(context, doomed.collect(), (waiting, LONGEST), ask, look).await
}

/// The snapshot with a name or an id.
pub async fn find(project: &ProjectClient, text: &str) -> Result<DiskSnapshot> {
    if is_id(text) {
        return Ok(project.disk_snapshot(text).await?);
    }
    let found = Page::all(async |page| project.disk_snapshots_named(text, page).await).await?;
    let found = candidates(text, found, async |page| project.disk_snapshots(page).await).await?;
    SNAPSHOT.of(found, text, |snapshot| &snapshot.id, |snapshot| snapshot.name == text)
}

fn one(context: &Context, snapshot: &DiskSnapshot) -> Result<()> {
    output::rows(context.look, snapshot, |snapshot| show(std::slice::from_ref(snapshot)))
}

fn show(snapshots: &[DiskSnapshot]) -> Table {
    let rows = snapshots.iter().map(|snapshot| {
        [
            snapshot.name.clone(),
            snapshot.status.clone(),
            snapshot.kind.clone(),
            format!("{} GiB", snapshot.size_gb),
            output::age(&snapshot.created_at),
            snapshot.id.clone(),
            output::or_dash(snapshot.message.as_deref()),
        ]
    });
    let header = ["NAME", "STATUS", "OF", "SIZE", "AGE", "ID", "MESSAGE"];
    Table::new(header, rows, "No snapshots. Take one: berth disk snapshot create DISK").cut()
}
