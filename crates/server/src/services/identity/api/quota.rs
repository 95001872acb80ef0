//! Quotas as administrators of the platform set them (extensions).

use axum::Json;
use axum::extract::State;

use crate::db::quota;
use crate::db::tenant::Whose;
use crate::http::auth::{Administrator, Limits, OrgManager};
use crate::http::body;
use crate::http::envelope::ErrorBody;
use crate::http::path::PathText;
use crate::http::reply::Reply;
use crate::services::identity::absence::{org_not_found, project_not_found};
use crate::services::identity::wire::quota::LimitsView;
use crate::services::identity::{Identity, ops, store};
use crate::services::quota::QuotaView;

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
    Ok(Json(quota::find(&identity.inner.db, Whose::Project(project)).await?.into()))
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
    let (project, limits) = (path.id("project_id")?, Limits::of_project(&body)?);
    ops::quota::set(&identity, &admin, project, limits).await?;
    Ok(Json(limits.into()))
}

/// What all projects of an organization may have together.
#[utoipa::path(get, path = "/api/v1/admin/orgs/{org_id}/quota", operation_id = "getOrgLimits",
    tag = "administration", params(("org_id" = uuid::Uuid, Path)), responses((status = 200, body = LimitsView),
    (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody),
    (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)), security(("bearer" = [])))]
pub(super) async fn get_org_limits(
    State(identity): State<Identity>,
    _admin: Administrator,
    path: PathText,
) -> Reply<Json<LimitsView>> {
    let org = path.id("org_id")?;
    store::org::find(&identity.inner.db, org).await?.ok_or_else(org_not_found)?;
    Ok(Json(quota::find(&identity.inner.db, Whose::Org(org)).await?.into()))
}

/// Sets what all projects of an organization may have together, all of it; what is there already stays.
#[utoipa::path(put, path = "/api/v1/admin/orgs/{org_id}/quota", operation_id = "setOrgLimits",
    tag = "administration", params(("org_id" = uuid::Uuid, Path)), request_body = LimitsView,
    responses((status = 200, body = LimitsView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
    (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 413, body = ErrorBody),
    (status = 415, body = ErrorBody), (status = 503, body = ErrorBody)), security(("bearer" = [])))]
pub(super) async fn set_org_limits(
    State(identity): State<Identity>,
    Administrator(admin): Administrator,
    path: PathText,
    body::Json(body): body::Json,
) -> Reply<Json<LimitsView>> {
    let (org, limits) = (path.id("org_id")?, Limits::try_from(&body)?);
    ops::quota::set_of_org(&identity, &admin, org, limits).await?;
    Ok(Json(limits.into()))
}

/// What the projects of an organization have and may have together (owners and admins of it).
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/quota", operation_id = "getOrgQuota", tag = "identity",
    params(("org_id" = String, Path)), responses((status = 200, body = QuotaView), (status = 401, body = ErrorBody),
    (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn get_org_quota(
    State(identity): State<Identity>,
    OrgManager(scope): OrgManager,
) -> Reply<Json<QuotaView>> {
    let whose = Whose::Org(scope.org);
    let projects = store::project::count(&identity.inner.db, scope.org).await?;
    let limits = quota::find(&identity.inner.db, whose).await?;
    let now = identity.inner.clock.now();
    let view = QuotaView::of(&identity.inner.db, whose, &limits, now).await?;
    Ok(Json(view.with_projects(projects, &limits)))
}
