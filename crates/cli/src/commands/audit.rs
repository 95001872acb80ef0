//! `berth audit`: what was done in an organization; `berth admin audit`: what was done on the whole platform.

use std::io::Write;

use anyhow::Result;
use berth_client::{AuditFilter, AuditRecord, List};
use clap::Args;

use super::{admin, member, project};
use crate::context::Context;
use crate::id::{belongs, is_id, is_part};
use crate::output::{self, Table};
use crate::page::PageArgs;
use crate::span;

/// Most pages of records in which to look for an id of which only the end was typed.
const PAGES: u32 = 20;

#[derive(Args)]
pub struct AuditArgs {
    /// Only this action, like vm.create; or all of a noun, like vm
    #[arg(long)]
    action: Option<String>,
    /// Only what this person did: address, name or id; or a key: id
    #[arg(long, value_name = "WHO")]
    actor: Option<String>,
    /// Only what was done to this thing: its id, or the end of it
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

/// Runs the typed command.
pub async fn run(context: &Context, args: AuditArgs) -> Result<()> {
    let actor = match &args.actor {
        Some(text) if !is_id(text) => Some(member::of_org(context, text).await?.user_id),
        other => other.clone(),
    };
    let project_id = match context.typed_project() {
        Some(text) => Some(project::find(context, text).await?.1.id),
        None => None,
    };
    let (client, org) = (&context.client, context.org()?);
    let filter = AuditFilter { actor, project_id, ..filter(args)? };
    let filter = with_subject(filter, async |filter: &AuditFilter| client.audit_log(org, filter).await).await?;
    let records = client.audit_log(org, &filter).await?;
    output::list(context.look, &records, |records| show(records, false))
}

/// Shows the log of the whole platform, limited by `--org` and `--project`: as a table, or in full as lines of JSON.
pub async fn run_all(context: &Context, args: AuditArgs, export: bool) -> Result<()> {
    let actor = match &args.actor {
        Some(text) if !is_id(text) => Some(admin::find_user(context, text).await?),
        other => other.clone(),
    };
    let org_id = match context.typed_org() {
        Some(text) => Some(admin::find_org(context, text).await?),
        None => None,
    };
    let project_id = match context.typed_project() {
        Some(text) => Some(admin::find_project(context, context.named_org(), text).await?),
        None => None,
    };
    let filter = AuditFilter { actor, org_id, project_id, ..filter(args)? };
    let filter = with_subject(filter, async |filter: &AuditFilter| context.client.all_audit(filter).await).await?;
    if export {
        let mut out = std::io::stdout().lock();
        context
            .client
            .export_audit(&AuditFilter { page: None, limit: None, ..filter }, |piece| out.write_all(piece))
            .await?;
        return Ok(());
    }
    let records = context.client.all_audit(&filter).await?;
    output::list(context.look, &records, |records| show(records, true))
}

/// Completes the subject of a filter, if only the end of its id was typed, as tables show it: the records themselves
/// have the whole id.
async fn with_subject(
    filter: AuditFilter,
    list: impl AsyncFn(&AuditFilter) -> berth_client::Result<List<AuditRecord>>,
) -> Result<AuditFilter> {
    let Some(part) = filter.subject.clone().filter(|text| is_part(text)) else { return Ok(filter) };
    for page in 1..=PAGES {
        let all = AuditFilter { subject: None, page: Some(page), limit: Some(100), ..filter.clone() };
        let List { data, pagination } = list(&all).await?;
        if let Some(found) = data.into_iter().find(|record| belongs(&record.subject, &part)) {
            return Ok(AuditFilter { subject: Some(found.subject), ..filter });
        }
        if i64::from(page) >= pagination.total_pages {
            break;
        }
    }
    Ok(filter)
}

fn filter(args: AuditArgs) -> Result<AuditFilter> {
    Ok(AuditFilter {
        action: args.action,
        subject: args.subject,
        since: args.since.as_deref().map(span::ago).transpose()?,
        until: args.until.as_deref().map(span::ago).transpose()?,
        page: Some(args.page.page),
        limit: Some(args.page.limit),
        ..AuditFilter::default()
    })
}

fn show(records: &[AuditRecord], whole_platform: bool) -> Table {
    let rows = records.iter().map(|r| {
        let actor = match (r.actor_name.as_ref().or(r.actor.as_ref()), r.actor_kind.as_str()) {
            (Some(name), "user") => name.clone(),
            (Some(name), kind) => format!("{kind} {name}"),
            (None, kind) => kind.to_owned(),
        };
        let named = r.data["name"].as_str().or(r.data["email"].as_str()).map(str::to_owned);
        let subject = r.subject_name.clone().or(named).unwrap_or_else(|| r.subject.clone());
        let project = r.project.as_deref().or(r.project_id.as_deref());
        let place = match (r.org.as_deref().filter(|_| whole_platform), project) {
            (Some(org), Some(project)) => format!("{org}/{project}"),
            (Some(org), None) => org.to_owned(),
            (None, project) => output::or_dash(project),
        };
        [output::time(&r.created_at), r.action.clone(), actor, place, subject, r.data.to_string(), r.id.clone()]
    });
    let none = "No such records. Actions are like vm.create; '--action vm' matches every action on VMs.";
    Table::new(["TIME", "ACTION", "WHO", "PROJECT", "WHAT", "+MORE", "+ID"], rows, none).cut()
}
