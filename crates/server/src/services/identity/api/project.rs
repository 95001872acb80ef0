//! Projects.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use berth_domain::identity::policy::{Action, may};
use berth_domain::identity::project::{ChangeProject, NewProject};

use crate::http::auth::{OrgManager, OrgReader, ProjectManager, ProjectOwner, ProjectReader};
use crate::http::body;
use crate::http::envelope::ErrorBody;
use crate::http::idempotency::{IdempotencyKey, KeyParam, Outcome};
use crate::http::list::{List, NameParams, PageParams, Params};
use crate::http::reply::Reply;
use crate::services::identity::absence::project_not_found;
use crate::services::identity::store::project::ProjectRow;
use crate::services::identity::wire::org::NamedBody;
use crate::services::identity::wire::project::{ChangeProjectBody, ProjectView};
use crate::services::identity::{Identity, ops, store};

/// The projects of an organization that the caller sees, newest first.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects", operation_id = "listProjects", tag = "identity",
    params(("org_id" = String, Path), PageParams, NameParams), responses((status = 200, body = List<ProjectView>),
    (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody),
    (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)), security(("bearer" = [])))]
pub(super) async fn list_projects(
    State(identity): State<Identity>,
    OrgReader(scope): OrgReader,
    mut params: Params,
) -> Reply<Json<List<ProjectView>>> {
    let listing = params.listing(&store::project::LISTED);
    params.finish()?;
    let all = may(Some(scope.role), None, Action::ReadProject);
    let (rows, total) = store::project::list(&identity.inner.db, scope.org, scope.person.user, all, &listing).await?;
    Ok(Json(List::new(rows.iter().map(ProjectView::from).collect(), listing.page, total)))
}

/// Makes a project of an organization.
#[utoipa::path(post, path = "/api/v1/orgs/{org_id}/projects", operation_id = "createProject", tag = "identity",
    params(("org_id" = String, Path), KeyParam), request_body = NamedBody, responses((status = 201, body = ProjectView),
    (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody),
    (status = 404, body = ErrorBody), (status = 409, body = ErrorBody), (status = 413, body = ErrorBody),
    (status = 415, body = ErrorBody), (status = 422, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn create_project(
    State(identity): State<Identity>,
    OrgManager(scope): OrgManager,
    key: IdempotencyKey,
    body::Json(body): body::Json,
) -> Reply<Outcome<ProjectView>> {
    let key = key.bind(&scope.person.caller, &body).await?;
    Ok(ops::project::create(&identity, &scope, NewProject::try_from(&body)?, key).await?)
}

/// One project.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}", operation_id = "getProject",
    tag = "identity", params(("org_id" = String, Path), ("project_id" = String, Path)), responses((status = 200,
    body = ProjectView), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404,
    body = ErrorBody), (status = 503, body = ErrorBody)), security(("bearer" = [])))]
pub(super) async fn get_project(
    State(identity): State<Identity>,
    ProjectReader(scope): ProjectReader,
) -> Reply<Json<ProjectView>> {
    let row = store::project::find(&identity.inner.db, scope.project).await?.ok_or_else(project_not_found)?;
    Ok(Json(ProjectView::from(&ProjectRow { role: scope.project_role, ..row })))
}

/// Changes a project's name or slug.
#[utoipa::path(patch, path = "/api/v1/orgs/{org_id}/projects/{project_id}", operation_id = "updateProject",
    tag = "identity", params(("org_id" = String, Path), ("project_id" = String, Path)), request_body = ChangeProjectBody,
    responses((status = 200, body = ProjectView), (status = 400, body = ErrorBody), (status = 401,
    body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409,
    body = ErrorBody), (status = 413, body = ErrorBody), (status = 415, body = ErrorBody), (status = 503,
    body = ErrorBody)), security(("bearer" = [])))]
pub(super) async fn update_project(
    State(identity): State<Identity>,
    ProjectManager(scope): ProjectManager,
    body::Json(body): body::Json,
) -> Reply<Json<ProjectView>> {
    Ok(Json(ops::project::update(&identity, &scope, ChangeProject::try_from(&body)?).await?))
}

/// Deletes a project that holds nothing; its keys end.
#[utoipa::path(delete, path = "/api/v1/orgs/{org_id}/projects/{project_id}", operation_id = "deleteProject",
    tag = "identity", params(("org_id" = String, Path), ("project_id" = String, Path)), responses((status = 204,
    description = "deleted"), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404,
    body = ErrorBody), (status = 409, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn delete_project(
    State(identity): State<Identity>,
    ProjectOwner(scope): ProjectOwner,
) -> Reply<StatusCode> {
    ops::project::delete(&identity, &scope).await?;
    Ok(StatusCode::NO_CONTENT)
}
