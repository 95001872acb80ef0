//! What administrators of the platform do with people, organizations and everybody's things.

mod find;
mod host;

use anyhow::Result;
use berth_client::{
    AdminProject, AdminUser, NewUser, Organization, Owned, OwnedFilter, Project, Sandbox, User, UserFilter, Vm,
};
use clap::{Args, Subcommand, ValueEnum};

use self::find::{any_project, find_sandbox, find_vm, in_org, person};
use super::audit::{self, AuditArgs};
use crate::context::Context;
use crate::output::{self, Table};
use crate::page::PageArgs;
use crate::progress::called;
use crate::typed::{Words, retold};
use crate::{prompt, status};

pub use find::{find_org, find_project, find_user, is_forbidden, project_id};

/// The option for each field of a new person.
const WORDS: Words = &[("email", "EMAIL"), ("name", "--name"), ("password", "the password")];

#[derive(Subcommand)]
pub enum AdminCommand {
    /// List everybody
    Users {
        /// Only addresses that contain this text
        #[arg(long)]
        email: Option<String>,
        #[command(flatten)]
        page: PageArgs,
    },
    /// List every organization
    Orgs(PageArgs),
    /// List everybody's projects; --org limits the list
    Projects(PageArgs),
    /// List everybody's VMs; --org and --project limit the list
    Vms {
        /// Only this status, like running
        #[arg(long, value_parser = status::of_vm(), ignore_case = true)]
        status: Option<String>,
        #[command(flatten)]
        page: PageArgs,
    },
    /// List everybody's sandboxes; --org and --project limit the list
    Sandboxes {
        /// Only this phase, like Ready
        #[arg(long, value_parser = status::of_sandbox(), ignore_case = true)]
        phase: Option<String>,
        #[command(flatten)]
        page: PageArgs,
    },
    /// What was done on the whole platform, by whom; --org and --project limit the list
    Audit {
        #[command(flatten)]
        args: AuditArgs,
        /// All records as lines of JSON, instead of a page
        #[arg(long, conflicts_with_all = ["page", "limit"])]
        export: bool,
    },
    /// See hosts, and say whether they take new machines
    #[command(subcommand)]
    Host(host::HostCommand),
    /// Make, promote, demote and delete people
    #[command(subcommand)]
    User(UserCommand),
    /// Delete somebody's project
    #[command(subcommand)]
    Project(AnyProjectCommand),
    /// Stop and delete somebody's VM
    #[command(subcommand)]
    Vm(AnyVmCommand),
    /// Pause and delete somebody's sandbox
    #[command(subcommand)]
    Sandbox(AnySandboxCommand),
    /// Suspend a person or an organization
    Suspend {
        #[command(flatten)]
        target: Target,
        /// Why, for the audit log
        #[arg(long)]
        reason: Option<String>,
    },
    /// End a suspension
    Unsuspend(Target),
    /// Sign access tokens with a new key; existing tokens stay valid
    RotateSigningKey,
}

#[derive(Subcommand)]
pub enum UserCommand {
    /// Make a person; without a password they get a mail with a link to choose one
    Create {
        /// Address
        email: String,
        /// Name
        #[arg(long)]
        name: Option<String>,
        /// Read a password from standard input
        #[arg(long)]
        password_stdin: bool,
        /// Make them an administrator of the platform
        #[arg(long)]
        administrator: bool,
    },
    /// Make a person an administrator of the platform
    Promote {
        /// Address or id
        user: String,
    },
    /// Take the administrator's role away
    Demote {
        /// Address or id
        user: String,
    },
    /// Delete a person, with their empty organizations that have no other member
    Delete {
        /// Address or id
        user: String,
    },
}

#[derive(Subcommand)]
pub enum AnyProjectCommand {
    /// Delete an empty project
    Delete {
        /// Id, slug or ORG/SLUG
        #[arg(id = "whose", value_name = "PROJECT")]
        project: String,
    },
}

#[derive(Subcommand)]
pub enum AnyVmCommand {
    /// Stop a VM; its owner may start it again
    Stop {
        /// Name or id
        vm: String,
    },
    /// Delete a VM
    Delete {
        /// Name or id
        vm: String,
    },
}

#[derive(Subcommand)]
pub enum AnySandboxCommand {
    /// Pause a sandbox; its owner may resume it
    Pause {
        /// Name or id
        sandbox: String,
    },
    /// Delete a sandbox
    Delete {
        /// Name or id
        sandbox: String,
    },
}

#[derive(Args)]
pub struct Target {
    /// A person or an organization
    #[arg(value_enum)]
    kind: Kind,
    /// Address or id of a person; slug, name or id of an organization
    name: String,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum Kind {
    User,
    Org,
}

/// Runs the typed command.
pub async fn run(context: &Context, command: AdminCommand) -> Result<()> {
    let client = &context.client;
    match command {
        AdminCommand::Users { email, page } => {
            let filter = UserFilter { email, page: Some(page.page), limit: Some(page.limit) };
            output::list(context.look, &client.all_users(&filter).await?, show_users)
        }
        AdminCommand::Orgs(page) => {
            output::list(context.look, &client.all_organizations(page.into()).await?, show_orgs)
        }
        AdminCommand::Projects(page) => {
            output::list(context.look, &client.all_projects(&whose(context, page)).await?, show_projects)
        }
        AdminCommand::Vms { status, page } => {
            let filter = OwnedFilter { status, ..whose(context, page) };
            output::list(context.look, &client.all_vms(&filter).await?, show_vms)
        }
        AdminCommand::Sandboxes { phase, page } => {
            let filter = OwnedFilter { phase, ..whose(context, page) };
            output::list(context.look, &client.all_sandboxes(&filter).await?, show_sandboxes)
        }
        AdminCommand::Audit { args, export } => audit::run_all(context, args, export).await,
        AdminCommand::Host(command) => host::run(context, command).await,
        AdminCommand::User(command) => people(context, command).await,
        AdminCommand::Vm(command) => vm(context, command).await,
        AdminCommand::Sandbox(command) => sandbox(context, command).await,
        AdminCommand::Project(AnyProjectCommand::Delete { project }) => delete_project(context, &project).await,
        AdminCommand::Suspend { target, reason } => {
            let (id, reason) = (target_id(context, &target).await?, reason.as_deref());
            match target.kind {
                Kind::User => user(context, client.suspend_user(&id, reason).await?),
                Kind::Org => org(context, client.suspend_organization(&id, reason).await?),
            }
        }
        AdminCommand::Unsuspend(target) => {
            let id = target_id(context, &target).await?;
            match target.kind {
                Kind::User => user(context, client.unsuspend_user(&id).await?),
                Kind::Org => org(context, client.unsuspend_organization(&id).await?),
            }
        }
        AdminCommand::RotateSigningKey => {
            let kid = client.rotate_signing_key().await?;
            let answer = serde_json::json!({ "kid": kid });
            output::print(context.look, &answer, &kid, &kid, |_| println!("The new key is {kid}."))
        }
    }
}

/// The id of a person or an organization.
async fn target_id(context: &Context, target: &Target) -> Result<String> {
    match target.kind {
        Kind::User => find_user(context, &target.name).await,
        Kind::Org => find_org(context, &target.name).await,
    }
}

/// The filter for a list: everybody's, limited by what was typed.
fn whose(context: &Context, page: PageArgs) -> OwnedFilter {
    OwnedFilter {
        org: context.typed_org().map(str::to_owned),
        project: context.typed_project().map(str::to_owned),
        page: Some(page.page),
        limit: Some(page.limit),
        ..OwnedFilter::default()
    }
}

async fn people(context: &Context, command: UserCommand) -> Result<()> {
    let client = &context.client;
    match command {
        UserCommand::Create { email, name, password_stdin, administrator } => {
            let password = if password_stdin { Some(prompt::line()?) } else { None };
            let mailed = password.is_none();
            let made = client.create_user(&NewUser { email, name, password, administrator }).await;
            let made = made.map_err(|error| retold(error, WORDS))?;
            if mailed && !context.is_quiet() {
                eprintln!("A mail is on its way to {}; its link chooses a password.", made.user.email);
            }
            user(context, made)
        }
        UserCommand::Promote { user: text } => {
            user(context, client.set_administrator(&find_user(context, &text).await?, true).await?)
        }
        UserCommand::Demote { user: text } => {
            user(context, client.set_administrator(&find_user(context, &text).await?, false).await?)
        }
        UserCommand::Delete { user: text } => {
            let User { id, email, .. } = person(context, &text).await?;
            client.delete_user(&id).await?;
            output::done(context.look, &email, &id, &format!("{email} is deleted."));
            Ok(())
        }
    }
}

async fn vm(context: &Context, command: AnyVmCommand) -> Result<()> {
    let client = &context.client;
    let (AnyVmCommand::Stop { vm } | AnyVmCommand::Delete { vm }) = &command;
    let Vm { id, name, .. } = find_vm(context, vm).await?;
    let step = match command {
        AnyVmCommand::Stop { .. } => client.stop_any_vm(&id).await.map(|_| "stopped")?,
        AnyVmCommand::Delete { .. } => client.delete_any_vm(&id).await.map(|()| "deleted")?,
    };
    output::done(context.look, &name, &id, &format!("{name} is being {step}."));
    Ok(())
}

async fn sandbox(context: &Context, command: AnySandboxCommand) -> Result<()> {
    let client = &context.client;
    let (AnySandboxCommand::Pause { sandbox } | AnySandboxCommand::Delete { sandbox }) = &command;
    let found = find_sandbox(context, sandbox).await?;
    let step = match command {
        AnySandboxCommand::Pause { .. } => client.pause_any_sandbox(&found.id).await.map(|_| "paused")?,
        AnySandboxCommand::Delete { .. } => client.delete_any_sandbox(&found.id).await.map(|()| "deleted")?,
    };
    let name = called(&found);
    output::done(context.look, name, &found.id, &format!("{name} is being {step}."));
    Ok(())
}

async fn delete_project(context: &Context, text: &str) -> Result<()> {
    let (org, slug) = in_org(text);
    let Project { id, slug, .. } = any_project(context, org.or(context.typed_org()), slug).await?;
    context.client.delete_any_project(&id).await?;
    output::done(context.look, &slug, &id, &format!("{slug} is deleted."));
    Ok(())
}

fn user(context: &Context, user: AdminUser) -> Result<()> {
    output::rows(context.look, &user, |user| show_users(std::slice::from_ref(user)))
}

fn org(context: &Context, org: Organization) -> Result<()> {
    output::rows(context.look, &org, |org| show_orgs(std::slice::from_ref(org)))
}

fn state(suspended_at: Option<&String>) -> String {
    if suspended_at.is_some() { "suspended".into() } else { "active".into() }
}

fn show_users(users: &[AdminUser]) -> Table {
    let rows = users.iter().map(|AdminUser { user, suspended_at }| {
        [
            user.email.clone(),
            output::or_dash(user.name.as_deref()),
            state(suspended_at.as_ref()),
            if user.email_verified { "yes".into() } else { "no".into() },
            if user.is_admin { "yes".into() } else { "no".into() },
            output::age(&user.created_at),
            user.id.clone(),
        ]
    });
    let header = ["ADDRESS", "+NAME", "STATUS", "VERIFIED", "ADMIN", "AGE", "ID"];
    Table::new(header, rows, "Nobody has this address.")
}

fn show_orgs(orgs: &[Organization]) -> Table {
    let rows = orgs.iter().map(|o| {
        [o.slug.clone(), o.name.clone(), state(o.suspended_at.as_ref()), output::age(&o.created_at), o.id.clone()]
    });
    Table::new(["SLUG", "NAME", "STATUS", "AGE", "ID"], rows, "No organizations.")
}

fn show_projects(projects: &[AdminProject]) -> Table {
    let rows = projects.iter().map(|AdminProject { project, org }| {
        [format!("{org}/{}", project.slug), project.name.clone(), output::age(&project.created_at), project.id.clone()]
    });
    Table::new(["PROJECT", "NAME", "AGE", "ID"], rows, "No projects.")
}

fn show_vms(vms: &[Owned<Vm>]) -> Table {
    let rows = vms.iter().map(|vm| {
        let (place, vm) = (format!("{}/{}", vm.org, vm.project), &vm.thing);
        [vm.name.clone(), place, vm.status.clone(), output::age(&vm.created_at), vm.id.clone()]
    });
    Table::new(["NAME", "PROJECT", "STATUS", "AGE", "ID"], rows, "No VMs.")
}

fn show_sandboxes(sandboxes: &[Owned<Sandbox>]) -> Table {
    let rows = sandboxes.iter().map(|sandbox| {
        let (place, sandbox) = (format!("{}/{}", sandbox.org, sandbox.project), &sandbox.thing);
        [
            output::or_dash(sandbox.name.as_deref()),
            place,
            sandbox.phase.clone(),
            output::age(&sandbox.created_at),
            sandbox.id.clone(),
        ]
    });
    Table::new(["NAME", "PROJECT", "PHASE", "AGE", "ID"], rows, "No sandboxes.")
}
