//! Schedules of backups. Commands take a schedule's name or id.

use anyhow::Result;
use berth_client::{BackupSchedule, ChangeBackupSchedule, NewBackup, NewBackupSchedule, Page, ProjectClient};
use clap::{Args, Subcommand};

use super::target::TargetArgs;
use crate::context::Context;
use crate::id::is_id;
use crate::output::{self, Table};
use crate::pick::Noun;
use crate::several::{Outcome, find_all};
use crate::typed::{Words, retold};
use crate::watch::ListArgs;

const SCHEDULE: Noun = Noun { one: "schedule", list: "berth disk backup schedule list" };

/// The argument or option for each field.
const WORDS: Words = &[
    ("name", "--name"),
    ("disk_id", "DISK"),
    ("root_disk_id", "DISK"),
    ("vm_id", "--vm"),
    ("every", "--every"),
    ("keep", "--keep"),
];

#[derive(Subcommand)]
pub enum ScheduleCommand {
    /// Have backups made of a disk, or of all disks of a VM, again and again
    Create(CreateArgs),
    /// List schedules
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Show one schedule
    #[command(visible_alias = "show")]
    Get {
        /// Name or id
        schedule: String,
    },
    /// Change a schedule; fewer kept backups take the oldest away
    Update {
        /// Name or id
        schedule: String,
        /// New name
        #[arg(long)]
        name: Option<String>,
        /// New times: a span as 24h, or as cron has them in UTC, like "30 2 * * *"
        #[arg(long)]
        every: Option<String>,
        /// How many good backups of each disk are kept
        #[arg(long)]
        keep: Option<i64>,
    },
    /// Have a schedule make no backups until it is to again
    Disable {
        /// Name or id
        schedule: String,
    },
    /// Have a schedule make backups again, from now on
    Enable {
        /// Name or id
        schedule: String,
    },
    /// End schedules; the backups that they made stay
    #[command(visible_alias = "rm")]
    Delete {
        /// Names or ids
        #[arg(required = true)]
        schedules: Vec<String>,
    },
}

#[derive(Args)]
pub struct CreateArgs {
    #[command(flatten)]
    of: TargetArgs,
    /// Name, and that of its backups: small letters, digits and hyphens, at most 20
    #[arg(long)]
    name: String,
    /// When: a span as 24h or 7d, or as cron has it in UTC, like "30 2 * * *"
    #[arg(long)]
    every: String,
    /// How many good backups of each disk are kept: 1 to 1000
    #[arg(long)]
    keep: i64,
}

/// Runs the typed command.
pub async fn run(context: &Context, project: &ProjectClient, command: ScheduleCommand) -> Result<()> {
    match command {
        ScheduleCommand::Create(CreateArgs { of, name, every, keep }) => {
            let NewBackup { disk_id, root_disk_id, vm_id, .. } = of.find(project).await?;
            let request = NewBackupSchedule { name, disk_id, root_disk_id, vm_id, every, keep };
            let made = project.create_backup_schedule(&request).await;
            one(context, &made.map_err(|error| retold(error, WORDS))?)
        }
        ScheduleCommand::List(args) => {
            args.show(context.look, Some(project), async |page| project.backup_schedules(page).await, show).await
        }
        ScheduleCommand::Get { schedule } => one(context, &find(project, &schedule).await?),
        ScheduleCommand::Update { schedule, name, every, keep } => {
            let change = ChangeBackupSchedule { name, every, keep, enabled: None };
            update(context, project, &schedule, change).await
        }
        ScheduleCommand::Disable { schedule } => enable(context, project, &schedule, false).await,
        ScheduleCommand::Enable { schedule } => enable(context, project, &schedule, true).await,
        ScheduleCommand::Delete { schedules } => delete(context, project, &schedules).await,
    }
}

async fn enable(context: &Context, project: &ProjectClient, text: &str, enabled: bool) -> Result<()> {
    let change = ChangeBackupSchedule { enabled: Some(enabled), ..ChangeBackupSchedule::default() };
    update(context, project, text, change).await
}

async fn update(context: &Context, project: &ProjectClient, text: &str, change: ChangeBackupSchedule) -> Result<()> {
    let schedule = find(project, text).await?;
    let changed = project.update_backup_schedule(&schedule.id, &change).await;
    one(context, &changed.map_err(|error| retold(error, WORDS))?)
}

async fn delete(context: &Context, project: &ProjectClient, texts: &[String]) -> Result<()> {
    let schedules = find_all(texts, async |text: &str| find(project, text).await).await?;
    let mut outcome = Outcome::of(schedules.len(), context.look);
    for BackupSchedule { id, name, .. } in schedules {
        let deleted = project.delete_backup_schedule(&id).await.map_err(Into::into);
        if outcome.of_one(&name, deleted).is_some() {
            output::done(context.look, &name, &id, &format!("{name} deleted"));
        }
    }
    outcome.end()
}

/// The schedule with a name or an id.
pub async fn find(project: &ProjectClient, text: &str) -> Result<BackupSchedule> {
    if is_id(text) {
        return Ok(project.backup_schedule(text).await?);
    }
    let all = Page::all(async |page| project.backup_schedules(page).await).await?;
    SCHEDULE.of(all, text, |schedule| &schedule.id, |schedule| schedule.name == text)
}

fn one(context: &Context, schedule: &BackupSchedule) -> Result<()> {
    output::rows(context.look, schedule, |schedule| show(std::slice::from_ref(schedule)))
}

fn show(schedules: &[BackupSchedule]) -> Table {
    let rows = schedules.iter().map(|schedule| {
        let of = schedule.vm_id.as_ref().or(schedule.root_disk_id.as_ref()).or(schedule.disk_id.as_ref());
        [
            schedule.name.clone(),
            schedule.every.clone(),
            schedule.keep.to_string(),
            output::or_dash(schedule.next_at.as_deref()),
            output::or_dash(of.map(String::as_str)),
            schedule.id.clone(),
            output::or_dash(schedule.message.as_deref()),
        ]
    });
    let header = ["NAME", "EVERY", "KEEP", "NEXT", "OF", "ID", "MESSAGE"];
    let none = "No schedules. Make one: berth disk backup schedule create DISK --name NAME --every 24h --keep 7";
    Table::new(header, rows, none).cut()
}
