//! Members of the organization, or with `--project` of a project. Commands take a member's address, name or id.

use anyhow::Result;
use berth_client::{List, Member, Page, ProjectClient};
use clap::Subcommand;

use crate::context::Context;
use crate::output::{self, Table};
use crate::page::PageArgs;
use crate::pick::Noun;
use crate::typed::retold;

const LIST: &str = "berth member list";

#[derive(Subcommand)]
pub enum MemberCommand {
    /// List the members of the organization, or with --project the project's own
    #[command(visible_alias = "ls")]
    List(PageArgs),
    /// Make a member of the organization a member of the project
    Add {
        /// Address, name or id
        member: String,
        /// admin, editor or viewer
        #[arg(long, default_value = "viewer")]
        role: String,
    },
    /// Give a member another role, in the organization or with --project in the project
    Role {
        /// Address, name or id
        member: String,
        /// owner, admin or member; in a project admin, editor or viewer
        role: String,
    },
    /// Remove a member from the organization and its projects, or with --project from the project
    #[command(visible_alias = "rm")]
    Remove {
        /// Address, name or id
        member: String,
    },
}

/// Runs the typed command.
pub async fn run(context: &Context, command: MemberCommand) -> Result<()> {
    match context.typed_project() {
        Some(_) => in_project(context, &context.project()?, command).await,
        None => in_org(context, context.org()?, command).await,
    }
}

async fn in_org(context: &Context, org: &str, command: MemberCommand) -> Result<()> {
    let client = &context.client;
    let find = async |text: &str| find(async |page| client.members(org, page).await, text, LIST).await;
    match command {
        MemberCommand::List(page) => {
            output::list(context.look, &client.members(org, page.into()).await?, |members| show(context, members))
        }
        MemberCommand::Role { member, role } => {
            let member = find(&member).await?;
            let changed = client.set_member_role(org, &member.user_id, &role).await;
            one(context, changed.map_err(|error| retold(error, &[("role", "ROLE")]))?)
        }
        MemberCommand::Remove { member } => {
            let member = find(&member).await?;
            client.remove_member(org, &member.user_id).await?;
            removed(context, &member, org);
            Ok(())
        }
        MemberCommand::Add { member, role } => add(context, &member, &role).await,
    }
}

async fn in_project(context: &Context, project: &ProjectClient, command: MemberCommand) -> Result<()> {
    let name = context.project_name().unwrap_or_default();
    let list = format!("{LIST} --project {name}");
    let find = async |text: &str| find(async |page| project.members(page).await, text, &list).await;
    match command {
        MemberCommand::List(page) => {
            output::list(context.look, &project.members(page.into()).await?, |members| show(context, members))
        }
        MemberCommand::Role { member, role } => {
            let member = find(&member).await?;
            let changed = project.set_member_role(&member.user_id, &role).await;
            one(context, changed.map_err(|error| retold(error, &[("role", "ROLE")]))?)
        }
        MemberCommand::Remove { member } => {
            let member = find(&member).await?;
            project.remove_member(&member.user_id).await?;
            removed(context, &member, name);
            Ok(())
        }
        MemberCommand::Add { member, role } => add(context, &member, &role).await,
    }
}

async fn add(context: &Context, text: &str, role: &str) -> Result<()> {
    let (project, org) = (context.project()?, context.org()?);
    let added = if text.contains('@') {
        project.add_member(text, role).await
    } else {
        let found = find(async |page| context.client.members(org, page).await, text, LIST).await?;
        project.add_member_by_id(&found.user_id, role).await
    };
    one(context, added.map_err(|error| retold(error, &[("email", "MEMBER"), ("role", "--role")]))?)
}

/// The member with an address, a name or an id.
async fn find(
    list: impl AsyncFn(Page) -> berth_client::Result<List<Member>>,
    text: &str,
    command: &str,
) -> Result<Member> {
    let members = Page::all(list).await?;
    let is_called =
        |m: &Member| m.user_id == text || m.email.eq_ignore_ascii_case(text) || m.name.as_deref() == Some(text);
    Noun { one: "member", list: command }.of(members, text, |m| &m.user_id, is_called)
}

/// The member of the organization that a text names.
pub async fn of_org(context: &Context, text: &str) -> Result<Member> {
    let org = context.org()?;
    find(async |page| context.client.members(org, page).await, text, LIST).await
}

fn removed(context: &Context, member: &Member, place: &str) {
    let said = format!("{} is no member of {place} any more.", member.email);
    output::done(context.look, &member.email, &member.user_id, &said);
}

fn one(context: &Context, member: Member) -> Result<()> {
    output::rows(context.look, &member, |member| show(context, std::slice::from_ref(member)))
}

fn show(context: &Context, members: &[Member]) -> Table {
    let rows = members.iter().map(|m| {
        let name = output::or_dash(m.name.as_deref());
        [m.email.clone(), name, m.role.clone(), output::age(&m.created_at), m.user_id.clone()]
    });
    let project = context.project_name().unwrap_or("PROJECT");
    let empty = format!("No members of its own. Add one: berth member add ADDRESS --role editor --project {project}");
    Table::new(["ADDRESS", "NAME", "ROLE", "SINCE", "ID"], rows, empty)
}
