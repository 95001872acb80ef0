//! `/healthz`, `/readyz` and `/metrics`.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::traffic::TRAFFIC;
use crate::db::{Db, DbError};

/// How long the database may take to answer a probe; collectors of metrics wait ten seconds by default.
const PATIENCE: Duration = Duration::from_secs(1);

/// Writes the metrics in Prometheus' text format.
pub type Metrics = Arc<dyn Fn() -> futures::future::BoxFuture<'static, String> + Send + Sync>;

/// What the probes examine.
#[derive(Clone)]
pub struct Probes {
    /// The database.
    pub db: Db,
    /// Whether the database takes writes, as far as is known.
    pub writes: Arc<dyn Fn() -> Result<(), String> + Send + Sync>,
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
    migrations: String,
    /// `ok`, or what is wrong.
    engines: String,
}

/// The database's answer, if it comes in time.
pub async fn soon<T>(answer: impl Future<Output = Result<T, DbError>>) -> Option<T> {
    tokio::time::timeout(PATIENCE, answer).await.ok()?.ok()
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
    // Both at once: together they take no longer than one may.
    let (answers, current) = tokio::join!(soon(probes.db.ping()), soon(probes.db.is_current()));
    let answers = answers.ok_or_else(|| "does not answer".to_owned());
    let database = answers.and_then(|()| (probes.writes)());
    let migrations = match current {
        Some(true) => Ok(()),
        Some(false) => Err("the schema is not the one of this version; start the service again".to_owned()),
        None => Err("cannot be looked at: the database does not answer".to_owned()),
    };
    let engines = (probes.engines)();
    let ready = database.is_ok() && migrations.is_ok() && engines.is_ok();
    let word = |r: Result<(), String>| r.map_or_else(|e| e, |()| "ok".into());
    let body = Readiness {
        status: if ready { "ready" } else { "not_ready" },
        database: word(database),
        migrations: word(migrations),
        engines: word(engines),
    };
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    super::envelope::keep_shape((status, axum::Json(body)).into_response())
}

/// Metrics in Prometheus' text format.
#[utoipa::path(get, path = "/metrics", tag = "operation",
    responses((status = 200, body = String, content_type = "text/plain")))]
async fn metrics(State(probes): State<Probes>) -> impl IntoResponse {
    // Both at once: the service waits only once for a database that is away.
    let (answers, services) = tokio::join!(soon(probes.db.ping()), (probes.metrics)());
    let text = services + &TRAFFIC.prometheus() + &database_up(answers.is_some());
    ([("content-type", "text/plain; version=0.0.4")], text)
}

fn database_up(answers: bool) -> String {
    format!(
        "# HELP berth_database_up Whether the database answers.\n# TYPE berth_database_up gauge\n\
         berth_database_up {}\n",
        u8::from(answers)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_database_that_does_not_answer_is_not_waited_for() {
        assert_eq!(soon(std::future::pending::<Result<(), DbError>>()).await, None);
        assert_eq!(soon(async { Ok(7) }).await, Some(7));
        assert_eq!(soon(async { Err::<(), _>(DbError::Other(String::new())) }).await, None);
    }
}
