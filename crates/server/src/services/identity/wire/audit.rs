//! The audit log.

use berth_domain::ids::OrgId;
use berth_domain::page::Page;
use berth_domain::{Result, Timestamp};
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};

use crate::http::list::Params;
use crate::services::identity::store::audit::{AuditRow, Filter, Which};

/// What to look for, for the document.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "describes the query; `read` reads it")]
pub struct AuditParams {
    /// What was done, like `vm.create`; `vm` or `vm.*` is everything that was done to VMs.
    #[param(min_length = 1, max_length = 100)]
    action: Option<String>,
    /// Id of the person or key that did it.
    #[param(min_length = 1, max_length = 100)]
    actor: Option<String>,
    /// Id of what it was done to.
    #[param(min_length = 1, max_length = 100)]
    subject: Option<String>,
    /// Id of the project.
    #[param(min_length = 1, max_length = 100)]
    project_id: Option<String>,
    /// Not before this time, in RFC 3339.
    #[param(format = DateTime)]
    since: Option<String>,
    /// Before this time, in RFC 3339.
    #[param(format = DateTime)]
    until: Option<String>,
}

/// The same for administrators of the platform.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "describes the query; `read_all` reads it")]
pub struct OrgParam {
    /// Id of the organization.
    #[param(value_type = Option<uuid::Uuid>)]
    org_id: Option<String>,
}

/// Reads which actions: one with its dot, or all of a noun.
fn which(text: &str) -> Which {
    match text.strip_suffix(".*").or_else(|| (!text.contains('.')).then_some(text)) {
        Some(noun) => Which::Beginning(format!("{noun}.")),
        None => Which::One(text.to_owned()),
    }
}

/// Reads what to look for.
fn filter(params: &mut Params) -> Filter {
    let mut text = |name: &str| {
        params.read(name, |text| match text.len() {
            1..=100 => Ok(text.to_owned()),
            _ => Err("must have 1 to 100 bytes".into()),
        })
    };
    let (action, actor, subject, project) = (text("action"), text("actor"), text("subject"), text("project_id"));
    let since = params.read("since", Timestamp::parse);
    let until = params.read("until", Timestamp::parse);
    let action = action.map(|text| which(&text));
    Filter { org: None, action, actor, subject, project, since, until }
}

/// A record.
#[derive(Serialize, ToSchema)]
#[schema(as = AuditResponse)]
pub struct AuditView {
    #[schema(value_type = uuid::Uuid)]
    id: String,
    /// What was done, like `vm.create`.
    action: String,
    /// `user`, `api_key`, `platform`, or `anonymous` for who was not signed in.
    actor_kind: String,
    /// Id of the person or key; `null` for the platform and for who was not signed in.
    #[schema(required = true)]
    actor: Option<String>,
    /// Address of the person, or name of the key, while it is there.
    #[schema(required = true)]
    actor_name: Option<String>,
    /// Id of what it was done to.
    subject: String,
    /// Address of the person it was done to, while there is one.
    #[schema(required = true)]
    subject_name: Option<String>,
    /// The organization, where it belongs to one.
    #[schema(required = true)]
    org_id: Option<String>,
    /// Slug of the organization, while it is there.
    #[schema(required = true)]
    org: Option<String>,
    /// The project, where it belongs to one.
    #[schema(required = true)]
    project_id: Option<String>,
    /// Slug of the project, while it is there.
    #[schema(required = true)]
    project: Option<String>,
    /// The `X-Request-Id` it was done by.
    #[schema(required = true)]
    request_id: Option<String>,
    /// More about it, the client's address as `address` among it.
    data: Value,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
}

impl From<AuditRow> for AuditView {
    fn from(row: AuditRow) -> Self {
        Self {
            id: row.id,
            action: row.action,
            actor_kind: row.actor_kind,
            actor: row.actor,
            actor_name: row.actor_name,
            subject: row.subject,
            subject_name: row.subject_name,
            org_id: row.org,
            org: row.org_slug,
            project_id: row.project,
            project: row.project_slug,
            request_id: row.request_id.filter(|id| !id.is_empty()),
            data: serde_json::from_str(&row.data).unwrap_or_default(),
            created_at: row.created_at,
        }
    }
}

/// A page of the log, refusing a query that is not valid.
pub fn read(mut params: Params) -> Result<(Filter, Page)> {
    let page = params.page();
    let filter = filter(&mut params);
    params.finish()?;
    Ok((filter, page))
}

/// The same of the whole platform, where an organization may be named.
pub fn read_all(mut params: Params) -> Result<(Filter, Page)> {
    let page = params.page();
    let org = params.read("org_id", |text| text.parse::<OrgId>().map_err(|_| "must be a UUID".to_owned()));
    let filter = Filter { org, ..filter(&mut params) };
    params.finish()?;
    Ok((filter, page))
}

/// A filter as the record of an export tells it.
pub fn told(filter: &Filter) -> Value {
    let action = filter.action.as_ref().map(|which| match which {
        Which::One(action) => action.clone(),
        Which::Beginning(text) => format!("{text}*"),
    });
    json!({"org_id": filter.org.map(|org| org.to_string()), "action": action, "actor": filter.actor,
        "subject": filter.subject, "project_id": filter.project, "since": filter.since, "until": filter.until})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_noun_is_all_of_its_actions() {
        for text in ["vm", "vm.*"] {
            assert_eq!(which(text), Which::Beginning("vm.".into()));
        }
        for text in ["vm.create", "vm.", "vm.c*"] {
            assert_eq!(which(text), Which::One(text.into()));
        }
    }
}
