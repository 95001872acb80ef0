//! Templates that sandboxes are made of.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::transport::{Named, segment};
use crate::{List, Page, ProjectClient, Result};

/// A template.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Template {
    /// Id.
    pub id: String,
    /// Name.
    pub name: String,
    /// `pending`, `building`, `ready` or `failed`.
    pub status: String,
    /// The step under way, or the reason of a failure.
    #[serde(default)]
    pub message: Option<String>,
    /// Virtual CPUs.
    #[serde(default)]
    pub vcpu: Option<u32>,
    /// Memory in MiB.
    #[serde(default)]
    pub memory_mb: Option<u64>,
    /// Disk in GiB.
    #[serde(default)]
    pub disk_gb: Option<u64>,
    /// Creation, RFC 3339.
    pub created_at: String,
    /// All else that the service tells.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// A template to build: of exactly one of image, Dockerfile and snapshot. Sizes may be left out with a snapshot only.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CreateTemplate {
    /// Name, unique in the project.
    pub name: String,
    /// A container image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The text of a Dockerfile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dockerfile: Option<String>,
    /// A snapshot's id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_snapshot: Option<String>,
    /// Virtual CPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vcpu: Option<u32>,
    /// Memory in MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u64>,
    /// Disk in GiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_gb: Option<u64>,
    /// Environment of its sandboxes' commands.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// What its sandboxes find running.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_command: Option<String>,
    /// What succeeds when that is ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_command: Option<String>,
}

impl ProjectClient {
    fn template_path(&self, id: &str) -> String {
        format!("{}/sandbox_templates/{}", self.path, segment(id))
    }

    /// Templates, newest first.
    pub async fn templates(&self, page: Page) -> Result<List<Template>> {
        self.client.list(&format!("{}/sandbox_templates", self.path), &page).await
    }

    /// Templates that have this name: the project's own and the platform's.
    pub async fn templates_named(&self, name: &str, page: Page) -> Result<List<Template>> {
        self.client.list(&format!("{}/sandbox_templates", self.path), &Named::new(name, page)).await
    }

    /// One template.
    pub async fn template(&self, id: &str) -> Result<Template> {
        self.client.get(&self.template_path(id)).await
    }

    /// Builds a template; it becomes `ready` after the answer.
    pub async fn create_template(&self, request: &CreateTemplate) -> Result<Template> {
        self.client.post(&format!("{}/sandbox_templates", self.path), Some(request)).await
    }

    /// Deletes a template; what was made of it stays.
    pub async fn delete_template(&self, id: &str) -> Result<()> {
        self.client.delete(&self.template_path(id)).await
    }
}
