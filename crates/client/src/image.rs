//! Images, and what else is on offer.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio_util::io::ReaderStream;

use crate::transport::{query_text, segment};
use crate::{Client, List, Page, Result};

/// An image.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Image {
    /// Id.
    pub id: String,
    /// Name for people.
    pub name: String,
    /// Content hash.
    pub version: String,
    /// The user who gets the SSH keys.
    pub login_user: String,
    /// Smallest root disk, in GiB.
    pub virtual_size_gb: i64,
    /// Smallest memory, in MiB.
    pub min_memory_mb: i64,
    /// `importing`, `ready` or `failed`.
    pub status: String,
    /// The step under way, or the reason of a failure.
    pub message: Option<String>,
    /// Creation, RFC 3339.
    pub created_at: String,
}

/// An image to import.
#[derive(Clone, Debug)]
pub struct NewImage {
    /// Id.
    pub id: String,
    /// Name for people.
    pub name: Option<String>,
    /// The user who gets the SSH keys.
    pub login_user: Option<String>,
    /// SHA-256 that its content must have.
    pub sha256: Option<String>,
    /// `bios` or `uefi`.
    pub firmware: Option<String>,
}

/// The source of an image.
#[derive(Clone, Debug)]
pub enum ImageSource {
    /// The service downloads it.
    Url(String),
    /// The client uploads it.
    File(PathBuf),
}

/// A region.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Region {
    /// Id.
    pub id: String,
    /// Name for people.
    pub name: String,
}

/// A size of machines.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct VmConfig {
    /// Id.
    pub id: String,
    /// Virtual CPUs.
    pub vcpu: u32,
    /// Memory in MiB.
    pub memory_mb: u64,
    /// GPU model, if it has GPUs.
    pub gpu_model: Option<String>,
    /// Most GPUs.
    pub gpu_max: i64,
}

/// A pricing plan.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Plan {
    /// Id.
    pub id: String,
    /// Name for people.
    pub name: String,
    /// What an hour of its VMs costs.
    #[serde(default)]
    pub price: PlanPrice,
    /// What an hour of a GiB of a disk costs, in units of money.
    #[serde(default)]
    pub disk_gb_hour: f64,
}

/// What an hour of a plan's VMs costs, in units of money.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub struct PlanPrice {
    /// Of a virtual CPU.
    pub vcpu_hour: f64,
    /// Of a GiB of memory.
    pub memory_gb_hour: f64,
    /// Of a GPU.
    pub gpu_hour: f64,
}

impl NewImage {
    fn fields(&self) -> Map<String, Value> {
        let given = [
            ("name", &self.name),
            ("login_user", &self.login_user),
            ("sha256", &self.sha256),
            ("firmware", &self.firmware),
        ];
        given.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value.clone()?.into()))).collect()
    }
}

impl Client {
    /// Images, newest first.
    pub async fn images(&self, page: Page) -> Result<List<Image>> {
        self.list("/api/v1/images", &page).await
    }

    /// One image.
    pub async fn image(&self, id: &str) -> Result<Image> {
        self.get(&format!("/api/v1/images/{}", segment(id))).await
    }

    /// Imports an image. From a URL the answer comes at once, and the image becomes `ready` later.
    pub async fn import_image(&self, image: &NewImage, source: &ImageSource) -> Result<Image> {
        match source {
            ImageSource::Url(url) => {
                let mut body = image.fields();
                body.insert("id".into(), image.id.clone().into());
                body.insert("url".into(), url.clone().into());
                self.post("/api/v1/images", Some(&body)).await
            }
            ImageSource::File(file) => self.upload_image(image, file).await,
        }
    }

    async fn upload_image(&self, image: &NewImage, file: &Path) -> Result<Image> {
        // An upload cannot be sent twice, so this request first makes sure of the token.
        self.me().await?;
        let open = tokio::fs::File::open(file).await?;
        let length = open.metadata().await?.len();
        let query = query_text(&image.fields())?;
        let path = format!("/api/v1/images/{}/content?{query}", segment(&image.id));
        self.put_stream(&path, reqwest::Body::wrap_stream(ReaderStream::with_capacity(open, 256 * 1024)), length).await
    }

    /// Removes an image that no disk is a clone of.
    pub async fn delete_image(&self, id: &str) -> Result<()> {
        self.delete(&format!("/api/v1/images/{}", segment(id))).await
    }

    /// Regions.
    pub async fn regions(&self) -> Result<List<Region>> {
        self.list("/api/v1/regions", &Page::default()).await
    }

    /// Sizes of machines.
    pub async fn vm_configs(&self) -> Result<List<VmConfig>> {
        self.list("/api/v1/vm_configs", &Page::default()).await
    }

    /// Pricing plans.
    pub async fn plans(&self) -> Result<List<Plan>> {
        self.list("/api/v1/plans", &Page::default()).await
    }
}
