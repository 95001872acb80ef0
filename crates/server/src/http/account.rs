//! The pages to which links in mails lead. They are one file that calls the API; nothing of a link gets into the log or
//! to another site.

use axum::Router;
use axum::routing::get;

use super::page::page;

const PAGE: &str = include_str!("account.html");

/// `/account/verify`, `/account/reset`, `/account/forgot`, `/account/invitation`, `/account/signup`.
pub fn routes() -> Router {
    let names = ["verify", "reset", "forgot", "invitation", "signup"];
    names
        .iter()
        .fold(Router::new(), |router, name| router.route(&format!("/account/{name}"), get(|| async { page(PAGE) })))
}
