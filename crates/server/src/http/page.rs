//! Pages of the service itself: what a browser may do with them, and the one at `/`.

use axum::Router;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::json;

/// Scripts and styles are inline; the page calls only this service, and no frame may show it.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; connect-src 'self'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; \
     form-action 'none'; frame-ancestors 'none'; base-uri 'none'",
);
const FRONT: &str = include_str!("front.html");

/// A page of ours.
pub fn page(text: &'static str) -> Response {
    (private(POLICY), text).into_response()
}

/// The headers of a page that is a person's own, with this policy.
pub fn private(policy: HeaderValue) -> [(HeaderName, HeaderValue); 6] {
    [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (header::CONTENT_SECURITY_POLICY, policy),
        (header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    ]
}

/// `/`: where to go from here, as a page for browsers and as JSON for others.
pub fn routes() -> Router {
    Router::new().route("/", get(front))
}

async fn front(headers: HeaderMap) -> Response {
    let accepts = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let vary = [(header::VARY, HeaderValue::from_static("accept"))];
    if accepts.contains("text/html") {
        return (vary, page(FRONT)).into_response();
    }
    let told = json!({
        "name": "Berth",
        "version": env!("CARGO_PKG_VERSION"),
        "documentation": "/docs",
        "openapi": "/openapi.json",
        "api": "/api/v1",
        "models": "/v1",
    });
    (vary, axum::Json(told)).into_response()
}
