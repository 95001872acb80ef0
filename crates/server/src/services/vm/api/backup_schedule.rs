//! Schedules of backups.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use berth_domain::vm::backup_schedule::{CreateSchedule, UpdateSchedule};

use crate::http::auth::{Editor, Reader};
use crate::http::body;
use crate::http::envelope::ErrorBody;
use crate::http::idempotency::{IdempotencyKey, KeyParam, Outcome};
use crate::http::list::{List, NameParams, PageParams, Params};
use crate::http::path::PathText;
use crate::http::reply::Reply;
use crate::services::vm::ops::backup_schedule as ops;
use crate::services::vm::wire::backup_schedule::{
    BackupScheduleView, CreateBackupScheduleBody, UpdateBackupScheduleBody,
};
use crate::services::vm::{Vms, store};

/// Schedules of backups of a project, newest first.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/backup_schedules",
    operation_id = "listBackupSchedules", tag = "backups",
    params(("org_id" = String, Path), ("project_id" = String, Path), PageParams, NameParams),
    responses((status = 200, body = List<BackupScheduleView>), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn list_backup_schedules(
    State(vms): State<Vms>,
    Reader(scope, ..): Reader<Vms>,
    mut params: Params,
) -> Reply<Json<List<BackupScheduleView>>> {
    let listing = params.listing(&store::backup_schedule::LISTED);
    params.finish()?;
    let (rows, total) = store::backup_schedule::list(vms.db(), (&scope).into(), &listing).await?;
    Ok(Json(List::new(rows.iter().map(BackupScheduleView::from).collect(), listing.page, total)))
}

/// Makes a schedule of backups. Times that were missed while the service was off are made up for once.
#[utoipa::path(post, path = "/api/v1/orgs/{org_id}/projects/{project_id}/backup_schedules",
    operation_id = "createBackupSchedule", tag = "backups",
    params(("org_id" = String, Path), ("project_id" = String, Path), KeyParam),
    request_body = CreateBackupScheduleBody,
    responses((status = 201, body = BackupScheduleView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody), (status = 413, body = ErrorBody), (status = 415, body = ErrorBody), (status = 422, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn create_backup_schedule(
    State(vms): State<Vms>,
    Editor(scope, ..): Editor<Vms>,
    key: IdempotencyKey,
    body::Json(body): body::Json,
) -> Reply<Outcome<BackupScheduleView>> {
    let request = CreateSchedule::try_from(&body)?;
    let key = key.bind(&scope.caller, &body).await?;
    Ok(ops::create(&vms, &scope, request, key).await?)
}

/// One schedule of backups.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/backup_schedules/{backup_schedule_id}",
    operation_id = "getBackupSchedule", tag = "backups",
    params(("org_id" = String, Path), ("project_id" = String, Path), ("backup_schedule_id" = uuid::Uuid, Path)),
    responses((status = 200, body = BackupScheduleView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn get_backup_schedule(
    State(vms): State<Vms>,
    Reader(scope, ..): Reader<Vms>,
    path: PathText,
) -> Reply<Json<BackupScheduleView>> {
    let row = store::backup_schedule::find(vms.db(), (&scope).into(), path.id("backup_schedule_id")?).await?;
    Ok(Json(BackupScheduleView::from(&row.ok_or_else(ops::not_found)?)))
}

/// Changes a schedule of backups. Where it keeps fewer from now on, the oldest go.
#[utoipa::path(patch, path = "/api/v1/orgs/{org_id}/projects/{project_id}/backup_schedules/{backup_schedule_id}",
    operation_id = "updateBackupSchedule", tag = "backups",
    params(("org_id" = String, Path), ("project_id" = String, Path), ("backup_schedule_id" = uuid::Uuid, Path)),
    request_body = UpdateBackupScheduleBody,
    responses((status = 200, body = BackupScheduleView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody), (status = 413, body = ErrorBody), (status = 415, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn update_backup_schedule(
    State(vms): State<Vms>,
    Editor(scope, ..): Editor<Vms>,
    path: PathText,
    body::Json(body): body::Json,
) -> Reply<Json<BackupScheduleView>> {
    let id = path.id("backup_schedule_id")?;
    let change = UpdateSchedule::try_from(&body)?;
    Ok(Json(BackupScheduleView::from(&ops::update(&vms, &scope, (id, change)).await?)))
}

/// Ends a schedule of backups. Those that it made stay.
#[utoipa::path(delete, path = "/api/v1/orgs/{org_id}/projects/{project_id}/backup_schedules/{backup_schedule_id}",
    operation_id = "deleteBackupSchedule", tag = "backups",
    params(("org_id" = String, Path), ("project_id" = String, Path), ("backup_schedule_id" = uuid::Uuid, Path)),
    responses((status = 204, description = "it makes no more"), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn delete_backup_schedule(
    State(vms): State<Vms>,
    Editor(scope, ..): Editor<Vms>,
    path: PathText,
) -> Reply<StatusCode> {
    ops::delete(&vms, &scope, path.id("backup_schedule_id")?).await?;
    Ok(StatusCode::NO_CONTENT)
}
