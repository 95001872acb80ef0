//! Organizations.

use berth_domain::Timestamp;
use berth_domain::identity::OrgRole;
use serde::Serialize;
use utoipa::ToSchema;

use crate::services::identity::store::org::OrgRow;

/// A name, and a slug for paths.
#[derive(ToSchema)]
#[schema(as = NamedRequest)]
#[expect(dead_code, reason = "describes")]
pub struct NamedBody {
    #[schema(min_length = 1, max_length = 100)]
    name: String,
    #[schema(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length = 1, max_length = 40)]
    slug: Option<String>,
}

/// What changes of an organization.
#[derive(ToSchema)]
#[schema(as = UpdateOrganizationRequest)]
#[expect(dead_code, reason = "describes")]
pub struct ChangeOrgBody {
    #[schema(min_length = 1, max_length = 100)]
    name: Option<String>,
    #[schema(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length = 1, max_length = 40)]
    slug: Option<String>,
    /// How long an API key may live that is made from now on, in seconds; 0 is without end.
    #[schema(minimum = 0, maximum = 315_360_000)]
    max_key_seconds: Option<i64>,
}

/// An organization, as the caller belongs to it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OrganizationResponse)]
pub struct OrgView {
    #[schema(value_type = uuid::Uuid)]
    id: String,
    slug: String,
    name: String,
    /// The caller's role: `owner`, `admin` or `member`; `null` where the caller is none of them.
    #[schema(required = true)]
    role: Option<&'static str>,
    /// When an administrator of the platform suspended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    suspended_at: Option<Timestamp>,
    /// How long an API key may live that is made now, in seconds; `null` is without end.
    #[schema(required = true)]
    max_key_seconds: Option<i64>,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
}

impl From<&OrgRow> for OrgView {
    fn from(row: &OrgRow) -> Self {
        Self {
            id: row.id.to_string(),
            slug: row.slug.clone(),
            name: row.name.clone(),
            role: row.role.map(OrgRole::as_str),
            suspended_at: row.suspended_at,
            max_key_seconds: row.max_key_seconds,
            created_at: row.created_at,
            updated_at: row.updated_at,
        }
    }
}

impl OrgView {
    /// The path of the organization.
    pub fn location(&self) -> String {
        format!("/api/v1/orgs/{}", self.id)
    }
}
