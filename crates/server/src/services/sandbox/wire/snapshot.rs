//! A snapshot as its owner sees it.

use berth_domain::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::sandbox::word_schema;
use crate::http::auth::Scope;
use crate::services::sandbox::store::snapshot::SnapshotRow;

/// A snapshot.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SnapshotResponse)]
pub struct SnapshotView {
    /// Identifier.
    #[schema(value_type = uuid::Uuid)]
    id: String,
    /// The sandbox it was taken of, which may be gone.
    #[schema(value_type = uuid::Uuid)]
    sandbox_id: String,
    /// Its name.
    name: String,
    /// Where it stands.
    #[schema(value_type = SnapshotStatusWord)]
    status: &'static str,
    /// Why it failed.
    #[schema(required = true)]
    message: Option<String>,
    /// What is kept: `disk`, and `memory`.
    #[schema(value_type = Vec<CaptureWord>)]
    captures: Vec<&'static str>,
    /// The template the sandbox, or its origin, was made of.
    #[schema(value_type = Option<uuid::Uuid>, required = true)]
    template_id: Option<String>,
    /// Virtual CPUs.
    vcpu: i64,
    /// Memory, in MiB.
    memory_mb: i64,
    /// Disk, in GiB.
    disk_gb: i64,
    /// What it takes on the host, beside what it shares.
    size_bytes: i64,
    /// Whether it is to outlive its host.
    durable: bool,
    /// Since when a second host, or the store of backups, has all of it; `null` until then.
    #[schema(value_type = Option<String>, format = DateTime, required = true)]
    copied_at: Option<Timestamp>,
    /// Creation.
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    /// Last change.
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
}

word_schema! {
    /// Where a snapshot stands.
    SnapshotStatusWord { Pending, Ready, Failed }
    /// What a snapshot keeps.
    #[serde(rename_all = "snake_case")]
    CaptureWord { Disk, Memory }
}

impl From<&SnapshotRow> for SnapshotView {
    fn from(row: &SnapshotRow) -> Self {
        let captures: &[_] = if row.include_memory { &["disk", "memory"] } else { &["disk"] };
        Self {
            id: row.id.to_string(),
            sandbox_id: row.sandbox.to_string(),
            name: row.name.clone(),
            status: row.status.as_str(),
            message: row.message.clone(),
            captures: captures.to_vec(),
            template_id: row.template.map(|id| id.to_string()),
            vcpu: row.vcpu,
            memory_mb: row.memory_mb,
            disk_gb: row.disk_gb,
            size_bytes: row.bytes,
            durable: row.durable,
            copied_at: row.copy.map(|copy| copy.since),
            created_at: row.created_at,
            updated_at: row.updated_at,
        }
    }
}

impl SnapshotView {
    /// The path of the snapshot.
    pub fn location(&self, scope: &Scope) -> String {
        format!("/api/v1/orgs/{}/projects/{}/snapshots/{}", scope.org, scope.project, self.id)
    }
}
