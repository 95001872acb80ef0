//! Organizations. One is named by its slug, id or name.

use anyhow::Result;
use berth_client::{Organization, Page, Rename};
use clap::Subcommand;

use super::session::first_project;
use crate::cli::PageArgs;
use crate::context::Context;
use crate::{output, pick};

#[derive(Subcommand)]
pub enum OrgCommand {
    /// List the organizations you belong to
    #[command(visible_alias = "ls")]
    List(PageArgs),
    /// Show one organization
    #[command(visible_alias = "show")]
    Get {
        /// Slug, id or name; by default the one that commands mean
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
    /// Change name or slug
    Update {
        /// Slug, id or name; by default the one that commands mean
        org: Option<String>,
        /// New name
        #[arg(long, required_unless_present = "slug")]
        name: Option<String>,
        /// New name in paths
        #[arg(long)]
        slug: Option<String>,
    },
    /// Delete an organization that owns nothing any more
    #[command(visible_alias = "rm")]
    Delete {
        /// Slug, id or name
        org: String,
    },
    /// Make an organization the one that commands mean
    Use {
        /// Slug, id or name
        org: String,
    },
}

/// Does what was typed.
pub async fn run(context: &Context, command: OrgCommand) -> Result<()> {
    match command {
        OrgCommand::List(page) => {
            let orgs = context.client.organizations(page.into()).await?;
            output::list(context.json, &orgs, show)
        }
        OrgCommand::Get { org } => one(context, find_or_meant(context, org).await?),
        OrgCommand::Create { name, slug } => {
            one(context, context.client.create_organization(&name, slug.as_deref()).await?)
        }
        OrgCommand::Update { org, name, slug } => {
            let before = find_or_meant(context, org).await?;
            let after = context.client.update_organization(&before.id, &Rename { name, slug }).await?;
            if before.slug != after.slug {
                context.keep(|kept| replace(&mut kept.org, &before.slug, &after.slug))?;
            }
            one(context, after)
        }
        OrgCommand::Delete { org } => delete(context, &org).await,
        OrgCommand::Use { org } => choose(context, &org).await,
    }
}

/// The organization of a slug, an id or a name.
pub async fn find(context: &Context, text: &str) -> Result<Organization> {
    match context.client.organization(text).await {
        Err(error) if error.status() == Some(404) => {}
        other => return Ok(other?),
    }
    let mut orgs = Page::all(async |page| context.client.organizations(page).await).await?;
    orgs.retain(|org| org.name == text);
    pick::only(orgs, "organization", text, "berth org list")
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
    if !context.json {
        println!("The organization {} is deleted.", org.slug);
    }
    Ok(())
}

async fn choose(context: &Context, text: &str) -> Result<()> {
    let org = find(context, text).await?;
    let project = first_project(&context.client, &org.slug).await?.unwrap_or_default();
    context.choose(&org.slug, &project)?;
    if project.is_empty() {
        println!("Commands now mean the organization {}. You see no project there yet.", org.slug);
        eprintln!("Make one: berth project create NAME");
    } else {
        println!("Commands now mean the project {}/{project}.", org.slug);
    }
    Ok(())
}

/// Replaces a name that was kept.
pub fn replace(kept: &mut String, before: &str, after: &str) {
    if kept == before {
        after.clone_into(kept);
    }
}

fn one(context: &Context, org: Organization) -> Result<()> {
    output::print(context.json, &org, |org| show(std::slice::from_ref(org)))
}

fn show(orgs: &[Organization]) {
    let rows = orgs.iter().map(|o| {
        let role = output::or_dash(o.role.as_deref());
        [o.slug.clone(), o.name.clone(), role, output::age(&o.created_at), o.id.clone()]
    });
    output::table(["SLUG", "NAME", "ROLE", "AGE", "ID"], rows, "No organizations. Make one: berth org create NAME");
}
