//! Invitations.

use berth_domain::Timestamp;
use berth_domain::identity::invitation::ProjectRoleGiven;
use berth_domain::ids::OrgId;
use serde::Serialize;
use utoipa::ToSchema;

use crate::services::identity::store::invitation::InvitationRow;

/// A role in a project that comes with an invitation.
#[derive(ToSchema)]
#[schema(as = InvitationProjectRole)]
#[expect(dead_code, reason = "describes berth_domain::identity::invitation::ProjectRoleGiven")]
pub struct GivenRoleBody {
    /// The project.
    #[schema(value_type = uuid::Uuid)]
    project_id: String,
    /// `admin`, `editor` or `viewer`.
    #[schema(pattern = "^(admin|editor|viewer)$")]
    role: String,
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
    #[schema(value_type = Vec<GivenRoleBody>)]
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
    project_roles: Option<Vec<GivenRoleBody>>,
}

/// The token of an invitation's link.
#[derive(ToSchema)]
#[schema(as = AcceptInvitationRequest)]
#[expect(dead_code, reason = "describes")]
pub struct TokenBody {
    #[schema(min_length = 1, max_length = 1000)]
    token: String,
}
