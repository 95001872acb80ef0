//! `/openapi.json` and a readable page at `/docs`, without anything from elsewhere.

use std::sync::Arc;

use axum::Router;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;

use super::page::page;

const PAGE: &str = include_str!("docs.html");

/// The two routes.
pub fn routes(document: Arc<str>) -> Router {
    Router::new()
        .route("/docs", get(|| async { page(PAGE) }))
        .route("/openapi.json", get(move || async move { json(&document) }))
}

fn json(document: &str) -> impl IntoResponse + use<> {
    ([(header::CONTENT_TYPE, "application/json")], document.to_string())
}
