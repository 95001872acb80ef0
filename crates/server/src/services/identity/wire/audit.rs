//! The audit log.

use berth_domain::Timestamp;
use berth_domain::identity::audit::{Filter, Which};
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};

use crate::services::identity::store::audit::AuditRow;

/// What to look for, for the document.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "describes the query; `Filter` reads it")]
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
#[expect(dead_code, reason = "describes the query; `Filter` reads it")]
pub struct OrgParam {
    /// Id of the organization.
    #[param(value_type = Option<uuid::Uuid>)]
    org_id: Option<String>,
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

/// A filter as the record of an export tells it.
pub fn told(filter: &Filter) -> Value {
    let action = filter.action.as_ref().map(|which| match which {
        Which::One(action) => action.clone(),
        Which::Beginning(text) => format!("{text}*"),
    });
    json!({"org_id": filter.org.map(|org| org.to_string()), "action": action, "actor": filter.actor,
        "subject": filter.subject, "project_id": filter.project, "since": filter.since, "until": filter.until})
}
