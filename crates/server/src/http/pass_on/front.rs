//! A door of a standby. Everything behind it is the active replica's, but what is asked of this process itself.

use std::sync::Arc;

use axum::Json;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::passing::PassOn;
use crate::http::addressed;
use crate::http::edge::{Rooms, Secure};
use crate::http::envelope::{ApiError, enveloped, keep_shape, unknown_route};
use crate::http::passed::{Passed, Way};
use crate::http::traffic::TRAFFIC;

/// Writes what only the process knows of itself, in Prometheus' text format.
pub type Metrics = Arc<dyn Fn() -> String + Send + Sync>;

/// A door of a standby.
#[derive(Clone)]
pub struct Front {
    /// Where requests go.
    pub pass_on: PassOn,
    /// What the active replica is told of the door.
    pub way: Way,
    /// What is behind it.
    pub rooms: Rooms,
    /// What this process says of itself.
    pub metrics: Metrics,
}

impl Front {
    /// Answers a request.
    pub async fn answer(&self, mut request: Request) -> Response {
        let client = self.pass_on.sender(&request);
        let is_secure = request.extensions().get::<Secure>().is_some();
        let passed = Passed { way: self.way, is_secure, client };
        request.extensions_mut().insert(client);
        enveloped(request, |request| self.route(passed, request)).await
    }

    async fn route(&self, passed: Passed, request: Request) -> Response {
        // What is sent to a sandbox's name is none of this process. The active replica reads the name again.
        if !matches!(addressed::named(request.headers(), request.uri()), Ok(None)) {
            return self.passed(passed, request).await;
        }
        let (method, path) = (request.method(), request.uri().path());
        if !self.rooms.hold(method, path) {
            return unknown_route().await.into_response();
        }
        match path {
            "/healthz" if method.is_safe() => Json(json!({"status": "ok"})).into_response(),
            "/readyz" if method.is_safe() => self.ready().await,
            "/metrics" if method.is_safe() => self.measured(),
            _ => self.passed(passed, request).await,
        }
    }

    async fn passed(&self, passed: Passed, request: Request) -> Response {
        match self.pass_on.pass(passed, request).await {
            Ok(answer) => answer,
            Err(error) => ApiError(error).into_response(),
        }
    }

    /// A standby is ready while its requests get through.
    async fn ready(&self) -> Response {
        match self.pass_on.reached().await {
            Ok(()) => Json(json!({"status": "ready", "active": "ok"})).into_response(),
            Err(error) => {
                let told = json!({"status": "not_ready", "active": error.message});
                keep_shape((StatusCode::SERVICE_UNAVAILABLE, Json(told)).into_response())
            }
        }
    }

    fn measured(&self) -> Response {
        let text = (self.metrics)()
            + &TRAFFIC.prometheus()
            + "# HELP berth_replica_active Whether this replica is the active one.\n\
               # TYPE berth_replica_active gauge\nberth_replica_active 0\n";
        ([("content-type", "text/plain; version=0.0.4")], text).into_response()
    }
}
