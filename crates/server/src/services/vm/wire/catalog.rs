//! Images and quota as callers see them.

use berth_domain::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use crate::services::vm::store::image::ImageRow;

/// An image.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ImageResponse)]
pub struct ImageView {
    /// Id in requests.
    id: String,
    /// Name for people.
    name: String,
    /// Operating system.
    os: String,
    /// Content hash of what it was made from.
    version: String,
    /// The user that SSH keys are installed for.
    login_user: String,
    /// Least size of a root disk cloned from it, in GiB.
    virtual_size_gb: i64,
    /// Least memory it boots with, in MiB.
    min_memory_mb: i64,
    /// `importing`, `ready` or `failed`.
    status: String,
    /// The step under way, or the reason of a failure.
    #[schema(required = true)]
    message: Option<String>,
    /// Creation.
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
}

impl From<ImageRow> for ImageView {
    fn from(row: ImageRow) -> Self {
        Self {
            id: row.id,
            name: row.name,
            os: row.os,
            version: row.version,
            login_user: row.login_user,
            virtual_size_gb: (row.virtual_size + (1 << 30) - 1) >> 30,
            min_memory_mb: row.min_memory_mb,
            status: row.status,
            message: row.message,
            created_at: row.created_at,
        }
    }
}

impl ImageView {
    /// The path of the image.
    pub fn location(&self) -> String {
        format!("/api/v1/images/{}", self.id)
    }
}

/// What a project has, and what it may have; a limit of `null` is none.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = QuotaResponse)]
pub struct QuotaView {
    /// VMs.
    pub vms: Quota,
    /// Virtual CPUs.
    pub vcpu: Quota,
    /// Memory, in MiB.
    pub memory_mb: Quota,
    /// Disks.
    pub disks: Quota,
    /// Disk, in GiB.
    pub disk_gb: Quota,
}

/// One quantity.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = QuotaEntry)]
pub struct Quota {
    /// What is used.
    pub used: i64,
    /// What is allowed; `null` is no limit.
    #[schema(required = true)]
    pub limit: Option<i64>,
}

impl Quota {
    /// A quantity without a limit.
    pub const fn unlimited(used: i64) -> Self {
        Self { used, limit: None }
    }
}
