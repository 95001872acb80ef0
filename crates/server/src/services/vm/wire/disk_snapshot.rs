//! Snapshots of disks as their owner sees them.

use berth_domain::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::vm::DiskTypeWord;
use crate::http::auth::Scope;
use crate::services::vm::store::disk_snapshot::DiskSnapshotRow;

/// A snapshot of a disk: what the disk was at one moment after the request.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DiskSnapshotResponse)]
pub struct DiskSnapshotView {
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
    /// How large the disk was, in GiB: the least of what is made from the snapshot.
    size_gb: i64,
    /// What it takes on the host, in bytes, once it is ready; in a store the most that it may take there.
    #[schema(required = true)]
    bytes: Option<i64>,
    /// Region it lies in.
    region_id: String,
    /// The store of several hosts that it lies in, as its disk did. Null where it lies on a host.
    #[schema(required = true)]
    store: Option<String>,
    /// The image that a root disk volume was cloned from.
    #[schema(required = true)]
    image_id: Option<String>,
    /// Where it stands.
    #[schema(value_type = DiskSnapshotStatus)]
    status: &'static str,
    /// The reason of a failure.
    #[schema(required = true)]
    message: Option<String>,
    /// Creation.
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    /// Last change.
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
}

/// Where a snapshot of a disk stands.
#[derive(ToSchema)]
#[serde(rename_all = "snake_case")]
#[expect(dead_code, reason = "describes a word of the wire")]
pub(crate) enum DiskSnapshotStatus {
    Pending,
    Ready,
    Failed,
    Deleting,
}

/// What a disk is for.
#[derive(ToSchema)]
#[serde(rename_all = "snake_case")]
#[expect(dead_code, reason = "describes a word of the wire")]
pub(crate) enum DiskKindWord {
    Root,
    Data,
}

/// A snapshot to make, of exactly one disk.
#[derive(ToSchema)]
#[schema(as = CreateDiskSnapshotRequest)]
#[expect(dead_code, reason = "describes a body; the domain parses it")]
pub(crate) struct CreateDiskSnapshotBody {
    /// A data disk.
    #[schema(value_type = Option<uuid::Uuid>)]
    disk_id: Option<String>,
    /// A root disk volume.
    #[schema(value_type = Option<uuid::Uuid>)]
    root_disk_id: Option<String>,
    /// As the disk where it is missing.
    #[schema(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length = 1, max_length = 20)]
    name: Option<String>,
}

impl From<&DiskSnapshotRow> for DiskSnapshotView {
    fn from(snapshot: &DiskSnapshotRow) -> Self {
        Self {
            id: snapshot.id.to_string(),
            name: snapshot.name.clone(),
            kind: snapshot.kind.as_str(),
            disk_type: snapshot.disk_type.as_str(),
            disk_id: snapshot.disk.to_string(),
            size_gb: snapshot.size_gb,
            bytes: snapshot.bytes,
            region_id: snapshot.region_id.clone(),
            store: snapshot.lies_in().map(str::to_owned),
            image_id: snapshot.image_id.clone(),
            status: snapshot.status.as_str(),
            message: snapshot.message.clone(),
            created_at: snapshot.created_at,
            updated_at: snapshot.updated_at,
        }
    }
}

impl DiskSnapshotView {
    /// The path of the snapshot.
    pub fn location(&self, scope: &Scope) -> String {
        format!("/api/v1/orgs/{}/projects/{}/disk_snapshots/{}", scope.org, scope.project, self.id)
    }
}
