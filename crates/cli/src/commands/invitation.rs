//! Invitations to an organization. One is named by its address or id.

use anyhow::Result;
use berth_client::{Invitation, NewInvitation, Page, ProjectRole};
use clap::{Args, Subcommand};

use super::project;
use super::session::first_project;
use crate::cli::PageArgs;
use crate::context::Context;
use crate::failure::Failure;
use crate::output;
use crate::pick::{is_id, only, token};

#[derive(Args)]
pub struct InviteArgs {
    /// Address
    email: String,
    /// Role in the organization: owner, admin or member
    #[arg(long, default_value = "member")]
    role: String,
    /// Role in a project that comes with it: PROJECT:admin, editor or viewer; repeated
    // In place of the option of this name that every other command has.
    #[arg(long, short = 'P', value_name = "PROJECT:ROLE")]
    project: Vec<String>,
}

#[derive(Subcommand)]
pub enum InvitationCommand {
    /// List the invitations to the organization
    #[command(visible_alias = "ls")]
    List(PageArgs),
    /// Send the mail again
    Resend {
        /// Address or id
        invitation: String,
    },
    /// Take an invitation back
    Revoke {
        /// Address or id
        invitation: String,
    },
    /// Accept an invitation to your address
    Accept {
        /// The link of the mail, or the token in it
        token: String,
    },
}

/// Invites somebody.
pub async fn invite(context: &Context, args: InviteArgs) -> Result<()> {
    let mut project_roles = Vec::new();
    // A project of the environment is not one that was typed.
    for text in args.project.iter().filter(|_| context.typed_project().is_some()) {
        let wrong = || Failure::usage(format!("'{text}' is no role in a project; it looks like web:viewer"));
        let (name, role) = text.rsplit_once(':').ok_or_else(wrong)?;
        let project_id = project::find(context, name).await?.1.id;
        project_roles.push(ProjectRole { project_id, role: role.to_owned() });
    }
    let request = NewInvitation { email: args.email, role: args.role, project_roles };
    one(context, context.client.invite(context.org()?, &request).await?)
}

/// Does what was typed.
pub async fn run(context: &Context, command: InvitationCommand) -> Result<()> {
    let client = &context.client;
    match command {
        InvitationCommand::List(page) => {
            output::list(context.json, &client.invitations(context.org()?, page.into()).await?, show)
        }
        InvitationCommand::Resend { invitation } => {
            let id = find(context, &invitation).await?;
            one(context, client.resend_invitation(context.org()?, &id).await?)
        }
        InvitationCommand::Revoke { invitation } => {
            let id = find(context, &invitation).await?;
            client.revoke_invitation(context.org()?, &id).await?;
            if !context.json {
                println!("The invitation of {invitation} is revoked.");
            }
            Ok(())
        }
        InvitationCommand::Accept { token: text } => accept(context, &text).await,
    }
}

async fn accept(context: &Context, text: &str) -> Result<()> {
    let org = context.client.accept_invitation(token(text)).await?;
    let project = first_project(&context.client, &org.slug).await?.unwrap_or_default();
    context.keep(|kept| (kept.org, kept.project) = (org.slug.clone(), project.clone()))?;
    output::print(context.json, &org, |org| {
        let place = if project.is_empty() {
            "you see no project there yet".into()
        } else {
            format!("commands now mean its project {project}")
        };
        println!("You are a member of {}; {place}.", org.slug);
    })
}

/// The id of an invitation: of several to one address, the one that is open.
async fn find(context: &Context, text: &str) -> Result<String> {
    if is_id(text) {
        return Ok(text.to_owned());
    }
    let org = context.org()?;
    let mut found = Page::all(async |page| context.client.invitations(org, page).await).await?;
    found.retain(|i| i.email.eq_ignore_ascii_case(text));
    if found.iter().any(|i| i.status == "pending") {
        found.retain(|i| i.status == "pending");
    }
    found.truncate(1);
    Ok(only(found, "invitation", text, "berth invitation list")?.id)
}

fn one(context: &Context, invitation: Invitation) -> Result<()> {
    output::print(context.json, &invitation, |invitation| {
        println!(
            "A mail is on its way to {}: {} of {}, to be accepted before {}.",
            invitation.email,
            invitation.role,
            context.org().unwrap_or_default(),
            invitation.expires_at
        );
    })
}

fn show(invitations: &[Invitation]) {
    let rows = invitations.iter().map(|i| {
        let projects = i.project_roles.len().to_string();
        [i.email.clone(), i.role.clone(), projects, i.status.clone(), output::age(&i.created_at), i.id.clone()]
    });
    let header = ["ADDRESS", "ROLE", "PROJECTS", "STATUS", "AGE", "ID"];
    output::table(header, rows, "No invitations. Invite somebody: berth invite ADDRESS");
}
