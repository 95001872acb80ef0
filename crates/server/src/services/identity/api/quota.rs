//! Quotas as administrators of the platform set them (extensions).

use axum::Json;
use axum::extract::State;

use crate::http::auth::{Administrator, Limits};
use crate::http::body;
use crate::http::envelope::ErrorBody;
use crate::http::path::PathText;
use crate::http::reply::Reply;
use crate::services::identity::wire::quota::LimitsView;
use crate::services::identity::{Identity, ops, project_not_found, store};

/// What a project may have.
#[utoipa::path(get, path = "/api/v1/admin/projects/{project_id}/quota", operation_id = "getLimits",
    tag = "administration", params(("project_id" = uuid::Uuid, Path)), responses((status = 200, body = LimitsView),
    (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody),
    (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)), security(("bearer" = [])))]
pub(super) async fn get_limits(
    State(identity): State<Identity>,
    _admin: Administrator,
    path: PathText,
) -> Reply<Json<LimitsView>> {
    let project = path.id("project_id")?;
    store::project::find(&identity.inner.db, project).await?.ok_or_else(project_not_found)?;
    Ok(Json(store::quota::find(&identity.inner.db, project).await?.into()))
}

/// Sets what a project may have, all of it; what is there already stays.
#[utoipa::path(put, path = "/api/v1/admin/projects/{project_id}/quota", operation_id = "setLimits",
    tag = "administration", params(("project_id" = uuid::Uuid, Path)), request_body = LimitsView,
    responses((status = 200, body = LimitsView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
    (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 413, body = ErrorBody),
    (status = 415, body = ErrorBody), (status = 503, body = ErrorBody)), security(("bearer" = [])))]
pub(super) async fn set_limits(
    State(identity): State<Identity>,
    Administrator(admin): Administrator,
    path: PathText,
    body::Json(body): body::Json,
) -> Reply<Json<LimitsView>> {
    let (project, limits) = (path.id("project_id")?, Limits::try_from(&body)?);
    ops::quota::set(&identity, &admin, project, limits).await?;
    Ok(Json(limits.into()))
}
