//! What a project uses, and what administrators of the platform let it use.

use anyhow::Result;
use berth_client::Limits;
use clap::{Args, Subcommand};

use super::project;
use crate::context::Context;
use crate::failure::Failure;
use crate::output;
use crate::pick::is_id;

#[derive(Subcommand)]
pub enum QuotaCommand {
    /// Show the limits of a project; for administrators of the platform
    Get {
        /// Project: id, slug or ORG/SLUG
        project: String,
    },
    /// Set limits of a project; for administrators of the platform
    Set(SetArgs),
}

#[derive(Args)]
pub struct SetArgs {
    /// Project: id, slug or ORG/SLUG
    project: String,
    /// VMs
    #[arg(long, value_name = "NUMBER|unlimited")]
    vms: Option<String>,
    /// Virtual CPUs
    #[arg(long, value_name = "NUMBER|unlimited")]
    vcpu: Option<String>,
    /// Memory in MiB
    #[arg(long, value_name = "NUMBER|unlimited")]
    memory_mb: Option<String>,
    /// Disks, root disk volumes among them
    #[arg(long, value_name = "NUMBER|unlimited")]
    disks: Option<String>,
    /// Disk in GiB
    #[arg(long, value_name = "NUMBER|unlimited")]
    disk_gb: Option<String>,
    /// Sandboxes
    #[arg(long, value_name = "NUMBER|unlimited")]
    sandboxes: Option<String>,
    /// Requests a minute
    #[arg(long, value_name = "NUMBER|unlimited")]
    requests_per_minute: Option<String>,
    /// Tokens of models a minute
    #[arg(long, value_name = "NUMBER|unlimited")]
    tokens_per_minute: Option<String>,
    /// Money for models a calendar month, in whole units of their prices
    #[arg(long, value_name = "NUMBER|unlimited")]
    spend_per_month: Option<String>,
}

impl SetArgs {
    /// The limits from now on: what was not typed stays.
    fn over(&self, before: Limits) -> Result<Limits> {
        Ok(Limits {
            vms: limit(self.vms.as_deref(), before.vms)?,
            vcpu: limit(self.vcpu.as_deref(), before.vcpu)?,
            memory_mb: limit(self.memory_mb.as_deref(), before.memory_mb)?,
            disks: limit(self.disks.as_deref(), before.disks)?,
            disk_gb: limit(self.disk_gb.as_deref(), before.disk_gb)?,
            sandboxes: limit(self.sandboxes.as_deref(), before.sandboxes)?,
            requests_per_minute: limit(self.requests_per_minute.as_deref(), before.requests_per_minute)?,
            tokens_per_minute: limit(self.tokens_per_minute.as_deref(), before.tokens_per_minute)?,
            spend_per_month: limit(self.spend_per_month.as_deref(), before.spend_per_month)?,
        })
    }
}

/// Does what was typed.
pub async fn run(context: &Context, command: QuotaCommand) -> Result<()> {
    let limits = match command {
        QuotaCommand::Get { project } => context.client.limits(&project_id(context, &project).await?).await?,
        QuotaCommand::Set(args) => {
            let id = project_id(context, &args.project).await?;
            let before = context.client.limits(&id).await?;
            let after = args.over(before)?;
            if after == before {
                return Err(Failure::usage("Nothing to change. Name a limit: --vms 5, or --vms unlimited"));
            }
            context.client.set_limits(&id, &after).await?
        }
    };
    output::print(context.json, &limits, show_limits)
}

fn limit(typed: Option<&str>, before: Option<i64>) -> Result<Option<i64>> {
    match typed {
        None => Ok(before),
        Some("unlimited") => Ok(None),
        Some(text) => text
            .parse()
            .map(Some)
            .map_err(|_| Failure::usage(format!("'{text}' is no limit; it looks like 5, or unlimited"))),
    }
}

/// An administrator need not be a member: an id is taken as it is.
async fn project_id(context: &Context, text: &str) -> Result<String> {
    if is_id(text) {
        return Ok(text.to_owned());
    }
    Ok(project::find(context, text).await?.1.id)
}

fn show_limits(limits: &Limits) {
    let named = [
        ("VMs", limits.vms),
        ("vCPUs", limits.vcpu),
        ("memory (MiB)", limits.memory_mb),
        ("disks", limits.disks),
        ("disk (GiB)", limits.disk_gb),
        ("sandboxes", limits.sandboxes),
        ("requests a minute", limits.requests_per_minute),
        ("tokens a minute", limits.tokens_per_minute),
        ("spend a month", limits.spend_per_month),
    ];
    output::table(["WHAT", "LIMIT"], named.map(|(name, limit)| [name.to_owned(), word(limit)]), "");
}

fn word(limit: Option<i64>) -> String {
    limit.map_or_else(|| "unlimited".into(), |l| l.to_string())
}

/// Shows what the project uses.
pub async fn show(context: &Context) -> Result<()> {
    let quota = context.project()?.quota().await?;
    if context.json {
        return output::json(&quota);
    }
    let named = [
        ("VMs", quota.vms),
        ("vCPUs", quota.vcpu),
        ("memory (MiB)", quota.memory_mb),
        ("disks", quota.disks),
        ("disk (GiB)", quota.disk_gb),
    ];
    let rows = named.map(|(name, q)| [name.to_owned(), q.used.to_string(), word(q.limit)]);
    output::table(["WHAT", "USED", "LIMIT"], rows, "");
    Ok(())
}
