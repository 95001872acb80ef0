//! Snapshots of disks.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use berth_domain::ids::DiskId;
use berth_domain::vm::disk_snapshot::CreateDiskSnapshot;

use crate::http::auth::{Editor, Reader};
use crate::http::body;
use crate::http::envelope::ErrorBody;
use crate::http::idempotency::{IdempotencyKey, KeyParam, Outcome};
use crate::http::list::{List, NameParams, PageParams, Params};
use crate::http::path::PathText;
use crate::http::reply::Reply;
use crate::services::vm::ops::disk_snapshot as ops;
use crate::services::vm::wire::disk_snapshot::{CreateDiskSnapshotBody, DiskSnapshotStatus, DiskSnapshotView};
use crate::services::vm::{Vms, store};

/// Snapshots of a project's disks, newest first.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/disk_snapshots",
    operation_id = "listDiskSnapshots", tag = "disks",
    params(("org_id" = String, Path), ("project_id" = String, Path), PageParams, NameParams,
        ("status" = Option<DiskSnapshotStatus>, Query, description = "only this status"),
        ("disk_id" = Option<uuid::Uuid>, Query, description = "only those of this disk, of either kind")),
    responses((status = 200, body = List<DiskSnapshotView>), (status = 400, body = ErrorBody),
        (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn list_disk_snapshots(
    State(vms): State<Vms>,
    Reader(scope, ..): Reader<Vms>,
    mut params: Params,
) -> Reply<Json<List<DiskSnapshotView>>> {
    let listing = params.listing(&store::disk_snapshot::LISTED);
    let disk = params.read("disk_id", |text| text.parse::<DiskId>().map_err(|_| "must be an id".to_owned()));
    params.finish()?;
    let (rows, total) = store::disk_snapshot::list(vms.db(), (&scope).into(), disk, &listing).await?;
    Ok(Json(List::new(rows.iter().map(DiskSnapshotView::from).collect(), listing.page, total)))
}

/// Makes a snapshot of a disk, whose VM may run and goes on. The moment that it shows comes after the answer. A guest that
/// runs QEMU's guest agent freezes its file systems for that moment; of any other it is what the guest would find after a
/// loss of power.
#[utoipa::path(post, path = "/api/v1/orgs/{org_id}/projects/{project_id}/disk_snapshots",
    operation_id = "createDiskSnapshot", tag = "disks",
    params(("org_id" = String, Path), ("project_id" = String, Path), KeyParam),
    request_body = CreateDiskSnapshotBody,
    responses((status = 201, body = DiskSnapshotView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody),
        (status = 413, body = ErrorBody), (status = 415, body = ErrorBody), (status = 422, body = ErrorBody),
        (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn create_disk_snapshot(
    State(vms): State<Vms>,
    Editor(scope, ..): Editor<Vms>,
    key: IdempotencyKey,
    body::Json(body): body::Json,
) -> Reply<Outcome<DiskSnapshotView>> {
    let request = CreateDiskSnapshot::try_from(&body)?;
    let key = key.bind(&scope.caller, &body).await?;
    Ok(ops::create(&vms, &scope, request, key).await?)
}

/// One snapshot of a disk.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/disk_snapshots/{disk_snapshot_id}",
    operation_id = "getDiskSnapshot", tag = "disks",
    params(("org_id" = String, Path), ("project_id" = String, Path), ("disk_snapshot_id" = uuid::Uuid, Path)),
    responses((status = 200, body = DiskSnapshotView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn get_disk_snapshot(
    State(vms): State<Vms>,
    Reader(scope, ..): Reader<Vms>,
    path: PathText,
) -> Reply<Json<DiskSnapshotView>> {
    let row = store::disk_snapshot::find(vms.db(), (&scope).into(), path.id("disk_snapshot_id")?).await?;
    Ok(Json(DiskSnapshotView::from(&row.ok_or_else(ops::not_found)?)))
}

/// Deletes a snapshot of a disk; it goes after the answer. What was made from it stays, and so does its disk.
#[utoipa::path(delete, path = "/api/v1/orgs/{org_id}/projects/{project_id}/disk_snapshots/{disk_snapshot_id}",
    operation_id = "deleteDiskSnapshot", tag = "disks",
    params(("org_id" = String, Path), ("project_id" = String, Path), ("disk_snapshot_id" = uuid::Uuid, Path)),
    responses((status = 202, description = "it goes after the answer"), (status = 400, body = ErrorBody),
        (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn delete_disk_snapshot(
    State(vms): State<Vms>,
    Editor(scope, ..): Editor<Vms>,
    path: PathText,
) -> Reply<StatusCode> {
    ops::delete(&vms, &scope, path.id("disk_snapshot_id")?).await?;
    Ok(StatusCode::ACCEPTED)
}
