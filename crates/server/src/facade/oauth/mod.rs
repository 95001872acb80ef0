//! OAuth: how a program asks a person for a key, as clients of the Model Context Protocol do that have none.
//!
//! The pages sign a person in and make the key by the API's own routes, so who may, limits and audit are the API's. No
//! table is behind it: what a client said of itself is its id, and what a person agreed to is its code, both under the seal of
//! the database's secrets. That a code is good for once is kept in memory, for as long as it is good at all.

mod authorize;
mod client;
mod code;
mod metadata;
mod page;
mod state;
mod token;

use axum::Router;
use axum::routing::{get, post};

pub use self::state::OAuth;

/// The path, below the service's address, of what says where keys come from.
pub const RESOURCE: &str = "/.well-known/oauth-protected-resource/mcp";

/// Its routes.
pub fn routes(oauth: OAuth) -> Router {
    Router::new()
        .route("/.well-known/oauth-protected-resource", get(metadata::resource))
        .route(RESOURCE, get(metadata::resource))
        .route("/.well-known/oauth-authorization-server", get(metadata::server))
        .route("/oauth/register", post(client::register))
        .route("/oauth/authorize", get(authorize::ask).post(authorize::answer))
        .route("/oauth/token", post(token::exchange))
        .with_state(oauth)
}
