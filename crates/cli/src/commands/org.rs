//! Organizations. Commands take an organization's slug, id or name.

use anyhow::Result;
use berth_client::{ChangeOrganization, Organization, Page};
use clap::Subcommand;

use super::session::first_project;
use crate::context::Context;
use crate::output::{self, Table};
use crate::page::PageArgs;
use crate::pick::Noun;
use crate::span;
use crate::typed::{Words, retold};

/// The option for each field of a change.
const CHANGES: Words = &[("name", "--name"), ("slug", "--slug"), ("max_key_seconds", "--max-key-life")];
const ORG: Noun = Noun { one: "organization", list: "berth org list" };

#[derive(Subcommand)]
pub enum OrgCommand {
    /// List the organizations you belong to
    #[command(visible_alias = "ls")]
    List(PageArgs),
    /// Show one organization
    #[command(visible_alias = "show")]
    Get {
        /// Slug, id or name; by default the one that commands use
        org: Option<String>,
    },
    /// Make an organization
    Create {
        /// Name
        name: String,
        /// Name in paths; made from the name if absent
        #[arg(long)]
        slug: Option<String>,
    },
    /// Change name, slug, or the longest life of API keys
    Update {
        /// Slug, id or name; by default the one that commands use
        org: Option<String>,
        /// New name
        #[arg(long, required_unless_present_any = ["slug", "max_key_life"])]
        name: Option<String>,
        /// New name in paths
        #[arg(long)]
        slug: Option<String>,
        /// The longest life of API keys made from now on, as 90d; 0s means no limit
        #[arg(long, value_name = "SPAN")]
        max_key_life: Option<String>,
    },
    /// Delete an empty organization
    #[command(visible_alias = "rm")]
    Delete {
        /// Slug, id or name
        org: String,
    },
    /// Choose the organization that commands use
    Use {
        /// Slug, id or name
        org: String,
    },
}

/// Runs the typed command.
pub async fn run(context: &Context, command: OrgCommand) -> Result<()> {
    match command {
        OrgCommand::List(page) => {
            let orgs = context.client.organizations(page.into()).await?;
            output::list(context.look, &orgs, show)
        }
        OrgCommand::Get { org } => one(context, find_or_meant(context, org).await?),
        OrgCommand::Create { name, slug } => {
            let made = context.client.create_organization(&name, slug.as_deref()).await;
            one(context, made.map_err(|error| retold(error, &[("name", "NAME"), ("slug", "--slug")]))?)
        }
        OrgCommand::Update { org, name, slug, max_key_life } => {
            let before = find_or_meant(context, org).await?;
            let max_key_seconds = max_key_life.as_deref().map(span::seconds).transpose()?;
            let change = ChangeOrganization { name, slug, max_key_seconds };
            let after = context.client.update_organization(&before.id, &change).await;
            let after = after.map_err(|error| retold(error, CHANGES))?;
            if before.slug != after.slug {
                context.keep(|kept| replace(&mut kept.org, &before.slug, &after.slug))?;
            }
            one(context, after)
        }
        OrgCommand::Delete { org } => delete(context, &org).await,
        OrgCommand::Use { org } => choose(context, &org).await,
    }
}

/// The organization with a slug, an id or a name.
pub async fn find(context: &Context, text: &str) -> Result<Organization> {
    match context.client.organization(text).await {
        Err(error) if error.status() == Some(404) => {}
        other => return Ok(other?),
    }
    let orgs = Page::all(async |page| context.client.organizations(page).await).await?;
    ORG.of(orgs, text, |org| &org.id, |org| org.name == text)
}

async fn find_or_meant(context: &Context, typed: Option<String>) -> Result<Organization> {
    match typed {
        Some(text) => find(context, &text).await,
        None => find(context, context.org()?).await,
    }
}

async fn delete(context: &Context, text: &str) -> Result<()> {
    let org = find(context, text).await?;
    context.client.delete_organization(&org.id).await?;
    context.keep(|kept| {
        if kept.org == org.slug {
            kept.org.clear();
            kept.project.clear();
        }
    })?;
    output::done(context.look, &org.slug, &org.id, &format!("The organization {} is deleted.", org.slug));
    Ok(())
}

async fn choose(context: &Context, text: &str) -> Result<()> {
    let org = find(context, text).await?;
    let project = first_project(&context.client, &org.slug).await?.unwrap_or_default();
    context.choose(&org.slug, &project)?;
    let Organization { slug, id, .. } = &org;
    if project.is_empty() {
        let said = format!("Commands now mean the organization {slug}. You see no project there yet.");
        output::done(context.look, slug, id, &said);
        eprintln!("Make one: berth project create NAME");
    } else {
        output::done(context.look, slug, id, &format!("Commands now mean the project {slug}/{project}."));
    }
    Ok(())
}

/// Replaces a name in the kept sign-in.
pub fn replace(kept: &mut String, before: &str, after: &str) {
    if kept == before {
        after.clone_into(kept);
    }
}

fn one(context: &Context, org: Organization) -> Result<()> {
    output::rows(context.look, &org, |org| show(std::slice::from_ref(org)))
}

fn show(orgs: &[Organization]) -> Table {
    let rows = orgs.iter().map(|o| {
        let role = output::or_dash(o.role.as_deref());
        [o.slug.clone(), o.name.clone(), role, output::age(&o.created_at), o.id.clone()]
    });
    Table::new(["SLUG", "NAME", "ROLE", "AGE", "ID"], rows, "No organizations. Make one: berth org create NAME")
}
