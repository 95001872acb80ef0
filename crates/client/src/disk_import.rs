//! Data disks that are made of files which are sent.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{Method, header};
use reqwest::Body;
use serde::Serialize;

use crate::transport::{json, query_text};
use crate::{DataDisk, ProjectClient, Result};

/// A data disk to be made of a file.
#[derive(Clone, Debug, Serialize)]
pub struct ImportedDisk {
    /// Name.
    pub name: String,
    /// `block` or `filesystem`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Size in GiB: at least what the file has for a guest.
    pub size_gb: i64,
    /// Region.
    pub region_id: String,
}

impl ImportedDisk {
    /// All that is said of it, as the query of an address.
    pub fn query(&self) -> Result<String> {
        query_text(self)
    }
}

impl ProjectClient {
    /// Sends a disk, qcow2 or raw, of so many bytes that hash to this (SHA-256), and has a data disk made of it.
    pub async fn import_disk(
        &self,
        disk: &ImportedDisk,
        body: impl Into<Body>,
        (bytes, sha256): (u64, &[u8]),
    ) -> Result<DataDisk> {
        // A file cannot be sent twice, so this request first makes sure of the token.
        self.quota().await?;
        let path = format!("{}/disks/import?{}", self.path, disk.query()?);
        let request = self.client.request(Method::POST, &path).header(header::CONTENT_LENGTH, bytes);
        let request = request.header("Content-Digest", format!("sha-256=:{}:", STANDARD.encode(sha256)));
        json(self.client.once(request.body(body)).await?).await
    }
}
