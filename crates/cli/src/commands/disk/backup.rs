//! Backups of disks. Commands take a backup's name or id.

use anyhow::Result;
use berth_client::{Backup, NewBackup, Page, ProjectClient, RestoredDisk};
use clap::{Args, Subcommand};

use super::backup_schedule::{self, ScheduleCommand};
use super::find::{find_data, find_root};
use super::target::TargetArgs;
use crate::context::Context;
use crate::id::is_id;
use crate::made::{self, Made};
use crate::output::{self, Table};
use crate::pick::{Noun, candidates};
use crate::several::{self, Doomed, Outcome, find_all};
use crate::typed::{Words, retold};
use crate::wait::WaitArgs;
use crate::watch::ListArgs;

/// Seconds to wait for a backup or a restore: what a large disk holds takes a while to copy.
const LONGEST: u64 = 4 * 3600;
const BACKUP: Noun = Noun { one: "backup", list: "berth disk backup list" };

/// The argument or option for each field.
const WORDS: Words = &[("name", "--name"), ("disk_id", "DISK"), ("root_disk_id", "DISK"), ("vm_id", "--vm")];

#[derive(Subcommand)]
pub enum BackupCommand {
    /// Make a backup of a disk, or of all disks of a VM, which may run and goes on, and wait until it is ready
    Create(CreateArgs),
    /// List the backups of a disk, or of the project
    #[command(visible_alias = "ls")]
    List {
        /// Disk, by name or id
        disk: Option<String>,
        /// A root disk volume
        #[arg(long, requires = "disk")]
        root: bool,
        #[command(flatten)]
        args: ListArgs,
    },
    /// Show one backup
    #[command(visible_alias = "show")]
    Get {
        /// Name or id
        backup: String,
    },
    /// Make a new disk with what a backup has, and wait until it is ready
    Restore {
        /// Backup, by name or id
        backup: String,
        /// Name of the disk: small letters, digits and hyphens, at most 20; that of the backup by default
        #[arg(long)]
        name: Option<String>,
        #[command(flatten)]
        waiting: WaitArgs,
    },
    /// Delete backups; the disks that they are of stay, and so do those made of them
    #[command(visible_alias = "rm")]
    Delete {
        /// Names or ids
        #[arg(required = true)]
        backups: Vec<String>,
        /// Forget them where their store does not come back; what lies there stays (administrators)
        #[arg(long)]
        forget: bool,
        #[command(flatten)]
        waiting: WaitArgs,
    },
    /// Schedules of backups
    #[command(subcommand)]
    Schedule(ScheduleCommand),
}

#[derive(Args)]
pub struct CreateArgs {
    #[command(flatten)]
    of: TargetArgs,
    /// Name: small letters, digits and hyphens, at most 20; that of the disk by default
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    waiting: WaitArgs,
}

/// Runs the typed command.
pub async fn run(context: &Context, project: &ProjectClient, command: BackupCommand) -> Result<()> {
    match command {
        BackupCommand::Create(args) => create(context, project, args).await,
        BackupCommand::List { disk: None, args, .. } => {
            args.show(context.look, Some(project), async |page| project.backups(page).await, show).await
        }
        BackupCommand::List { disk: Some(disk), root, args } => {
            let id = if root { find_root(project, &disk).await?.id } else { find_data(project, &disk).await?.id };
            args.show(context.look, Some(project), async |page| project.backups_of(&id, page).await, show).await
        }
        BackupCommand::Get { backup } => one(context, &find(project, &backup).await?),
        BackupCommand::Restore { backup, name, waiting } => {
            restore(context, project, (&backup, name.as_deref()), waiting).await
        }
        BackupCommand::Delete { backups, forget, waiting } => {
            delete(context, project, (&backups, forget), waiting).await
        }
        BackupCommand::Schedule(command) => backup_schedule::run(context, project, command).await,
    }
}

async fn create(context: &Context, project: &ProjectClient, args: CreateArgs) -> Result<()> {
    let request = NewBackup { name: args.name, ..args.of.find(project).await? };
    let made = project.create_backups(&request).await.map_err(|error| retold(error, WORDS))?;
    let mut outcome = Outcome::of(made.len(), context.look);
    let mut backups = Vec::new();
    for backup in made {
        let (id, name) = (backup.id.clone(), backup.name.clone());
        let waited = if args.waiting.wanted(true) {
            let look = async |id: &str| project.backup(id).await;
            made::wait(backup, Some(args.waiting.longest(LONGEST)), context.is_quiet(), look).await
        } else {
            Ok(backup)
        };
        match outcome.of_one(&name, waited) {
            Some(backup) => backups.push(backup),
            // The others go on, and all are shown; of one alone its failure says all.
            None if args.of.is_vm() => backups.extend(project.backup(&id).await.ok()),
            None => {}
        }
    }
    if args.of.is_vm() {
        output::rows(context.look, &backups, |backups| show(backups))?;
    } else if let Some(backup) = backups.first() {
        one(context, backup)?;
    }
    outcome.end()
}

async fn restore(
    context: &Context,
    project: &ProjectClient,
    (text, name): (&str, Option<&str>),
    waiting: WaitArgs,
) -> Result<()> {
    let backup = find(project, text).await?;
    let made = project.restore_backup(&backup.id, name).await.map_err(|error| retold(error, WORDS))?;
    let disk = if waiting.wanted(true) {
        let look = async |id: &str| {
            Ok(match backup.kind.as_str() {
                "root" => RestoredDisk::Root(Box::new(project.root_disk(id).await?)),
                _ => RestoredDisk::Data(Box::new(project.disk(id).await?)),
            })
        };
        made::wait(made, Some(waiting.longest(LONGEST)), context.is_quiet(), look).await?
    } else {
        made
    };
    output::rows(context.look, &disk, |disk| {
        let (id, name, status) = disk.told();
        let size_gb = size_of(disk);
        let row = [name.to_owned(), status.to_owned(), backup.kind.clone(), format!("{size_gb} GiB"), id.to_owned()];
        Table::new(["NAME", "STATUS", "KIND", "SIZE", "ID"], [row], "")
    })
}

/// The size of a disk that is made of a backup, in GiB.
fn size_of(disk: &RestoredDisk) -> i64 {
    match disk {
        RestoredDisk::Root(disk) => disk.size_gb,
        RestoredDisk::Data(disk) => disk.size_gb,
    }
}

async fn delete(
    context: &Context,
    project: &ProjectClient,
    (texts, forget): (&[String], bool),
    waiting: WaitArgs,
) -> Result<()> {
    let found = find_all(texts, async |text: &str| find(project, text).await).await?;
    let doomed = found.into_iter().map(|Backup { id, name, .. }| Doomed { name, id });
    let ask = async |id: &str| project.delete_backup(id, forget).await;
    let look = async |id: &str| project.backup(id).await.map(|backup| backup.status);
    several::delete(context, doomed.collect(), (waiting, LONGEST), ask, look).await
}

/// The backup with a name or an id.
pub async fn find(project: &ProjectClient, text: &str) -> Result<Backup> {
    if is_id(text) {
        return Ok(project.backup(text).await?);
    }
    let found = Page::all(async |page| project.backups_named(text, page).await).await?;
    let found = candidates(text, found, async |page| project.backups(page).await).await?;
    BACKUP.of(found, text, |backup| &backup.id, |backup| backup.name == text)
}

fn one(context: &Context, backup: &Backup) -> Result<()> {
    output::rows(context.look, backup, |backup| show(std::slice::from_ref(backup)))
}

fn show(backups: &[Backup]) -> Table {
    let stored = |backup: &Backup| backup.size_bytes.map(|bytes| format!("{} MiB", (bytes + (1 << 20) - 1) >> 20));
    let rows = backups.iter().map(|backup| {
        [
            backup.name.clone(),
            backup.status.clone(),
            backup.kind.clone(),
            format!("{} GiB", backup.size_gb),
            output::or_dash(stored(backup).as_deref()),
            output::age(&backup.created_at),
            backup.id.clone(),
            output::or_dash(backup.message.as_deref()),
        ]
    });
    let header = ["NAME", "STATUS", "OF", "SIZE", "STORED", "AGE", "ID", "MESSAGE"];
    Table::new(header, rows, "No backups. Make one: berth disk backup create DISK").cut()
}
