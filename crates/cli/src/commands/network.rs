//! Networks of the project, in which VMs and sandboxes reach each other by name. A network has a name and an id;
//! commands take both.

use anyhow::Result;
use berth_client::{ChangeProjectNetwork, Membership, NetworkMember, NewNetwork, Page, ProjectClient, ProjectNetwork};
use clap::Subcommand;

use super::firewall;
use crate::context::Context;
use crate::id::is_id;
use crate::output::{self, Table};
use crate::pick::Noun;
use crate::several::{Outcome, find_all};
use crate::typed::{Words, retold};
use crate::watch::ListArgs;

const NETWORK: Noun = Noun { one: "network", list: "berth network list" };

/// The argument or option for each field.
const WORDS: Words = &[("name", "NAME"), ("cidr", "--cidr"), ("cidr6", "--cidr6")];

#[derive(Subcommand)]
pub enum NetworkCommand {
    /// List networks
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Show a network, and which VMs and sandboxes belong to it
    #[command(visible_alias = "show")]
    Get {
        /// Name or id
        network: String,
    },
    /// Make a network; VMs and sandboxes join it when they are made: --network NAME
    Create {
        /// Name: small letters, digits and hyphens, at most 63
        name: String,
        /// Its addresses, as 10.20.0.0/24: private ones, from /16 to /28; by default some free ones
        #[arg(long, value_name = "CIDR")]
        cidr: Option<String>,
        /// Its IPv6 addresses, as fd00:20::/64: of fd00::/8, from /48 to /64; or none; by default some made by chance
        #[arg(long, value_name = "CIDR")]
        cidr6: Option<String>,
    },
    /// Give a network another name
    Rename {
        /// Name or id
        network: String,
        /// New name
        name: String,
    },
    /// Show or set the firewall rules between the members of a network
    Rules {
        /// Name or id
        network: String,
        #[command(flatten)]
        rules: firewall::RulesArgs,
    },
    /// Delete networks to which nothing belongs
    #[command(visible_alias = "rm")]
    Delete {
        /// Names or ids
        #[arg(required = true)]
        networks: Vec<String>,
    },
}

/// Runs the typed command.
pub async fn run(context: &Context, command: NetworkCommand) -> Result<()> {
    let project = context.project()?;
    match command {
        NetworkCommand::List(args) => {
            args.show(context.look, Some(&project), async |page| project.networks(page).await, table).await
        }
        NetworkCommand::Get { network } => {
            let network = find(&project, &network).await?;
            // A list does not say what belongs to it.
            one(context, &project.network(&network.id).await?)
        }
        NetworkCommand::Create { name, cidr, cidr6 } => {
            let made = project.create_network(&NewNetwork { name, cidr, cidr6 }).await;
            one(context, &made.map_err(|error| retold(error, WORDS))?)
        }
        NetworkCommand::Rename { network, name } => {
            let network = find(&project, &network).await?;
            let change = ChangeProjectNetwork { name: Some(name) };
            let changed = project.update_network(&network.id, &change).await;
            one(context, &changed.map_err(|error| retold(error, WORDS))?)
        }
        NetworkCommand::Rules { network, rules } => {
            let (network, wanted) = (find(&project, &network).await?, rules.wanted()?);
            let rules = match wanted {
                Some(rules) => project.set_network_rules(&network.id, &rules).await,
                None => project.network_rules(&network.id).await,
            };
            firewall::show(context, &rules.map_err(|error| retold(error, firewall::WORDS))?)
        }
        NetworkCommand::Delete { networks } => delete(context, &project, &networks).await,
    }
}

async fn delete(context: &Context, project: &ProjectClient, texts: &[String]) -> Result<()> {
    let networks = find_all(texts, async |text: &str| find(project, text).await).await?;
    let mut outcome = Outcome::of(networks.len(), context.look);
    for ProjectNetwork { id, name, .. } in networks {
        let deleted = project.delete_network(&id).await.map_err(Into::into);
        if outcome.of_one(&name, deleted).is_some() {
            output::done(context.look, &name, &id, &format!("{name} is being deleted"));
        }
    }
    outcome.end()
}

/// The network with a name or an id.
pub async fn find(project: &ProjectClient, text: &str) -> Result<ProjectNetwork> {
    if is_id(text) {
        return Ok(project.network(text).await?);
    }
    let all = Page::all(async |page| project.networks(page).await).await?;
    NETWORK.of(all, text, |network| &network.id, |network| network.name == text)
}

/// The ids of the networks that a new VM or sandbox is to belong to.
pub async fn ids(project: &ProjectClient, texts: &[String]) -> Result<Vec<String>> {
    let found = find_all(texts, async |text: &str| find(project, text).await).await?;
    Ok(found.into_iter().map(|network| network.id).collect())
}

/// The networks of a VM or a sandbox, each with its address there.
pub fn memberships(all: &[Membership]) -> String {
    let of = |one: &Membership| format!("{} ({})", one.name, both(&one.address, one.address6.as_deref()));
    all.iter().map(of).collect::<Vec<_>>().join(", ")
}

/// Addresses of both kinds, as far as there are both.
fn both(four: &str, six: Option<&str>) -> String {
    six.map_or_else(|| four.to_owned(), |six| format!("{four}, {six}"))
}

fn table(networks: &[ProjectNetwork]) -> Table {
    let rows = networks.iter().map(|network| {
        [
            network.name.clone(),
            network.cidr.clone(),
            network.member_count.to_string(),
            output::age(&network.created_at),
            network.id.clone(),
        ]
    });
    Table::new(["NAME", "ADDRESSES", "MEMBERS", "AGE", "ID"], rows, "No networks. Make one: berth network create NAME")
}

fn one(context: &Context, network: &ProjectNetwork) -> Result<()> {
    let member = |member: &NetworkMember| {
        let at = both(&member.address, member.address6.as_deref());
        format!("{} ({} at {at})", member.name, member.kind)
    };
    output::record(context.look, network, |network| {
        let members = network.members.iter().flatten().map(member).collect::<Vec<_>>();
        vec![
            ("name", network.name.clone()),
            ("id", network.id.clone()),
            ("addresses", both(&network.cidr, network.cidr6.as_deref())),
            ("resolver", both(&network.resolver, network.resolver6.as_deref())),
            ("members", members.join(", ")),
            ("created", output::time(&network.created_at)),
            ("changed", output::time(&network.updated_at)),
        ]
    })
}
