//! Projects.

use berth_domain::Timestamp;
use berth_domain::identity::ProjectRole;
use berth_domain::ids::OrgId;
use serde::Serialize;
use utoipa::ToSchema;

use crate::services::identity::store::project::ProjectRow;

/// Another name or slug.
#[derive(ToSchema)]
#[schema(as = RenamedRequest)]
#[expect(dead_code, reason = "describes")]
pub struct ChangeProjectBody {
    #[schema(min_length = 1, max_length = 100)]
    name: Option<String>,
    #[schema(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length = 1, max_length = 40)]
    slug: Option<String>,
}

/// A project, as the caller belongs to it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ProjectResponse)]
pub struct ProjectView {
    #[schema(value_type = uuid::Uuid)]
    id: String,
    #[schema(value_type = uuid::Uuid)]
    org_id: String,
    slug: String,
    name: String,
    /// The caller's role in the project itself: `admin`, `editor`, `viewer`, or `null`.
    #[schema(required = true)]
    role: Option<&'static str>,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
}

impl From<&ProjectRow> for ProjectView {
    fn from(row: &ProjectRow) -> Self {
        Self {
            id: row.id.to_string(),
            org_id: row.org.to_string(),
            slug: row.slug.clone(),
            name: row.name.clone(),
            role: row.role.map(ProjectRole::as_str),
            created_at: row.created_at,
            updated_at: row.updated_at,
        }
    }
}

impl ProjectView {
    /// The path of the project.
    pub fn location(&self, org: OrgId) -> String {
        format!("/api/v1/orgs/{org}/projects/{}", self.id)
    }
}
