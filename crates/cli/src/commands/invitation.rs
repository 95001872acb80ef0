//! Invitations to an organization. One is named by its address or id.

use anyhow::Result;
use berth_client::{Invitation, NewInvitation, Page, ProjectRole};
use clap::{Args, Subcommand};

use super::account::names_a_service;
use super::project;
use super::session::first_project;
use crate::context::{Context, address, api_key};
use crate::credentials::Store;
use crate::failure::Failure;
use crate::global::Global;
use crate::output::{self, Table};
use crate::page::PageArgs;
use crate::pick::{self, Noun, token};
use crate::typed::{Words, retold};

/// The option for each field.
const WORDS: Words = &[("email", "ADDRESS"), ("role", "--role"), ("project_roles", "--project")];
const INVITATION: Noun = Noun { one: "invitation", list: "berth invitation list" };

#[derive(Args)]
pub struct InviteArgs {
    /// Address
    #[arg(value_name = "ADDRESS")]
    email: String,
    /// Role in the organization: owner, admin or member (default); with --project PROJECT the role there: admin,
    /// editor or viewer (default)
    #[arg(long)]
    role: Option<String>,
    /// Project that comes with it, or with a role of its own PROJECT:admin, editor or viewer; repeated
    // Replaces the global option of this name.
    #[arg(long, short = 'P', value_name = "PROJECT[:ROLE]")]
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

/// Invites a person.
pub async fn invite(context: &Context, args: InviteArgs) -> Result<()> {
    // A project from the environment does not count as typed.
    let projects = if context.typed_project().is_some() { args.project } else { Vec::new() };
    let (role, roles) = roles(args.role.as_deref(), &projects)?;
    let mut project_roles = Vec::new();
    for (name, role) in roles {
        let project_id = project::find(context, name).await?.1.id;
        project_roles.push(ProjectRole { project_id, role });
    }
    let request = NewInvitation { email: args.email, role, project_roles };
    one(context, context.client.invite(context.org()?, &request).await.map_err(|error| retold(error, WORDS))?)
}

/// The roles in the organization and in projects. A role beside only a project is the role there.
fn roles<'a>(said: Option<&str>, projects: &'a [String]) -> Result<(String, Vec<(&'a str, String)>)> {
    let in_project = |option: &str, role: &str| match role {
        "admin" | "editor" | "viewer" => Ok(role.to_owned()),
        _ => Err(Failure::usage(format!("{option}: '{role}' is no role in a project; it is admin, editor or viewer"))),
    };
    let mut roles = Vec::new();
    for text in projects {
        roles.push(match text.rsplit_once(':') {
            Some((name, role)) => (name, in_project(&format!("--project {text}"), role)?),
            None => (text.as_str(), in_project("--role", said.unwrap_or("viewer"))?),
        });
    }
    let alone = projects.iter().any(|text| !text.contains(':'));
    match said {
        Some(role @ ("editor" | "viewer")) if !alone => {
            Err(Failure::usage(format!("--role: '{role}' is a role in a project; name it: --project PROJECT")))
        }
        Some(role) if !alone => Ok((role.to_owned(), roles)),
        _ => Ok(("member".to_owned(), roles)),
    }
}

/// Runs the typed command.
pub async fn run(global: &Global, command: InvitationCommand) -> Result<()> {
    let context = &match &command {
        InvitationCommand::Accept { token } => at_service(global, token)?,
        _ => Context::person(global)?,
    };
    let client = &context.client;
    match command {
        InvitationCommand::List(page) => {
            output::list(context.look, &client.invitations(context.org()?, page.into()).await?, show)
        }
        InvitationCommand::Resend { invitation } => {
            let found = find(context, &invitation).await?;
            one(context, client.resend_invitation(context.org()?, &found.id).await?)
        }
        InvitationCommand::Revoke { invitation } => {
            let Invitation { id, email, .. } = find(context, &invitation).await?;
            client.revoke_invitation(context.org()?, &id).await?;
            output::done(context.look, &email, &id, &format!("The invitation of {email} is revoked."));
            Ok(())
        }
        InvitationCommand::Accept { token: text } => accept(context, &text).await,
    }
}

/// The sign-in at the service to which an invitation's link leads, unless the caller named another service. No other
/// service sees the token, and that service sees no credential of another.
fn at_service(global: &Global, link: &str) -> Result<Context> {
    let Some(service) = pick::service(link).filter(|_| api_key().is_none() && !names_a_service(global)) else {
        return Context::person(global);
    };
    let has_token = std::env::var("BERTH_TOKEN").is_ok_and(|token| !token.is_empty());
    let kept = Store::load()?.at(service).map(|kept| kept.name.clone());
    // The variable's token belongs to another service, and would win over the sign-in.
    let first = if has_token { "unset BERTH_TOKEN; " } else { "" };
    match kept {
        _ if has_token && address(global, None)? == service => Context::person(global),
        Some(name) if !has_token => Context::person(&Global { context: Some(name), ..global.clone() }),
        _ => Err(Failure::not_allowed(format!(
            "The invitation is of {service}, where you are not signed in. Type: {first}berth login {service}; berth \
             invitation accept LINK. If you know that service by another address: berth invitation accept LINK --context NAME"
        ))),
    }
}

async fn accept(context: &Context, text: &str) -> Result<()> {
    let org = context.client.accept_invitation(token(text)).await?;
    let project = first_project(&context.client, &org.slug).await?.unwrap_or_default();
    let is_kept = context.keep(|kept| (kept.org, kept.project) = (org.slug.clone(), project.clone()))?;
    // A person with another current sign-in keeps it.
    let current = Store::load()?.current;
    let place = match context.kept_as().filter(|name| *name != current) {
        _ if project.is_empty() => "you see no project there yet".into(),
        None if !is_kept => format!("its project is {project}"),
        None => format!("commands now mean its project {project}"),
        Some(name) => format!("its project {project} is meant by the context {name}: berth context use {name}"),
    };
    output::print(context.look, &org, &org.slug, &org.id, |org| {
        println!("You are a member of {}; {place}.", org.slug);
    })
}

/// The invitation with an address or an id: of several to one address, the pending one.
async fn find(context: &Context, text: &str) -> Result<Invitation> {
    let org = context.org()?;
    let all = Page::all(async |page| context.client.invitations(org, page).await).await?;
    let to = all.iter().filter(|i| i.email.eq_ignore_ascii_case(text)).collect::<Vec<_>>();
    if let Some(open) = to.iter().find(|i| i.status == "pending").or_else(|| to.first()) {
        return Ok((*open).clone());
    }
    INVITATION.of(all, text, |i| &i.id, |i| i.id == text)
}

fn one(context: &Context, invitation: Invitation) -> Result<()> {
    if !context.look.is_for_people() {
        return output::rows(context.look, &invitation, |invitation| show(std::slice::from_ref(invitation)));
    }
    println!(
        "A mail is on its way to {}: {} of {}, to be accepted before {}.",
        invitation.email,
        invitation.role,
        context.org().unwrap_or_default(),
        output::time(&invitation.expires_at)
    );
    Ok(())
}

fn show(invitations: &[Invitation]) -> Table {
    let rows = invitations.iter().map(|i| {
        let projects = i.project_roles.len().to_string();
        [i.email.clone(), i.role.clone(), projects, i.status.clone(), output::age(&i.created_at), i.id.clone()]
    });
    let header = ["ADDRESS", "ROLE", "PROJECTS", "STATUS", "AGE", "ID"];
    Table::new(header, rows, "No invitations. Invite somebody: berth invite ADDRESS")
}

#[cfg(test)]
mod tests {
    use super::roles;

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn a_role_beside_a_project_is_the_role_there() {
        for (role, projects, org, there) in [
            (None, &[][..], "member", &[][..]),
            (Some("admin"), &[], "admin", &[]),
            (Some("owner"), &["web:editor"], "owner", &["web editor"]),
            (Some("viewer"), &["web"], "member", &["web viewer"]),
            (Some("admin"), &["web", "acme/db:viewer"], "member", &["web admin", "acme/db viewer"]),
            (None, &["web"], "member", &["web viewer"]),
        ] {
            let projects = texts(projects);
            let (found, roles) = roles(role, &projects).unwrap();
            let roles: Vec<_> = roles.iter().map(|(name, role)| format!("{name} {role}")).collect();
            assert_eq!((found.as_str(), roles), (org, texts(there)), "{role:?} {projects:?}");
        }
        for (role, projects, named) in [
            (Some("viewr"), &["web"][..], "--role: 'viewr'"),
            (Some("owner"), &["web"], "--role: 'owner'"),
            (Some("admin"), &["web:viewr"], "--project web:viewr: 'viewr'"),
            (Some("viewer"), &[], "--project PROJECT"),
        ] {
            let error = roles(role, &texts(projects)).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
