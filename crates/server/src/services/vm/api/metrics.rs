//! What a VM uses, as series.

use axum::Json;
use axum::extract::State;
use berth_domain::Timestamp;
use berth_domain::ids::VmId;
use berth_domain::series::{Bounds, Steps};
use serde::Serialize;
use utoipa::ToSchema;

use super::vm::not_found;
use crate::http::auth::Reader;
use crate::http::envelope::ErrorBody;
use crate::http::list::Params;
use crate::http::path::PathText;
use crate::http::reply::Reply;
use crate::services::vm::metrics::{INTERVAL, KEPT};
use crate::services::vm::{Vms, store};

/// What may be asked for.
const BOUNDS: Bounds =
    Bounds { unit: 1, finest: INTERVAL, longest: KEPT, default: Steps { window: KEPT, resolution: INTERVAL } };

/// Series of a VM.
#[derive(Serialize, ToSchema)]
#[schema(as = VMMetricsResponse)]
pub(super) struct MetricsView {
    /// Seconds covered, with unit.
    window: String,
    /// Seconds of a step, with unit.
    resolution: String,
    series: Series,
}

/// Lists of `[time, value]`; the value is `null` where the machine did not run.
#[derive(Serialize, ToSchema)]
#[schema(as = VMMetricsSeries)]
pub(super) struct Series {
    #[schema(value_type = Vec<Vec<Value>>)]
    cpu_percent: Vec<(Timestamp, Option<f64>)>,
    #[schema(value_type = Vec<Vec<Value>>)]
    memory_bytes: Vec<(Timestamp, Option<u64>)>,
}

/// What a VM uses, for a window and a resolution.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/vms/{vm_id}/metrics",
    operation_id = "getVMMetrics", tag = "vms",
    params(("org_id" = String, Path), ("project_id" = String, Path), ("vm_id" = uuid::Uuid, Path),
        ("window" = Option<String>, Query, description = "like 30m or 1h, at most 1h; default 1h"),
        ("resolution" = Option<String>, Query, description = "like 10s or 1m, at least 10s; default 10s")),
    responses((status = 200, body = MetricsView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn get_vm_metrics(
    State(vms): State<Vms>,
    Reader(scope, ..): Reader<Vms>,
    path: PathText,
    Params(params): Params,
) -> Reply<Json<MetricsView>> {
    let id: VmId = path.id("vm_id")?;
    let Steps { window, resolution } = Steps::read(params, BOUNDS)?;
    store::vm::find(vms.db(), (&scope).into(), id).await?.ok_or_else(not_found)?;
    let points = vms.metrics().series(id, Steps { window, resolution }, vms.clock().now());
    Ok(Json(MetricsView {
        window: format!("{window}s"),
        resolution: format!("{resolution}s"),
        series: Series {
            cpu_percent: points.iter().map(|p| (p.at, p.cpu_percent)).collect(),
            memory_bytes: points.iter().map(|p| (p.at, p.memory_bytes)).collect(),
        },
    }))
}
