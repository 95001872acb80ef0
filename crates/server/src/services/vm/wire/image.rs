//! Images as callers see them and bring them in.

use berth_domain::fields::{Fields, Parsed, sized, text};
use berth_domain::names::Slug;
use berth_domain::{Error, Result, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::http::list::Params;
use crate::services::vm::engine::ImageImport;
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

/// A foreign image to take in, as it is kept on its row until that is done.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Import {
    /// Id in requests.
    pub id: String,
    /// Name for people.
    pub name: String,
    /// The user that SSH keys are installed for.
    pub login_user: String,
    /// Where to get it from.
    pub url: Option<String>,
    /// A file of the host.
    pub path: Option<String>,
    /// A file that was uploaded, in the engine's staging folder.
    #[serde(default)]
    pub upload: Option<String>,
    /// What its content has to hash to.
    pub sha256: Option<String>,
    /// Whether it boots by UEFI.
    pub uefi: bool,
}

impl TryFrom<&Value> for Import {
    type Error = Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let id = f.required("id", |v| image_id(text(v)?));
        let name = f.optional("name", sized(1, 100));
        let login_user = f.optional("login_user", |v| login_user(text(v)?));
        let url = f.optional("url", |v| url(text(v)?));
        let path = f.optional("path", sized(1, 4096));
        let sha256 = f.optional("sha256", |v| sha256(text(v)?));
        let uefi = f.optional("firmware", |v| firmware(text(v)?)).unwrap_or(false);
        if f.has("url") == f.has("path") {
            f.fail("url", "give exactly one of url and path");
        }
        let import = id.map(|id| Self {
            name: name.unwrap_or_else(|| id.clone()),
            login_user: login_user.unwrap_or_else(|| "root".into()),
            id,
            url,
            path,
            upload: None,
            sha256,
            uefi,
        });
        f.finish(import)
    }
}

impl Import {
    /// Reads the parameters of an upload.
    pub fn of_upload(id: &str, mut params: Params) -> Result<Self> {
        let short = |t: &str| {
            if t.is_empty() || t.len() > 400 { Err("must have 1 to 400 bytes".into()) } else { Ok(t.to_owned()) }
        };
        let valid = image_id(id).map_err(|message| params.fail("image_id", message)).ok();
        let name = params.read("name", short);
        let user = params.read("login_user", login_user);
        let hash = params.read("sha256", sha256);
        let uefi = params.read("firmware", firmware);
        params.finish()?;
        Ok(Self {
            id: valid.unwrap_or_default(),
            name: name.unwrap_or_else(|| id.to_owned()),
            login_user: user.unwrap_or_else(|| "root".into()),
            url: None,
            path: None,
            upload: None,
            sha256: hash,
            uefi: uefi.unwrap_or(false),
        })
    }

    /// The file that a download is written to, in the engine's staging folder.
    pub fn download(&self) -> String {
        format!("{}.download", self.id)
    }

    /// What the engine is told.
    pub fn for_engine(&self) -> ImageImport {
        ImageImport {
            id: self.id.clone(),
            name: self.name.clone(),
            login_user: self.login_user.clone(),
            sha256: self.sha256.clone(),
            uefi: self.uefi,
        }
    }
}

fn image_id(text: &str) -> Parsed<String> {
    Slug::parse(text).map(|slug| slug.as_str().to_owned())
}

fn login_user(text: &str) -> Parsed<String> {
    let first = text.bytes().next().is_some_and(|b| b.is_ascii_lowercase() || b == b'_');
    let rest = text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_-".contains(&b));
    if first && rest && text.len() <= 32 { Ok(text.to_owned()) } else { Err("must be a user name of Linux".into()) }
}

fn url(text: &str) -> Parsed<String> {
    let known = text.starts_with("http://") || text.starts_with("https://");
    if known && text.len() <= 2048 { Ok(text.to_owned()) } else { Err("must be an http or https URL".into()) }
}

fn sha256(text: &str) -> Parsed<String> {
    let good = text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit());
    if good { Ok(text.to_ascii_lowercase()) } else { Err("must be 64 hexadecimal digits".into()) }
}

fn firmware(text: &str) -> Parsed<bool> {
    match text {
        "bios" => Ok(false),
        "uefi" => Ok(true),
        _ => Err("must be bios or uefi".into()),
    }
}
