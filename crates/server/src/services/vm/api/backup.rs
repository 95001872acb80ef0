//! Backups of disks.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use berth_domain::ids::{BackupId, BackupScheduleId, DiskId};
use berth_domain::vm::backup::{CreateBackup, RestoreBackup};

use crate::http::auth::{Editor, Reader};
use crate::http::body;
use crate::http::envelope::ErrorBody;
use crate::http::idempotency::{IdempotencyKey, KeyParam, Outcome};
use crate::http::list::{List, NameParams, PageParams, Params};
use crate::http::path::PathText;
use crate::http::reply::Reply;
use crate::services::vm::ops::backup as ops;
use crate::services::vm::store::backup::{LISTED, Of};
use crate::services::vm::wire::backup::{
    BackupStatus, BackupView, CreateBackupBody, MadeBackupsView, RestoreBackupBody, RestoredView,
};
use crate::services::vm::{Vms, store};

/// Backups of a project's disks, newest first.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/backups",
    operation_id = "listBackups", tag = "backups",
    params(("org_id" = String, Path), ("project_id" = String, Path), PageParams, NameParams,
        ("status" = Option<BackupStatus>, Query, description = "only this status"),
        ("disk_id" = Option<uuid::Uuid>, Query, description = "only those of this disk, of either kind"),
        ("schedule_id" = Option<uuid::Uuid>, Query, description = "only those that this schedule made")),
    responses((status = 200, body = List<BackupView>), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn list_backups(
    State(vms): State<Vms>,
    Reader(scope, ..): Reader<Vms>,
    mut params: Params,
) -> Reply<Json<List<BackupView>>> {
    let listing = params.listing(&LISTED);
    let bad = || "must be an id".to_owned();
    let disk = params.read("disk_id", |text| text.parse::<DiskId>().map_err(|_| bad()));
    let schedule = params.read("schedule_id", |text| text.parse::<BackupScheduleId>().map_err(|_| bad()));
    params.finish()?;
    let of = Of { disk, schedule };
    let (rows, total) = store::backup::list(vms.db(), (&scope).into(), of, &listing).await?;
    Ok(Json(List::new(rows.iter().map(BackupView::from).collect(), listing.page, total)))
}

/// Makes a backup of a disk, or of each disk of a VM, which may run and goes on. The moment that it shows comes after the
/// answer. A guest that runs QEMU's guest agent freezes its file systems for that moment; of any other it is what the guest
/// would find after a loss of power.
#[utoipa::path(post, path = "/api/v1/orgs/{org_id}/projects/{project_id}/backups",
    operation_id = "createBackup", tag = "backups",
    params(("org_id" = String, Path), ("project_id" = String, Path), KeyParam),
    request_body = CreateBackupBody,
    responses((status = 201, body = MadeBackupsView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody), (status = 413, body = ErrorBody), (status = 415, body = ErrorBody), (status = 422, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn create_backup(
    State(vms): State<Vms>,
    Editor(scope, ..): Editor<Vms>,
    key: IdempotencyKey,
    body::Json(body): body::Json,
) -> Reply<Outcome<MadeBackupsView>> {
    let request = CreateBackup::try_from(&body)?;
    let key = key.bind(&scope.caller, &body).await?;
    Ok(ops::create(&vms, &scope, request, key).await?)
}

/// One backup.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/backups/{backup_id}",
    operation_id = "getBackup", tag = "backups",
    params(("org_id" = String, Path), ("project_id" = String, Path), ("backup_id" = uuid::Uuid, Path)),
    responses((status = 200, body = BackupView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn get_backup(
    State(vms): State<Vms>,
    Reader(scope, ..): Reader<Vms>,
    path: PathText,
) -> Reply<Json<BackupView>> {
    let row = store::backup::find(vms.db(), (&scope).into(), path.id("backup_id")?).await?;
    Ok(Json(BackupView::from(&row.ok_or_else(ops::not_found)?)))
}

/// Deletes a backup; it goes after the answer. Disks that were made of it stay. With `forget` an administrator of the platform
/// has it go without asking the store, of which it may be that it never comes back: what lies there stays.
#[utoipa::path(delete, path = "/api/v1/orgs/{org_id}/projects/{project_id}/backups/{backup_id}",
    operation_id = "deleteBackup", tag = "backups",
    params(("org_id" = String, Path), ("project_id" = String, Path), ("backup_id" = uuid::Uuid, Path),
        ("forget" = Option<bool>, Query, description = "whether to leave what the store has; for administrators of the platform")),
    responses((status = 202, description = "it goes after the answer"), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn delete_backup(
    State(vms): State<Vms>,
    Editor(scope, ..): Editor<Vms>,
    path: PathText,
    mut params: Params,
) -> Reply<StatusCode> {
    let is_true = |text: &str| text.parse::<bool>().map_err(|_| "must be true or false".to_owned());
    let forget = params.read("forget", is_true).unwrap_or_default();
    params.finish()?;
    ops::delete(&vms, &scope, path.id("backup_id")?, forget).await?;
    Ok(StatusCode::ACCEPTED)
}

/// Makes a new disk with what a backup has: a data disk, or a root disk volume, which a new VM may boot. It is `ready` when
/// all came back as it was; no disk that is there changes.
#[utoipa::path(post, path = "/api/v1/orgs/{org_id}/projects/{project_id}/backups/{backup_id}/restore",
    operation_id = "restoreBackup", tag = "backups",
    params(("org_id" = String, Path), ("project_id" = String, Path), ("backup_id" = uuid::Uuid, Path), KeyParam),
    request_body = RestoreBackupBody,
    responses((status = 201, body = RestoredView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody), (status = 413, body = ErrorBody), (status = 415, body = ErrorBody), (status = 422, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn restore_backup(
    State(vms): State<Vms>,
    Editor(scope, ..): Editor<Vms>,
    path: PathText,
    key: IdempotencyKey,
    body::Json(body): body::Json,
) -> Reply<Outcome<RestoredView>> {
    let id: BackupId = path.id("backup_id")?;
    let request = RestoreBackup::try_from(&body)?;
    let key = key.bind(&scope.caller, &body).await?;
    Ok(ops::restore(&vms, &scope, (id, request), key).await?)
}
