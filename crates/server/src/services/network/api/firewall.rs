//! Firewall rules of a network: read and set.

use axum::Json;
use axum::extract::State;
use berth_domain::firewall::SetRules;

use crate::http::auth::{Editor, Reader};
use crate::http::body;
use crate::http::envelope::ErrorBody;
use crate::http::path::PathText;
use crate::http::reply::Reply;
use crate::services::firewall::{RulesBody, RulesView};
use crate::services::network::{Networks, ops};

/// The firewall rules between the members of a network.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/networks/{network_id}/rules",
    operation_id = "getNetworkRules", tag = "networks",
    params(("org_id" = String, Path), ("project_id" = String, Path), ("network_id" = uuid::Uuid, Path)),
    responses((status = 200, body = RulesView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = []), ("api_key" = [])))]
pub(super) async fn get_network_rules(
    State(networks): State<Networks>,
    Reader(scope, ..): Reader<Networks>,
    path: PathText,
) -> Reply<Json<RulesView>> {
    let rules = ops::firewall::get(&networks, &scope, path.id("network_id")?).await?;
    Ok(Json(RulesView::from(&rules)))
}

/// Sets the firewall rules between the members of a network. They hold at once; what they do not allow any more ends, and
/// nothing else.
#[utoipa::path(put, path = "/api/v1/orgs/{org_id}/projects/{project_id}/networks/{network_id}/rules",
    operation_id = "setNetworkRules", tag = "networks",
    params(("org_id" = String, Path), ("project_id" = String, Path), ("network_id" = uuid::Uuid, Path)),
    request_body = RulesBody,
    responses((status = 200, body = RulesView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 413, body = ErrorBody),
        (status = 415, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = []), ("api_key" = [])))]
pub(super) async fn set_network_rules(
    State(networks): State<Networks>,
    Editor(scope, ..): Editor<Networks>,
    path: PathText,
    body::Json(body): body::Json,
) -> Reply<Json<RulesView>> {
    let id = path.id("network_id")?;
    let rules = ops::firewall::set(&networks, &scope, id, SetRules::try_from(&body)?).await?;
    Ok(Json(RulesView::from(&rules)))
}
