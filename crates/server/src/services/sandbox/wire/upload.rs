//! An upload as its owner sees it.

use berth_domain::Timestamp;
use berth_domain::sandbox::request::UPLOAD;
use serde::Serialize;
use utoipa::ToSchema;

use crate::http::auth::Scope;
use crate::services::sandbox::store::upload::UploadRow;

/// An archive that templates are built of.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SandboxUploadResponse)]
pub struct UploadView {
    /// Identifier: what `context_id` takes.
    #[schema(value_type = uuid::Uuid)]
    id: String,
    /// What `image` and `FROM` take.
    image: String,
    /// Its bytes.
    size_bytes: i64,
    /// Creation.
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    /// When it is removed.
    #[schema(value_type = String, format = DateTime)]
    expires_at: Timestamp,
}

impl From<&UploadRow> for UploadView {
    fn from(row: &UploadRow) -> Self {
        Self {
            id: row.id.to_string(),
            image: format!("{UPLOAD}{}", row.id),
            size_bytes: row.bytes,
            created_at: row.created_at,
            expires_at: row.expires_at,
        }
    }
}

impl UploadView {
    /// The path of the upload.
    pub fn location(&self, scope: &Scope) -> String {
        format!("/api/v1/orgs/{}/projects/{}/sandbox_uploads/{}", scope.org, scope.project, self.id)
    }
}
