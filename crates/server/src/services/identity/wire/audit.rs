//! The audit log.

use berth_domain::{Result, Timestamp};
use serde::Serialize;
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use crate::http::list::Params;
use crate::services::identity::store::audit::{AuditRow, Filter};

/// What to look for, for the document.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "describes the query; `read` reads it")]
pub struct AuditParams {
    /// What was done, like `vm.create`.
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
    Filter { action, actor, subject, project, since, until }
}

/// A record.
#[derive(Serialize, ToSchema)]
#[schema(as = AuditResponse)]
pub struct AuditView {
    #[schema(value_type = uuid::Uuid)]
    id: String,
    /// What was done, like `vm.create`.
    action: String,
    /// `user`, `api_key` or `platform`.
    actor_kind: String,
    /// Id of the person or key; `null` for the platform.
    #[schema(required = true)]
    actor: Option<String>,
    /// Id of what it was done to.
    subject: String,
    /// The project, where it belongs to one.
    #[schema(required = true)]
    project_id: Option<String>,
    /// The `X-Request-Id` it was done by.
    #[schema(required = true)]
    request_id: Option<String>,
    /// More about it.
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
            subject: row.subject,
            project_id: row.project,
            request_id: row.request_id.filter(|id| !id.is_empty()),
            data: serde_json::from_str(&row.data).unwrap_or_default(),
            created_at: row.created_at,
        }
    }
}

/// A page of the log, refusing a query that is not valid.
pub fn read(mut params: Params) -> Result<(Filter, berth_domain::page::Page)> {
    let page = params.page();
    let filter = filter(&mut params);
    params.finish()?;
    Ok((filter, page))
}
