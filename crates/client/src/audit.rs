//! The audit log, of an organization and of the platform.

use http::{Method, header};
use serde::{Deserialize, Serialize};

use crate::org::org_path;
use crate::transport::query_text;
use crate::{Client, Error, List, Result};

/// An audit record.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct AuditRecord {
    /// Id.
    pub id: String,
    /// What was done, like `vm.create`.
    pub action: String,
    /// `user`, `api_key`, `platform`, or `anonymous` for a caller without a sign-in.
    pub actor_kind: String,
    /// Id of the person or key; absent for the platform.
    pub actor: Option<String>,
    /// Address of the person, or name of the key, while it exists.
    #[serde(default)]
    pub actor_name: Option<String>,
    /// Id of what it was done to.
    pub subject: String,
    /// Address of the person it was done to, while that account exists.
    #[serde(default)]
    pub subject_name: Option<String>,
    /// Id of the organization, if it belongs to one.
    #[serde(default)]
    pub org_id: Option<String>,
    /// Slug of the organization, while it exists.
    #[serde(default)]
    pub org: Option<String>,
    /// Id of the project, if it belongs to one.
    pub project_id: Option<String>,
    /// Slug of the project, while it exists.
    #[serde(default)]
    pub project: Option<String>,
    /// The `X-Request-Id` of the request.
    pub request_id: Option<String>,
    /// More about it.
    pub data: serde_json::Value,
    /// When, RFC 3339.
    pub created_at: String,
}

/// Filters for a list of records.
#[derive(Clone, Debug, Default, Serialize)]
pub struct AuditFilter {
    /// Only in this organization, by id; for the log of the platform.
    pub org_id: Option<String>,
    /// Only this action, like `vm.create`; or all of a noun, like `vm`.
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

    /// What was done on the whole platform, newest first; for its administrators.
    pub async fn all_audit(&self, filter: &AuditFilter) -> Result<List<AuditRecord>> {
        self.list("/api/v1/admin/audit", filter).await
    }

    /// Calls `take` with every record that matches a filter, newest first, as lines of JSON; for administrators of the
    /// platform. Fails if the export breaks off.
    pub async fn export_audit(
        &self,
        filter: &AuditFilter,
        mut take: impl FnMut(&[u8]) -> std::io::Result<()>,
    ) -> Result<()> {
        let path = format!("/api/v1/admin/audit?{}", query_text(filter)?);
        let build = || self.request(Method::GET, &path).header(header::ACCEPT, "application/x-ndjson");
        let mut response = self.send_again(build).await?;
        let broken = |error: &dyn std::fmt::Display| Error::Protocol(format!("the export broke off: {error}"));
        while let Some(piece) = response.chunk().await.map_err(|error| broken(&error))? {
            take(&piece).map_err(|error| broken(&error))?;
        }
        Ok(())
    }
}
