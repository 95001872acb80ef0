//! Firewall rules of a VM: read and set.

use axum::Json;
use axum::extract::State;
use berth_domain::firewall::SetRules;

use crate::http::auth::{Editor, Reader};
use crate::http::body;
use crate::http::envelope::ErrorBody;
use crate::http::path::PathText;
use crate::http::reply::Reply;
use crate::services::firewall::{RulesBody, RulesView};
use crate::services::vm::{Vms, ops};

/// The firewall rules of a VM.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/vms/{vm_id}/rules",
    operation_id = "getVMRules", tag = "vms",
    params(("org_id" = String, Path), ("project_id" = String, Path), ("vm_id" = uuid::Uuid, Path)),
    responses((status = 200, body = RulesView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn get_vm_rules(
    State(vms): State<Vms>,
    Reader(scope, ..): Reader<Vms>,
    path: PathText,
) -> Reply<Json<RulesView>> {
    let rules = ops::firewall::get(&vms, &scope, path.id("vm_id")?).await?;
    Ok(Json(RulesView::from(&rules)))
}

/// Sets the firewall rules of a VM: of who comes in from outside and by its networks, and of what it begins. They hold at
/// once; what they do not allow any more ends, and nothing else.
#[utoipa::path(put, path = "/api/v1/orgs/{org_id}/projects/{project_id}/vms/{vm_id}/rules",
    operation_id = "setVMRules", tag = "vms",
    params(("org_id" = String, Path), ("project_id" = String, Path), ("vm_id" = uuid::Uuid, Path)),
    request_body = RulesBody,
    responses((status = 200, body = RulesView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 413, body = ErrorBody),
        (status = 415, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn set_vm_rules(
    State(vms): State<Vms>,
    Editor(scope, ..): Editor<Vms>,
    path: PathText,
    body::Json(body): body::Json,
) -> Reply<Json<RulesView>> {
    let id = path.id("vm_id")?;
    let rules = ops::firewall::set(&vms, &scope, id, SetRules::try_from(&body)?).await?;
    Ok(Json(RulesView::from(&rules)))
}
