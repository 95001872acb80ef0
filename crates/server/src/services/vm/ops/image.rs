//! Verbs on images. Each is a wish; [`reconcile::image`](crate::services::vm::reconcile::image) carries it out.

use std::future::ready;

use berth_domain::vm::ImageStatus;
use berth_domain::vm::image::Import;
use berth_domain::{Code, Error, Result, Timestamp};
use bytes::Bytes;
use futures::Stream;
use serde_json::json;

use crate::db::audit::Audit;
use crate::db::{Signal, Tx};
use crate::http::auth::Person;
use crate::http::idempotency::{Idempotency, Outcome};
use crate::services::received::{Receiving, Unclaimed};
use crate::services::vm::Vms;
use crate::services::vm::store;
use crate::services::vm::store::image::ImageRow;
use crate::services::vm::wire::image::ImageView;

/// The 404 of an image.
pub fn not_found() -> Error {
    Error::new(Code::ImageNotFound, "There is no such image. GET /api/v1/images lists them.")
}

/// Records the wish to import an image.
pub async fn import(vms: &Vms, admin: &Person, import: Import, key: Idempotency) -> Result<Outcome<ImageView>> {
    let now = vms.clock().now();
    let mut tx = vms.db().begin_as(admin).await?;
    if let Some(replayed) = key.replay(&mut tx, now).await? {
        return Ok(replayed);
    }
    let view = wish(&mut tx, admin, &import, now).await?;
    let outcome = key.created(&mut tx, now, view.location(), view).await?;
    tx.commit().await?;
    Ok(outcome)
}

async fn wish(tx: &mut Tx, admin: &Person, import: &Import, now: Timestamp) -> Result<ImageView> {
    refuse_taken(store::image::find(&mut *tx, &import.id).await?)?;
    let row = ImageRow {
        id: import.id.clone(),
        name: import.name.clone(),
        os: "linux".into(),
        version: String::new(),
        login_user: import.login_user.clone(),
        virtual_size: 0,
        min_memory_mb: 0,
        status: ImageStatus::Importing,
        message: Some("waiting for a worker".into()),
        source: Some(serde_json::to_string(import).map_err(Error::internal)?),
        work_at: Some(now),
        created_at: now,
        updated_at: now,
    };
    store::image::put(tx, &row).await?;
    let from = json!({"url": import.url, "path": import.path, "sha256": import.sha256});
    Audit { data: from, ..admin.caller.audit("image.import", &row.id) }.write(tx, now).await?;
    tx.signal(Signal::Work("images"));
    Ok(row.into())
}

fn refuse_taken(existing: Option<ImageRow>) -> Result<()> {
    match existing {
        Some(row) if row.status != ImageStatus::Failed => {
            Err(Error::new(Code::ImageInUse, format!("There is an image '{}' already. Delete it first.", row.id)))
        }
        _ => Ok(()),
    }
}

/// Receives an image that comes with the request, and records the wish to take it in. Until the wish is
/// recorded the file is nobody's: a start of the service sweeps it away.
pub async fn upload(
    vms: &Vms,
    admin: &Person,
    mut import: Import,
    body: impl Stream<Item = Result<Bytes>> + Unpin,
) -> Result<ImageView> {
    refuse_taken(store::image::find(vms.db(), &import.id).await?)?;
    let staging = vms.engine().staging().await.map_err(Error::unavailable)?;
    let name = format!("{}-{}.upload", import.id, uuid::Uuid::now_v7());
    let file = Unclaimed::new(staging.join(&name));
    let most = vms.config().image_bytes();
    let too_large = || Error::new(Code::PayloadTooLarge, format!("An image may have at most {most} bytes."));
    let admits = |bytes| if bytes > most { Err(too_large()) } else { Ok(()) };
    Receiving { file: Some(file.path()), is_hashed: false }.of(body, admits, || ready(Ok(()))).await?;
    import.upload = Some(name);
    let mut tx = vms.db().begin_as(admin).await?;
    let view = wish(&mut tx, admin, &import, vms.clock().now()).await?;
    file.claim();
    tx.commit().await?;
    Ok(view)
}

/// Records the wish to remove an image that no disk was cloned from. Nobody sees it from now on.
pub async fn delete(vms: &Vms, admin: &Person, id: &str) -> Result<()> {
    let now = vms.clock().now();
    let mut tx = vms.db().begin_as(admin).await?;
    let mut row = store::image::find(&mut tx, id).await?.ok_or_else(not_found)?;
    if store::disk::of_image(&mut tx, &row.id).await? > 0 {
        return Err(Error::new(Code::ImageInUse, "Disks were cloned from this image. Delete them first."));
    }
    if store::backup::of_image(&mut tx, &row.id).await? > 0 {
        let message = "Backups of root disks boot with this image once they are restored. Delete them first.";
        return Err(Error::new(Code::ImageInUse, message));
    }
    row.status = ImageStatus::Deleting;
    row.message = None;
    row.work_at = Some(now);
    row.updated_at = now;
    store::image::put(&mut tx, &row).await?;
    admin.caller.audit("image.delete", &row.id).with(json!({"name": row.name})).write(&mut tx, now).await?;
    tx.signal(Signal::Work("images"));
    Ok(tx.commit().await?)
}
