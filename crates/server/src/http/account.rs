//! The pages that the links of mails lead to. They are one file that calls the API; nothing of a link reaches
//! the log, and no other site learns of it.

use axum::Router;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;

const PAGE: &str = include_str!("account.html");

/// `/account/verify`, `/account/reset`, `/account/forgot`, `/account/invitation`, `/account/signup`.
pub fn routes() -> Router {
    let names = ["verify", "reset", "forgot", "invitation", "signup"];
    names.iter().fold(Router::new(), |router, name| router.route(&format!("/account/{name}"), get(page)))
}

async fn page() -> impl IntoResponse {
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'none'; connect-src 'self'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; \
             form-action 'none'; frame-ancestors 'none'; base-uri 'none'",
        ),
    ];
    (headers, PAGE)
}
