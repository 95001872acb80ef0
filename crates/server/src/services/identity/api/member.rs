//! Members of organizations and projects.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use berth_domain::identity::member::{NewMember, org_role, project_role};

use crate::http::auth::{OrgManager, OrgReader, ProjectManager};
use crate::http::body;
use crate::http::envelope::ErrorBody;
use crate::http::idempotency::{IdempotencyKey, KeyParam, Outcome};
use crate::http::list::{List, NameParams, PageParams, Params};
use crate::http::path::PathText;
use crate::http::reply::Reply;
use crate::services::identity::wire::member::{MemberView, NewMemberBody, OrgRoleBody, ProjectRoleBody};
use crate::services::identity::{Identity, ops, store};

/// The members of an organization, newest first.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/members", operation_id = "listMembers", tag = "identity",
    params(("org_id" = String, Path), PageParams, NameParams), responses((status = 200, body = List<MemberView>), (status = 400,
    body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404,
    body = ErrorBody), (status = 503, body = ErrorBody)), security(("bearer" = [])))]
pub(super) async fn list_members(
    State(identity): State<Identity>,
    OrgReader(scope): OrgReader,
    mut params: Params,
) -> Reply<Json<List<MemberView>>> {
    let listing = params.listing(&store::member::LISTED);
    params.finish()?;
    let (rows, total) = store::member::list(&identity.inner.db, scope.org, &listing).await?;
    Ok(Json(List::new(rows.into_iter().map(MemberView::from).collect(), listing.page, total)))
}

/// Changes a member's role; owners are managed by owners.
#[utoipa::path(patch, path = "/api/v1/orgs/{org_id}/members/{user_id}", operation_id = "updateMember",
    tag = "identity", params(("org_id" = String, Path), ("user_id" = uuid::Uuid, Path)), request_body = OrgRoleBody,
    responses((status = 200, body = MemberView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
    (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody),
    (status = 413, body = ErrorBody), (status = 415, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn update_member(
    State(identity): State<Identity>,
    OrgManager(scope): OrgManager,
    path: PathText,
    body::Json(body): body::Json,
) -> Reply<Json<MemberView>> {
    let user = path.id("user_id")?;
    Ok(Json(ops::member::change_role(&identity, &scope, user, org_role(&body)?).await?))
}

/// Removes a member from the organization and its projects, or leaves.
#[utoipa::path(delete, path = "/api/v1/orgs/{org_id}/members/{user_id}", operation_id = "removeMember",
    tag = "identity", params(("org_id" = String, Path), ("user_id" = uuid::Uuid, Path)), responses((status = 204,
    description = "removed"), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403,
    body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody), (status = 503,
    body = ErrorBody)), security(("bearer" = [])))]
pub(super) async fn remove_member(
    State(identity): State<Identity>,
    OrgReader(scope): OrgReader,
    path: PathText,
) -> Reply<StatusCode> {
    ops::member::remove(&identity, &scope, path.id("user_id")?).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The project's own members, newest first; owners and administrators of the organization have it without.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/members",
    operation_id = "listProjectMembers", tag = "identity", params(("org_id" = String, Path), ("project_id" = String,
    Path), PageParams, NameParams), responses((status = 200, body = List<MemberView>), (status = 400, body = ErrorBody),
    (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody),
    (status = 503, body = ErrorBody)), security(("bearer" = [])))]
pub(super) async fn list_project_members(
    State(identity): State<Identity>,
    ProjectManager(scope): ProjectManager,
    mut params: Params,
) -> Reply<Json<List<MemberView>>> {
    let listing = params.listing(&store::member::LISTED);
    params.finish()?;
    let (rows, total) = store::member::list_in_project(&identity.inner.db, scope.project, &listing).await?;
    Ok(Json(List::new(rows.into_iter().map(MemberView::from).collect(), listing.page, total)))
}

/// Makes a member of the organization a member of the project.
#[utoipa::path(post, path = "/api/v1/orgs/{org_id}/projects/{project_id}/members",
    operation_id = "addProjectMember", tag = "identity", params(("org_id" = String, Path), ("project_id" = String,
    Path), KeyParam), request_body = NewMemberBody, responses((status = 201, body = MemberView),
    (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody),
    (status = 404, body = ErrorBody), (status = 409, body = ErrorBody), (status = 413, body = ErrorBody),
    (status = 415, body = ErrorBody), (status = 422, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn add_project_member(
    State(identity): State<Identity>,
    ProjectManager(scope): ProjectManager,
    key: IdempotencyKey,
    body::Json(body): body::Json,
) -> Reply<Outcome<MemberView>> {
    let key = key.bind(&scope.caller, &body).await?;
    Ok(ops::member::add_to_project(&identity, &scope, NewMember::try_from(&body)?, key).await?)
}

/// Changes the role of a member of the project.
#[utoipa::path(patch, path = "/api/v1/orgs/{org_id}/projects/{project_id}/members/{user_id}",
    operation_id = "updateProjectMember", tag = "identity", params(("org_id" = String, Path),
    ("project_id" = String, Path), ("user_id" = uuid::Uuid, Path)), request_body = ProjectRoleBody,
    responses((status = 200, body = MemberView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
    (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 413, body = ErrorBody),
    (status = 415, body = ErrorBody), (status = 503, body = ErrorBody)), security(("bearer" = [])))]
pub(super) async fn update_project_member(
    State(identity): State<Identity>,
    ProjectManager(scope): ProjectManager,
    path: PathText,
    body::Json(body): body::Json,
) -> Reply<Json<MemberView>> {
    let user = path.id("user_id")?;
    Ok(Json(ops::member::change_role_in_project(&identity, &scope, user, project_role(&body)?).await?))
}

/// Takes a member out of the project.
#[utoipa::path(delete, path = "/api/v1/orgs/{org_id}/projects/{project_id}/members/{user_id}",
    operation_id = "removeProjectMember", tag = "identity", params(("org_id" = String, Path),
    ("project_id" = String, Path), ("user_id" = uuid::Uuid, Path)), responses((status = 204,
    description = "removed"), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403,
    body = ErrorBody), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn remove_project_member(
    State(identity): State<Identity>,
    ProjectManager(scope): ProjectManager,
    path: PathText,
) -> Reply<StatusCode> {
    ops::member::remove_from_project(&identity, &scope, path.id("user_id")?).await?;
    Ok(StatusCode::NO_CONTENT)
}
