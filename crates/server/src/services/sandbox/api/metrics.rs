//! What a sandbox uses, as series.

use axum::Json;
use axum::extract::State;
use berth_domain::series::Steps;

use crate::http::auth::Reader;
use crate::http::envelope::ErrorBody;
use crate::http::list::Params;
use crate::http::path::PathText;
use crate::http::reply::Reply;
use crate::services::sandbox::wire::metrics::MetricsView;
use crate::services::sandbox::{Sandboxes, metrics, ops};

/// What a sandbox uses, for a window and a resolution.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/sandboxes/{sandbox_id}/metrics", operation_id = "getSandboxMetrics",
    tag = "sandboxes", params(("org_id" = String, Path), ("project_id" = String, Path), ("sandbox_id" = uuid::Uuid, Path),
        ("window" = Option<String>, Query, description = "like 30m, 1h or 7d, at most 30d; default 1h"),
        ("resolution" = Option<String>, Query,
            description = "like 10s or 1m, at least 5s, at most 2,000 steps; default 10s")),
    responses((status = 200, body = MetricsView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = []), ("api_key" = [])))]
pub(super) async fn get_sandbox_metrics(
    State(sandboxes): State<Sandboxes>,
    Reader(scope, ..): Reader<Sandboxes>,
    path: PathText,
    Params(params): Params,
) -> Reply<Json<MetricsView>> {
    let id = path.id("sandbox_id")?;
    let steps = Steps::read(params, metrics::BOUNDS)?;
    ops::sandbox::get(&sandboxes, &scope, id, false).await?;
    let points = metrics::series(&sandboxes, id, steps, sandboxes.clock().now()).await?;
    Ok(Json(MetricsView::new(steps, &points)))
}
