//! Verbs on uploads: archives that templates are built of, an image or the files of a Dockerfile.
//!
//! They are not for keeping: each goes after a day, and the files of a Dockerfile when it was built.

use std::path::Path;

use berth_domain::ids::UploadId;
use berth_domain::{Code, Error, Result};
use bytes::Bytes;
use futures::{Stream, StreamExt};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use uuid::Uuid;

use crate::db::audit::Audit;
use crate::http::auth::Scope;
use crate::services::quota::require_project;
use crate::services::sandbox::Sandboxes;
use crate::services::sandbox::store;
use crate::services::sandbox::store::upload::UploadRow;
use crate::services::sandbox::wire::upload::UploadView;

/// Seconds that an upload is kept.
const KEPT: i64 = 86_400;
/// Seconds that it may be on its way.
const ON_ITS_WAY: i64 = 4 * 3600;
/// Most uploads of a project at a time.
pub const MOST: i64 = 16;
/// Bytes of a MiB.
const MIB: u64 = 1 << 20;

/// The 404 of an upload.
pub fn not_found() -> Error {
    Error::new(Code::NotFound, "There is no such upload in this project. It may be over; send it again.")
}

/// Receives an archive. Its row is older than its file, and says that it is on its way until all of it is there.
pub async fn create<E: std::fmt::Display>(
    sandboxes: &Sandboxes,
    scope: &Scope,
    body: impl Stream<Item = std::result::Result<Bytes, E>> + Unpin,
) -> Result<UploadView> {
    let mut row = begin(sandboxes, scope).await?;
    let most = u64::try_from(sandboxes.config().upload_mb).unwrap_or(0).saturating_mul(MIB);
    let mut unfinished = Unfinished { sandboxes: sandboxes.clone(), id: Some(row.id) };
    let file = sandboxes.engine().upload(row.id).await.map_err(Error::unavailable)?;
    row.bytes = receive(&file, body, most).await?;
    let now = sandboxes.clock().now();
    row.expires_at = now.plus_seconds(KEPT);
    let mut tx = sandboxes.db().begin().await?;
    if !store::upload::received(&mut tx, row.id, row.bytes, row.expires_at).await? {
        return Err(Error::new(Code::InvalidRequest, "The upload took too long; send it again."));
    }
    let subject = row.id.to_string();
    let data = json!({"bytes": row.bytes});
    Audit { data, ..scope.audit("upload.create", &subject) }.write(&mut tx, now).await?;
    tx.commit().await?;
    unfinished.id = None;
    Ok(UploadView::from(&row))
}

/// An upload that is removed where nobody finishes it, also when the request is dropped half way.
struct Unfinished {
    sandboxes: Sandboxes,
    id: Option<UploadId>,
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let Some(id) = self.id else { return };
        let sandboxes = self.sandboxes.clone();
        tokio::spawn(async move {
            if let Err(error) = dismiss(&sandboxes, id).await {
                tracing::warn!(%id, %error, "an upload that broke off is removed later");
            }
        });
    }
}

async fn dismiss(sandboxes: &Sandboxes, id: UploadId) -> Result<()> {
    let mut tx = sandboxes.db().begin().await?;
    store::upload::dismiss(&mut tx, id, sandboxes.clock().now()).await?;
    Ok(tx.commit().await?)
}

async fn begin(sandboxes: &Sandboxes, scope: &Scope) -> Result<UploadRow> {
    let now = sandboxes.clock().now();
    let mut tx = sandboxes.db().begin().await?;
    require_project(&mut tx, scope).await?;
    if store::upload::count(&mut tx, scope.into()).await? >= MOST {
        let message =
            format!("A project may have {MOST} uploads at a time. Delete one: GET …/sandbox_uploads lists them.");
        return Err(Error::new(Code::QuotaExceeded, message));
    }
    let row = UploadRow {
        id: UploadId(Uuid::now_v7()),
        org: scope.org,
        project: scope.project,
        bytes: 0,
        present: false,
        created_at: now,
        expires_at: now.plus_seconds(ON_ITS_WAY),
    };
    store::upload::insert(&mut tx, &row).await?;
    tx.commit().await?;
    Ok(row)
}

async fn receive<E: std::fmt::Display>(
    file: &Path,
    mut body: impl Stream<Item = std::result::Result<Bytes, E>> + Unpin,
    most: u64,
) -> Result<i64> {
    let no_space = |error: std::io::Error| Error::unavailable(format!("the upload cannot be written: {error}"));
    let mut out = tokio::fs::File::create(file).await.map_err(Error::internal)?;
    let mut bytes = 0u64;
    while let Some(chunk) = body.next().await {
        let chunk = chunk.map_err(|e| Error::new(Code::InvalidRequest, format!("The upload broke off: {e}.")))?;
        bytes += chunk.len() as u64;
        if bytes > most {
            let message = format!("An upload may have at most {} MiB.", most / MIB);
            return Err(Error::new(Code::PayloadTooLarge, message));
        }
        out.write_all(&chunk).await.map_err(no_space)?;
    }
    if bytes == 0 {
        return Err(Error::new(Code::InvalidRequest, "The body is empty; send a tar archive."));
    }
    // It is named by a row from now on, so it has to outlive a power cut.
    out.sync_all().await.map_err(no_space)?;
    i64::try_from(bytes).map_err(Error::internal)
}

/// Records the wish to remove an upload. A build that reads it already reads on.
pub async fn delete(sandboxes: &Sandboxes, scope: &Scope, id: UploadId) -> Result<()> {
    let now = sandboxes.clock().now();
    let mut tx = sandboxes.db().begin().await?;
    store::upload::find(&mut tx, scope.into(), id).await?.ok_or_else(not_found)?;
    scope.audit("upload.delete", &id.to_string()).write(&mut tx, now).await?;
    store::upload::dismiss(&mut tx, id, now).await?;
    Ok(tx.commit().await?)
}
