//! Members of organizations and projects.

use berth_domain::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use crate::http::auth::Scope;
use crate::services::identity::store::member::MemberRow;

/// A member.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = MemberResponse)]
pub struct MemberView {
    #[schema(value_type = uuid::Uuid)]
    user_id: String,
    email: String,
    #[schema(required = true)]
    name: Option<String>,
    /// `owner`, `admin`, `member` of an organization; `admin`, `editor`, `viewer` of a project.
    role: String,
    /// Since when.
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
}

impl From<MemberRow> for MemberView {
    fn from(row: MemberRow) -> Self {
        let MemberRow { user, email, name, role, created_at } = row;
        Self { user_id: user.to_string(), email, name, role, created_at }
    }
}

impl MemberView {
    /// The path of a member of a project.
    pub fn location(&self, scope: &Scope) -> String {
        format!("/api/v1/orgs/{}/projects/{}/members/{}", scope.org, scope.project, self.user_id)
    }
}

/// A role in an organization.
#[derive(ToSchema)]
#[schema(as = OrgRoleRequest)]
#[expect(dead_code, reason = "describes")]
pub struct OrgRoleBody {
    #[schema(pattern = "^(owner|admin|member)$")]
    role: String,
}

/// A role in a project.
#[derive(ToSchema)]
#[schema(as = ProjectRoleRequest)]
#[expect(dead_code, reason = "describes")]
pub struct ProjectRoleBody {
    #[schema(pattern = "^(admin|editor|viewer)$")]
    role: String,
}

/// Somebody of the organization, by exactly one of `user_id` and `email`.
#[derive(ToSchema)]
#[schema(as = AddMemberRequest)]
#[expect(dead_code, reason = "describes")]
pub struct NewMemberBody {
    user_id: Option<uuid::Uuid>,
    #[schema(format = Email, max_length = 254)]
    email: Option<String>,
    #[schema(pattern = "^(admin|editor|viewer)$")]
    role: String,
}
