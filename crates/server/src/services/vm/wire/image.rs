//! Images as callers see them and bring them in.

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
    status: &'static str,
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
            status: row.status.as_str(),
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

/// An image to import.
#[derive(ToSchema)]
#[schema(as = ImportImageRequest)]
#[expect(dead_code, reason = "describes")]
pub struct ImportBody {
    /// Id in requests: a DNS label of at most 40 characters.
    #[schema(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length = 1, max_length = 40)]
    id: String,
    /// Name for people.
    #[schema(min_length = 1, max_length = 100)]
    name: Option<String>,
    /// The user that SSH keys are installed for; `root` where cloud-init's default is not known.
    #[schema(pattern = "^[a-z_][a-z0-9_-]{0,31}$")]
    login_user: Option<String>,
    /// Where to get it from: `http` or `https`. Exactly one of `url` and `path`.
    url: Option<String>,
    /// A file on the host.
    path: Option<String>,
    /// What its content has to hash to.
    #[schema(pattern = "^[0-9a-fA-F]{64}$")]
    sha256: Option<String>,
    /// How it boots: `bios` (default) or `uefi`.
    #[schema(pattern = "^(bios|uefi)$")]
    firmware: Option<String>,
}
