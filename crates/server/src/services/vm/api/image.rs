//! Images: everybody sees them, administrators import and remove them.

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use berth_domain::vm::image::Import;

use crate::http::auth::{Administrator, Caller};
use crate::http::body;
use crate::http::envelope::ErrorBody;
use crate::http::idempotency::{IdempotencyKey, KeyParam, Outcome};
use crate::http::list::{List, NameParams, PageParams, Params};
use crate::http::path::PathText;
use crate::http::reply::{Created, Reply};
use crate::services::vm::ops::image;
use crate::services::vm::wire::image::{ImageView, ImportBody};
use crate::services::vm::{Vms, store};

/// Images, newest first.
#[utoipa::path(get, path = "/api/v1/images", operation_id = "listImages", tag = "images", params(PageParams, NameParams,
    ("status" = Option<String>, Query, description = "only this status", pattern = "^(importing|ready|failed)$")),
    responses((status = 200, body = List<ImageView>), (status = 400, body = ErrorBody),
        (status = 401, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn list_images(
    State(vms): State<Vms>,
    _caller: Caller,
    mut params: Params,
) -> Reply<Json<List<ImageView>>> {
    let listing = params.listing(&store::image::LISTED);
    params.finish()?;
    let (rows, total) = store::image::list(vms.db(), &listing).await?;
    Ok(Json(List::new(rows.into_iter().map(ImageView::from).collect(), listing.page, total)))
}

/// One image.
#[utoipa::path(get, path = "/api/v1/images/{image_id}", operation_id = "getImage", tag = "images",
    params(("image_id" = String, Path)),
    responses((status = 200, body = ImageView), (status = 401, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn get_image(State(vms): State<Vms>, _caller: Caller, path: PathText) -> Reply<Json<ImageView>> {
    let row = store::image::find(vms.db(), path.text("image_id")).await?.ok_or_else(image::not_found)?;
    Ok(Json(row.into()))
}

/// Imports an ordinary cloud image from a URL, or from a file of the host (administrators).
#[utoipa::path(post, path = "/api/v1/images", operation_id = "importImage", tag = "images",
    params(KeyParam),
    request_body = ImportBody,
    responses((status = 201, body = ImageView, description = "importing; `status` tells when it is ready"),
        (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody),
        (status = 409, body = ErrorBody), (status = 413, body = ErrorBody), (status = 415, body = ErrorBody),
        (status = 422, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn import_image(
    State(vms): State<Vms>,
    Administrator(admin): Administrator,
    key: IdempotencyKey,
    body::Json(body): body::Json,
) -> Reply<Outcome<ImageView>> {
    let import = Import::try_from(&body)?;
    Ok(image::import(&vms, &admin, import, key.bind(&admin.caller, &body).await?).await?)
}

/// Uploads an ordinary cloud image, qcow2 or raw (administrators).
#[utoipa::path(put, path = "/api/v1/images/{image_id}/content", operation_id = "uploadImage", tag = "images",
    params(("image_id" = String, Path), ("name" = Option<String>, Query, min_length = 1, max_length = 100),
        ("login_user" = Option<String>, Query, pattern = "^[a-z_][a-z0-9_-]{0,31}$"),
        ("sha256" = Option<String>, Query, pattern = "^[0-9a-fA-F]{64}$"),
        ("firmware" = Option<String>, Query, pattern = "^(bios|uefi)$")),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 201, body = ImageView, description = "received; `status` tells when it is ready"),
        (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody),
        (status = 409, body = ErrorBody), (status = 413, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn upload_image(
    State(vms): State<Vms>,
    Administrator(admin): Administrator,
    path: PathText,
    Params(params): Params,
    request: Request,
) -> Reply<Created<ImageView>> {
    let import = Import::of_upload(path.text("image_id"), params)?;
    let view = image::upload(&vms, &admin, import, body::stream(request)).await?;
    Ok(Created { location: view.location(), body: view })
}

/// Removes an image that no disk was cloned from (administrators).
#[utoipa::path(delete, path = "/api/v1/images/{image_id}", operation_id = "deleteImage", tag = "images",
    params(("image_id" = String, Path)),
    responses((status = 204, description = "removed; its files follow"), (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody),
        (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn delete_image(
    State(vms): State<Vms>,
    Administrator(admin): Administrator,
    path: PathText,
) -> Reply<StatusCode> {
    image::delete(&vms, &admin, path.text("image_id")).await?;
    Ok(StatusCode::NO_CONTENT)
}
