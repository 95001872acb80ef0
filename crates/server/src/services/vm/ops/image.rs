//! Verbs on images.

use berth_domain::error::FieldError;
use berth_domain::fields::{Fields, Parsed, sized, text};
use berth_domain::names::Slug;
use berth_domain::{Code, Error, Result};
use bytes::Bytes;
use futures::{Stream, StreamExt};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::AsyncWriteExt;

use super::Outcome;
use crate::db::Signal;
use crate::http::idempotency::Idempotency;
use crate::http::list::Params;
use crate::services::vm::Vms;
use crate::services::vm::engine::{EngineError, ImageImport, ImageInfo};
use crate::services::vm::store;
use crate::services::vm::store::image::ImageRow;
use crate::services::vm::wire::catalog::ImageView;

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
            sha256,
            uefi,
        });
        f.finish(import)
    }
}

impl Import {
    /// Reads the parameters of an upload.
    pub fn of_upload(id: &str, params: &Params) -> Result<Self> {
        let mut errors = Vec::new();
        let mut read = |field: &str, value: Option<&str>, rule: &dyn Fn(&str) -> Parsed<String>| {
            let parsed = rule(value?);
            parsed.map_err(|message| errors.push(FieldError { field: field.into(), message })).ok()
        };
        let short = |t: &str| {
            if t.is_empty() || t.len() > 400 { Err("must have 1 to 400 bytes".into()) } else { Ok(t.to_owned()) }
        };
        let valid = read("image_id", Some(id), &image_id);
        let name = read("name", params.get("name"), &short);
        let user = read("login_user", params.get("login_user"), &login_user);
        let hash = read("sha256", params.get("sha256"), &sha256);
        let uefi = read("firmware", params.get("firmware"), &|t| firmware(t).map(|u| u.to_string()));
        if !errors.is_empty() {
            return Err(Error::invalid(errors));
        }
        Ok(Self {
            id: valid.unwrap_or_default(),
            name: name.unwrap_or_else(|| id.to_owned()),
            login_user: user.unwrap_or_else(|| "root".into()),
            url: None,
            path: None,
            sha256: hash,
            uefi: uefi.as_deref() == Some("true"),
        })
    }

    fn row(&self, vms: &Vms) -> ImageRow {
        let now = vms.clock().now();
        ImageRow {
            id: self.id.clone(),
            name: self.name.clone(),
            os: "linux".into(),
            version: String::new(),
            login_user: self.login_user.clone(),
            virtual_size: 0,
            min_memory_mb: 0,
            status: "importing".into(),
            message: Some("waiting for a worker".into()),
            source: serde_json::to_string(self).ok(),
            work_at: Some(now),
            created_at: now,
            updated_at: now,
        }
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

/// The 404 of an image.
pub fn not_found() -> Error {
    Error::new(Code::ImageNotFound, "There is no such image. GET /api/v1/images lists them.")
}

/// Records the wish to import an image.
pub async fn import(vms: &Vms, import: Import, key: Option<Idempotency>) -> Result<Outcome<ImageView>> {
    let now = vms.clock().now();
    let mut tx = vms.db().begin().await?;
    if let Some(key) = &key
        && let Some(replay) = key.replay(&mut tx, now).await?
    {
        return Ok(Outcome::Replayed(replay));
    }
    refuse_taken(store::image::find(&mut tx, &import.id).await?)?;
    let row = import.row(vms);
    store::image::put(&mut tx, &row).await?;
    let view = ImageView::from(row);
    if let Some(key) = &key {
        let body = serde_json::to_string(&view).map_err(Error::internal)?;
        key.keep(&mut tx, now, &view.location(), &body).await?;
    }
    tx.signal(Signal::Work("images"));
    tx.commit().await?;
    Ok(Outcome::Created(view))
}

fn refuse_taken(existing: Option<ImageRow>) -> Result<()> {
    match existing {
        Some(row) if row.status != "failed" => {
            Err(Error::new(Code::ImageInUse, format!("There is an image '{}' already. Delete it first.", row.id)))
        }
        _ => Ok(()),
    }
}

/// Takes in an image that comes with the request.
pub async fn upload<E: std::fmt::Display>(
    vms: &Vms,
    import: Import,
    mut body: impl Stream<Item = std::result::Result<Bytes, E>> + Unpin,
) -> Result<ImageRow> {
    refuse_taken(store::image::find(vms.db(), &import.id).await?)?;
    let staging = vms.engine().staging().await.map_err(engine_error)?;
    let file = staging.join(format!("{}.upload", uuid::Uuid::now_v7()));
    let written = async {
        let mut out = tokio::fs::File::create(&file).await.map_err(Error::internal)?;
        while let Some(chunk) = body.next().await {
            let chunk = chunk.map_err(|e| Error::new(Code::InvalidRequest, format!("The upload broke off: {e}.")))?;
            out.write_all(&chunk).await.map_err(no_space)?;
        }
        out.flush().await.map_err(no_space)
    };
    let taken = match written.await {
        Ok(()) => vms.engine().import_image(&file, &import.for_engine()).await.map_err(engine_error),
        Err(error) => Err(error),
    };
    // Whether it worked or not, the uploaded file has served.
    let _ = tokio::fs::remove_file(&file).await;
    record(vms, taken?).await
}

fn no_space(error: std::io::Error) -> Error {
    Error::unavailable(format!("the upload cannot be written: {error}"))
}

/// Writes an image that the engine has.
pub async fn record(vms: &Vms, info: ImageInfo) -> Result<ImageRow> {
    let now = vms.clock().now();
    let mut tx = vms.db().begin().await?;
    let known = store::image::find(&mut tx, &info.id).await?;
    let row = ImageRow {
        id: info.id,
        name: info.name,
        os: info.os,
        version: info.version,
        login_user: info.login_user,
        virtual_size: info.virtual_size,
        min_memory_mb: info.min_memory_mb,
        status: "ready".into(),
        message: None,
        source: None,
        work_at: None,
        created_at: known.map_or(now, |row| row.created_at),
        updated_at: now,
    };
    store::image::put(&mut tx, &row).await?;
    tx.commit().await?;
    Ok(row)
}

/// Removes an image that no disk was cloned from.
pub async fn delete(vms: &Vms, id: &str) -> Result<()> {
    let mut tx = vms.db().begin().await?;
    let row = store::image::find(&mut tx, id).await?.ok_or_else(not_found)?;
    if store::disk::of_image(&mut tx, &row.id).await? > 0 {
        return Err(Error::new(Code::ImageInUse, "Disks were cloned from this image. Delete them first."));
    }
    vms.engine().remove_image(&row.id).await.map_err(engine_error)?;
    store::image::remove(&mut tx, &row.id, vms.clock().now()).await?;
    Ok(tx.commit().await?)
}

fn engine_error(error: EngineError) -> Error {
    match error {
        EngineError::Transient(cause) => Error::unavailable(cause),
        EngineError::Permanent(message) => Error::new(Code::InvalidRequest, message),
    }
}
