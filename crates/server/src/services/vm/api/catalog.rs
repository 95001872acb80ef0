//! What is on offer.

use axum::Json;
use axum::extract::State;

use crate::config::{Region, VmConfig};
use crate::http::auth::Caller;
use crate::http::envelope::ErrorBody;
use crate::http::list::{Asked, List, PageParams};
use crate::services::vm::Vms;
use crate::services::vm::wire::catalog::PlanView;

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
    responses((status = 200, body = List<PlanView>), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn list_plans(State(vms): State<Vms>, _caller: Caller, asked: Asked) -> Json<List<PlanView>> {
    let disk_gb_hour = vms.disk_gb_hour();
    let plans = vms.catalog().plans.iter().map(|plan| PlanView::new(plan, disk_gb_hour));
    Json(List::of_all(plans, asked.0))
}
