//! API keys of projects.

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use berth_domain::identity::api_key::{ChangeKey, NewKey, overlap};

use crate::http::auth::ProjectManager;
use crate::http::body::{self, OptionalJson};
use crate::http::envelope::ErrorBody;
use crate::http::idempotency::{IdempotencyKey, KeyParam, Outcome};
use crate::http::list::{List, NameParams, PageParams, Params};
use crate::http::own_key::KeyItself;
use crate::http::path::PathText;
use crate::http::reply::Reply;
use crate::services::identity::absence::{not_found, project_not_found};
use crate::services::identity::wire::api_key::{
    ChangeKeyBody, KeyView, NewKeyBody, NewKeyView, OwnKeyView, RotateKeyBody,
};
use crate::services::identity::{Identity, ops, store};

/// The keys of a project, newest first; none of them shows itself.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/api_keys", operation_id = "listAPIKeys",
    tag = "identity", params(("org_id" = String, Path), ("project_id" = String, Path), PageParams, NameParams,
    ("status" = Option<String>, Query, description = "only this status", pattern = "^(active|expired|revoked)$")),
    responses((status = 200, body = List<KeyView>), (status = 400, body = ErrorBody), (status = 401,
    body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 503,
    body = ErrorBody)), security(("bearer" = [])))]
pub(super) async fn list_api_keys(
    State(identity): State<Identity>,
    ProjectManager(scope): ProjectManager,
    mut params: Params,
) -> Reply<Json<List<KeyView>>> {
    let listing = params.listing(&store::api_key::LISTED);
    params.finish()?;
    let now = identity.inner.clock.now();
    let (rows, total) = store::api_key::list(&identity.inner.db, scope.project, now, &listing).await?;
    Ok(Json(List::new(rows.iter().map(|row| KeyView::of(row, now)).collect(), listing.page, total)))
}

/// Makes a key; `key` is shown only in this answer.
#[utoipa::path(post, path = "/api/v1/orgs/{org_id}/projects/{project_id}/api_keys", operation_id = "createAPIKey",
    tag = "identity", params(("org_id" = String, Path), ("project_id" = String, Path),
    KeyParam), request_body = NewKeyBody, responses((status = 201, body = NewKeyView),
    (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody),
    (status = 404, body = ErrorBody), (status = 413, body = ErrorBody), (status = 415, body = ErrorBody),
    (status = 422, body = ErrorBody), (status = 503, body = ErrorBody)), security(("bearer" = [])))]
pub(super) async fn create_api_key(
    State(identity): State<Identity>,
    ProjectManager(scope): ProjectManager,
    key: IdempotencyKey,
    body::Json(body): body::Json,
) -> Reply<Response> {
    let key = key.bind(&scope.caller, &body).await?;
    Ok(shown(ops::api_key::create(&identity, &scope, NewKey::try_from(&body)?, key).await?))
}

/// An answer with a key: nobody on the way keeps it.
fn shown(outcome: Outcome<NewKeyView>) -> Response {
    ([(header::CACHE_CONTROL, "no-store")], outcome).into_response()
}

/// One key, without its secret.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/api_keys/{key_id}",
    operation_id = "getAPIKey", tag = "identity", params(("org_id" = String, Path), ("project_id" = String, Path),
    ("key_id" = uuid::Uuid, Path)), responses((status = 200, body = KeyView), (status = 400, body = ErrorBody),
    (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody),
    (status = 503, body = ErrorBody)), security(("bearer" = [])))]
pub(super) async fn get_api_key(
    State(identity): State<Identity>,
    ProjectManager(scope): ProjectManager,
    path: PathText,
) -> Reply<Json<KeyView>> {
    let row = store::api_key::find(&identity.inner.db, scope.project, path.id("key_id")?).await?;
    Ok(Json(KeyView::of(&row.ok_or_else(|| not_found("API key"))?, identity.inner.clock.now())))
}

/// What the calling API key is: its scopes, its end, its project and organization.
#[utoipa::path(get, path = "/api/v1/key", operation_id = "getOwnAPIKey", tag = "identity",
    responses((status = 200, body = OwnKeyView), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody),
    (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)), security(("bearer" = []), ("api_key" = [])))]
pub(super) async fn get_own_api_key(
    State(identity): State<Identity>,
    KeyItself { id, scope }: KeyItself,
) -> Reply<Json<OwnKeyView>> {
    let db = &identity.inner.db;
    let key = store::api_key::find(db, scope.project, id).await?.ok_or_else(|| not_found("API key"))?;
    let org = store::org::find(db, scope.org).await?.ok_or_else(project_not_found)?;
    let project = store::project::find(db, scope.project).await?.ok_or_else(project_not_found)?;
    Ok(Json(OwnKeyView::new(&key, org, project)))
}

/// Changes name, scopes, networks or end of a key.
#[utoipa::path(patch, path = "/api/v1/orgs/{org_id}/projects/{project_id}/api_keys/{key_id}",
    operation_id = "updateAPIKey", tag = "identity", params(("org_id" = String, Path), ("project_id" = String,
    Path), ("key_id" = uuid::Uuid, Path)), request_body = ChangeKeyBody, responses((status = 200, body = KeyView),
    (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody),
    (status = 404, body = ErrorBody), (status = 409, body = ErrorBody), (status = 413, body = ErrorBody),
    (status = 415, body = ErrorBody), (status = 503, body = ErrorBody)), security(("bearer" = [])))]
pub(super) async fn update_api_key(
    State(identity): State<Identity>,
    ProjectManager(scope): ProjectManager,
    path: PathText,
    body::Json(body): body::Json,
) -> Reply<Json<KeyView>> {
    let id = path.id("key_id")?;
    Ok(Json(ops::api_key::update(&identity, &scope, id, ChangeKey::try_from(&body)?).await?))
}

/// Revokes a key, at once.
#[utoipa::path(delete, path = "/api/v1/orgs/{org_id}/projects/{project_id}/api_keys/{key_id}",
    operation_id = "revokeAPIKey", tag = "identity", params(("org_id" = String, Path), ("project_id" = String,
    Path), ("key_id" = uuid::Uuid, Path)), responses((status = 204, description = "revoked"), (status = 400,
    body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404,
    body = ErrorBody), (status = 503, body = ErrorBody)), security(("bearer" = [])))]
pub(super) async fn revoke_api_key(
    State(identity): State<Identity>,
    ProjectManager(scope): ProjectManager,
    path: PathText,
) -> Reply<StatusCode> {
    ops::api_key::revoke(&identity, &scope, path.id("key_id")?).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Makes a successor of a key; the old one ends after `overlap_seconds`.
#[utoipa::path(post, path = "/api/v1/orgs/{org_id}/projects/{project_id}/api_keys/{key_id}/rotate",
    operation_id = "rotateAPIKey", tag = "identity", params(("org_id" = String, Path), ("project_id" = String,
    Path), ("key_id" = uuid::Uuid, Path), KeyParam), request_body = Option<RotateKeyBody>, responses((status = 201, body = NewKeyView),
    (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody),
    (status = 404, body = ErrorBody), (status = 409, body = ErrorBody), (status = 413, body = ErrorBody),
    (status = 415, body = ErrorBody), (status = 422, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn rotate_api_key(
    State(identity): State<Identity>,
    ProjectManager(scope): ProjectManager,
    path: PathText,
    key: IdempotencyKey,
    body: OptionalJson,
) -> Reply<Response> {
    let body = body.or_empty();
    let (id, key) = (path.id("key_id")?, key.bind(&scope.caller, &body).await?);
    Ok(shown(ops::api_key::rotate(&identity, &scope, id, overlap(&body)?, key).await?))
}
