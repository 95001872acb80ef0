//! What administrators of the platform do with people and organizations.

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::transport::segment;
use crate::{Client, List, Organization, Page, Result, User};

/// A person as an administrator sees them.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct AdminUser {
    /// The person.
    #[serde(flatten)]
    pub user: User,
    /// When the account was suspended, RFC 3339.
    pub suspended_at: Option<String>,
}

/// Which people to list.
#[derive(Clone, Debug, Default, Serialize)]
pub struct UserFilter {
    /// Only addresses that hold this.
    pub email: Option<String>,
    /// From 1.
    pub page: Option<u32>,
    /// 1 to 100.
    pub limit: Option<u32>,
}

impl Client {
    /// Everybody, newest first.
    pub async fn all_users(&self, filter: &UserFilter) -> Result<List<AdminUser>> {
        self.list("/api/v1/admin/users", filter).await
    }

    /// Every organization, newest first.
    pub async fn all_organizations(&self, page: Page) -> Result<List<Organization>> {
        self.list("/api/v1/admin/orgs", &page).await
    }

    /// Suspends an account: every session ends and none can begin.
    pub async fn suspend_user(&self, id: &str, reason: Option<&str>) -> Result<AdminUser> {
        let path = format!("/api/v1/admin/users/{}/suspend", segment(id));
        self.post(&path, Some(&json!({ "reason": reason }))).await
    }

    /// Ends the suspension of an account.
    pub async fn unsuspend_user(&self, id: &str) -> Result<AdminUser> {
        self.post(&format!("/api/v1/admin/users/{}/unsuspend", segment(id)), None::<&()>).await
    }

    /// Suspends an organization: nobody reaches what it owns.
    pub async fn suspend_organization(&self, id: &str, reason: Option<&str>) -> Result<Organization> {
        let path = format!("/api/v1/admin/orgs/{}/suspend", segment(id));
        self.post(&path, Some(&json!({ "reason": reason }))).await
    }

    /// Ends the suspension of an organization.
    pub async fn unsuspend_organization(&self, id: &str) -> Result<Organization> {
        self.post(&format!("/api/v1/admin/orgs/{}/unsuspend", segment(id)), None::<&()>).await
    }
}
