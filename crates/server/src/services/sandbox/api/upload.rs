//! Uploads: archives that templates are built of.

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;

use crate::http::auth::{Editor, Reader};
use crate::http::body;
use crate::http::envelope::ErrorBody;
use crate::http::idempotency::{IdempotencyKey, KeyParam, Outcome};
use crate::http::list::{List, PageParams, Params, SortParams};
use crate::http::path::PathText;
use crate::http::reply::Reply;
use crate::services::sandbox::wire::upload::UploadView;
use crate::services::sandbox::{Sandboxes, ops, store};

/// Uploads of a project, newest first.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/sandbox_uploads", operation_id = "listSandboxUploads",
    tag = "sandbox_templates", params(("org_id" = String, Path), ("project_id" = String, Path), PageParams, SortParams),
    responses((status = 200, body = List<UploadView>), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = []), ("api_key" = [])))]
pub(super) async fn list_uploads(
    State(sandboxes): State<Sandboxes>,
    Reader(scope, ..): Reader<Sandboxes>,
    mut params: Params,
) -> Reply<Json<List<UploadView>>> {
    let listing = params.listing(&store::upload::LISTED);
    params.finish()?;
    let (rows, total) = store::upload::list(sandboxes.db(), (&scope).into(), &listing).await?;
    Ok(Json(List::new(rows.iter().map(UploadView::from).collect(), listing.page, total)))
}

/// Receives a tar archive: the files that a Dockerfile copies from, or an image as `docker save` and `skopeo copy`
/// write it. It is kept for a day.
#[utoipa::path(post, path = "/api/v1/orgs/{org_id}/projects/{project_id}/sandbox_uploads", operation_id = "createSandboxUpload",
    tag = "sandbox_templates", params(("org_id" = String, Path), ("project_id" = String, Path), KeyParam),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 201, body = UploadView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 413, body = ErrorBody), (status = 503, body = ErrorBody), (status = 507, body = ErrorBody)),
    security(("bearer" = []), ("api_key" = [])))]
pub(super) async fn create_upload(
    State(sandboxes): State<Sandboxes>,
    Editor(scope, ..): Editor<Sandboxes>,
    key: IdempotencyKey,
    request: Request,
) -> Reply<Outcome<UploadView>> {
    let key = key.begin(&scope.caller).await?;
    Ok(ops::upload::create(&sandboxes, &scope, body::stream(request), key).await?)
}

/// Removes an upload.
#[utoipa::path(delete, path = "/api/v1/orgs/{org_id}/projects/{project_id}/sandbox_uploads/{upload_id}", operation_id = "deleteSandboxUpload",
    tag = "sandbox_templates", params(("org_id" = String, Path), ("project_id" = String, Path), ("upload_id" = uuid::Uuid, Path)),
    responses((status = 204, description = "it is gone"), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = []), ("api_key" = [])))]
pub(super) async fn delete_upload(
    State(sandboxes): State<Sandboxes>,
    Editor(scope, ..): Editor<Sandboxes>,
    path: PathText,
) -> Reply<StatusCode> {
    ops::upload::delete(&sandboxes, &scope, path.id("upload_id")?).await?;
    Ok(StatusCode::NO_CONTENT)
}
