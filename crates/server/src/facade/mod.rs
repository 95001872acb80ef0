//! Protocols of others, spoken over the API.
//!
//! A facade translates: what it is asked it asks the API's own routes, in this process and with its caller's credential, and
//! answers with what they answer. So who may do what, limits, audit and idempotency are those of the API, and no service
//! knows of any facade. What the words mean stands in the domain.

pub mod api;
pub mod e2b;
pub mod mcp;
pub mod oauth;

use std::sync::Arc;

use axum::Router;

use self::e2b::E2b;
use self::mcp::Mcp;
use self::oauth::OAuth;
use crate::http::auth::Gate;
use crate::seal::Sealer;
use crate::services::sandbox::Sandboxes;

/// The routes of all of them, over the API's.
pub fn routes(api: Router, sealer: Sealer, gate: Arc<dyn Gate>, sandboxes: Sandboxes) -> Router {
    let mcp = mcp::routes(Mcp::new(api.clone()));
    let oauth = oauth::routes(OAuth::new(api.clone(), sealer.clone(), sandboxes.clock().clone()));
    e2b::routes(E2b::new(api, sealer, gate, sandboxes)).merge(mcp).merge(oauth)
}
