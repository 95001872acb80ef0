//! What is on offer, and what a project has of it (extensions).

use axum::Json;
use axum::extract::State;

use crate::config::{Plan, Region, VmConfig};
use crate::db::tenant::Whose;
use crate::http::auth::{Caller, Onlooker};
use crate::http::envelope::ErrorBody;
use crate::http::list::{Asked, List, PageParams};
use crate::http::reply::Reply;
use crate::services::quota::QuotaView;
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

/// What a project uses and may use.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/quota", operation_id = "getQuota",
    tag = "catalog", params(("org_id" = String, Path), ("project_id" = String, Path)),
    responses((status = 200, body = QuotaView), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody),
        (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn get_quota(State(vms): State<Vms>, Onlooker(scope): Onlooker) -> Reply<Json<QuotaView>> {
    let (whose, now) = (Whose::Project(scope.project), vms.clock().now());
    Ok(Json(QuotaView::of(vms.db(), whose, &scope.limits, now).await?))
}
