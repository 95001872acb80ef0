//! The edge: routes become one table, errors become statuses, callers become scopes.
//!
//! A service hands over an [`OpenApiRouter`]; this module merges them, so that the OpenAPI document comes from the very
//! handlers that answer. Every answer passes [`envelope`]: whatever goes wrong, the caller reads `{code, message}` and
//! finds its `X-Request-Id`.

pub mod account;
pub mod addressed;
pub mod auth;
pub mod authority;
pub mod base_url;
pub mod body;
pub mod client_address;
pub mod cors;
pub mod credential;
pub mod denial;
pub mod docs;
pub mod edge;
pub mod envelope;
pub mod event_loop;
pub mod from_standby;
pub mod from_within;
pub mod idempotency;
pub mod limit;
pub mod list;
pub mod openai;
pub mod openapi;
pub mod own_key;
pub mod paced;
pub mod page;
pub mod pass_on;
pub mod passed;
pub mod path;
pub mod probes;
pub mod query;
pub mod reply;
pub mod right;
pub mod seated;
pub mod seats;
pub mod server;
pub mod streams;
pub mod taken;
pub mod tls;
pub mod traffic;
pub mod wait;
pub mod websocket;
pub mod who;

use std::sync::Arc;

use axum::{Extension, Router, middleware};
use utoipa_axum::router::OpenApiRouter;

use crate::db::Db;
use auth::Gate;

/// Largest body of a request, in bytes, for routes without a limit of their own (contract, section 0).
pub const BODY_LIMIT: usize = 256 * 1024;

/// Assembles every route of the service. `facades` adds those of other people's protocols to the table, which it gets to ask
/// the others by.
pub fn router(
    services: OpenApiRouter,
    (gate, db): (Arc<dyn Gate>, Db),
    base: base_url::Configured,
    probes: probes::Probes,
    turns: idempotency::Turns,
    facades: impl FnOnce(Router) -> Router,
) -> Router {
    let (router, api) = services.merge(probes::routes(probes)).split_for_parts();
    let queries = Arc::new(query::Queries::of(&api));
    let own = router.merge(docs::routes(|| openapi::finish(api).into())).merge(account::routes()).merge(page::routes());
    let with_state = |router: Router| {
        router
            .layer(Extension(gate.clone()))
            .layer(Extension(db.clone()))
            .layer(Extension(base.clone()))
            .layer(Extension(queries.clone()))
            .layer(Extension(turns.clone()))
    };
    let facades = facades(with_state(own.clone()));
    with_state(own.merge(facades).fallback(envelope::unknown_route)).layer(middleware::from_fn(envelope::envelope))
}
