//! Members: of the organization, or with `--project` of a project. One is named by address, name or id.

use anyhow::Result;
use berth_client::{List, Member, Page, ProjectClient};
use clap::Subcommand;

use crate::cli::PageArgs;
use crate::context::Context;
use crate::output;
use crate::pick::{is_id, only};

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

/// Does what was typed.
pub async fn run(context: &Context, command: MemberCommand) -> Result<()> {
    match (command, context.typed_project()) {
        (MemberCommand::Add { member, role }, _) => add(context, &member, &role).await,
        (command, Some(_)) => in_project(context, &context.project()?, command).await,
        (command, None) => in_org(context, context.org()?, command).await,
    }
}

async fn in_org(context: &Context, org: &str, command: MemberCommand) -> Result<()> {
    let client = &context.client;
    let find = async |text: &str| find(async |page| client.members(org, page).await, text, "berth member list").await;
    match command {
        MemberCommand::List(page) => output::list(context.json, &client.members(org, page.into()).await?, show),
        MemberCommand::Role { member, role } => {
            let member = find(&member).await?;
            one(context, client.set_member_role(org, &member.user_id, &role).await?)
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
    let list = format!("berth member list --project {name}");
    let find = async |text: &str| find(async |page| project.members(page).await, text, &list).await;
    match command {
        MemberCommand::List(page) => output::list(context.json, &project.members(page.into()).await?, show),
        MemberCommand::Role { member, role } => {
            let member = find(&member).await?;
            one(context, project.set_member_role(&member.user_id, &role).await?)
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
        project.add_member(text, role).await?
    } else {
        let found = find(async |page| context.client.members(org, page).await, text, "berth member list").await?;
        project.add_member_by_id(&found.user_id, role).await?
    };
    one(context, added)
}

/// The member of an address, a name or an id.
async fn find(
    list: impl AsyncFn(Page) -> berth_client::Result<List<Member>>,
    text: &str,
    command: &str,
) -> Result<Member> {
    let mut members = Page::all(list).await?;
    members.retain(|m| match text {
        id if is_id(id) => m.user_id == id,
        email if email.contains('@') => m.email.eq_ignore_ascii_case(email),
        name => m.name.as_deref() == Some(name),
    });
    only(members, "member", text, command)
}

/// The member of the organization that a text names.
pub async fn of_org(context: &Context, text: &str) -> Result<Member> {
    let org = context.org()?;
    find(async |page| context.client.members(org, page).await, text, "berth member list").await
}

fn removed(context: &Context, member: &Member, place: &str) {
    if !context.json {
        println!("{} is no member of {place} any more.", member.email);
    }
}

fn one(context: &Context, member: Member) -> Result<()> {
    output::print(context.json, &member, |member| show(std::slice::from_ref(member)))
}

fn show(members: &[Member]) {
    let rows = members.iter().map(|m| {
        let name = output::or_dash(m.name.as_deref());
        [m.email.clone(), name, m.role.clone(), output::age(&m.created_at), m.user_id.clone()]
    });
    let empty = "No members of its own. Add one: berth member add ADDRESS --role editor --project PROJECT";
    output::table(["ADDRESS", "NAME", "ROLE", "SINCE", "ID"], rows, empty);
}
