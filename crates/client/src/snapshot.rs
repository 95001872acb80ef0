//! Snapshots of sandboxes.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::transport::{Named, segment};
use crate::{List, Page, ProjectClient, Result};

/// A snapshot.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Snapshot {
    /// Id.
    pub id: String,
    /// The sandbox from which it was taken.
    #[serde(default)]
    pub sandbox_id: Option<String>,
    /// Name.
    #[serde(default)]
    pub name: Option<String>,
    /// `Pending`, `Ready` or `Failed`.
    pub status: String,
    /// Why it failed.
    #[serde(default)]
    pub message: Option<String>,
    /// What it contains: `disk`, and `memory` if requested.
    #[serde(default)]
    pub captures: Vec<String>,
    /// Creation, RFC 3339.
    pub created_at: String,
    /// All other fields of the service's answer.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// A snapshot to take.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NewSnapshot {
    /// Name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Whether to keep the memory, too.
    pub include_memory: bool,
    /// Whether it is to outlive its host.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub durable: bool,
}

impl ProjectClient {
    fn snapshot_path(&self, id: &str) -> String {
        format!("{}/snapshots/{}", self.path, segment(id))
    }

    /// Takes a snapshot of a sandbox; it becomes `Ready` after the answer.
    pub async fn create_snapshot(&self, sandbox: &str, request: &NewSnapshot) -> Result<Snapshot> {
        self.client.post(&format!("{}/snapshots", self.sandbox_path(sandbox)), Some(request)).await
    }

    /// Snapshots of a sandbox, newest first.
    pub async fn sandbox_snapshots(&self, sandbox: &str, page: Page) -> Result<List<Snapshot>> {
        self.client.list(&format!("{}/snapshots", self.sandbox_path(sandbox)), &page).await
    }

    /// Snapshots of the project, newest first.
    pub async fn snapshots(&self, page: Page) -> Result<List<Snapshot>> {
        self.client.list(&format!("{}/snapshots", self.path), &page).await
    }

    /// Snapshots of the project that have this name, newest first.
    pub async fn snapshots_named(&self, name: &str, page: Page) -> Result<List<Snapshot>> {
        self.client.list(&format!("{}/snapshots", self.path), &Named::new(name, page)).await
    }

    /// One snapshot.
    pub async fn snapshot(&self, id: &str) -> Result<Snapshot> {
        self.client.get(&self.snapshot_path(id)).await
    }

    /// Deletes a snapshot; sandboxes and templates made of it stay.
    pub async fn delete_snapshot(&self, id: &str) -> Result<()> {
        self.client.delete(&self.snapshot_path(id)).await
    }
}
