//! Backups of disks.

use serde::{Deserialize, Serialize};

use crate::transport::{Named, segment};
use crate::{DataDisk, List, Page, ProjectClient, Result, RootDisk};

/// A backup of a disk: what the disk was at one moment, kept outside of the host.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Backup {
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
    /// What the backup takes in the store, in bytes, once it is ready.
    pub size_bytes: Option<i64>,
    /// What that hashes to, once it is ready: `sha256:` and hexadecimal digits.
    pub digest: Option<String>,
    /// Region.
    pub region_id: String,
    /// The image that a root disk was cloned from.
    pub image_id: Option<String>,
    /// The schedule that made it, which may be gone.
    pub schedule_id: Option<String>,
    /// `pending`, `running`, `ready`, `failed` or `deleting`.
    pub status: String,
    /// How far it is, or why it failed.
    pub message: Option<String>,
    /// Creation, RFC 3339.
    pub created_at: String,
    /// Last change, RFC 3339.
    pub updated_at: String,
}

/// A backup to make, of exactly one thing.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NewBackup {
    /// A data disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_id: Option<String>,
    /// A root disk volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub root_disk_id: Option<String>,
    /// A VM: each of its disks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vm_id: Option<String>,
    /// Name; that of the disk where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// What a request for backups made.
#[derive(Deserialize)]
#[serde(untagged)]
enum Made {
    Several { data: Vec<Backup> },
    One(Box<Backup>),
}

/// The disk that is made of a backup.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(untagged)]
pub enum RestoredDisk {
    /// A root disk volume.
    Root(Box<RootDisk>),
    /// A data disk.
    Data(Box<DataDisk>),
}

/// Those of one disk.
#[derive(Serialize)]
struct Of<'a> {
    disk_id: &'a str,
    page: u32,
    limit: u32,
}

#[derive(Serialize)]
struct Restore<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
}

impl ProjectClient {
    fn backups_path(&self) -> String {
        format!("{}/backups", self.path)
    }

    fn backup_path(&self, id: &str) -> String {
        format!("{}/{}", self.backups_path(), segment(id))
    }

    /// Makes a backup of a disk, or of each disk of a VM; they become `ready` after the answer.
    pub async fn create_backups(&self, request: &NewBackup) -> Result<Vec<Backup>> {
        let made: Made = self.client.post(&self.backups_path(), Some(request)).await?;
        Ok(match made {
            Made::Several { data } => data,
            Made::One(one) => vec![*one],
        })
    }

    /// Backups of the project's disks, newest first.
    pub async fn backups(&self, page: Page) -> Result<List<Backup>> {
        self.client.list(&self.backups_path(), &page).await
    }

    /// Backups of one disk, newest first.
    pub async fn backups_of(&self, disk: &str, Page { page, limit }: Page) -> Result<List<Backup>> {
        self.client.list(&self.backups_path(), &Of { disk_id: disk, page, limit }).await
    }

    /// Backups that have this name, newest first.
    pub async fn backups_named(&self, name: &str, page: Page) -> Result<List<Backup>> {
        self.client.list(&self.backups_path(), &Named::new(name, page)).await
    }

    /// One backup.
    pub async fn backup(&self, id: &str) -> Result<Backup> {
        self.client.get(&self.backup_path(id)).await
    }

    /// Deletes a backup; the disk that it is of stays. An administrator of the platform may have one forgotten whose store does
    /// not come back: whatever lies there stays.
    pub async fn delete_backup(&self, id: &str, forget: bool) -> Result<()> {
        let query = if forget { "?forget=true" } else { "" };
        self.client.delete(&format!("{}{query}", self.backup_path(id))).await
    }

    /// Makes a new disk with what a backup has, called so or as the backup; it becomes `ready` after the answer.
    pub async fn restore_backup(&self, id: &str, name: Option<&str>) -> Result<RestoredDisk> {
        self.client.post(&format!("{}/restore", self.backup_path(id)), Some(&Restore { name })).await
    }
}
