//! `/healthz`, `/readyz` and `/metrics`.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::db::Db;

/// Writes the metrics in Prometheus' text format.
pub type Metrics = Arc<dyn Fn() -> futures::future::BoxFuture<'static, String> + Send + Sync>;

/// What the probes look at.
#[derive(Clone)]
pub struct Probes {
    /// The database.
    pub db: Db,
    /// Whether the engines answered at start.
    pub engines: Arc<dyn Fn() -> Result<(), String> + Send + Sync>,
    /// The metrics of all services.
    pub metrics: Metrics,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Health)]
struct Health {
    /// `ok`.
    status: &'static str,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Readiness)]
struct Readiness {
    /// `ready` or `not_ready`.
    status: &'static str,
    /// `ok`, or what is wrong.
    database: String,
    /// `ok`, or what is wrong.
    engines: String,
}

/// The routes.
pub fn routes(probes: Probes) -> OpenApiRouter {
    OpenApiRouter::new().routes(routes!(healthz)).routes(routes!(readyz)).routes(routes!(metrics)).with_state(probes)
}

/// The service is alive.
#[utoipa::path(get, path = "/healthz", tag = "operation", responses((status = 200, body = Health)))]
async fn healthz() -> axum::Json<Health> {
    axum::Json(Health { status: "ok" })
}

/// The service can do its work: database, schema and engines.
#[utoipa::path(get, path = "/readyz", tag = "operation",
    responses((status = 200, body = Readiness), (status = 503, body = Readiness)))]
async fn readyz(State(probes): State<Probes>) -> Response {
    let database = probes.db.ping().await.map_err(|_| "does not answer".to_owned());
    let engines = (probes.engines)();
    let ready = database.is_ok() && engines.is_ok();
    let word = |r: Result<(), String>| r.map_or_else(|e| e, |()| "ok".into());
    let body = Readiness {
        status: if ready { "ready" } else { "not_ready" },
        database: word(database),
        engines: word(engines),
    };
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    super::envelope::keep_shape((status, axum::Json(body)).into_response())
}

/// Metrics in Prometheus' text format.
#[utoipa::path(get, path = "/metrics", tag = "operation",
    responses((status = 200, body = String, content_type = "text/plain")))]
async fn metrics(State(probes): State<Probes>) -> impl IntoResponse {
    ([("content-type", "text/plain; version=0.0.4")], (probes.metrics)().await)
}
