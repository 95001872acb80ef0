//! People made, promoted and deleted, and everybody's projects, by administrators of the platform (extensions).

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use berth_domain::identity::admin::{NewUser, administrator};

use crate::http::auth::Administrator;
use crate::http::body;
use crate::http::envelope::ErrorBody;
use crate::http::idempotency::{IdempotencyKey, KeyParam, Outcome};
use crate::http::list::{List, NameParams, PageParams, Params};
use crate::http::path::PathText;
use crate::http::reply::Reply;
use crate::services::identity::wire::admin::{AdminProjectView, AdministratorBody, NewUserBody};
use crate::services::identity::wire::suspension::AdminUserView;
use crate::services::identity::{Identity, ops, store};
use crate::services::owner::{OwnerParams, whose};

/// Makes a person, whoever may sign up. Without a password a mail has a link that chooses one.
#[utoipa::path(post, path = "/api/v1/admin/users", operation_id = "createUser", tag = "administration",
    params(KeyParam), request_body = NewUserBody, responses((status = 201, body = AdminUserView), (status = 400, body = ErrorBody),
    (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 409, body = ErrorBody), (status = 413,
    body = ErrorBody), (status = 415, body = ErrorBody), (status = 429, body = ErrorBody), (status = 503,
    body = ErrorBody)), security(("bearer" = [])))]
pub(super) async fn create_user(
    State(identity): State<Identity>,
    Administrator(admin): Administrator,
    key: IdempotencyKey,
    body::Json(body): body::Json,
) -> Reply<Outcome<AdminUserView>> {
    let request = NewUser::try_from(&body)?;
    let key = key.bind(&admin.caller, &body).await?;
    Ok(ops::admin::create(&identity, &admin, request, key).await?)
}

/// Makes a person an administrator of the platform, or takes that back.
#[utoipa::path(patch, path = "/api/v1/admin/users/{user_id}", operation_id = "updateUser", tag = "administration",
    params(("user_id" = uuid::Uuid, Path)), request_body = AdministratorBody, responses((status = 200,
    body = AdminUserView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403,
    body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody), (status = 413,
    body = ErrorBody), (status = 415, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn update_user(
    State(identity): State<Identity>,
    Administrator(admin): Administrator,
    path: PathText,
    body::Json(body): body::Json,
) -> Reply<Json<AdminUserView>> {
    let (id, administrator) = (path.id("user_id")?, administrator(&body)?);
    Ok(Json(AdminUserView::from(&ops::admin::promote(&identity, &admin, id, administrator).await?)))
}

/// Deletes a person, with the organizations that are nobody else's and empty.
#[utoipa::path(delete, path = "/api/v1/admin/users/{user_id}", operation_id = "deleteUser", tag = "administration",
    params(("user_id" = uuid::Uuid, Path)), responses((status = 204, description = "deleted"), (status = 400,
    body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404,
    body = ErrorBody), (status = 409, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn delete_user(
    State(identity): State<Identity>,
    Administrator(admin): Administrator,
    path: PathText,
) -> Reply<StatusCode> {
    ops::admin::delete(&identity, &admin, path.id("user_id")?).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Deletes somebody's project, which must hold nothing.
#[utoipa::path(delete, path = "/api/v1/admin/projects/{project_id}", operation_id = "deleteAnyProject",
    tag = "administration", params(("project_id" = uuid::Uuid, Path)), responses((status = 204, description = "deleted"),
    (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404,
    body = ErrorBody), (status = 409, body = ErrorBody), (status = 503, body = ErrorBody)), security(("bearer" = [])))]
pub(super) async fn delete_any_project(
    State(identity): State<Identity>,
    Administrator(admin): Administrator,
    path: PathText,
) -> Reply<StatusCode> {
    ops::project::delete_any(&identity, &admin, path.id("project_id")?).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Everybody's projects, newest first.
#[utoipa::path(get, path = "/api/v1/admin/projects", operation_id = "listAllProjects", tag = "administration",
    params(OwnerParams, NameParams, PageParams),
    responses((status = 200, body = List<AdminProjectView>), (status = 400, body = ErrorBody), (status = 401,
    body = ErrorBody), (status = 403, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn list_all_projects(
    State(identity): State<Identity>,
    _admin: Administrator,
    mut params: Params,
) -> Reply<Json<List<AdminProjectView>>> {
    let (listing, whose) = (params.listing(&store::project::LISTED), whose(&mut params));
    params.finish()?;
    let (rows, total) = store::project::list_all(&identity.inner.db, &whose, &listing).await?;
    Ok(Json(List::new(rows.iter().map(AdminProjectView::from).collect(), listing.page, total)))
}
