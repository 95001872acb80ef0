//! Root disk volumes and data disks as their owner sees them.

use berth_domain::Timestamp;
use berth_domain::vm::DiskChange;
use serde::Serialize;
use utoipa::ToSchema;

use super::vm::DiskTypeWord;
use crate::http::auth::Scope;
use crate::services::vm::store::disk::DiskRow;

/// A platform-managed root disk.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RootDiskVolumeResponse)]
pub struct RootDiskView {
    /// Identifier.
    #[schema(value_type = uuid::Uuid)]
    id: String,
    /// Its name.
    name: String,
    /// Organization it belongs to.
    org_id: String,
    /// Project it belongs to.
    project_id: String,
    /// Region it lies in.
    region: String,
    /// The store of several hosts that it lies in. Null where it lies on a host.
    #[schema(required = true)]
    store: Option<String>,
    /// Size in GiB; while it grows, what it grows to.
    size_gb: i64,
    /// Image it was cloned from.
    image_id: String,
    /// The snapshot that it was made of, which may be gone.
    #[schema(value_type = Option<uuid::Uuid>, required = true)]
    snapshot_id: Option<String>,
    /// The backup that it was made of, which may be gone.
    #[schema(value_type = Option<uuid::Uuid>, required = true)]
    backup_id: Option<String>,
    /// How it is handed to the guest.
    volume_mode: &'static str,
    /// Plan it was made under.
    plan_id: String,
    /// Where it stands.
    #[schema(value_type = VolumeStatus)]
    status: &'static str,
    /// What is under way for it while it is ready.
    #[schema(value_type = Option<DiskChangeWord>, required = true)]
    change: Option<&'static str>,
    /// The step under way, or the reason of a failure.
    #[schema(required = true)]
    message: Option<String>,
    /// Whether a VM has it.
    is_attached: bool,
    /// The VM that has it.
    #[schema(value_type = Option<uuid::Uuid>, required = true)]
    vm_id: Option<String>,
    /// What a guest finds it by, also that of a rescue system: `/dev/disk/by-id/virtio-<serial>`.
    serial: String,
    /// Creation.
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    /// Last change.
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
}

/// A data disk.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DataDiskResponse)]
pub struct DiskView {
    /// Identifier.
    #[schema(value_type = uuid::Uuid)]
    id: String,
    /// Its name: where a file system is mounted, below `/mnt`.
    name: String,
    /// How it is handed to the guest.
    #[serde(rename = "type")]
    #[schema(value_type = DiskTypeWord)]
    kind: &'static str,
    /// Size in GiB; while it grows, what it grows to.
    size_gb: i64,
    /// Region it lies in.
    region_id: String,
    /// The store of several hosts that it lies in. Null where it lies on a host.
    #[schema(required = true)]
    store: Option<String>,
    /// The snapshot that it was made of, which may be gone.
    #[schema(value_type = Option<uuid::Uuid>, required = true)]
    snapshot_id: Option<String>,
    /// The backup that it was made of, which may be gone.
    #[schema(value_type = Option<uuid::Uuid>, required = true)]
    backup_id: Option<String>,
    /// Where it stands.
    #[schema(value_type = VolumeStatus)]
    status: &'static str,
    /// What is under way for it while it is ready.
    #[schema(value_type = Option<DiskChangeWord>, required = true)]
    change: Option<&'static str>,
    /// The step under way, or the reason of a failure.
    #[schema(required = true)]
    message: Option<String>,
    /// Whether a VM has it.
    is_attached: bool,
    /// The VM that has it.
    #[schema(value_type = Option<uuid::Uuid>, required = true)]
    vm_id: Option<String>,
    /// What the guest finds it by: `/dev/disk/by-id/virtio-<serial>`.
    serial: String,
    /// Creation.
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    /// Last change.
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
}

/// Where a disk stands.
#[derive(ToSchema)]
#[serde(rename_all = "snake_case")]
#[expect(dead_code, reason = "describes a word of the wire")]
pub(crate) enum VolumeStatus {
    Pending,
    Provisioning,
    Ready,
    Failed,
    Deleting,
}

/// What is under way for a disk.
#[derive(ToSchema)]
#[serde(rename_all = "snake_case")]
#[expect(dead_code, reason = "describes a word of the wire")]
pub(crate) enum DiskChangeWord {
    Growing,
    Attaching,
    Detaching,
}

impl From<&DiskRow> for RootDiskView {
    fn from(disk: &DiskRow) -> Self {
        Self {
            id: disk.id.to_string(),
            name: disk.name.clone(),
            org_id: disk.org.to_string(),
            project_id: disk.project.to_string(),
            region: disk.region_id.clone(),
            store: disk.store.clone(),
            size_gb: disk.extent.wanted_gb,
            image_id: disk.image_id.clone().unwrap_or_default(),
            snapshot_id: disk.snapshot.map(|id| id.to_string()),
            backup_id: disk.backup.map(|id| id.to_string()),
            volume_mode: disk.disk_type.as_str(),
            plan_id: disk.plan_id.clone().unwrap_or_default(),
            status: disk.status.as_str(),
            change: disk.change().map(DiskChange::as_str),
            message: disk.message.clone(),
            is_attached: disk.vm.is_some(),
            vm_id: disk.vm.map(|id| id.to_string()),
            serial: disk.id.serial(),
            created_at: disk.created_at,
            updated_at: disk.updated_at,
        }
    }
}

impl From<&DiskRow> for DiskView {
    fn from(disk: &DiskRow) -> Self {
        Self {
            id: disk.id.to_string(),
            name: disk.name.clone(),
            kind: disk.disk_type.as_str(),
            size_gb: disk.extent.wanted_gb,
            region_id: disk.region_id.clone(),
            store: disk.store.clone(),
            snapshot_id: disk.snapshot.map(|id| id.to_string()),
            backup_id: disk.backup.map(|id| id.to_string()),
            status: disk.status.as_str(),
            change: disk.change().map(DiskChange::as_str),
            message: disk.message.clone(),
            is_attached: disk.vm.is_some(),
            vm_id: disk.vm.map(|id| id.to_string()),
            serial: disk.id.serial(),
            created_at: disk.created_at,
            updated_at: disk.updated_at,
        }
    }
}

impl DiskView {
    /// The path of the disk.
    pub fn location(&self, scope: &Scope) -> String {
        format!("/api/v1/orgs/{}/projects/{}/disks/{}", scope.org, scope.project, self.id)
    }
}
