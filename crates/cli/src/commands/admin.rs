//! What administrators of the platform do with people and organizations.

use anyhow::Result;
use berth_client::{AdminUser, Organization, Page, UserFilter};
use clap::{Args, Subcommand, ValueEnum};

use crate::cli::PageArgs;
use crate::context::Context;
use crate::output;
use crate::pick::{is_id, only};

#[derive(Subcommand)]
pub enum AdminCommand {
    /// List everybody
    Users {
        /// Only addresses that hold this
        #[arg(long)]
        email: Option<String>,
        #[command(flatten)]
        page: PageArgs,
    },
    /// List every organization
    Orgs(PageArgs),
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
    /// Sign access tokens with a new key; those that are out stay good
    RotateSigningKey,
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
    /// A person
    User,
    /// An organization
    Org,
}

/// Does what was typed.
pub async fn run(context: &Context, command: AdminCommand) -> Result<()> {
    let client = &context.client;
    match command {
        AdminCommand::Users { email, page } => {
            let filter = UserFilter { email, page: Some(page.page), limit: Some(page.limit) };
            output::list(context.json, &client.all_users(&filter).await?, show_users)
        }
        AdminCommand::Orgs(page) => {
            output::list(context.json, &client.all_organizations(page.into()).await?, show_orgs)
        }
        AdminCommand::Suspend { target, reason } => {
            let (id, reason) = (find(context, &target).await?, reason.as_deref());
            match target.kind {
                Kind::User => user(context, client.suspend_user(&id, reason).await?),
                Kind::Org => org(context, client.suspend_organization(&id, reason).await?),
            }
        }
        AdminCommand::Unsuspend(target) => {
            let id = find(context, &target).await?;
            match target.kind {
                Kind::User => user(context, client.unsuspend_user(&id).await?),
                Kind::Org => org(context, client.unsuspend_organization(&id).await?),
            }
        }
        AdminCommand::RotateSigningKey => {
            let kid = client.rotate_signing_key().await?;
            output::print(context.json, &serde_json::json!({ "kid": kid }), |_| println!("The new key is {kid}."))
        }
    }
}

/// The id of a person or an organization.
async fn find(context: &Context, target: &Target) -> Result<String> {
    let text = target.name.as_str();
    if is_id(text) {
        return Ok(text.to_owned());
    }
    if let Kind::User = target.kind {
        let filter = UserFilter { email: Some(text.to_owned()), page: None, limit: Some(100) };
        // The service answers every address that holds the text; one of them at most is the address itself.
        let mut found = context.client.all_users(&filter).await?.data;
        found.retain(|found| found.user.email.eq_ignore_ascii_case(text));
        return Ok(only(found, "user", text, "berth admin users")?.user.id);
    }
    let mut orgs = Page::all(async |page| context.client.all_organizations(page).await).await?;
    if orgs.iter().any(|o| o.slug == text) {
        orgs.retain(|o| o.slug == text);
    } else {
        orgs.retain(|o| o.name == text);
    }
    Ok(only(orgs, "organization", text, "berth admin orgs")?.id)
}

fn user(context: &Context, user: AdminUser) -> Result<()> {
    output::print(context.json, &user, |user| show_users(std::slice::from_ref(user)))
}

fn org(context: &Context, org: Organization) -> Result<()> {
    output::print(context.json, &org, |org| show_orgs(std::slice::from_ref(org)))
}

fn state(suspended_at: Option<&String>) -> String {
    if suspended_at.is_some() { "suspended".into() } else { "active".into() }
}

fn show_users(users: &[AdminUser]) {
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
    let header = ["ADDRESS", "NAME", "STATUS", "VERIFIED", "ADMINISTRATOR", "AGE", "ID"];
    output::table(header, rows, "Nobody has this address.");
}

fn show_orgs(orgs: &[Organization]) {
    let rows = orgs.iter().map(|o| {
        [o.slug.clone(), o.name.clone(), state(o.suspended_at.as_ref()), output::age(&o.created_at), o.id.clone()]
    });
    output::table(["SLUG", "NAME", "STATUS", "AGE", "ID"], rows, "No organizations.");
}
