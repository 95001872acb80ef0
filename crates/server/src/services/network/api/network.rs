//! Networks: list, create, read, change, delete.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use berth_domain::network::{CreateNetwork, UpdateNetwork};

use crate::http::auth::{Editor, Reader};
use crate::http::body;
use crate::http::envelope::ErrorBody;
use crate::http::idempotency::{IdempotencyKey, KeyParam, Outcome};
use crate::http::list::{List, NameParams, PageParams, Params};
use crate::http::path::PathText;
use crate::http::reply::Reply;
use crate::services::network::wire::network::NetworkView;
use crate::services::network::wire::requests::{CreateNetworkBody, UpdateNetworkBody};
use crate::services::network::{Networks, ops, store};

/// Networks of a project, newest first.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/networks", operation_id = "listNetworks",
    tag = "networks",
    params(("org_id" = String, Path), ("project_id" = String, Path), PageParams, NameParams),
    responses((status = 200, body = List<NetworkView>), (status = 400, body = ErrorBody),
        (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 503, body = ErrorBody)),
    security(("bearer" = []), ("api_key" = [])))]
pub(super) async fn list_networks(
    State(networks): State<Networks>,
    Reader(scope, ..): Reader<Networks>,
    mut params: Params,
) -> Reply<Json<List<NetworkView>>> {
    let listing = params.listing(&store::network::LISTED);
    params.finish()?;
    let (rows, total) = store::network::list(networks.db(), (&scope).into(), &listing).await?;
    let view = |(row, members): &_| NetworkView::new(row, *members);
    Ok(Json(List::new(rows.iter().map(view).collect(), listing.page, total)))
}

/// Creates a network. Its VMs and sandboxes reach each other by their names, `web` or `web.internal`.
#[utoipa::path(post, path = "/api/v1/orgs/{org_id}/projects/{project_id}/networks", operation_id = "createNetwork",
    tag = "networks",
    params(("org_id" = String, Path), ("project_id" = String, Path), KeyParam),
    request_body = CreateNetworkBody,
    responses((status = 201, body = NetworkView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody),
        (status = 413, body = ErrorBody), (status = 415, body = ErrorBody), (status = 422, body = ErrorBody),
        (status = 503, body = ErrorBody)),
    security(("bearer" = []), ("api_key" = [])))]
pub(super) async fn create_network(
    State(networks): State<Networks>,
    Editor(scope, ..): Editor<Networks>,
    key: IdempotencyKey,
    body::Json(body): body::Json,
) -> Reply<Outcome<NetworkView>> {
    let request = CreateNetwork::try_from(&body)?;
    let key = key.bind(&scope.caller, &body).await?;
    Ok(ops::network::create(&networks, &scope, request, key).await?)
}

/// One network, with who belongs to it.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/networks/{network_id}",
    operation_id = "getNetwork", tag = "networks",
    params(("org_id" = String, Path), ("project_id" = String, Path), ("network_id" = uuid::Uuid, Path)),
    responses((status = 200, body = NetworkView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = []), ("api_key" = [])))]
pub(super) async fn get_network(
    State(networks): State<Networks>,
    Reader(scope, ..): Reader<Networks>,
    path: PathText,
) -> Reply<Json<NetworkView>> {
    Ok(Json(ops::network::get(&networks, &scope, path.id("network_id")?).await?))
}

/// Changes its name, by which its members find each other, too: `web.<name>.internal`.
#[utoipa::path(patch, path = "/api/v1/orgs/{org_id}/projects/{project_id}/networks/{network_id}",
    operation_id = "updateNetwork", tag = "networks",
    params(("org_id" = String, Path), ("project_id" = String, Path), ("network_id" = uuid::Uuid, Path)),
    request_body = UpdateNetworkBody,
    responses((status = 200, body = NetworkView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody),
        (status = 413, body = ErrorBody), (status = 415, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = []), ("api_key" = [])))]
pub(super) async fn update_network(
    State(networks): State<Networks>,
    Editor(scope, ..): Editor<Networks>,
    path: PathText,
    body::Json(body): body::Json,
) -> Reply<Json<NetworkView>> {
    let id = path.id("network_id")?;
    let change = UpdateNetwork::try_from(&body)?;
    Ok(Json(ops::network::update(&networks, &scope, id, change).await?))
}

/// Deletes a network that nobody belongs to; it goes after the answer.
#[utoipa::path(delete, path = "/api/v1/orgs/{org_id}/projects/{project_id}/networks/{network_id}",
    operation_id = "deleteNetwork", tag = "networks",
    params(("org_id" = String, Path), ("project_id" = String, Path), ("network_id" = uuid::Uuid, Path)),
    responses((status = 204, description = "it goes after the answer"), (status = 400, body = ErrorBody),
        (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = []), ("api_key" = [])))]
pub(super) async fn delete_network(
    State(networks): State<Networks>,
    Editor(scope, ..): Editor<Networks>,
    path: PathText,
) -> Reply<StatusCode> {
    ops::network::delete(&networks, &scope, path.id("network_id")?).await?;
    Ok(StatusCode::NO_CONTENT)
}
