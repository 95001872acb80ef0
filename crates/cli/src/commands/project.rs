//! Organizations and projects.

use anyhow::Result;
use berth_client::{Organization, Page, Project};

use crate::cli::{OrgCommand, ProjectCommand};
use crate::context::Context;
use crate::output;

pub async fn run_org(context: &Context, command: OrgCommand) -> Result<()> {
    match command {
        OrgCommand::List => {
            let orgs = context.client.organizations(Page::default()).await?;
            output::print(context.json, &orgs, |orgs| show_orgs(&orgs.data))
        }
        OrgCommand::Create { name, slug } => {
            let org = context.client.create_organization(&name, slug.as_deref()).await?;
            output::print(context.json, &org, |org| show_orgs(std::slice::from_ref(org)))
        }
    }
}

pub async fn run(context: &Context, command: ProjectCommand) -> Result<()> {
    match command {
        ProjectCommand::List => {
            let projects = context.client.projects(context.org()?, Page::default()).await?;
            output::print(context.json, &projects, |projects| show(context, &projects.data))
        }
        ProjectCommand::Create { name, slug } => {
            let project = context.client.create_project(context.org()?, &name, slug.as_deref()).await?;
            output::print(context.json, &project, |project| show(context, std::slice::from_ref(project)))
        }
        ProjectCommand::Use { project } => choose(context, &project).await,
    }
}

async fn choose(context: &Context, text: &str) -> Result<()> {
    let (org, project) = match text.split_once('/') {
        Some(pair) => pair,
        None => (context.org()?, text),
    };
    let found = context.client.get_project(org, project).await?;
    context.choose(org, &found.slug)?;
    println!("Commands now mean the project {org}/{}.", found.slug);
    Ok(())
}

fn show_orgs(orgs: &[Organization]) {
    let rows = orgs.iter().map(|o| {
        let role = output::or_dash(o.role.as_deref());
        [o.slug.clone(), o.name.clone(), role, output::age(&o.created_at), o.id.clone()]
    });
    output::table(["SLUG", "NAME", "ROLE", "AGE", "ID"], rows, "No organizations. Make one: berth org create NAME");
}

fn show(context: &Context, projects: &[Project]) {
    let rows = projects.iter().map(|p| {
        let mark = if context.project_name() == Some(p.slug.as_str()) { "*" } else { "" };
        let role = output::or_dash(p.role.as_deref());
        [format!("{}{mark}", p.slug), p.name.clone(), role, output::age(&p.created_at), p.id.clone()]
    });
    output::table(["SLUG", "NAME", "ROLE", "AGE", "ID"], rows, "No projects. Make one: berth project create NAME");
}
