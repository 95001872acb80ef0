//! Images of a project as its members see them.

use berth_domain::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use crate::http::auth::Scope;
use crate::services::vm::store::project_image::ProjectImageRow;

/// An image that the project made of a root disk volume; `image_id` of a VM of the project takes its id.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ProjectImageResponse)]
pub struct ProjectImageView {
    /// Id in requests.
    #[schema(value_type = uuid::Uuid)]
    id: String,
    /// Name for people.
    name: String,
    /// Operating system, once it is ready.
    #[schema(required = true)]
    os: Option<String>,
    /// SHA-256 of its file in hexadecimal, once it is ready.
    #[schema(required = true)]
    version: Option<String>,
    /// The user that SSH keys are installed for.
    login_user: String,
    /// Least size of a root disk cloned from it, in GiB, once it is ready.
    #[schema(required = true)]
    virtual_size_gb: Option<i64>,
    /// Least memory it boots with, in MiB, once it is ready.
    #[schema(required = true)]
    min_memory_mb: Option<i64>,
    /// What it counts as, in GiB: the size of the disk at that time.
    size_gb: i64,
    /// The root disk volume that it is of, which may be gone by now.
    #[schema(value_type = uuid::Uuid)]
    root_disk_id: String,
    /// The image that this volume was cloned from.
    image_id: String,
    /// Region it lies in.
    region_id: String,
    /// Where it stands.
    #[schema(value_type = ProjectImageStatusWord)]
    status: &'static str,
    /// The step under way, or the reason of a failure.
    #[schema(required = true)]
    message: Option<String>,
    /// Creation.
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    /// Last change.
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
}

/// Where a project's image stands.
#[derive(ToSchema)]
#[serde(rename_all = "snake_case")]
#[expect(dead_code, reason = "describes a word of the wire")]
pub(crate) enum ProjectImageStatusWord {
    Pending,
    Ready,
    Failed,
    Deleting,
}

/// An image to make.
#[derive(ToSchema)]
#[schema(as = CreateProjectImageRequest)]
#[expect(dead_code, reason = "describes a body; the domain parses it")]
pub(crate) struct CreateProjectImageBody {
    /// The root disk volume, whose VM may run.
    #[schema(value_type = uuid::Uuid)]
    from_root_disk: String,
    /// Name for people.
    #[schema(min_length = 1, max_length = 100)]
    name: String,
}

impl From<&ProjectImageRow> for ProjectImageView {
    fn from(image: &ProjectImageRow) -> Self {
        let is_known = !image.version.is_empty();
        Self {
            id: image.id.to_string(),
            name: image.name.clone(),
            os: is_known.then(|| image.os.clone()),
            version: is_known.then(|| image.version.clone()),
            login_user: image.login_user.clone(),
            virtual_size_gb: is_known.then_some((image.virtual_size + (1 << 30) - 1) >> 30),
            min_memory_mb: is_known.then_some(image.min_memory_mb),
            size_gb: image.size_gb,
            root_disk_id: image.disk.to_string(),
            image_id: image.image_id.clone(),
            region_id: image.region_id.clone(),
            status: image.status.as_str(),
            message: image.message.clone(),
            created_at: image.created_at,
            updated_at: image.updated_at,
        }
    }
}

impl ProjectImageView {
    /// The path of the image.
    pub fn location(&self, scope: &Scope) -> String {
        format!("/api/v1/orgs/{}/projects/{}/images/{}", scope.org, scope.project, self.id)
    }
}
