//! Invitations.

use berth_domain::fields::{Fields, text};
use berth_domain::identity::{OrgRole, ProjectRole};
use berth_domain::ids::{OrgId, ProjectId};
use berth_domain::{Error, Result, Timestamp};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use utoipa::ToSchema;

use super::{email, secret};
use crate::config::Secret;
use crate::services::identity::store::invitation::InvitationRow;

/// Most projects that an invitation gives roles in.
const PROJECTS: usize = 50;

/// A role in a project that comes with an invitation.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = InvitationProjectRole)]
pub struct ProjectRoleGiven {
    /// The project.
    #[schema(value_type = uuid::Uuid)]
    pub project_id: ProjectId,
    /// `admin`, `editor` or `viewer`.
    #[serde(serialize_with = "write_role", deserialize_with = "read_role")]
    #[schema(value_type = String, pattern = "^(admin|editor|viewer)$")]
    pub role: ProjectRole,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
fn write_role<S: Serializer>(role: &ProjectRole, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(role.as_str())
}

fn read_role<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ProjectRole, D::Error> {
    let word = String::deserialize(deserializer)?;
    ProjectRole::parse(&word).map_err(serde::de::Error::custom)
}

/// An invitation to be sent.
pub struct NewInvitation {
    /// To whom.
    pub email: String,
    /// The role it gives.
    pub role: OrgRole,
    /// The roles in projects it gives.
    pub project_roles: Vec<ProjectRoleGiven>,
}

impl TryFrom<&Value> for NewInvitation {
    type Error = Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let email = f.required("email", email);
        let role = f.required("role", |v| OrgRole::parse(text(v)?));
        let project_roles = f.objects("project_roles", PROJECTS, |f| {
            let id = f.required("project_id", |v| text(v)?.parse().map_err(|_| "must be a UUID".to_owned()));
            let role = f.required("role", |v| ProjectRole::parse(text(v)?));
            id.zip(role).map(|(project_id, role)| ProjectRoleGiven { project_id, role })
        });
        let project_roles = project_roles.unwrap_or_default();
        f.finish(email.zip(role).map(|(email, role)| Self { email, role, project_roles }))
    }
}

/// Reads the token of a body.
pub fn token(body: &Value) -> Result<Secret> {
    let mut f = Fields::of(body);
    let token = f.required("token", secret(1, 1000));
    f.finish(token)
}

/// An invitation.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = InvitationResponse)]
pub struct InvitationView {
    #[schema(value_type = uuid::Uuid)]
    id: String,
    email: String,
    /// `owner`, `admin` or `member`.
    role: &'static str,
    project_roles: Vec<ProjectRoleGiven>,
    /// `pending`, `accepted`, `revoked` or `expired`.
    pub status: &'static str,
    /// Who invites.
    #[schema(value_type = uuid::Uuid)]
    invited_by: String,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    expires_at: Timestamp,
}

impl InvitationView {
    /// An invitation as it stands now.
    pub fn of(row: &InvitationRow, now: Timestamp) -> Self {
        Self {
            id: row.id.to_string(),
            email: row.email.clone(),
            role: row.role.as_str(),
            project_roles: serde_json::from_str(&row.project_roles).unwrap_or_default(),
            status: row.status(now).as_str(),
            invited_by: row.invited_by.to_string(),
            created_at: row.created_at,
            expires_at: row.expires_at,
        }
    }

    /// The path of the invitation.
    pub fn location(&self, org: OrgId) -> String {
        format!("/api/v1/orgs/{org}/invitations/{}", self.id)
    }
}

/// An invitation to be sent.
#[derive(ToSchema)]
#[schema(as = InviteRequest)]
#[expect(dead_code, reason = "describes")]
pub struct NewInvitationBody {
    #[schema(format = Email, max_length = 254)]
    email: String,
    #[schema(pattern = "^(owner|admin|member)$")]
    role: String,
    #[schema(max_items = 50)]
    project_roles: Option<Vec<ProjectRoleGiven>>,
}

/// The token of an invitation's link.
#[derive(ToSchema)]
#[schema(as = AcceptInvitationRequest)]
#[expect(dead_code, reason = "describes")]
pub struct TokenBody {
    #[schema(min_length = 1, max_length = 1000)]
    token: String,
}
