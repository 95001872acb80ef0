//! What a project or an organization uses, and what administrators of the platform let it use.

use anyhow::Result;
use berth_client::{Limits, Quota};
use clap::{Args, Subcommand};

use super::{admin, project};
use crate::context::Context;
use crate::failure::Failure;
use crate::id::is_id;
use crate::output::{self, Table};
use crate::typed::{Words, retold};

/// The option for each field.
const WORDS: Words = &[
    ("vms", "--vms"),
    ("vcpu", "--vcpu"),
    ("memory_mb", "--memory-mb"),
    ("gpus", "--gpus"),
    ("disks", "--disks"),
    ("disk_gb", "--disk-gb"),
    ("sandboxes", "--sandboxes"),
    ("networks", "--networks"),
    ("projects", "--projects"),
    ("requests_per_minute", "--requests-per-minute"),
    ("tokens_per_minute", "--tokens-per-minute"),
    ("spend_per_month", "--spend-per-month"),
];

#[derive(Subcommand)]
pub enum QuotaCommand {
    /// Show the limits of a project, or with --org of all projects of an organization together
    Get {
        /// Project: id, slug or ORG/SLUG
        // Not the global option's id, because the argument would then get that option's value.
        #[arg(id = "whose", value_name = "PROJECT")]
        project: Option<String>,
    },
    /// Set limits of a project, or with --org of an organization; for administrators of the platform
    Set(SetArgs),
}

#[derive(Args)]
pub struct SetArgs {
    /// Project: id, slug or ORG/SLUG
    #[arg(id = "whose", value_name = "PROJECT")]
    project: Option<String>,
    /// VMs
    #[arg(long, value_name = "NUMBER|unlimited")]
    vms: Option<String>,
    /// Virtual CPUs
    #[arg(long, value_name = "NUMBER|unlimited")]
    vcpu: Option<String>,
    /// Memory in MiB
    #[arg(long, value_name = "NUMBER|unlimited")]
    memory_mb: Option<String>,
    /// GPUs of VMs and sandboxes, also of those that are stopped or paused
    #[arg(long, value_name = "NUMBER|unlimited")]
    gpus: Option<String>,
    /// Disks, root disk volumes among them
    #[arg(long, value_name = "NUMBER|unlimited")]
    disks: Option<String>,
    /// Disk in GiB
    #[arg(long, value_name = "NUMBER|unlimited")]
    disk_gb: Option<String>,
    /// Sandboxes
    #[arg(long, value_name = "NUMBER|unlimited")]
    sandboxes: Option<String>,
    /// Networks
    #[arg(long, value_name = "NUMBER|unlimited")]
    networks: Option<String>,
    /// Projects, of an organization
    #[arg(long, value_name = "NUMBER|unlimited")]
    projects: Option<String>,
    /// Requests a minute
    #[arg(long, value_name = "NUMBER|unlimited")]
    requests_per_minute: Option<String>,
    /// Tokens of models a minute
    #[arg(long, value_name = "NUMBER|unlimited")]
    tokens_per_minute: Option<String>,
    /// Money for models, machines and disks a calendar month, in whole units of the prices
    #[arg(long, value_name = "NUMBER|unlimited")]
    spend_per_month: Option<String>,
}

impl SetArgs {
    /// The new limits: those that were not typed stay.
    fn applied_to(&self, before: Limits) -> Result<Limits> {
        Ok(Limits {
            vms: limit("--vms", self.vms.as_deref(), before.vms)?,
            vcpu: limit("--vcpu", self.vcpu.as_deref(), before.vcpu)?,
            memory_mb: limit("--memory-mb", self.memory_mb.as_deref(), before.memory_mb)?,
            gpus: limit("--gpus", self.gpus.as_deref(), before.gpus)?,
            disks: limit("--disks", self.disks.as_deref(), before.disks)?,
            disk_gb: limit("--disk-gb", self.disk_gb.as_deref(), before.disk_gb)?,
            sandboxes: limit("--sandboxes", self.sandboxes.as_deref(), before.sandboxes)?,
            networks: limit("--networks", self.networks.as_deref(), before.networks)?,
            projects: limit("--projects", self.projects.as_deref(), before.projects)?,
            requests_per_minute: limit(
                "--requests-per-minute",
                self.requests_per_minute.as_deref(),
                before.requests_per_minute,
            )?,
            tokens_per_minute: limit(
                "--tokens-per-minute",
                self.tokens_per_minute.as_deref(),
                before.tokens_per_minute,
            )?,
            spend_per_month: limit("--spend-per-month", self.spend_per_month.as_deref(), before.spend_per_month)?,
        })
    }
}

/// The owner of the limits: a project or an organization.
enum Whose {
    /// A project, by its id.
    Project(String),
    /// An organization, by its id.
    Org(String),
}

impl Whose {
    async fn limits(&self, context: &Context) -> Result<Limits> {
        Ok(match self {
            Self::Project(id) => context.client.limits(id).await?,
            Self::Org(id) => context.client.org_limits(id).await?,
        })
    }

    async fn set(&self, context: &Context, limits: &Limits) -> Result<Limits> {
        Ok(match self {
            Self::Project(id) => context.client.set_limits(id, limits).await,
            Self::Org(id) => context.client.set_org_limits(id, limits).await,
        }
        .map_err(|error| retold(error, WORDS))?)
    }
}

/// What the caller named. A typed option wins over the environment, and a project over an organization.
enum Named<'a> {
    Project(&'a str),
    Org(&'a str),
}

fn named<'a>(context: &'a Context, project: Option<&'a str>) -> Result<Named<'a>> {
    let typed = project.or(context.typed_project()).map(Named::Project).or(context.typed_org().map(Named::Org));
    typed
        .or(context.named_project().map(Named::Project))
        .or(context.named_org().map(Named::Org))
        .ok_or_else(|| Failure::usage("Name a project, or an organization: --org ORG"))
}

/// Runs the typed command.
pub async fn run(context: &Context, command: QuotaCommand) -> Result<()> {
    match command {
        QuotaCommand::Get { project } => get(context, project.as_deref()).await,
        QuotaCommand::Set(args) => {
            let whose = whose(context, args.project.as_deref()).await?;
            let before = whose.limits(context).await?;
            let after = args.applied_to(before)?;
            if after == before {
                return Err(Failure::usage("Nothing to change. Name a limit: --vms 5, or --vms unlimited"));
            }
            output::rows(context.look, &whose.set(context, &after).await?, show_limits)
        }
    }
}

/// Members of a project, and owners of an organization, see also what it uses; administrators of the platform see
/// limits.
async fn get(context: &Context, project: Option<&str>) -> Result<()> {
    let refusal = match own(context, project).await {
        Ok(quota) => return output::rows(context.look, &quota, show_quota),
        Err(refusal) => refusal,
    };
    match async { whose(context, project).await?.limits(context).await }.await {
        Ok(limits) => output::rows(context.look, &limits, show_limits),
        // A caller who is no administrator gets the error about their own projects.
        Err(error) if admin::is_forbidden(&error) => Err(refusal),
        Err(error) => Err(error),
    }
}

/// What the caller's own project or organization uses and may use.
async fn own(context: &Context, project: Option<&str>) -> Result<Quota> {
    match named(context, project)? {
        Named::Project(text) => {
            let (org, project) = project::find(context, text).await?;
            Ok(context.client.project(&org, &project.id).quota().await?)
        }
        Named::Org(org) => Ok(context.client.org_quota(org).await?),
    }
}

/// The owner of the limits.
async fn whose(context: &Context, project: Option<&str>) -> Result<Whose> {
    match named(context, project)? {
        Named::Project(text) => Ok(Whose::Project(admin::project_id(context, text).await?)),
        Named::Org(org) if is_id(org) => Ok(Whose::Org(org.to_owned())),
        Named::Org(org) => Ok(Whose::Org(admin::find_org(context, org).await?)),
    }
}

fn limit(option: &str, typed: Option<&str>, before: Option<i64>) -> Result<Option<i64>> {
    match typed {
        None => Ok(before),
        Some("unlimited") => Ok(None),
        Some(text) => text
            .parse()
            .ok()
            .filter(|limit| *limit >= 0)
            .map(Some)
            .ok_or_else(|| Failure::usage(format!("{option} '{text}' is no limit; it looks like 5, or unlimited"))),
    }
}

fn show_limits(limits: &Limits) -> Table {
    let named = [
        ("VMs", limits.vms),
        ("vCPUs", limits.vcpu),
        ("memory (MiB)", limits.memory_mb),
        ("GPUs", limits.gpus),
        ("disks", limits.disks),
        ("disk (GiB)", limits.disk_gb),
        ("sandboxes", limits.sandboxes),
        ("networks", limits.networks),
        ("projects", limits.projects),
        ("requests a minute", limits.requests_per_minute),
        ("tokens a minute", limits.tokens_per_minute),
        ("spend a month", limits.spend_per_month),
    ];
    Table::new(["WHAT", "LIMIT"], named.map(|(name, limit)| [name.to_owned(), word(limit)]), "")
}

fn word(limit: Option<i64>) -> String {
    limit.map_or_else(|| "unlimited".into(), |l| l.to_string())
}

/// Shows what the project uses.
pub async fn show(context: &Context) -> Result<()> {
    output::rows(context.look, &context.project()?.quota().await?, show_quota)
}

fn show_quota(quota: &Quota) -> Table {
    let counted = [
        ("VMs", &quota.vms),
        ("vCPUs", &quota.vcpu),
        ("memory (MiB)", &quota.memory_mb),
        ("GPUs", &quota.gpus),
        ("disks", &quota.disks),
        ("disk (GiB)", &quota.disk_gb),
        ("sandboxes", &quota.sandboxes),
        ("networks", &quota.networks),
    ];
    let counted = counted.into_iter().chain(quota.projects.as_ref().map(|projects| ("projects", projects)));
    let counted = counted.map(|(name, q)| [name.to_owned(), q.used.to_string(), word(q.limit)]);
    let rates = [
        ("requests a minute", "-".to_owned(), quota.requests_per_minute),
        ("tokens a minute", "-".to_owned(), quota.tokens_per_minute),
        ("spend a month", format!("{:.2}", quota.spent_this_month), quota.spend_per_month),
    ];
    let rates = rates.map(|(name, used, limit)| [name.to_owned(), used, word(limit)]);
    Table::new(["WHAT", "USED", "LIMIT"], counted.chain(rates), "")
}
