//! `berth sandbox create`, and what a new sandbox is like.

use anyhow::Result;
use berth_client::{ChangeNetwork, CreateSandbox, Error, Network, ProjectClient, SandboxFilter};
use clap::{Args, ValueEnum};

use super::find::SANDBOX;
use super::{show, snapshot};
use crate::context::Context;
use crate::failure::Failure;
use crate::progress::wait_sandbox;
use crate::typed::{Words, retold};
use crate::wait::WaitArgs;
use crate::{pairs, span};

/// Seconds that a new sandbox is waited for.
const LONGEST: u64 = 300;

/// Which option becomes which field.
pub const WORDS: Words = &[
    ("name", "--name"),
    ("template_id", "--template"),
    ("snapshot_id", "--snapshot"),
    ("metadata", "--metadata"),
    ("env", "--env"),
    ("timeout_seconds", "--timeout"),
    ("idle_timeout_seconds", "--idle-timeout"),
    ("on_timeout", "--on-timeout"),
    ("network.egress", "--egress"),
    ("network.allow", "--allow"),
    ("network.deny", "--deny"),
];

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
    /// What happens then: it is paused and keeps everything, or is deleted
    #[arg(long, value_enum)]
    on_timeout: Option<OnTimeout>,
    #[command(flatten)]
    waiting: WaitArgs,
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
    Pause,
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
    /// Whether it may reach what is not named: the outside world, but neither the host nor private networks
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
    Allow,
    Deny,
}

impl Egress {
    /// The word of the API.
    fn word(self) -> String {
        match self {
            Self::Allow => "allow".into(),
            Self::Deny => "deny".into(),
        }
    }
}

impl NetworkArgs {
    /// As the API takes it; nothing where nothing was said.
    fn network(self) -> Option<Network> {
        let said = self.egress.is_some() || !self.allow.is_empty() || !self.deny.is_empty();
        let egress = self.egress.map(Egress::word);
        said.then_some(Network { egress, allow: self.allow, deny: self.deny })
    }
}

/// What changes in what a sandbox may reach.
#[derive(Args)]
pub struct ChangeNetworkArgs {
    /// Whether it may reach what is not named, from now on
    #[arg(long, value_enum)]
    egress: Option<Egress>,
    /// All that it may reach in any case, from now on; repeated
    #[arg(long, value_name = "TARGET")]
    allow: Vec<String>,
    /// Nothing in any case, from now on
    #[arg(long, conflicts_with = "allow")]
    no_allow: bool,
    /// All that it may not, from now on; repeated
    #[arg(long, value_name = "TARGET")]
    deny: Vec<String>,
    /// Nothing that it may not, from now on
    #[arg(long, conflicts_with = "deny")]
    no_deny: bool,
}

impl ChangeNetworkArgs {
    /// As the API takes it; nothing where nothing was said.
    pub fn change(self) -> Option<ChangeNetwork> {
        let list = |list: Vec<String>, none: bool| (none || !list.is_empty()).then_some(list);
        let change = ChangeNetwork {
            egress: self.egress.map(Egress::word),
            allow: list(self.allow, self.no_allow),
            deny: list(self.deny, self.no_deny),
        };
        (change != ChangeNetwork::default()).then_some(change)
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

/// Why a sandbox is not made, with what to type. A service that was never set up has no template at all.
pub fn refused(error: Error, request: &CreateSandbox) -> anyhow::Error {
    let asked = request.template_id.is_some() || request.snapshot_id.is_some();
    match error.code() {
        Some("template_not_found") if !asked => Failure::not_found(
            "This service has no template 'base' yet: its operator builds it by script/quickstart. One of your own: \
             berth template create NAME --image IMAGE, and --template NAME here.",
        ),
        _ => retold(error, WORDS).into(),
    }
}

/// Tells that a new sandbox shares its name with others.
async fn tell_shared(context: &Context, project: &ProjectClient, name: Option<&str>) {
    let Some(name) = name else { return };
    let filter = SandboxFilter { name: Some(name.to_owned()), limit: Some(1), ..SandboxFilter::default() };
    let count = async || Ok(project.sandboxes(&filter).await?.pagination.total_items);
    SANDBOX.tell_shared(context, name, count).await;
}

pub async fn create(context: &Context, project: &ProjectClient, args: CreateArgs) -> Result<()> {
    let request = CreateSandbox {
        env: pairs::variables(&args.env, pairs::own)?,
        timeout_seconds: args.timeout.as_deref().map(span::seconds).transpose()?,
        idle_timeout_seconds: args.idle_timeout.as_deref().map(span::seconds).transpose()?,
        on_timeout: args.on_timeout.map(OnTimeout::word),
        ..args.origin.request(project).await?
    };
    let mut sandbox = project.create_sandbox(&request).await.map_err(|error| refused(error, &request))?;
    tell_shared(context, project, sandbox.name.as_deref()).await;
    if args.waiting.wanted(true) {
        let longest = args.waiting.longest(LONGEST);
        sandbox = wait_sandbox(project, &sandbox.id, "Ready", longest, context.is_quiet()).await?;
    }
    show::one(context, project, &sandbox).await?;
    if context.look.is_for_people() {
        show::next(&sandbox);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_there_is_no_template_at_all_it_is_told_how_one_comes_about() {
        let error = || Error::Api {
            status: 404,
            code: "template_not_found".into(),
            message: "There is no template 'base'.".into(),
            details: Vec::new(),
            retry_after: None,
            request_id: String::new(),
        };
        let nothing = refused(error(), &CreateSandbox::default());
        assert!(nothing.to_string().contains("script/quickstart"), "{nothing}");
        assert_eq!(crate::failure::code(&nothing), 4);
        let named = CreateSandbox { template_id: Some("base".into()), ..CreateSandbox::default() };
        assert_eq!(refused(error(), &named).to_string(), "There is no template 'base'.");
    }
}
