//! Snapshots of sandboxes.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use berth_domain::ids::SandboxId;
use berth_domain::sandbox::request::NewSnapshot;

use crate::http::auth::{Editor, Reader};
use crate::http::body::OptionalJson;
use crate::http::envelope::ErrorBody;
use crate::http::idempotency::{IdempotencyKey, KeyParam, Outcome};
use crate::http::list::{List, NameParams, PageParams, Params};
use crate::http::path::PathText;
use crate::http::reply::Reply;
use crate::services::sandbox::wire::requests::CreateSnapshotBody;
use crate::services::sandbox::wire::snapshot::{SnapshotStatusWord, SnapshotView};
use crate::services::sandbox::{Sandboxes, ops, store};

/// Snapshots of a project, newest first.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/snapshots", operation_id = "listSnapshots",
    tag = "snapshots", params(("org_id" = String, Path), ("project_id" = String, Path), PageParams, NameParams,
        ("status" = Option<SnapshotStatusWord>, Query, description = "only this status")),
    responses((status = 200, body = List<SnapshotView>), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = []), ("api_key" = [])))]
pub(super) async fn list_snapshots(
    State(sandboxes): State<Sandboxes>,
    Reader(scope, ..): Reader<Sandboxes>,
    mut params: Params,
) -> Reply<Json<List<SnapshotView>>> {
    let listing = params.listing(&store::snapshot::LISTED);
    params.finish()?;
    let (rows, total) = store::snapshot::list(sandboxes.db(), (&scope).into(), None, &listing).await?;
    Ok(Json(List::new(rows.iter().map(SnapshotView::from).collect(), listing.page, total)))
}

/// Snapshots of a sandbox, newest first.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/sandboxes/{sandbox_id}/snapshots", operation_id = "listSandboxSnapshots",
    tag = "snapshots", params(("org_id" = String, Path), ("project_id" = String, Path), ("sandbox_id" = uuid::Uuid, Path), PageParams, NameParams,
        ("status" = Option<SnapshotStatusWord>, Query, description = "only this status")),
    responses((status = 200, body = List<SnapshotView>), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = []), ("api_key" = [])))]
pub(super) async fn list_sandbox_snapshots(
    State(sandboxes): State<Sandboxes>,
    Reader(scope, ..): Reader<Sandboxes>,
    path: PathText,
    mut params: Params,
) -> Reply<Json<List<SnapshotView>>> {
    let id: SandboxId = path.id("sandbox_id")?;
    let listing = params.listing(&store::snapshot::LISTED);
    params.finish()?;
    ops::sandbox::get(&sandboxes, &scope, id, false).await?;
    let (rows, total) = store::snapshot::list(sandboxes.db(), (&scope).into(), Some(id), &listing).await?;
    Ok(Json(List::new(rows.iter().map(SnapshotView::from).collect(), listing.page, total)))
}

/// Takes a snapshot of the live state; it is taken after the answer.
#[utoipa::path(post, path = "/api/v1/orgs/{org_id}/projects/{project_id}/sandboxes/{sandbox_id}/snapshots", operation_id = "createSnapshot",
    tag = "snapshots", params(("org_id" = String, Path), ("project_id" = String, Path), ("sandbox_id" = uuid::Uuid, Path),
        KeyParam),
    request_body = Option<CreateSnapshotBody>,
    responses((status = 201, body = SnapshotView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody), (status = 413, body = ErrorBody), (status = 415, body = ErrorBody), (status = 422, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = []), ("api_key" = [])))]
pub(super) async fn create_snapshot(
    State(sandboxes): State<Sandboxes>,
    Editor(scope, ..): Editor<Sandboxes>,
    path: PathText,
    key: IdempotencyKey,
    body: OptionalJson,
) -> Reply<Outcome<SnapshotView>> {
    let (id, body) = (path.id("sandbox_id")?, body.or_empty());
    let request = NewSnapshot::try_from(&body)?;
    let key = key.bind(&scope.caller, &body).await?;
    Ok(ops::snapshot::create(&sandboxes, &scope, id, request, key).await?)
}

/// One snapshot.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/snapshots/{snapshot_id}", operation_id = "getSnapshot",
    tag = "snapshots", params(("org_id" = String, Path), ("project_id" = String, Path), ("snapshot_id" = uuid::Uuid, Path)),
    responses((status = 200, body = SnapshotView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = []), ("api_key" = [])))]
pub(super) async fn get_snapshot(
    State(sandboxes): State<Sandboxes>,
    Reader(scope, ..): Reader<Sandboxes>,
    path: PathText,
) -> Reply<Json<SnapshotView>> {
    let row = store::snapshot::find(sandboxes.db(), (&scope).into(), path.id("snapshot_id")?).await?;
    Ok(Json(SnapshotView::from(&row.ok_or_else(ops::snapshot_not_found)?)))
}

/// Deletes a snapshot. Disks that build on it keep what they share with it.
#[utoipa::path(delete, path = "/api/v1/orgs/{org_id}/projects/{project_id}/snapshots/{snapshot_id}", operation_id = "deleteSnapshot",
    tag = "snapshots", params(("org_id" = String, Path), ("project_id" = String, Path), ("snapshot_id" = uuid::Uuid, Path)),
    responses((status = 202, description = "accepted"), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = []), ("api_key" = [])))]
pub(super) async fn delete_snapshot(
    State(sandboxes): State<Sandboxes>,
    Editor(scope, ..): Editor<Sandboxes>,
    path: PathText,
) -> Reply<StatusCode> {
    ops::snapshot::delete(&sandboxes, &scope, path.id("snapshot_id")?).await?;
    Ok(StatusCode::ACCEPTED)
}
