//! Backups as their owner sees them.

use berth_domain::Timestamp;
use berth_domain::ids::DiskId;
use berth_domain::vm::DiskKind;
use serde::Serialize;
use utoipa::ToSchema;

use super::disk::{DiskView, RootDiskView};
use super::disk_snapshot::DiskKindWord;
use super::vm::DiskTypeWord;
use crate::http::auth::Scope;
use crate::services::vm::store::backup::BackupRow;
use crate::services::vm::store::disk::DiskRow;

/// A backup of a disk: what the disk was at one moment after the request, kept outside of the host.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = BackupResponse)]
pub struct BackupView {
    /// Identifier.
    #[schema(value_type = uuid::Uuid)]
    id: String,
    /// Its name; its disk's where the request had none.
    name: String,
    /// Whether it is of a root disk volume or of a data disk.
    #[schema(value_type = DiskKindWord)]
    kind: &'static str,
    /// How that disk is handed to a guest.
    #[serde(rename = "type")]
    #[schema(value_type = DiskTypeWord)]
    disk_type: &'static str,
    /// The disk that it is of, which may be gone by now.
    #[schema(value_type = uuid::Uuid)]
    disk_id: String,
    /// How large the disk was, in GiB, and how large one is that is made of the backup.
    size_gb: i64,
    /// What it takes in the store, in bytes, once it is ready.
    #[schema(required = true)]
    size_bytes: Option<i64>,
    /// What that hashes to, once it is ready: `sha256:` and hexadecimal digits. It was read back from the store.
    #[schema(required = true)]
    digest: Option<String>,
    /// Region of the disk, and of one that is made of the backup.
    region_id: String,
    /// The image that a root disk volume was cloned from.
    #[schema(required = true)]
    image_id: Option<String>,
    /// The schedule that made it, which may be gone.
    #[schema(value_type = Option<uuid::Uuid>, required = true)]
    schedule_id: Option<String>,
    /// Where it stands.
    #[schema(value_type = BackupStatus)]
    status: &'static str,
    /// How far it is, or the reason of a failure.
    #[schema(required = true)]
    message: Option<String>,
    /// Creation.
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    /// Last change.
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
}

/// What a request for backups made: a backup of a disk, or one of each disk of a VM.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CreatedBackups)]
#[serde(untagged)]
pub enum MadeBackupsView {
    /// The one.
    One(Box<BackupView>),
    /// As many as the VM has disks.
    Several {
        /// The backups, that of the root disk first.
        data: Vec<BackupView>,
    },
}

impl MadeBackupsView {
    /// The answer with these backups, as a list or alone; none where there is nothing to show.
    pub fn of(mut made: Vec<BackupView>, is_list: bool) -> Option<Self> {
        if is_list { Some(Self::Several { data: made }) } else { made.pop().map(|one| Self::One(Box::new(one))) }
    }
}

/// The disk that is made of a backup: a data disk, or a root disk volume.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RestoredDisk)]
#[serde(untagged)]
pub enum RestoredView {
    /// A data disk.
    Data(Box<DiskView>),
    /// A root disk volume.
    Root(Box<RootDiskView>),
}

impl From<&DiskRow> for RestoredView {
    fn from(disk: &DiskRow) -> Self {
        match disk.kind {
            DiskKind::Data => Self::Data(Box::new(disk.into())),
            DiskKind::Root => Self::Root(Box::new(disk.into())),
        }
    }
}

impl RestoredView {
    /// The path of the disk.
    pub fn location(&self, scope: &Scope, id: DiskId) -> String {
        let noun = match self {
            Self::Data(_) => "disks",
            Self::Root(_) => "root_disks",
        };
        format!("/api/v1/orgs/{}/projects/{}/{noun}/{id}", scope.org, scope.project)
    }
}

/// Where a backup stands.
#[derive(ToSchema)]
#[serde(rename_all = "snake_case")]
#[expect(dead_code, reason = "describes a word of the wire")]
pub(crate) enum BackupStatus {
    Pending,
    Running,
    Ready,
    Failed,
    Deleting,
}

/// A backup to make, of exactly one thing.
#[derive(ToSchema)]
#[schema(as = CreateBackupRequest)]
#[expect(dead_code, reason = "describes a body; the domain parses it")]
pub(crate) struct CreateBackupBody {
    /// A data disk.
    #[schema(value_type = Option<uuid::Uuid>)]
    disk_id: Option<String>,
    /// A root disk volume.
    #[schema(value_type = Option<uuid::Uuid>)]
    root_disk_id: Option<String>,
    /// A VM, each disk of which gets a backup; they are not of exactly the same moment.
    #[schema(value_type = Option<uuid::Uuid>)]
    vm_id: Option<String>,
    /// As the disk where it is missing.
    #[schema(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length = 1, max_length = 20)]
    name: Option<String>,
}

/// A disk to make of a backup.
#[derive(ToSchema)]
#[schema(as = RestoreBackupRequest)]
#[expect(dead_code, reason = "describes a body; the domain parses it")]
pub(crate) struct RestoreBackupBody {
    /// As the backup where it is missing.
    #[schema(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length = 1, max_length = 20)]
    name: Option<String>,
}

impl From<&BackupRow> for BackupView {
    fn from(backup: &BackupRow) -> Self {
        Self {
            id: backup.id.to_string(),
            name: backup.name.clone(),
            kind: backup.kind.as_str(),
            disk_type: backup.disk_type.as_str(),
            disk_id: backup.disk.to_string(),
            size_gb: backup.size_gb,
            size_bytes: backup.size_bytes,
            digest: backup.sha256.as_ref().map(|sha256| format!("sha256:{sha256}")),
            region_id: backup.region_id.clone(),
            image_id: backup.image_id.clone(),
            schedule_id: backup.schedule.map(|id| id.to_string()),
            status: backup.status.as_str(),
            message: backup.message.clone(),
            created_at: backup.created_at,
            updated_at: backup.updated_at,
        }
    }
}

impl BackupView {
    /// The path of the backup.
    pub fn location(&self, scope: &Scope) -> String {
        format!("/api/v1/orgs/{}/projects/{}/backups/{}", scope.org, scope.project, self.id)
    }
}
