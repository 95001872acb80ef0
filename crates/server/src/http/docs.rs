//! `/openapi.json` and a readable page at `/docs`, which loads nothing from elsewhere.

use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;
use bytes::Bytes;

use super::page::page;

const PAGE: &str = include_str!("docs.html");

/// The two routes. The document is written when it is first asked for, because a service that starts has other things to do.
/// All answers share one copy of it: it has nearly a MiB, and anybody may ask for it.
pub fn routes(write: impl FnOnce() -> Bytes + Send + 'static) -> Router {
    let document = Arc::new(LazyLock::new(Box::new(write) as Box<dyn FnOnce() -> Bytes + Send>));
    Router::new()
        .route("/docs", get(|| async { page(PAGE) }))
        .route("/openapi.json", get(move || async move { json(Bytes::clone(&document)) }))
}

fn json(document: Bytes) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], document)
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use http_body_util::BodyExt;
    use tower::ServiceExt;

    use super::*;

    #[tokio::test]
    async fn answers_share_the_document() {
        let document = Bytes::from("{}".repeat(4096));
        let written = document.clone();
        let routes = routes(move || written);
        for _ in 0..2 {
            let request = axum::http::Request::get("/openapi.json").body(Body::empty()).unwrap();
            let mut answer = routes.clone().oneshot(request).await.unwrap().into_body();
            let piece = answer.frame().await.unwrap().unwrap().into_data().unwrap();
            assert_eq!((piece.as_ptr(), piece.len()), (document.as_ptr(), document.len()));
        }
    }
}
