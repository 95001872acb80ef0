//! Projects of an organization.

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::org::org_path;
use crate::transport::segment;
use crate::{Client, List, Page, ProjectClient, Rename, Result};

/// A project.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Project {
    /// Id.
    pub id: String,
    /// Organization it belongs to.
    pub org_id: String,
    /// Name in paths.
    pub slug: String,
    /// Name.
    pub name: String,
    /// The caller's role in the project itself: `admin`, `editor` or `viewer`.
    pub role: Option<String>,
    /// Creation, RFC 3339.
    pub created_at: String,
    /// Last change, RFC 3339.
    pub updated_at: String,
}

fn project_path(org: &str, project: &str) -> String {
    format!("{}/projects/{}", org_path(org), segment(project))
}

impl Client {
    /// Projects of an organization, newest first.
    pub async fn projects(&self, org: &str, page: Page) -> Result<List<Project>> {
        self.list(&format!("{}/projects", org_path(org)), &page).await
    }

    /// Makes a project.
    pub async fn create_project(&self, org: &str, name: &str, slug: Option<&str>) -> Result<Project> {
        let body = json!({ "name": name, "slug": slug });
        self.post(&format!("{}/projects", org_path(org)), Some(&body)).await
    }

    /// One project, by id or slug.
    pub async fn get_project(&self, org: &str, project: &str) -> Result<Project> {
        self.get(&project_path(org, project)).await
    }

    /// Changes a project.
    pub async fn update_project(&self, org: &str, project: &str, change: &Rename) -> Result<Project> {
        self.patch(&project_path(org, project), change).await
    }

    /// Deletes an empty project.
    pub async fn delete_project(&self, org: &str, project: &str) -> Result<()> {
        self.delete(&project_path(org, project)).await
    }
}

impl ProjectClient {
    /// The project itself, for instance to get its id from its slug.
    pub async fn get(&self) -> Result<Project> {
        self.client.get(&self.path).await
    }
}
