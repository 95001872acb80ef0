//! Invitations to organizations.

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::org::org_path;
use crate::transport::segment;
use crate::{Client, List, Organization, Page, Result};

/// An invitation.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Invitation {
    /// Id.
    pub id: String,
    /// The address that it is for.
    pub email: String,
    /// `owner`, `admin` or `member`.
    pub role: String,
    /// Roles in projects that come with it.
    pub project_roles: Vec<ProjectRole>,
    /// `pending`, `accepted`, `revoked` or `expired`.
    pub status: String,
    /// Id of the person who invites.
    pub invited_by: String,
    /// Creation, RFC 3339.
    pub created_at: String,
    /// When it expires, RFC 3339.
    pub expires_at: String,
}

/// A role in a project.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ProjectRole {
    /// Id of the project.
    pub project_id: String,
    /// `admin`, `editor` or `viewer`.
    pub role: String,
}

/// An invitation to send.
#[derive(Clone, Debug, Serialize)]
pub struct NewInvitation {
    /// Address.
    pub email: String,
    /// `owner`, `admin` or `member`.
    pub role: String,
    /// Roles in projects that come with it.
    pub project_roles: Vec<ProjectRole>,
}

fn invitations_path(org: &str) -> String {
    format!("{}/invitations", org_path(org))
}

impl Client {
    /// Invitations of an organization, newest first.
    pub async fn invitations(&self, org: &str, page: Page) -> Result<List<Invitation>> {
        self.list(&invitations_path(org), &page).await
    }

    /// Invites an address, by mail.
    pub async fn invite(&self, org: &str, request: &NewInvitation) -> Result<Invitation> {
        self.post(&invitations_path(org), Some(request)).await
    }

    /// Sends the mail again; the invitation is valid for its whole time from now on.
    pub async fn resend_invitation(&self, org: &str, id: &str) -> Result<Invitation> {
        self.post(&format!("{}/{}/resend", invitations_path(org), segment(id)), None::<&()>).await
    }

    /// Revokes an invitation.
    pub async fn revoke_invitation(&self, org: &str, id: &str) -> Result<()> {
        self.delete(&format!("{}/{}", invitations_path(org), segment(id))).await
    }

    /// Accepts an invitation to the caller's address, by the token of its mail.
    pub async fn accept_invitation(&self, token: &str) -> Result<Organization> {
        self.post("/api/v1/invitations/accept", Some(&json!({ "token": token }))).await
    }
}
