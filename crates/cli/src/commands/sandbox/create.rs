//! `berth sandbox create`, and what a new sandbox is like.

use anyhow::Result;
use berth_client::{CreateSandbox, Network, ProjectClient};
use clap::{Args, ValueEnum};

use super::{show, snapshot};
use crate::context::Context;
use crate::progress::wait_sandbox;
use crate::{pairs, span};

#[derive(Args)]
pub struct CreateArgs {
    #[command(flatten)]
    origin: Origin,
    /// Variable of its commands: KEY=VALUE, or KEY for this environment's; repeated
    #[arg(long = "env", short, value_name = "KEY[=VALUE]")]
    env: Vec<String>,
    /// How long it lives, not counting pauses, as 1h; 5s to 30d
    #[arg(long, value_name = "TIME")]
    timeout: Option<String>,
    /// How long it may be idle, as 15m; 5s to 30d
    #[arg(long, value_name = "TIME")]
    idle_timeout: Option<String>,
    /// What happens then
    #[arg(long, value_enum)]
    on_timeout: Option<OnTimeout>,
    /// Return at once; otherwise when it is Ready
    #[arg(long)]
    no_wait: bool,
    /// Seconds to wait at most
    #[arg(long, default_value_t = 300, value_name = "SECONDS")]
    wait_timeout: u64,
    /// Print its id alone
    #[arg(long, short)]
    quiet: bool,
}

/// What a new sandbox is made of.
#[derive(Args)]
pub struct Origin {
    /// Name: small letters, digits and hyphens, at most 63
    #[arg(long)]
    name: Option<String>,
    /// Template, by name or id: berth template list; by default base
    #[arg(long, conflicts_with = "snapshot")]
    template: Option<String>,
    /// Snapshot to begin from, by name or id: berth sandbox snapshot list
    #[arg(long)]
    snapshot: Option<String>,
    /// Pair that it is found by: KEY=VALUE, repeated
    #[arg(long = "metadata", value_name = "KEY=VALUE")]
    metadata: Vec<String>,
    #[command(flatten)]
    network: NetworkArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OnTimeout {
    /// It is paused, and keeps everything
    Pause,
    /// It is deleted
    Delete,
}

impl OnTimeout {
    /// The word of the API.
    pub fn word(self) -> String {
        match self {
            Self::Pause => "pause".into(),
            Self::Delete => "delete".into(),
        }
    }
}

/// What a sandbox may reach.
#[derive(Args)]
pub struct NetworkArgs {
    /// Whether it may reach what is not named
    #[arg(long, value_enum)]
    egress: Option<Egress>,
    /// What it may reach in any case: a name, *.example.org, an address or a range; repeated
    #[arg(long, value_name = "TARGET")]
    allow: Vec<String>,
    /// What it may not, which wins; repeated
    #[arg(long, value_name = "TARGET")]
    deny: Vec<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Egress {
    /// The outside world, but neither the host nor private networks
    Allow,
    /// Nothing
    Deny,
}

impl NetworkArgs {
    /// As the API takes it; nothing where nothing was said.
    pub fn network(self) -> Option<Network> {
        let egress = self.egress.map(|egress| match egress {
            Egress::Allow => "allow".to_owned(),
            Egress::Deny => "deny".to_owned(),
        });
        let said = egress.is_some() || !self.allow.is_empty() || !self.deny.is_empty();
        said.then_some(Network { egress, allow: self.allow, deny: self.deny })
    }
}

impl Origin {
    /// As the API takes it.
    pub async fn request(self, project: &ProjectClient) -> Result<CreateSandbox> {
        let snapshot_id = match &self.snapshot {
            Some(text) => Some(snapshot::find(project, text, None).await?.id),
            None => None,
        };
        Ok(CreateSandbox {
            template_id: self.template,
            snapshot_id,
            name: self.name,
            metadata: pairs::pairs(&self.metadata, "metadata")?,
            network: self.network.network(),
            ..CreateSandbox::default()
        })
    }
}

pub async fn create(context: &Context, project: &ProjectClient, args: CreateArgs) -> Result<()> {
    let request = CreateSandbox {
        env: pairs::variables(&args.env, pairs::own)?,
        timeout_seconds: args.timeout.as_deref().map(span::seconds).transpose()?,
        idle_timeout_seconds: args.idle_timeout.as_deref().map(span::seconds).transpose()?,
        on_timeout: args.on_timeout.map(OnTimeout::word),
        ..args.origin.request(project).await?
    };
    let mut sandbox = project.create_sandbox(&request).await?;
    if !args.no_wait {
        let quiet = context.json || args.quiet;
        sandbox = wait_sandbox(project, &sandbox.id, "Ready", args.wait_timeout, quiet).await?;
    }
    if args.quiet && !context.json {
        println!("{}", sandbox.id);
        return Ok(());
    }
    show::one(context, &sandbox)?;
    if !context.json {
        show::next(&sandbox);
    }
    Ok(())
}
