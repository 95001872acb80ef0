//! Members of organizations and of projects.

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::org::org_path;
use crate::transport::segment;
use crate::{Client, List, Page, ProjectClient, Result};

/// A member of an organization or of a project.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Member {
    /// The person.
    pub user_id: String,
    /// Address.
    pub email: String,
    /// Name.
    pub name: Option<String>,
    /// `owner`, `admin`, `member` of an organization; `admin`, `editor`, `viewer` of a project.
    pub role: String,
    /// When the person became a member, RFC 3339.
    pub created_at: String,
}

fn member_path(org: &str, user: &str) -> String {
    format!("{}/members/{}", org_path(org), segment(user))
}

impl Client {
    /// Members of an organization, newest first.
    pub async fn members(&self, org: &str, page: Page) -> Result<List<Member>> {
        self.list(&format!("{}/members", org_path(org)), &page).await
    }

    /// Gives a member another role: `owner`, `admin` or `member`.
    pub async fn set_member_role(&self, org: &str, user: &str, role: &str) -> Result<Member> {
        self.patch(&member_path(org, user), &json!({ "role": role })).await
    }

    /// Removes a member from an organization and its projects, or leaves it.
    pub async fn remove_member(&self, org: &str, user: &str) -> Result<()> {
        self.delete(&member_path(org, user)).await
    }
}

impl ProjectClient {
    fn member_path(&self, user: &str) -> String {
        format!("{}/members/{}", self.path, segment(user))
    }

    /// The project's own members, newest first; owners and admins of the organization have access without being
    /// members.
    pub async fn members(&self, page: Page) -> Result<List<Member>> {
        self.client.list(&format!("{}/members", self.path), &page).await
    }

    /// Makes a member of the organization, by address, a member of the project.
    pub async fn add_member(&self, email: &str, role: &str) -> Result<Member> {
        let body = json!({ "email": email, "role": role });
        self.client.post(&format!("{}/members", self.path), Some(&body)).await
    }

    /// Makes a member of the organization, by id, a member of the project.
    pub async fn add_member_by_id(&self, user: &str, role: &str) -> Result<Member> {
        let body = json!({ "user_id": user, "role": role });
        self.client.post(&format!("{}/members", self.path), Some(&body)).await
    }

    /// Gives a member another role: `admin`, `editor` or `viewer`.
    pub async fn set_member_role(&self, user: &str, role: &str) -> Result<Member> {
        self.client.patch(&self.member_path(user), &json!({ "role": role })).await
    }

    /// Removes a member from the project.
    pub async fn remove_member(&self, user: &str) -> Result<()> {
        self.client.delete(&self.member_path(user)).await
    }
}
