//! Verbs on uploads: archives that templates are built of, an image or the files of a Dockerfile.
//!
//! They are not for keeping: each goes after a day, and the files of a Dockerfile when it was built.

use std::path::Path;

use berth_domain::hex;
use berth_domain::ids::UploadId;
use berth_domain::{Code, Error, Result};
use berth_host::sandbox::DISK_FULL;
use bytes::Bytes;
use futures::Stream;
use serde_json::json;
use uuid::Uuid;

use super::admit_stored;
use crate::db::audit::Audit;
use crate::http::auth::Scope;
use crate::http::idempotency::{Idempotency, Outcome};
use crate::services::quota::require_project;
use crate::services::received::{Receiving, again, was_received};
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
pub async fn create(
    sandboxes: &Sandboxes,
    scope: &Scope,
    body: impl Stream<Item = Result<Bytes>> + Unpin,
    key: Idempotency,
) -> Result<Outcome<UploadView>> {
    if was_received(sandboxes.db(), scope, &key, sandboxes.clock().now()).await? {
        let (_, digest) = receive(sandboxes, None, body, true).await?;
        return again(sandboxes.db(), scope, key, ("upload", &digest), sandboxes.clock().now()).await;
    }
    let mut row = begin(sandboxes, scope).await?;
    let mut unfinished = Unfinished { sandboxes: sandboxes.clone(), id: Some(row.id) };
    has_room(sandboxes).await?;
    let file = sandboxes.engine().upload(row.id).await.map_err(Error::unavailable)?;
    let (bytes, digest) = receive(sandboxes, Some(&file), body, key.is_given()).await?;
    row.bytes = bytes;
    let key = key.of_body(&digest);
    let now = sandboxes.clock().now();
    row.expires_at = now.plus_seconds(KEPT);
    let mut tx = sandboxes.db().begin_as(scope).await?;
    if !store::upload::received(&mut tx, row.id, row.bytes, row.expires_at).await? {
        return Err(Error::new(Code::InvalidRequest, "The upload took too long; send it again."));
    }
    let subject = row.id.to_string();
    let data = json!({"bytes": row.bytes});
    Audit { data, ..scope.audit("upload.create", &subject) }.write_and_tell(&mut tx, now).await?;
    let view = UploadView::from(&row);
    let created = key.created(&mut tx, now, view.location(scope), view).await?;
    tx.commit().await?;
    unfinished.id = None;
    Ok(created)
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
    let mut tx = sandboxes.db().begin_as(scope).await?;
    require_project(&mut tx, scope).await?;
    admit_stored(&mut tx, sandboxes, scope).await?;
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

/// Refuses with 507 where the host's disk is almost full.
async fn has_room(sandboxes: &Sandboxes) -> Result<()> {
    let host = sandboxes.engine().capacity().await.map_err(Error::unavailable)?;
    if host.has_room(0) { Ok(()) } else { Err(Error::new(Code::NoSpace, format!("Nothing can be sent: {DISK_FULL}."))) }
}

/// Receives an archive into a file, if there is one: its bytes, and its digest where that is wanted.
async fn receive(
    sandboxes: &Sandboxes,
    file: Option<&Path>,
    body: impl Stream<Item = Result<Bytes>> + Unpin,
    is_hashed: bool,
) -> Result<(i64, String)> {
    let most = u64::try_from(sandboxes.config().upload_mb).unwrap_or(0).saturating_mul(MIB);
    let too_large = || Error::new(Code::PayloadTooLarge, format!("An upload may have at most {} MiB.", most / MIB));
    let admits = |bytes| if bytes > most { Err(too_large()) } else { Ok(()) };
    let received = Receiving { file, is_hashed }.of(body, admits, || has_room(sandboxes)).await?;
    if received.bytes == 0 {
        return Err(Error::new(Code::InvalidRequest, "The body is empty; send a tar archive."));
    }
    let digest = received.sha256.map(|sha256| hex::encode(&sha256)).unwrap_or_default();
    Ok((i64::try_from(received.bytes).map_err(Error::internal)?, digest))
}

/// Records the wish to remove an upload. A build that reads it already reads on.
pub async fn delete(sandboxes: &Sandboxes, scope: &Scope, id: UploadId) -> Result<()> {
    let now = sandboxes.clock().now();
    let mut tx = sandboxes.db().begin_as(scope).await?;
    store::upload::find(&mut tx, scope.into(), id).await?.ok_or_else(not_found)?;
    scope.audit("upload.delete", &id.to_string()).write_and_tell(&mut tx, now).await?;
    store::upload::dismiss(&mut tx, id, now).await?;
    Ok(tx.commit().await?)
}
