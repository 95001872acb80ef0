//! Projects of an organization. Commands take a project's slug, id or name, or ORG/SLUG.

use anyhow::Result;
use berth_client::{Page, Project, Rename};
use clap::Subcommand;

use super::org;
use crate::context::Context;
use crate::failure::Failure;
use crate::output::{self, Table};
use crate::page::PageArgs;
use crate::pick::Noun;
use crate::typed::retold;

const PROJECT: Noun = Noun { one: "project", list: "berth project list" };

#[derive(Subcommand)]
pub enum ProjectCommand {
    /// List the projects you see
    #[command(visible_alias = "ls")]
    List(PageArgs),
    /// Show one project
    #[command(visible_alias = "show")]
    Get {
        /// Slug, id or name, or ORG/SLUG; by default the one that commands use
        project: Option<String>,
    },
    /// Make a project
    Create {
        /// Name
        name: String,
        /// Name in paths; made from the name if absent
        #[arg(long)]
        slug: Option<String>,
    },
    /// Change name or slug
    Update {
        /// Slug, id or name, or ORG/SLUG; by default the one that commands use
        project: Option<String>,
        /// New name
        #[arg(long, required_unless_present = "slug")]
        name: Option<String>,
        /// New name in paths
        #[arg(long)]
        slug: Option<String>,
    },
    /// Delete an empty project
    #[command(visible_alias = "rm")]
    Delete {
        /// Slug, id or name, or ORG/SLUG
        project: String,
    },
    /// Choose the project that commands use
    Use {
        /// PROJECT, or ORG/PROJECT
        project: String,
    },
}

/// Runs the typed command.
pub async fn run(context: &Context, command: ProjectCommand) -> Result<()> {
    let client = &context.client;
    match command {
        ProjectCommand::List(page) => {
            let org = context.org()?;
            let projects = client.projects(org, page.into()).await?;
            output::list(context.look, &projects, |projects| show(context, org, projects))
        }
        ProjectCommand::Get { project } => {
            let (org, project) = find_or_meant(context, project).await?;
            one(context, &org, project)
        }
        ProjectCommand::Create { name, slug } => {
            let org = context.org()?;
            let made = client.create_project(org, &name, slug.as_deref()).await;
            one(context, org, made.map_err(|error| retold(error, &[("name", "NAME"), ("slug", "--slug")]))?)
        }
        ProjectCommand::Update { project, name, slug } => {
            let (org, before) = find_or_meant(context, project).await?;
            let after = client.update_project(&org, &before.id, &Rename { name, slug }).await;
            let after = after.map_err(|error| retold(error, &[("name", "--name"), ("slug", "--slug")]))?;
            if before.slug != after.slug {
                context.keep(|kept| {
                    if kept.org == org {
                        org::replace(&mut kept.project, &before.slug, &after.slug);
                    }
                })?;
            }
            one(context, &org, after)
        }
        ProjectCommand::Delete { project } => delete(context, &project).await,
        ProjectCommand::Use { project } => choose(context, &project).await,
    }
}

/// The organization and the project for a slug, an id or a name, or for ORG/SLUG.
pub async fn find(context: &Context, text: &str) -> Result<(String, Project)> {
    let (org, name) = match text.split_once('/') {
        Some(pair) => pair,
        None => (context.org()?, text),
    };
    match context.client.get_project(org, name).await {
        Err(error) if error.status() == Some(404) => {}
        other => return Ok((org.to_owned(), other?)),
    }
    let projects = Page::all(async |page| context.client.projects(org, page).await).await?;
    let found = PROJECT.of(projects, name, |project| &project.id, |project| project.name == name)?;
    Ok((org.to_owned(), found))
}

async fn find_or_meant(context: &Context, typed: Option<String>) -> Result<(String, Project)> {
    let meant = || context.project_name().ok_or_else(|| Failure::usage("Name the project: berth project list"));
    match typed {
        Some(text) => find(context, &text).await,
        None => find(context, meant()?).await,
    }
}

async fn delete(context: &Context, text: &str) -> Result<()> {
    let (org, project) = find(context, text).await?;
    context.client.delete_project(&org, &project.id).await?;
    context.keep(|kept| {
        if kept.org == org && kept.project == project.slug {
            kept.project.clear();
        }
    })?;
    let Project { slug, id, .. } = &project;
    output::done(context.look, slug, id, &format!("The project {slug} is deleted."));
    Ok(())
}

async fn choose(context: &Context, text: &str) -> Result<()> {
    let (org, project) = find(context, text).await?;
    context.choose(&org, &project.slug)?;
    let Project { slug, id, .. } = &project;
    output::done(context.look, slug, id, &format!("Commands now mean the project {org}/{slug}."));
    Ok(())
}

fn one(context: &Context, org: &str, project: Project) -> Result<()> {
    output::rows(context.look, &project, |project| show(context, org, std::slice::from_ref(project)))
}

fn show(context: &Context, org: &str, projects: &[Project]) -> Table {
    let rows = projects.iter().map(|p| {
        let mark = if context.usually_means(org, &p.slug) { "*" } else { "" };
        let role = output::or_dash(p.role.as_deref());
        [p.slug.clone(), mark.to_owned(), p.name.clone(), role, output::age(&p.created_at), p.id.clone()]
    });
    let none = "No projects. Make one: berth project create NAME";
    Table::new(["SLUG", "", "NAME", "ROLE", "AGE", "ID"], rows, none)
}
