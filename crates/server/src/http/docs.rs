//! `/openapi.json` and a readable page at `/docs`, without anything from elsewhere.

use std::sync::Arc;

use axum::Router;
use axum::http::header;
use axum::response::{Html, IntoResponse};
use axum::routing::get;

const PAGE: &str = include_str!("docs.html");

/// The two routes.
pub fn routes(document: Arc<str>) -> Router {
    Router::new()
        .route("/docs", get(|| async { Html(PAGE) }))
        .route("/openapi.json", get(move || json(document.clone())))
}

async fn json(document: Arc<str>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], document.to_string())
}
