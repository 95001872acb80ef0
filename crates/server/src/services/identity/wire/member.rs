//! Members of organizations and projects.

use berth_domain::fields::{Fields, text};
use berth_domain::identity::{OrgRole, ProjectRole};
use berth_domain::ids::UserId;
use berth_domain::{Error, Result, Timestamp};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::email;
use crate::http::auth::Scope;
use crate::services::identity::store::member::MemberRow;

/// Reads the role of a body.
pub fn org_role(body: &Value) -> Result<OrgRole> {
    let mut f = Fields::of(body);
    let role = f.required("role", |v| OrgRole::parse(text(v)?));
    f.finish(role)
}

/// Reads the role of a body.
pub fn project_role(body: &Value) -> Result<ProjectRole> {
    let mut f = Fields::of(body);
    let role = f.required("role", |v| ProjectRole::parse(text(v)?));
    f.finish(role)
}

/// Somebody by id or address.
pub enum Whom {
    /// By id.
    User(UserId),
    /// By address.
    Email(String),
}

/// Somebody who becomes a member of a project.
pub struct NewMember {
    /// Who.
    pub whom: Whom,
    /// As what.
    pub role: ProjectRole,
}

impl TryFrom<&Value> for NewMember {
    type Error = Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        if f.has("user_id") == f.has("email") {
            f.fail("user_id", "give exactly one of user_id and email");
        }
        let user = f.optional("user_id", |v| text(v)?.parse().map_err(|_| "must be a UUID".to_owned()));
        let email = f.optional("email", email);
        let role = f.required("role", |v| ProjectRole::parse(text(v)?));
        let whom = user.map(Whom::User).or(email.map(Whom::Email));
        f.finish(whom.zip(role).map(|(whom, role)| Self { whom, role }))
    }
}

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
