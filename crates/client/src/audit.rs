//! The audit log of an organization.

use serde::{Deserialize, Serialize};

use crate::org::org_path;
use crate::{Client, List, Result};

/// Something that was done.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct AuditRecord {
    /// Id.
    pub id: String,
    /// What was done, like `vm.create`.
    pub action: String,
    /// `user`, `api_key` or `platform`.
    pub actor_kind: String,
    /// Id of the person or key; absent for the platform.
    pub actor: Option<String>,
    /// Id of what it was done to.
    pub subject: String,
    /// Id of the project, where it belongs to one.
    pub project_id: Option<String>,
    /// The `X-Request-Id` it was done by.
    pub request_id: Option<String>,
    /// More about it.
    pub data: serde_json::Value,
    /// When, RFC 3339.
    pub created_at: String,
}

/// Which records to list.
#[derive(Clone, Debug, Default, Serialize)]
pub struct AuditFilter {
    /// Only this action.
    pub action: Option<String>,
    /// Only what this person or key did, by id.
    pub actor: Option<String>,
    /// Only what was done to this, by id.
    pub subject: Option<String>,
    /// Only in this project, by id.
    pub project_id: Option<String>,
    /// Not before this time, RFC 3339.
    pub since: Option<String>,
    /// Before this time, RFC 3339.
    pub until: Option<String>,
    /// From 1.
    pub page: Option<u32>,
    /// 1 to 100.
    pub limit: Option<u32>,
}

impl Client {
    /// What was done in an organization, newest first.
    pub async fn audit_log(&self, org: &str, filter: &AuditFilter) -> Result<List<AuditRecord>> {
        self.list(&format!("{}/audit_log", org_path(org)), filter).await
    }
}
