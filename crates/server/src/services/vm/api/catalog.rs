//! What is on offer.

use axum::Json;
use axum::extract::State;

use crate::config::{Plan, Region, VmConfig};
use crate::http::auth::Caller;
use crate::http::envelope::ErrorBody;
use crate::http::list::{Asked, List, PageParams};
use crate::services::vm::Vms;

fn page_of<T: Clone>(items: &[T], Asked(page): Asked) -> Json<List<T>> {
    Json(List::of_all(items.iter().cloned(), page))
}

/// Regions.
#[utoipa::path(get, path = "/api/v1/regions", operation_id = "listRegions", tag = "catalog", params(PageParams),
    responses((status = 200, body = List<Region>), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn list_regions(State(vms): State<Vms>, _caller: Caller, asked: Asked) -> Json<List<Region>> {
    page_of(&vms.catalog().regions, asked)
}

/// Sizes of machines.
#[utoipa::path(get, path = "/api/v1/vm_configs", operation_id = "listVMConfigs", tag = "catalog", params(PageParams),
    responses((status = 200, body = List<VmConfig>), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn list_vm_configs(State(vms): State<Vms>, _caller: Caller, asked: Asked) -> Json<List<VmConfig>> {
    page_of(&vms.catalog().vm_configs, asked)
}

/// Pricing plans.
#[utoipa::path(get, path = "/api/v1/plans", operation_id = "listPlans", tag = "catalog", params(PageParams),
    responses((status = 200, body = List<Plan>), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn list_plans(State(vms): State<Vms>, _caller: Caller, asked: Asked) -> Json<List<Plan>> {
    page_of(&vms.catalog().plans, asked)
}
