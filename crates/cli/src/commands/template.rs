//! Templates for sandboxes. Commands take a template's name or id.

mod build;
mod send;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use berth_client::{CreateTemplate, Page, ProjectClient, Template};
use clap::{ArgGroup, Args, Subcommand};

use self::send::Local;
use super::sandbox::find_snapshot;
use crate::context::Context;
use crate::id::is_id;
use crate::output::Table;
use crate::pick::{Noun, candidates};
use crate::progress::{Progress, Stage, watch};
use crate::several::{self, Doomed, find_all};
use crate::wait::WaitArgs;
use crate::watch::ListArgs;
use crate::{output, pairs, size};

/// Seconds to wait for a build.
const LONGEST: u64 = 1800;
const TEMPLATE: Noun = Noun { one: "template", list: "berth template list" };

#[derive(Subcommand)]
pub enum TemplateCommand {
    /// List templates
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Build a template, and wait until it is ready
    Create(CreateArgs),
    /// Show one template
    #[command(visible_alias = "get")]
    Show {
        /// Name or id
        template: String,
    },
    /// Show the log of a template's build
    Logs {
        /// Name or id
        template: String,
        /// Follow the log until the build has ended
        #[arg(long, short)]
        follow: bool,
    },
    /// Delete templates; sandboxes made of them stay
    #[command(visible_alias = "rm")]
    Delete {
        /// Names or ids
        #[arg(required = true)]
        templates: Vec<String>,
        #[command(flatten)]
        waiting: WaitArgs,
    },
}

#[derive(Args)]
#[command(group = ArgGroup::new("source").required(true).args(["image", "image_file", "dockerfile", "from_snapshot"]))]
pub struct CreateArgs {
    /// Name: small letters, digits and hyphens, at most 63
    name: String,
    /// Make it of a container image, as docker.io/library/python:3.13, or of another template
    #[arg(long)]
    image: Option<String>,
    /// Make it of a container image in a file, as docker save and skopeo copy write it
    #[arg(long, value_name = "FILE")]
    image_file: Option<PathBuf>,
    /// Make it of a Dockerfile
    #[arg(long, value_name = "FILE")]
    dockerfile: Option<PathBuf>,
    /// The directory that the Dockerfile copies from
    #[arg(id = "directory", long = "context", value_name = "DIR", requires = "dockerfile")]
    context: Option<PathBuf>,
    /// Make it of a snapshot, by name or id; sizes that are not given are the snapshot's
    #[arg(long, value_name = "SNAPSHOT")]
    from_snapshot: Option<String>,
    /// Virtual CPUs, 1 to 8; by default 1
    #[arg(long)]
    vcpu: Option<u32>,
    /// Memory in MiB, or as 2G: 128 to 16384; by default 512
    #[arg(long, value_name = "MIB", value_parser = size::mib)]
    memory: Option<u64>,
    /// Disk in GiB, or as 20G: 1 to 100; by default 4
    #[arg(long, value_name = "GIB", value_parser = size::gib)]
    disk: Option<u64>,
    /// Variable of its sandboxes' commands: KEY=VALUE, or KEY for this environment's; repeated
    #[arg(long = "env", short, value_name = "KEY[=VALUE]")]
    env: Vec<String>,
    /// Command that runs in its sandboxes from the start
    #[arg(long, value_name = "COMMAND")]
    start_command: Option<String>,
    /// Command that succeeds once the start command is ready
    #[arg(long, value_name = "COMMAND")]
    ready_command: Option<String>,
    /// Replace the template that has this name; its sandboxes stay
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    waiting: WaitArgs,
}

/// Runs the typed command.
pub async fn run(context: &Context, command: TemplateCommand) -> Result<()> {
    let project = &context.project()?;
    match command {
        TemplateCommand::List(args) => {
            args.show(context.look, Some(project), async |page| project.templates(page).await, show).await
        }
        TemplateCommand::Create(args) => create(context, project, args).await,
        TemplateCommand::Show { template } => one(context, &find(project, &template).await?),
        TemplateCommand::Logs { template, follow } => {
            build::logs(project, &find(project, &template).await?, follow, context.look.is_json()).await
        }
        TemplateCommand::Delete { templates, waiting } => delete(context, project, &templates, waiting).await,
    }
}

async fn delete(context: &Context, project: &ProjectClient, texts: &[String], waiting: WaitArgs) -> Result<()> {
    let found = find_all(texts, async |text: &str| find(project, text).await).await?;
    let doomed = found.into_iter().map(|Template { name, id, .. }| Doomed { name, id });
    let ask = async |id: &str| project.delete_template(id).await;
    let look = async |id: &str| project.template(id).await.map(|template| template.status);
    several::delete(context, doomed.collect(), (waiting, LONGEST), ask, look).await
}

async fn create(context: &Context, project: &ProjectClient, args: CreateArgs) -> Result<()> {
    let (wait, seconds) = (args.waiting.wanted(true), args.waiting.longest(LONGEST));
    let is_built = args.from_snapshot.is_none();
    let (request, local) = request(project, args).await?;
    let (mut template, sent) = send::begin(project, request, local).await?;
    if wait {
        template = until_over(context, project, template, seconds, is_built).await?;
        if let Some(sent) = sent {
            send::remove(project, &sent).await;
        }
        if template.status == "failed" {
            bail!("{} failed: {}", template.name, template.message.unwrap_or_default());
        }
    }
    one(context, &template)?;
    if context.look.is_for_people() && wait {
        eprintln!("\nUse it: berth sandbox create --template {}", template.name);
    }
    Ok(())
}

async fn request(project: &ProjectClient, args: CreateArgs) -> Result<(CreateTemplate, Option<Local>)> {
    let env = pairs::variables(&args.env, pairs::own)?;
    let dockerfile = args
        .dockerfile
        .map(|file| std::fs::read_to_string(&file).with_context(|| format!("{} cannot be read", file.display())));
    let from_snapshot = match &args.from_snapshot {
        Some(text) => Some(find_snapshot(project, text).await?),
        None => None,
    };
    let sized = from_snapshot.is_none();
    let request = CreateTemplate {
        name: args.name,
        image: args.image,
        dockerfile: dockerfile.transpose()?,
        context_id: None,
        from_snapshot,
        vcpu: args.vcpu.or(sized.then_some(1)),
        memory_mb: args.memory.or(sized.then_some(512)),
        disk_gb: args.disk.or(sized.then_some(4)),
        env,
        start_command: args.start_command,
        ready_command: args.ready_command,
        replace: args.replace,
    };
    Ok((request, args.image_file.map(Local::Image).or(args.context.map(Local::Context))))
}

/// Waits until it is ready or failed, and shows the log of its build.
async fn until_over(
    context: &Context,
    project: &ProjectClient,
    mut template: Template,
    seconds: u64,
    is_built: bool,
) -> Result<Template> {
    let begun = Instant::now();
    let id = template.id.clone();
    let look = async || Ok(project.template(&id).await?);
    if is_built && !context.is_quiet() {
        build::show(project, &template, begun + Duration::from_secs(seconds)).await?;
        template = look().await?;
    }
    let stage = |template: &Template| {
        let (name, status) = (&template.name, &template.status);
        if ["ready", "failed"].contains(&status.as_str()) {
            return Ok(Stage::Over);
        }
        let shown = format!("{name}: {}", template.message.as_deref().unwrap_or(status));
        Ok(Stage::Underway { shown, late: format!("{name} is still {status} after {seconds} s") })
    };
    let left = seconds.saturating_sub(begun.elapsed().as_secs());
    watch(Progress::new(context.is_quiet()), Some(left), template, stage, look).await
}

/// The template with a name or an id.
async fn find(project: &ProjectClient, text: &str) -> Result<Template> {
    if is_id(text) {
        return Ok(project.template(text).await?);
    }
    let found = project.templates_named(text, Page::default()).await?.data;
    let found = candidates(text, found, async |page| project.templates(page).await).await?;
    TEMPLATE.of(found, text, |template| &template.id, |template| template.name == text)
}

fn one(context: &Context, template: &Template) -> Result<()> {
    output::rows(context.look, template, |template| show(std::slice::from_ref(template)))
}

fn show(templates: &[Template]) -> Table {
    let size = |number: Option<u64>, unit: &str| number.map_or_else(|| "-".into(), |n| format!("{n}{unit}"));
    let rows = templates.iter().map(|template| {
        [
            template.name.clone(),
            template.status.clone(),
            size(template.vcpu.map(u64::from), ""),
            size(template.memory_mb, " MiB"),
            size(template.disk_gb, " GiB"),
            output::age(&template.created_at),
            template.id.clone(),
            output::or_dash(template.message.as_deref()),
        ]
    });
    let header = ["NAME", "STATUS", "CPUS", "MEMORY", "DISK", "AGE", "ID", "MESSAGE"];
    Table::new(header, rows, "No templates. Build one: berth template create NAME --image IMAGE").cut()
}
