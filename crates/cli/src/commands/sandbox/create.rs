//! `berth sandbox create`, and the options of a new sandbox.

use anyhow::Result;
use berth_client::{ChangeNetworkPolicy, CreateSandbox, Error, NetworkPolicy, ProjectClient, SandboxFilter};
use clap::{Args, ValueEnum};

use super::find::SANDBOX;
use super::{show, snapshot};
use crate::commands::network;
use crate::context::Context;
use crate::failure::Failure;
use crate::progress::wait_sandbox;
use crate::typed::{Words, retold};
use crate::wait::WaitArgs;
use crate::{pairs, span};

/// Seconds to wait for a new sandbox.
const LONGEST: u64 = 300;

/// The option for each field.
pub const WORDS: Words = &[
    ("name", "--name"),
    ("template_id", "--template"),
    ("snapshot_id", "--snapshot"),
    ("metadata", "--metadata"),
    ("env", "--env"),
    ("timeout_seconds", "--timeout"),
    ("idle_timeout_seconds", "--idle-timeout"),
    ("on_timeout", "--on-timeout"),
    ("auto_resume", "--auto-resume"),
    ("network_ids", "--network"),
    ("gpu_config_count", "--gpus"),
    ("gpu_model", "--gpu-model"),
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
    /// How long it lives, without pauses, as 1h; 5s to 30d
    #[arg(long, value_name = "TIME")]
    timeout: Option<String>,
    /// How long it may be idle, as 15m; 5s to 30d
    #[arg(long, value_name = "TIME")]
    idle_timeout: Option<String>,
    /// What happens then: pause keeps everything, or delete
    #[arg(long, value_enum)]
    on_timeout: Option<OnTimeout>,
    /// Resume it whenever somebody uses it while it is paused
    #[arg(long)]
    auto_resume: bool,
    #[command(flatten)]
    waiting: WaitArgs,
}

/// What to make a new sandbox of.
#[derive(Args)]
pub struct Origin {
    /// Name: small letters, digits and hyphens, at most 63
    #[arg(long)]
    name: Option<String>,
    /// Template, by name or id: berth template list; by default base
    #[arg(long, conflicts_with = "snapshot")]
    template: Option<String>,
    /// Snapshot to start from, by name or id: berth sandbox snapshot list
    #[arg(long)]
    snapshot: Option<String>,
    /// Pair for finding it: KEY=VALUE, repeated
    #[arg(long = "metadata", value_name = "KEY=VALUE")]
    metadata: Vec<String>,
    /// Network of the project that it belongs to, by name or id, repeated: berth network list; by default those of the
    /// snapshot's sandbox
    #[arg(long = "network", value_name = "NETWORK")]
    networks: Vec<String>,
    /// It belongs to no network, whatever its snapshot's sandbox did
    #[arg(long, conflicts_with = "networks")]
    no_networks: bool,
    /// GPUs that it has for itself; it boots then, and no memory of it is kept
    #[arg(long, value_name = "COUNT")]
    gpus: Option<i64>,
    /// Their model, as sizes name it: berth catalog; needed only where several are on offer
    #[arg(long, value_name = "MODEL", requires = "gpus")]
    gpu_model: Option<String>,
    #[command(flatten)]
    network: NetworkArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OnTimeout {
    Pause,
    Delete,
}

impl OnTimeout {
    /// The word in the API.
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
    /// Whether it may reach destinations that are not named: the outside world, but neither the host nor private
    /// networks
    #[arg(long, value_enum)]
    egress: Option<Egress>,
    /// What it may always reach: a name, *.example.org, an address or a range; repeated
    #[arg(long, value_name = "TARGET")]
    allow: Vec<String>,
    /// What it may never reach; wins over --allow; repeated
    #[arg(long, value_name = "TARGET")]
    deny: Vec<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Egress {
    Allow,
    Deny,
}

impl Egress {
    /// The word in the API.
    fn word(self) -> String {
        match self {
            Self::Allow => "allow".into(),
            Self::Deny => "deny".into(),
        }
    }
}

impl NetworkArgs {
    /// The rules for the API; nothing if none was typed.
    fn network(self) -> Option<NetworkPolicy> {
        let said = self.egress.is_some() || !self.allow.is_empty() || !self.deny.is_empty();
        let egress = self.egress.map(Egress::word);
        said.then_some(NetworkPolicy { egress, allow: self.allow, deny: self.deny })
    }
}

/// A change of what a sandbox may reach.
#[derive(Args)]
pub struct ChangeNetworkArgs {
    /// Whether it may reach destinations that are not named, from now on
    #[arg(long, value_enum)]
    egress: Option<Egress>,
    /// All that it may always reach, from now on; repeated
    #[arg(long, value_name = "TARGET")]
    allow: Vec<String>,
    /// Clear the list of --allow
    #[arg(long, conflicts_with = "allow")]
    no_allow: bool,
    /// All that it may never reach, from now on; repeated
    #[arg(long, value_name = "TARGET")]
    deny: Vec<String>,
    /// Clear the list of --deny
    #[arg(long, conflicts_with = "deny")]
    no_deny: bool,
}

impl ChangeNetworkArgs {
    /// The change for the API; nothing if none was typed.
    pub fn change(self) -> Option<ChangeNetworkPolicy> {
        let list = |list: Vec<String>, none: bool| (none || !list.is_empty()).then_some(list);
        let change = ChangeNetworkPolicy {
            egress: self.egress.map(Egress::word),
            allow: list(self.allow, self.no_allow),
            deny: list(self.deny, self.no_deny),
        };
        (change != ChangeNetworkPolicy::default()).then_some(change)
    }
}

impl Origin {
    /// The request for the API.
    pub async fn request(self, project: &ProjectClient) -> Result<CreateSandbox> {
        let snapshot_id = match &self.snapshot {
            Some(text) => Some(snapshot::find(project, text, None).await?.id),
            None => None,
        };
        let networks = network::ids(project, &self.networks).await?;
        Ok(CreateSandbox {
            template_id: self.template,
            snapshot_id,
            name: self.name,
            metadata: pairs::pairs(&self.metadata, "metadata")?,
            network: self.network.network(),
            gpu_config_count: self.gpus,
            gpu_model: self.gpu_model,
            network_ids: (self.no_networks || !self.networks.is_empty()).then_some(networks),
            ..CreateSandbox::default()
        })
    }
}

/// Why the service made no sandbox, with what to type. A service that was never set up has no template at all.
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

/// Says that a new sandbox shares its name with others.
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
        auto_resume: args.auto_resume.then_some(true),
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
