//! Root disk volumes (specification) and data disks.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use berth_domain::ids::DiskId;
use berth_domain::vm::DiskKind;
use berth_domain::vm::request::{AttachDisk, CreateDisk, ResizeDisk};

use crate::http::auth::{Editor, Reader};
use crate::http::body;
use crate::http::envelope::ErrorBody;
use crate::http::idempotency::{IdempotencyKey, KeyParam, Outcome};
use crate::http::list::{List, NameParams, PageParams, Params};
use crate::http::path::PathText;
use crate::http::reply::{Accepted, Reply};
use crate::services::vm::ops;
use crate::services::vm::store::disk::DiskRow;
use crate::services::vm::wire::disk::{DiskView, RootDiskView, VolumeStatus};
use crate::services::vm::wire::requests::{AttachBody, CreateDiskBody, ResizeDiskBody, ResizeRootDiskBody};
use crate::services::vm::{Vms, store};

/// Root disk volumes of a project, newest first.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/root_disks",
    operation_id = "listRootDiskVolumes", tag = "disks",
    params(("org_id" = String, Path), ("project_id" = String, Path), PageParams, NameParams,
        ("status" = Option<VolumeStatus>, Query, description = "only this status")),
    responses((status = 200, body = List<RootDiskView>), (status = 400, body = ErrorBody),
        (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn list_root_disk_volumes(
    State(vms): State<Vms>,
    Reader(scope, ..): Reader<Vms>,
    mut params: Params,
) -> Reply<Json<List<RootDiskView>>> {
    let listing = params.listing(&store::disk::LISTED);
    params.finish()?;
    let (rows, total) = store::disk::list(vms.db(), (&scope).into(), DiskKind::Root, &listing).await?;
    Ok(Json(List::new(rows.iter().map(RootDiskView::from).collect(), listing.page, total)))
}

/// One root disk volume. What is no id is 404 here: the specification knows no 400 for it.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/root_disks/{root_disk_id}",
    operation_id = "getRootDiskVolume", tag = "disks",
    params(("org_id" = String, Path), ("project_id" = String, Path), ("root_disk_id" = uuid::Uuid, Path)),
    responses((status = 200, body = RootDiskView), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody),
        (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn get_root_disk_volume(
    State(vms): State<Vms>,
    Reader(scope, ..): Reader<Vms>,
    path: PathText,
) -> Reply<Json<RootDiskView>> {
    let id: DiskId = path.id("root_disk_id").map_err(|_| ops::volume_not_found())?;
    let row = store::disk::find(vms.db(), (&scope).into(), DiskKind::Root, id).await?;
    Ok(Json(RootDiskView::from(&row.ok_or_else(ops::volume_not_found)?)))
}

/// Deletes an unattached root disk volume; it goes after the answer.
#[utoipa::path(delete, path = "/api/v1/orgs/{org_id}/projects/{project_id}/root_disks/{root_disk_id}",
    operation_id = "deleteRootDiskVolume", tag = "disks",
    params(("org_id" = String, Path), ("project_id" = String, Path), ("root_disk_id" = uuid::Uuid, Path)),
    responses((status = 202, description = "accepted"), (status = 400, body = ErrorBody),
        (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn delete_root_disk_volume(
    State(vms): State<Vms>,
    Editor(scope, ..): Editor<Vms>,
    path: PathText,
) -> Reply<StatusCode> {
    ops::disk::delete(&vms, &scope, DiskKind::Root, path.id("root_disk_id")?).await?;
    Ok(StatusCode::ACCEPTED)
}

/// Has a root disk volume grow; it does so after the answer, and its file system with the next boot.
#[utoipa::path(post, path = "/api/v1/orgs/{org_id}/projects/{project_id}/root_disks/{root_disk_id}/resize",
    operation_id = "resizeRootDiskVolume", tag = "disks",
    params(("org_id" = String, Path), ("project_id" = String, Path), ("root_disk_id" = uuid::Uuid, Path)),
    request_body = ResizeRootDiskBody,
    responses((status = 202, body = RootDiskView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 413, body = ErrorBody),
        (status = 415, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn resize_root_disk_volume(
    State(vms): State<Vms>,
    Editor(scope, ..): Editor<Vms>,
    path: PathText,
    body::Json(body): body::Json,
) -> Reply<Accepted<RootDiskView>> {
    let id = path.id("root_disk_id")?;
    let request = ResizeDisk::read(&body, DiskKind::Root)?;
    let row = ops::disk::resize(&vms, &scope, DiskKind::Root, id, request).await?;
    Ok(Accepted(RootDiskView::from(&row)))
}

/// Data disks of a project, newest first.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/disks", operation_id = "listDisks",
    tag = "disks",
    params(("org_id" = String, Path), ("project_id" = String, Path), PageParams, NameParams,
        ("status" = Option<VolumeStatus>, Query, description = "only this status")),
    responses((status = 200, body = List<DiskView>), (status = 400, body = ErrorBody),
        (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn list_disks(
    State(vms): State<Vms>,
    Reader(scope, ..): Reader<Vms>,
    mut params: Params,
) -> Reply<Json<List<DiskView>>> {
    let listing = params.listing(&store::disk::LISTED);
    params.finish()?;
    let (rows, total) = store::disk::list(vms.db(), (&scope).into(), DiskKind::Data, &listing).await?;
    Ok(Json(List::new(rows.iter().map(DiskView::from).collect(), listing.page, total)))
}

/// Creates a data disk.
#[utoipa::path(post, path = "/api/v1/orgs/{org_id}/projects/{project_id}/disks", operation_id = "createDisk",
    tag = "disks",
    params(("org_id" = String, Path), ("project_id" = String, Path),
        KeyParam),
    request_body = CreateDiskBody,
    responses((status = 201, body = DiskView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody),
        (status = 413, body = ErrorBody), (status = 415, body = ErrorBody), (status = 422, body = ErrorBody),
        (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn create_disk(
    State(vms): State<Vms>,
    Editor(scope, ..): Editor<Vms>,
    key: IdempotencyKey,
    body::Json(body): body::Json,
) -> Reply<Outcome<DiskView>> {
    let request = CreateDisk::try_from(&body)?;
    let key = key.bind(&scope.caller, &body).await?;
    Ok(ops::disk::create(&vms, &scope, request, key).await?)
}

/// One data disk.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/disks/{disk_id}", operation_id = "getDisk",
    tag = "disks",
    params(("org_id" = String, Path), ("project_id" = String, Path), ("disk_id" = uuid::Uuid, Path)),
    responses((status = 200, body = DiskView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn get_disk(
    State(vms): State<Vms>,
    Reader(scope, ..): Reader<Vms>,
    path: PathText,
) -> Reply<Json<DiskView>> {
    let row = store::disk::find(vms.db(), (&scope).into(), DiskKind::Data, path.id("disk_id")?).await?;
    Ok(Json(DiskView::from(&row.ok_or_else(ops::volume_not_found)?)))
}

/// Deletes an unattached data disk; it goes after the answer.
#[utoipa::path(delete, path = "/api/v1/orgs/{org_id}/projects/{project_id}/disks/{disk_id}",
    operation_id = "deleteDisk", tag = "disks",
    params(("org_id" = String, Path), ("project_id" = String, Path), ("disk_id" = uuid::Uuid, Path)),
    responses((status = 204, description = "it goes after the answer"), (status = 400, body = ErrorBody),
        (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn delete_disk(
    State(vms): State<Vms>,
    Editor(scope, ..): Editor<Vms>,
    path: PathText,
) -> Reply<StatusCode> {
    ops::disk::delete(&vms, &scope, DiskKind::Data, path.id("disk_id")?).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Attaches a data disk to a VM: at once to one that is off, after the answer to one that runs.
#[utoipa::path(post, path = "/api/v1/orgs/{org_id}/projects/{project_id}/disks/{disk_id}/attach",
    operation_id = "attachDisk", tag = "disks",
    params(("org_id" = String, Path), ("project_id" = String, Path), ("disk_id" = uuid::Uuid, Path)),
    request_body = AttachBody,
    responses((status = 200, body = DiskView), (status = 202, body = DiskView), (status = 400, body = ErrorBody),
        (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody), (status = 413, body = ErrorBody), (status = 415, body = ErrorBody),
        (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn attach_disk(
    State(vms): State<Vms>,
    Editor(scope, ..): Editor<Vms>,
    path: PathText,
    body::Json(body): body::Json,
) -> Reply<(StatusCode, Json<DiskView>)> {
    let id = path.id("disk_id")?;
    let request = AttachDisk::try_from(&body)?;
    Ok(moved(&ops::disk::attach(&vms, &scope, id, request).await?))
}

/// Detaches a data disk: at once from a VM that is off, after the answer from one that runs.
#[utoipa::path(post, path = "/api/v1/orgs/{org_id}/projects/{project_id}/disks/{disk_id}/detach",
    operation_id = "detachDisk", tag = "disks",
    params(("org_id" = String, Path), ("project_id" = String, Path), ("disk_id" = uuid::Uuid, Path)),
    responses((status = 200, body = DiskView), (status = 202, body = DiskView), (status = 400, body = ErrorBody),
        (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn detach_disk(
    State(vms): State<Vms>,
    Editor(scope, ..): Editor<Vms>,
    path: PathText,
) -> Reply<(StatusCode, Json<DiskView>)> {
    Ok(moved(&ops::disk::detach(&vms, &scope, path.id("disk_id")?).await?))
}

/// A disk that came or went, or does so after the answer.
fn moved(disk: &DiskRow) -> (StatusCode, Json<DiskView>) {
    let status = if disk.moving.is_some() { StatusCode::ACCEPTED } else { StatusCode::OK };
    (status, Json(DiskView::from(disk)))
}

/// Has a data disk grow; it does so after the answer.
#[utoipa::path(post, path = "/api/v1/orgs/{org_id}/projects/{project_id}/disks/{disk_id}/resize",
    operation_id = "resizeDisk", tag = "disks",
    params(("org_id" = String, Path), ("project_id" = String, Path), ("disk_id" = uuid::Uuid, Path)),
    request_body = ResizeDiskBody,
    responses((status = 202, body = DiskView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 413, body = ErrorBody),
        (status = 415, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn resize_disk(
    State(vms): State<Vms>,
    Editor(scope, ..): Editor<Vms>,
    path: PathText,
    body::Json(body): body::Json,
) -> Reply<Accepted<DiskView>> {
    let id = path.id("disk_id")?;
    let request = ResizeDisk::read(&body, DiskKind::Data)?;
    let row = ops::disk::resize(&vms, &scope, DiskKind::Data, id, request).await?;
    Ok(Accepted(DiskView::from(&row)))
}
