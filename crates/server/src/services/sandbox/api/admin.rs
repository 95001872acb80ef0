//! Everybody's sandboxes, as administrators of the platform see and end them.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;

use crate::http::auth::Administrator;
use crate::http::base_url::BaseUrl;
use crate::http::envelope::ErrorBody;
use crate::http::list::{List, NameParams, PageParams, Params};
use crate::http::path::PathText;
use crate::http::reply::{Accepted, Reply};
use crate::services::owner::{OwnerParams, whose};
use crate::services::sandbox::wire::admin::AdminSandboxView;
use crate::services::sandbox::wire::sandbox::{SandboxPhase, SandboxView, Shown};
use crate::services::sandbox::{Sandboxes, ops, store};

/// Everybody's sandboxes, newest first.
#[utoipa::path(get, path = "/api/v1/admin/sandboxes", operation_id = "listAllSandboxes", tag = "administration",
    params(OwnerParams, ("phase" = Option<SandboxPhase>, Query, description = "only this phase"),
        NameParams, PageParams),
    responses((status = 200, body = List<AdminSandboxView>), (status = 400, body = ErrorBody), (status = 401,
    body = ErrorBody), (status = 403, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn list_all_sandboxes(
    State(sandboxes): State<Sandboxes>,
    _admin: Administrator,
    BaseUrl(base): BaseUrl,
    mut params: Params,
) -> Reply<Json<List<AdminSandboxView>>> {
    let (listing, whose) = (params.listing(&store::sandbox::LISTED), whose(&mut params));
    params.finish()?;
    let (rows, total) = store::sandbox::list_all(sandboxes.db(), &whose, &listing).await?;
    let shown = Shown { base: &base, now: sandboxes.clock().now(), names_hosts: true };
    let view = |row: &_| AdminSandboxView::new(row, |sandbox| SandboxView::new(sandbox, shown));
    Ok(Json(List::new(rows.iter().map(view).collect(), listing.page, total)))
}

/// Pauses somebody's sandbox; its memory is kept. Its owner may resume it; suspend the organization where that is not wanted.
#[utoipa::path(post, path = "/api/v1/admin/sandboxes/{sandbox_id}/pause", operation_id = "pauseAnySandbox",
    tag = "administration", params(("sandbox_id" = uuid::Uuid, Path)), responses((status = 202, body = SandboxView),
    (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404,
    body = ErrorBody), (status = 409, body = ErrorBody), (status = 503, body = ErrorBody)), security(("bearer" = [])))]
pub(super) async fn pause_any_sandbox(
    State(sandboxes): State<Sandboxes>,
    Administrator(admin): Administrator,
    BaseUrl(base): BaseUrl,
    path: PathText,
) -> Reply<Accepted<SandboxView>> {
    let row = ops::admin::pause(&sandboxes, &admin, path.id("sandbox_id")?).await?;
    let shown = Shown { base: &base, now: sandboxes.clock().now(), names_hosts: true };
    Ok(Accepted(SandboxView::new(&row, shown)))
}

/// Deletes somebody's sandbox, in any phase.
#[utoipa::path(delete, path = "/api/v1/admin/sandboxes/{sandbox_id}", operation_id = "deleteAnySandbox",
    tag = "administration", params(("sandbox_id" = uuid::Uuid, Path)), responses((status = 202,
    description = "will be deleted"), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403,
    body = ErrorBody), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn delete_any_sandbox(
    State(sandboxes): State<Sandboxes>,
    Administrator(admin): Administrator,
    path: PathText,
) -> Reply<StatusCode> {
    ops::admin::delete(&sandboxes, &admin, path.id("sandbox_id")?).await?;
    Ok(StatusCode::ACCEPTED)
}
