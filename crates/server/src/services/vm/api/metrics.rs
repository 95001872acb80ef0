//! What a VM uses, as series (extension).

use axum::Json;
use axum::extract::State;
use berth_domain::Error;
use berth_domain::Timestamp;
use berth_domain::error::FieldError;
use berth_domain::ids::VmId;
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

/// Most points of a series.
const MOST: i64 = 2000;

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
    Reader(scope): Reader,
    path: PathText,
    mut params: Params,
) -> Reply<Json<MetricsView>> {
    let id: VmId = path.id("vm_id")?;
    let window = params.read("window", |t| duration(t, INTERVAL, KEPT)).unwrap_or(KEPT);
    let resolution = params.read("resolution", |t| duration(t, INTERVAL, KEPT)).unwrap_or(INTERVAL);
    params.finish()?;
    if window / resolution > MOST || resolution > window {
        let message = format!("must divide the window into 1 to {MOST} steps");
        return Err(Error::invalid(vec![FieldError { field: "resolution".into(), message }]).into());
    }
    store::vm::find(vms.db(), (&scope).into(), id).await?.ok_or_else(not_found)?;
    let points = vms.metrics().series(id, window, resolution, vms.clock().now());
    Ok(Json(MetricsView {
        window: format!("{window}s"),
        resolution: format!("{resolution}s"),
        series: Series {
            cpu_percent: points.iter().map(|p| (p.at, p.cpu_percent)).collect(),
            memory_bytes: points.iter().map(|p| (p.at, p.memory_bytes)).collect(),
        },
    }))
}

/// Seconds of a text like `90s`, `5m`, `1h` or `1d`.
fn duration(text: &str, least: i64, most: i64) -> Result<i64, String> {
    let rule = || format!("must be a time like 30s, 5m or 1h, from {least}s to {most}s");
    let unit = match text.chars().last() {
        Some('s') => 1,
        Some('m') => 60,
        Some('h') => 3600,
        Some('d') => 86_400,
        _ => return Err(rule()),
    };
    let digits = &text[..text.len() - 1];
    let number: i64 = digits.parse().map_err(|_| rule())?;
    number
        .checked_mul(unit)
        .filter(|s| (least..=most).contains(s) && digits.bytes().all(|b| b.is_ascii_digit()))
        .ok_or_else(rule)
}

#[cfg(test)]
mod tests {
    use super::duration;

    #[test]
    fn durations_on_both_sides() {
        for (text, want) in [("10s", 10), ("5m", 300), ("1h", 3600)] {
            assert_eq!(duration(text, 10, 3600), Ok(want));
        }
        for bad in ["", "s", "9s", "61m", "1", "-1h", "+1h", "1.5h", "1x", "99999999999999999999h", "ä"] {
            assert!(duration(bad, 10, 3600).is_err(), "{bad}");
        }
    }
}
