//! A template as those who use it see it.

use std::collections::BTreeMap;

use berth_domain::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::sandbox::word_schema;
use crate::http::auth::Scope;
use crate::services::sandbox::store::template::TemplateRow;

/// A template.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SandboxTemplateResponse)]
pub struct TemplateView {
    /// Identifier.
    #[schema(value_type = uuid::Uuid)]
    id: String,
    /// Its name.
    name: String,
    /// Where it stands.
    #[schema(value_type = TemplateStatusWord)]
    status: &'static str,
    /// The step under way, or the reason of a failure.
    #[schema(required = true)]
    message: Option<String>,
    /// What it is made of.
    #[schema(value_type = TemplateSourceWord)]
    source: &'static str,
    /// Virtual CPUs of its sandboxes.
    vcpu: i64,
    /// Memory of its sandboxes, in MiB.
    memory_mb: i64,
    /// Disk of its sandboxes, in GiB.
    disk_gb: i64,
    /// Environment of its sandboxes.
    env: BTreeMap<String, String>,
    /// What its sandboxes find running.
    #[schema(required = true)]
    start_command: Option<String>,
    /// What succeeds when that is ready.
    #[schema(required = true)]
    ready_command: Option<String>,
    /// Creation.
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    /// Last change.
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
}

word_schema! {
    /// Where a template stands.
    #[serde(rename_all = "snake_case")]
    TemplateStatusWord { Pending, Building, Ready, Failed, Deleting }
    /// What a template is made of; `platform`: it came with the platform.
    #[serde(rename_all = "snake_case")]
    TemplateSourceWord { Image, Dockerfile, FromSnapshot, Platform }
}

impl From<&TemplateRow> for TemplateView {
    fn from(row: &TemplateRow) -> Self {
        Self {
            id: row.id.to_string(),
            name: row.name.clone(),
            status: row.status.as_str(),
            message: row.message.clone(),
            source: row.kind.as_str(),
            vcpu: row.vcpu,
            memory_mb: row.memory_mb,
            disk_gb: row.disk_gb,
            env: row.env.clone(),
            start_command: row.start_command.clone(),
            ready_command: row.ready_command.clone(),
            created_at: row.created_at,
            updated_at: row.updated_at,
        }
    }
}

impl TemplateView {
    /// The path of the template.
    pub fn location(&self, scope: &Scope) -> String {
        format!("/api/v1/orgs/{}/projects/{}/sandbox_templates/{}", scope.org, scope.project, self.id)
    }
}
