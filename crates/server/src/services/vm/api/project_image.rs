//! Images that a project makes of its root disk volumes.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use berth_domain::vm::project_image::CreateProjectImage;

use crate::http::auth::{Editor, Reader};
use crate::http::body;
use crate::http::envelope::ErrorBody;
use crate::http::idempotency::{IdempotencyKey, KeyParam, Outcome};
use crate::http::list::{List, NameParams, PageParams, Params};
use crate::http::path::PathText;
use crate::http::reply::Reply;
use crate::services::vm::ops::project_image as ops;
use crate::services::vm::wire::project_image::{CreateProjectImageBody, ProjectImageStatusWord, ProjectImageView};
use crate::services::vm::{Vms, store};

/// Images that a project made, newest first. Those of the platform are listed by `/api/v1/images`.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/images",
    operation_id = "listProjectImages", tag = "images",
    params(("org_id" = String, Path), ("project_id" = String, Path), PageParams, NameParams,
        ("status" = Option<ProjectImageStatusWord>, Query, description = "only this status")),
    responses((status = 200, body = List<ProjectImageView>), (status = 400, body = ErrorBody),
        (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn list_project_images(
    State(vms): State<Vms>,
    Reader(scope, ..): Reader<Vms>,
    mut params: Params,
) -> Reply<Json<List<ProjectImageView>>> {
    let listing = params.listing(&store::project_image::LISTED);
    params.finish()?;
    let (rows, total) = store::project_image::list(vms.db(), (&scope).into(), &listing).await?;
    Ok(Json(List::new(rows.iter().map(ProjectImageView::from).collect(), listing.page, total)))
}

/// Makes an image of a root disk volume, whose VM may run and goes on. The moment that it shows comes after the answer. A
/// guest that runs QEMU's guest agent freezes its file systems for that moment; of any other it is what the guest would find
/// after a loss of power. The project alone sees and uses it.
#[utoipa::path(post, path = "/api/v1/orgs/{org_id}/projects/{project_id}/images",
    operation_id = "createProjectImage", tag = "images",
    params(("org_id" = String, Path), ("project_id" = String, Path), KeyParam),
    request_body = CreateProjectImageBody,
    responses((status = 201, body = ProjectImageView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody),
        (status = 413, body = ErrorBody), (status = 415, body = ErrorBody), (status = 422, body = ErrorBody),
        (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn create_project_image(
    State(vms): State<Vms>,
    Editor(scope, ..): Editor<Vms>,
    key: IdempotencyKey,
    body::Json(body): body::Json,
) -> Reply<Outcome<ProjectImageView>> {
    let request = CreateProjectImage::try_from(&body)?;
    let key = key.bind(&scope.caller, &body).await?;
    Ok(ops::create(&vms, &scope, request, key).await?)
}

/// One image of a project.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/images/{project_image_id}",
    operation_id = "getProjectImage", tag = "images",
    params(("org_id" = String, Path), ("project_id" = String, Path), ("project_image_id" = uuid::Uuid, Path)),
    responses((status = 200, body = ProjectImageView), (status = 400, body = ErrorBody),
        (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn get_project_image(
    State(vms): State<Vms>,
    Reader(scope, ..): Reader<Vms>,
    path: PathText,
) -> Reply<Json<ProjectImageView>> {
    let row = store::project_image::find(vms.db(), (&scope).into(), path.id("project_image_id")?).await?;
    Ok(Json(ProjectImageView::from(&row.ok_or_else(ops::not_found)?)))
}

/// Deletes an image of a project; it goes after the answer. What was cloned from it stays.
#[utoipa::path(delete, path = "/api/v1/orgs/{org_id}/projects/{project_id}/images/{project_image_id}",
    operation_id = "deleteProjectImage", tag = "images",
    params(("org_id" = String, Path), ("project_id" = String, Path), ("project_image_id" = uuid::Uuid, Path)),
    responses((status = 202, description = "it goes after the answer"), (status = 400, body = ErrorBody),
        (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn delete_project_image(
    State(vms): State<Vms>,
    Editor(scope, ..): Editor<Vms>,
    path: PathText,
) -> Reply<StatusCode> {
    ops::delete(&vms, &scope, path.id("project_image_id")?).await?;
    Ok(StatusCode::ACCEPTED)
}
