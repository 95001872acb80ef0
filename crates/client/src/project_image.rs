//! Images that a project made of its root disks.

use serde::{Deserialize, Serialize};

use crate::transport::{Named, segment};
use crate::{List, Page, ProjectClient, Result};

/// An image of a project.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ProjectImage {
    /// Id, as a VM's `image_id`.
    pub id: String,
    /// Name for people.
    pub name: String,
    /// Operating system, once it is ready.
    pub os: Option<String>,
    /// SHA-256 of its file, once it is ready.
    pub version: Option<String>,
    /// The user who gets the SSH keys.
    pub login_user: String,
    /// Smallest root disk, in GiB, once it is ready.
    pub virtual_size_gb: Option<i64>,
    /// Smallest memory, in MiB, once it is ready.
    pub min_memory_mb: Option<i64>,
    /// How large its disk was, in GiB.
    pub size_gb: i64,
    /// The root disk volume, which may be gone.
    pub root_disk_id: String,
    /// The image that this volume was cloned from.
    pub image_id: String,
    /// Region.
    pub region_id: String,
    /// `pending`, `ready`, `failed` or `deleting`.
    pub status: String,
    /// The step under way, or the reason of a failure.
    pub message: Option<String>,
    /// Creation, RFC 3339.
    pub created_at: String,
    /// Last change, RFC 3339.
    pub updated_at: String,
}

/// An image to make.
#[derive(Clone, Debug, Serialize)]
pub struct NewProjectImage {
    /// The root disk volume, whose VM may run.
    pub from_root_disk: String,
    /// Name for people.
    pub name: String,
}

impl ProjectClient {
    fn images_path(&self) -> String {
        format!("{}/images", self.path)
    }

    fn image_path(&self, id: &str) -> String {
        format!("{}/{}", self.images_path(), segment(id))
    }

    /// Makes an image of a root disk; it becomes `ready` after the answer.
    pub async fn create_image(&self, request: &NewProjectImage) -> Result<ProjectImage> {
        self.client.post(&self.images_path(), Some(request)).await
    }

    /// The project's own images, newest first.
    pub async fn images(&self, page: Page) -> Result<List<ProjectImage>> {
        self.client.list(&self.images_path(), &page).await
    }

    /// The project's own images that have this name, newest first.
    pub async fn images_named(&self, name: &str, page: Page) -> Result<List<ProjectImage>> {
        self.client.list(&self.images_path(), &Named::new(name, page)).await
    }

    /// One of the project's own images.
    pub async fn image(&self, id: &str) -> Result<ProjectImage> {
        self.client.get(&self.image_path(id)).await
    }

    /// Deletes one of the project's own images; what was cloned from it stays.
    pub async fn delete_image(&self, id: &str) -> Result<()> {
        self.client.delete(&self.image_path(id)).await
    }
}
