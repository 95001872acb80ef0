//! `berth audit`: what was done in an organization.

use std::collections::HashMap;

use anyhow::Result;
use berth_client::{AuditFilter, AuditRecord, Page};
use clap::Args;

use super::{member, project};
use crate::cli::PageArgs;
use crate::context::Context;
use crate::pick::is_id;
use crate::{output, span};

#[derive(Args)]
pub struct AuditArgs {
    /// Only this action, like vm.create
    #[arg(long)]
    action: Option<String>,
    /// Only what this member did: address, name or id; or a key: id
    #[arg(long, value_name = "WHO")]
    actor: Option<String>,
    /// Only what was done to this: id
    #[arg(long, value_name = "ID")]
    subject: Option<String>,
    /// Not before: 1h ago, or a time like 2030-01-31T12:00:00Z
    #[arg(long, value_name = "WHEN")]
    since: Option<String>,
    /// Before: 1h ago, or a time like 2030-01-31T12:00:00Z
    #[arg(long, value_name = "WHEN")]
    until: Option<String>,
    #[command(flatten)]
    page: PageArgs,
}

/// Does what was typed.
pub async fn run(context: &Context, args: AuditArgs) -> Result<()> {
    let actor = match args.actor {
        Some(text) if !is_id(&text) => Some(member::of_org(context, &text).await?.user_id),
        other => other,
    };
    let project_id = match context.typed_project() {
        Some(text) => Some(project::find(context, text).await?.1.id),
        None => None,
    };
    let filter = AuditFilter {
        action: args.action,
        actor,
        subject: args.subject,
        project_id,
        since: args.since.as_deref().map(span::ago).transpose()?,
        until: args.until.as_deref().map(span::ago).transpose()?,
        page: Some(args.page.page),
        limit: Some(args.page.limit),
    };
    let records = context.client.audit_log(context.org()?, &filter).await?;
    let names = if context.json { HashMap::new() } else { names(context).await? };
    output::list(context.json, &records, |records| show(records, &names))
}

/// Addresses of the members, by id.
async fn names(context: &Context) -> Result<HashMap<String, String>> {
    let org = context.org()?;
    let members = Page::all(async |page| context.client.members(org, page).await).await?;
    Ok(members.into_iter().map(|m| (m.user_id, m.email)).collect())
}

fn show(records: &[AuditRecord], names: &HashMap<String, String>) {
    let address = |id: &String| names.get(id).unwrap_or(id).clone();
    let rows = records.iter().map(|r| {
        let actor = match (&r.actor, r.actor_kind.as_str()) {
            (Some(id), "user") => address(id),
            (Some(id), kind) => format!("{kind} {id}"),
            (None, kind) => kind.to_owned(),
        };
        [r.created_at.clone(), r.action.clone(), actor, address(&r.subject), r.data.to_string()]
    });
    output::table(["TIME", "ACTION", "WHO", "WHAT", "MORE"], rows, "Nothing was done, or nothing of this kind.");
}
