//! Stored keys: list, create, read, delete; once for the caller's own, once for those of a project.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use berth_domain::ssh_key::StoreKey;

use crate::http::auth::{Editor, Person, Reader};
use crate::http::body;
use crate::http::envelope::ErrorBody;
use crate::http::idempotency::{IdempotencyKey, KeyParam, Outcome};
use crate::http::list::{List, NameParams, PageParams, Params};
use crate::http::path::PathText;
use crate::http::reply::Reply;
use crate::services::ssh_key::keeper::Keeper;
use crate::services::ssh_key::wire::ssh_key::{CreateSshKeyBody, SshKeyView};
use crate::services::ssh_key::{SshKeys, ops, store};

async fn listed(keys: &SshKeys, keeper: Keeper<'_>, mut params: Params) -> Reply<Json<List<SshKeyView>>> {
    let listing = params.listing(&store::ssh_key::LISTED);
    params.finish()?;
    let (rows, total) = store::ssh_key::list(&keys.db, keeper.owner(), &listing).await?;
    Ok(Json(List::new(rows.iter().map(SshKeyView::from).collect(), listing.page, total)))
}

async fn one(keys: &SshKeys, keeper: Keeper<'_>, path: &PathText) -> Reply<Json<SshKeyView>> {
    let row = store::ssh_key::find(&keys.db, keeper.owner(), path.id("ssh_key_id")?).await?;
    Ok(Json(SshKeyView::from(&row.ok_or_else(ops::ssh_key::not_found)?)))
}

/// The SSH keys of the caller, newest first.
#[utoipa::path(get, path = "/api/v1/users/me/ssh_keys", operation_id = "listMySSHKeys", tag = "ssh_keys",
    params(PageParams, NameParams),
    responses((status = 200, body = List<SshKeyView>), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn list_my_ssh_keys(
    State(keys): State<SshKeys>,
    person: Person,
    params: Params,
) -> Reply<Json<List<SshKeyView>>> {
    listed(&keys, Keeper::Person(&person), params).await
}

/// Stores an SSH key of the caller, which VMs are made with by `ssh_key_ids`.
#[utoipa::path(post, path = "/api/v1/users/me/ssh_keys", operation_id = "createMySSHKey", tag = "ssh_keys",
    params(KeyParam),
    request_body = CreateSshKeyBody,
    responses((status = 201, body = SshKeyView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 409, body = ErrorBody), (status = 413, body = ErrorBody), (status = 415, body = ErrorBody), (status = 422, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn create_my_ssh_key(
    State(keys): State<SshKeys>,
    person: Person,
    key: IdempotencyKey,
    body::Json(body): body::Json,
) -> Reply<Outcome<SshKeyView>> {
    let new = StoreKey::try_from(&body)?;
    let key = key.bind(&person.caller, &body).await?;
    Ok(ops::ssh_key::create(&keys, Keeper::Person(&person), new, key).await?)
}

/// One SSH key of the caller.
#[utoipa::path(get, path = "/api/v1/users/me/ssh_keys/{ssh_key_id}", operation_id = "getMySSHKey", tag = "ssh_keys",
    params(("ssh_key_id" = uuid::Uuid, Path)),
    responses((status = 200, body = SshKeyView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn get_my_ssh_key(
    State(keys): State<SshKeys>,
    person: Person,
    path: PathText,
) -> Reply<Json<SshKeyView>> {
    one(&keys, Keeper::Person(&person), &path).await
}

/// Forgets an SSH key of the caller. Machines that were made with it keep it.
#[utoipa::path(delete, path = "/api/v1/users/me/ssh_keys/{ssh_key_id}", operation_id = "deleteMySSHKey", tag = "ssh_keys",
    params(("ssh_key_id" = uuid::Uuid, Path)),
    responses((status = 204, description = "deleted"), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn delete_my_ssh_key(
    State(keys): State<SshKeys>,
    person: Person,
    path: PathText,
) -> Reply<StatusCode> {
    ops::ssh_key::delete(&keys, Keeper::Person(&person), path.id("ssh_key_id")?).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The SSH keys of a project, newest first.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/ssh_keys", operation_id = "listSSHKeys", tag = "ssh_keys",
    params(("org_id" = String, Path), ("project_id" = String, Path), PageParams, NameParams),
    responses((status = 200, body = List<SshKeyView>), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = []), ("api_key" = [])))]
pub(super) async fn list_ssh_keys(
    State(keys): State<SshKeys>,
    Reader(scope, ..): Reader<SshKeys>,
    params: Params,
) -> Reply<Json<List<SshKeyView>>> {
    listed(&keys, Keeper::Project(&scope), params).await
}

/// Stores an SSH key of a project, which VMs are made with by `ssh_key_ids`.
#[utoipa::path(post, path = "/api/v1/orgs/{org_id}/projects/{project_id}/ssh_keys", operation_id = "createSSHKey", tag = "ssh_keys",
    params(("org_id" = String, Path), ("project_id" = String, Path), KeyParam),
    request_body = CreateSshKeyBody,
    responses((status = 201, body = SshKeyView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody), (status = 413, body = ErrorBody), (status = 415, body = ErrorBody), (status = 422, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = []), ("api_key" = [])))]
pub(super) async fn create_ssh_key(
    State(keys): State<SshKeys>,
    Editor(scope, ..): Editor<SshKeys>,
    key: IdempotencyKey,
    body::Json(body): body::Json,
) -> Reply<Outcome<SshKeyView>> {
    let new = StoreKey::try_from(&body)?;
    let key = key.bind(&scope.caller, &body).await?;
    Ok(ops::ssh_key::create(&keys, Keeper::Project(&scope), new, key).await?)
}

/// One SSH key of a project.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/ssh_keys/{ssh_key_id}", operation_id = "getSSHKey", tag = "ssh_keys",
    params(("org_id" = String, Path), ("project_id" = String, Path), ("ssh_key_id" = uuid::Uuid, Path)),
    responses((status = 200, body = SshKeyView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = []), ("api_key" = [])))]
pub(super) async fn get_ssh_key(
    State(keys): State<SshKeys>,
    Reader(scope, ..): Reader<SshKeys>,
    path: PathText,
) -> Reply<Json<SshKeyView>> {
    one(&keys, Keeper::Project(&scope), &path).await
}

/// Forgets an SSH key of a project. Machines that were made with it keep it.
#[utoipa::path(delete, path = "/api/v1/orgs/{org_id}/projects/{project_id}/ssh_keys/{ssh_key_id}", operation_id = "deleteSSHKey", tag = "ssh_keys",
    params(("org_id" = String, Path), ("project_id" = String, Path), ("ssh_key_id" = uuid::Uuid, Path)),
    responses((status = 204, description = "deleted"), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = []), ("api_key" = [])))]
pub(super) async fn delete_ssh_key(
    State(keys): State<SshKeys>,
    Editor(scope, ..): Editor<SshKeys>,
    path: PathText,
) -> Reply<StatusCode> {
    ops::ssh_key::delete(&keys, Keeper::Project(&scope), path.id("ssh_key_id")?).await?;
    Ok(StatusCode::NO_CONTENT)
}
