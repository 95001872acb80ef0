//! The pages that the links of mails lead to. They are one file that calls the API; nothing of a link reaches
//! the log, and no other site learns of it.

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
