//! Snapshots of disks.

use serde::{Deserialize, Serialize};

use crate::transport::{Named, segment};
use crate::{List, Page, ProjectClient, Result};

/// A snapshot of a disk: what the disk was at one moment.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct DiskSnapshot {
    /// Id.
    pub id: String,
    /// Name.
    pub name: String,
    /// Of a `root` or a `data` disk.
    pub kind: String,
    /// How that disk is handed to a guest: `block` or `filesystem`.
    #[serde(rename = "type")]
    pub disk_type: String,
    /// The disk, which may be gone.
    pub disk_id: String,
    /// How large the disk was, in GiB.
    pub size_gb: i64,
    /// What the snapshot takes on the host, or in its store, in bytes, once it is ready.
    pub bytes: Option<i64>,
    /// Region.
    pub region_id: String,
    /// The store of several hosts that it lies in; none where it lies on a host.
    #[serde(default)]
    pub store: Option<String>,
    /// The image that a root disk was cloned from.
    pub image_id: Option<String>,
    /// `pending`, `ready`, `failed` or `deleting`.
    pub status: String,
    /// Why it failed.
    pub message: Option<String>,
    /// Creation, RFC 3339.
    pub created_at: String,
    /// Last change, RFC 3339.
    pub updated_at: String,
}

/// A snapshot to take, of exactly one disk.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NewDiskSnapshot {
    /// A data disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_id: Option<String>,
    /// A root disk volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub root_disk_id: Option<String>,
    /// Name; that of the disk where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// Those of one disk.
#[derive(Serialize)]
struct Of<'a> {
    disk_id: &'a str,
    page: u32,
    limit: u32,
}

impl ProjectClient {
    fn disk_snapshots_path(&self) -> String {
        format!("{}/disk_snapshots", self.path)
    }

    fn disk_snapshot_path(&self, id: &str) -> String {
        format!("{}/{}", self.disk_snapshots_path(), segment(id))
    }

    /// Takes a snapshot of a disk; it becomes `ready` after the answer.
    pub async fn create_disk_snapshot(&self, request: &NewDiskSnapshot) -> Result<DiskSnapshot> {
        self.client.post(&self.disk_snapshots_path(), Some(request)).await
    }

    /// Snapshots of the project's disks, newest first.
    pub async fn disk_snapshots(&self, page: Page) -> Result<List<DiskSnapshot>> {
        self.client.list(&self.disk_snapshots_path(), &page).await
    }

    /// Snapshots of one disk, newest first.
    pub async fn disk_snapshots_of(&self, disk: &str, Page { page, limit }: Page) -> Result<List<DiskSnapshot>> {
        self.client.list(&self.disk_snapshots_path(), &Of { disk_id: disk, page, limit }).await
    }

    /// Snapshots of the project's disks that have this name, newest first.
    pub async fn disk_snapshots_named(&self, name: &str, page: Page) -> Result<List<DiskSnapshot>> {
        self.client.list(&self.disk_snapshots_path(), &Named::new(name, page)).await
    }

    /// One snapshot.
    pub async fn disk_snapshot(&self, id: &str) -> Result<DiskSnapshot> {
        self.client.get(&self.disk_snapshot_path(id)).await
    }

    /// Deletes a snapshot; the disk that it is of stays.
    pub async fn delete_disk_snapshot(&self, id: &str) -> Result<()> {
        self.client.delete(&self.disk_snapshot_path(id)).await
    }
}
