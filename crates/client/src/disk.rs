//! Root disk volumes and data disks.

use serde::{Deserialize, Serialize};

use crate::transport::segment;
use crate::{List, Page, ProjectClient, Result};

/// A platform-managed root disk.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct RootDisk {
    /// Id.
    pub id: String,
    /// Name.
    pub name: String,
    /// Region.
    pub region: String,
    /// The store of several hosts that it lies in; none where it lies on a host.
    #[serde(default)]
    pub store: Option<String>,
    /// Size in GiB.
    pub size_gb: i64,
    /// Image.
    pub image_id: String,
    /// The snapshot that it was made of, which may be gone.
    #[serde(default)]
    pub snapshot_id: Option<String>,
    /// The backup that it was made of, which may be gone.
    #[serde(default)]
    pub backup_id: Option<String>,
    /// Its status.
    pub status: String,
    /// What is under way for it while it is ready: `growing`, `attaching` or `detaching`.
    #[serde(default)]
    pub change: Option<String>,
    /// The step under way, or the reason of a failure.
    pub message: Option<String>,
    /// Whether it is attached to a VM.
    pub is_attached: bool,
    /// The VM it is attached to.
    pub vm_id: Option<String>,
    /// `/dev/disk/by-id/virtio-<serial>` in the guest.
    #[serde(default)]
    pub serial: String,
    /// Creation, RFC 3339.
    pub created_at: String,
}

/// A data disk.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct DataDisk {
    /// Id.
    pub id: String,
    /// Name.
    pub name: String,
    /// `block` or `filesystem`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Size in GiB.
    pub size_gb: i64,
    /// Region.
    pub region_id: String,
    /// The store of several hosts that it lies in; none where it lies on a host.
    #[serde(default)]
    pub store: Option<String>,
    /// The snapshot that it was made of, which may be gone.
    #[serde(default)]
    pub snapshot_id: Option<String>,
    /// The backup that it was made of, which may be gone.
    #[serde(default)]
    pub backup_id: Option<String>,
    /// Its status.
    pub status: String,
    /// What is under way for it while it is ready: `growing`, `attaching` or `detaching`.
    #[serde(default)]
    pub change: Option<String>,
    /// The step under way, or the reason of a failure.
    pub message: Option<String>,
    /// Whether it is attached to a VM.
    pub is_attached: bool,
    /// The VM it is attached to.
    pub vm_id: Option<String>,
    /// `/dev/disk/by-id/virtio-<serial>` in the guest.
    pub serial: String,
    /// Creation, RFC 3339.
    pub created_at: String,
}

/// A data disk to make.
#[derive(Clone, Debug, Serialize)]
pub struct NewDataDisk {
    /// Name.
    pub name: String,
    /// `block` or `filesystem`.
    #[serde(rename = "type")]
    pub kind: String,
    /// 10 to 2048 GiB.
    pub size_gb: i64,
    /// Region.
    pub region_id: String,
    /// The snapshot that it begins as; else it is empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_id: Option<String>,
    /// Whether it lies on a host, though new disks of its region lie in a store. An older service is not told otherwise.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub on_host: bool,
}

impl ProjectClient {
    fn disk_path(&self, id: &str) -> String {
        format!("{}/disks/{}", self.path, segment(id))
    }

    /// Root disk volumes, newest first.
    pub async fn root_disks(&self, page: Page) -> Result<List<RootDisk>> {
        self.client.list(&format!("{}/root_disks", self.path), &page).await
    }

    /// One root disk volume.
    pub async fn root_disk(&self, id: &str) -> Result<RootDisk> {
        self.client.get(&format!("{}/root_disks/{}", self.path, segment(id))).await
    }

    /// Has a root disk volume grow to so many GiB.
    pub async fn resize_root_disk(&self, id: &str, size_gb: i64) -> Result<RootDisk> {
        let body = serde_json::json!({ "size_gb": size_gb });
        self.client.post(&format!("{}/root_disks/{}/resize", self.path, segment(id)), Some(&body)).await
    }

    /// Deletes a root disk volume that is not attached.
    pub async fn delete_root_disk(&self, id: &str) -> Result<()> {
        self.client.delete(&format!("{}/root_disks/{}", self.path, segment(id))).await
    }

    /// Data disks, newest first.
    pub async fn disks(&self, page: Page) -> Result<List<DataDisk>> {
        self.client.list(&format!("{}/disks", self.path), &page).await
    }

    /// One data disk.
    pub async fn disk(&self, id: &str) -> Result<DataDisk> {
        self.client.get(&self.disk_path(id)).await
    }

    /// Makes a data disk.
    pub async fn create_disk(&self, request: &NewDataDisk) -> Result<DataDisk> {
        self.client.post(&format!("{}/disks", self.path), Some(request)).await
    }

    /// Has a data disk grow to so many GiB.
    pub async fn resize_disk(&self, id: &str, size_gb: i64) -> Result<DataDisk> {
        let body = serde_json::json!({ "size_gb": size_gb });
        self.client.post(&format!("{}/resize", self.disk_path(id)), Some(&body)).await
    }

    /// Deletes a data disk that is not attached.
    pub async fn delete_disk(&self, id: &str) -> Result<()> {
        self.client.delete(&self.disk_path(id)).await
    }

    /// Attaches a data disk to a VM; to one that runs after the answer.
    pub async fn attach_disk(&self, id: &str, vm: &str) -> Result<DataDisk> {
        let body = serde_json::json!({ "vm_id": vm });
        self.client.post(&format!("{}/attach", self.disk_path(id)), Some(&body)).await
    }

    /// Detaches a data disk from its VM; from one that runs after the answer.
    pub async fn detach_disk(&self, id: &str) -> Result<DataDisk> {
        self.client.post(&format!("{}/detach", self.disk_path(id)), None::<&()>).await
    }
}
