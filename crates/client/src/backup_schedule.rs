//! Schedules of backups.

use serde::{Deserialize, Serialize};

use crate::transport::segment;
use crate::{List, Page, ProjectClient, Result};

/// A schedule of backups, of exactly one of three.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct BackupSchedule {
    /// Id.
    pub id: String,
    /// Name, and that of its backups.
    pub name: String,
    /// The data disk of which it makes backups.
    pub disk_id: Option<String>,
    /// The root disk volume of which it does.
    pub root_disk_id: Option<String>,
    /// The VM of whose disks it does.
    pub vm_id: Option<String>,
    /// A span like `24h`, or times in the form of cron, in UTC.
    pub every: String,
    /// How many good backups of each disk are kept.
    pub keep: i64,
    /// Whether it makes any.
    pub enabled: bool,
    /// When it was time last, RFC 3339.
    pub last_at: Option<String>,
    /// When it is time next, RFC 3339.
    pub next_at: Option<String>,
    /// Why it made none the last time.
    pub message: Option<String>,
    /// Creation, RFC 3339.
    pub created_at: String,
    /// Last change, RFC 3339.
    pub updated_at: String,
}

/// A schedule to make, of exactly one of three.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NewBackupSchedule {
    /// Name, and that of its backups.
    pub name: String,
    /// A data disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_id: Option<String>,
    /// A root disk volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub root_disk_id: Option<String>,
    /// A VM: each disk that it has then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vm_id: Option<String>,
    /// A span like `24h`, or times in the form of cron, in UTC.
    pub every: String,
    /// How many good backups of each disk are kept.
    pub keep: i64,
}

/// A change of a schedule; absent fields stay as they are.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ChangeBackupSchedule {
    /// New name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// New times.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every: Option<String>,
    /// How many are kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep: Option<i64>,
    /// Whether it makes any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
}

impl ProjectClient {
    fn backup_schedules_path(&self) -> String {
        format!("{}/backup_schedules", self.path)
    }

    fn backup_schedule_path(&self, id: &str) -> String {
        format!("{}/{}", self.backup_schedules_path(), segment(id))
    }

    /// Makes a schedule of backups.
    pub async fn create_backup_schedule(&self, request: &NewBackupSchedule) -> Result<BackupSchedule> {
        self.client.post(&self.backup_schedules_path(), Some(request)).await
    }

    /// Schedules of backups, newest first.
    pub async fn backup_schedules(&self, page: Page) -> Result<List<BackupSchedule>> {
        self.client.list(&self.backup_schedules_path(), &page).await
    }

    /// One schedule.
    pub async fn backup_schedule(&self, id: &str) -> Result<BackupSchedule> {
        self.client.get(&self.backup_schedule_path(id)).await
    }

    /// Changes a schedule.
    pub async fn update_backup_schedule(&self, id: &str, change: &ChangeBackupSchedule) -> Result<BackupSchedule> {
        self.client.patch(&self.backup_schedule_path(id), change).await
    }

    /// Ends a schedule; the backups that it made stay.
    pub async fn delete_backup_schedule(&self, id: &str) -> Result<()> {
        self.client.delete(&self.backup_schedule_path(id)).await
    }
}
