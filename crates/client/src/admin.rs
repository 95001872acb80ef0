//! What administrators of the platform do with people, organizations and everybody's things.

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::transport::segment;
use crate::{Client, List, Organization, Page, Project, Result, Sandbox, User, Vm};

/// A person as an administrator sees them.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct AdminUser {
    /// The person.
    #[serde(flatten)]
    pub user: User,
    /// When the account was suspended, RFC 3339.
    pub suspended_at: Option<String>,
}

/// A thing with its owner.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Owned<T> {
    /// The thing.
    #[serde(flatten)]
    pub thing: T,
    /// Id of the organization.
    pub org_id: String,
    /// Its slug.
    pub org: String,
    /// Id of the project.
    pub project_id: String,
    /// Its slug.
    pub project: String,
}

/// A project and the slug of its organization.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct AdminProject {
    /// The project.
    #[serde(flatten)]
    pub project: Project,
    /// Slug of the organization.
    pub org: String,
}

/// Filters for a list of everybody's things.
#[derive(Clone, Debug, Default, Serialize)]
pub struct OwnedFilter {
    /// Only those of an organization, by id or slug.
    pub org: Option<String>,
    /// Only those of a project, by id or slug.
    pub project: Option<String>,
    /// Only this name.
    pub name: Option<String>,
    /// Only VMs of this status.
    pub status: Option<String>,
    /// Only sandboxes of this phase.
    pub phase: Option<String>,
    /// From 1.
    pub page: Option<u32>,
    /// 1 to 100.
    pub limit: Option<u32>,
}

/// A person to make.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NewUser {
    /// Address.
    pub email: String,
    /// Name.
    pub name: Option<String>,
    /// Password; without one the person gets a mail with a link to choose one.
    pub password: Option<String>,
    /// Whether they administer the platform.
    pub administrator: bool,
}

/// Filters for a list of people.
#[derive(Clone, Debug, Default, Serialize)]
pub struct UserFilter {
    /// Only addresses that contain this text.
    pub email: Option<String>,
    /// From 1.
    pub page: Option<u32>,
    /// 1 to 100.
    pub limit: Option<u32>,
}

fn user_path(id: &str) -> String {
    format!("/api/v1/admin/users/{}", segment(id))
}

impl Client {
    /// Everybody, newest first.
    pub async fn all_users(&self, filter: &UserFilter) -> Result<List<AdminUser>> {
        self.list("/api/v1/admin/users", filter).await
    }

    /// Makes a person.
    pub async fn create_user(&self, user: &NewUser) -> Result<AdminUser> {
        self.post("/api/v1/admin/users", Some(user)).await
    }

    /// Makes a person an administrator of the platform, or takes that role away.
    pub async fn set_administrator(&self, id: &str, administrator: bool) -> Result<AdminUser> {
        self.patch(&user_path(id), &json!({ "administrator": administrator })).await
    }

    /// Deletes a person, with their empty organizations that have no other member.
    pub async fn delete_user(&self, id: &str) -> Result<()> {
        self.delete(&user_path(id)).await
    }

    /// Everybody's VMs, newest first.
    pub async fn all_vms(&self, filter: &OwnedFilter) -> Result<List<Owned<Vm>>> {
        self.list("/api/v1/admin/vms", filter).await
    }

    /// Everybody's sandboxes, newest first.
    pub async fn all_sandboxes(&self, filter: &OwnedFilter) -> Result<List<Owned<Sandbox>>> {
        self.list("/api/v1/admin/sandboxes", filter).await
    }

    /// Everybody's projects, newest first.
    pub async fn all_projects(&self, filter: &OwnedFilter) -> Result<List<AdminProject>> {
        self.list("/api/v1/admin/projects", filter).await
    }

    /// Stops somebody's VM.
    pub async fn stop_any_vm(&self, id: &str) -> Result<Vm> {
        self.post(&format!("/api/v1/admin/vms/{}/stop", segment(id)), None::<&()>).await
    }

    /// Deletes somebody's VM.
    pub async fn delete_any_vm(&self, id: &str) -> Result<()> {
        self.delete(&format!("/api/v1/admin/vms/{}", segment(id))).await
    }

    /// Pauses somebody's sandbox; its memory is kept.
    pub async fn pause_any_sandbox(&self, id: &str) -> Result<Sandbox> {
        self.post(&format!("/api/v1/admin/sandboxes/{}/pause", segment(id)), None::<&()>).await
    }

    /// Deletes somebody's sandbox.
    pub async fn delete_any_sandbox(&self, id: &str) -> Result<()> {
        self.delete(&format!("/api/v1/admin/sandboxes/{}", segment(id))).await
    }

    /// Deletes somebody's project, which must be empty.
    pub async fn delete_any_project(&self, id: &str) -> Result<()> {
        self.delete(&format!("/api/v1/admin/projects/{}", segment(id))).await
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
