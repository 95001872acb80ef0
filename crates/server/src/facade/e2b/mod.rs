//! E2B's SDKs, unchanged: their control calls below `/e2b`, and what they ask of a sandbox's port, below `/e2b/inside` once
//! [`readdress`](crate::http::addressed::readdress) has found whose it is.
//!
//! `docs/e2b.md` says what works, what differs, and why.

mod access;
mod envd;
mod file;
mod filesystem;
mod form;
mod holder;
mod port;
mod process;
mod room;
mod sandbox;
mod snapshot;
mod state;
mod stream;
mod template;
mod watch;

pub use self::state::E2b;
use crate::http::addressed::INSIDE;
use axum::Router;
use axum::routing::{any, delete, get, post, put};

/// Its routes.
pub fn routes(e2b: E2b) -> Router {
    let control = Router::new()
        .route("/e2b/sandboxes", post(sandbox::create).get(sandbox::running))
        .route("/e2b/v2/sandboxes", post(sandbox::create).get(sandbox::list))
        .route("/e2b/sandboxes/{sandbox_id}", get(sandbox::show).delete(sandbox::kill))
        .route("/e2b/sandboxes/{sandbox_id}/connect", post(sandbox::connect))
        .route("/e2b/v2/sandboxes/{sandbox_id}/connect", post(sandbox::connect))
        .route("/e2b/sandboxes/{sandbox_id}/resume", post(sandbox::resume))
        .route("/e2b/sandboxes/{sandbox_id}/pause", post(sandbox::pause))
        .route("/e2b/sandboxes/{sandbox_id}/timeout", post(sandbox::set_timeout))
        .route("/e2b/sandboxes/{sandbox_id}/refreshes", post(sandbox::refresh))
        .route("/e2b/sandboxes/{sandbox_id}/network", put(sandbox::set_network))
        .route("/e2b/sandboxes/{sandbox_id}/metrics", get(sandbox::metrics))
        .route("/e2b/sandboxes/{sandbox_id}/fork", post(sandbox::fork))
        .route("/e2b/sandboxes/{sandbox_id}/snapshots", post(snapshot::create))
        .route("/e2b/snapshots", get(snapshot::list))
        .route("/e2b/templates", get(template::list))
        .route("/e2b/v2/templates", get(template::list))
        .route("/e2b/templates/aliases/{alias}", get(template::alias))
        .route("/e2b/templates/tags", any(template::absent))
        .route("/e2b/templates/{template_id}/{*rest}", any(template::absent))
        .route("/e2b/v3/templates", any(template::absent))
        .route("/e2b/v2/templates/{*rest}", any(template::absent))
        .route("/e2b/volumes", any(template::absent))
        .route("/e2b/volumes/{*rest}", any(template::absent))
        .route("/e2b/secrets", any(template::absent))
        .route("/e2b/secrets/{*rest}", any(template::absent))
        .route("/e2b/templates/{template_id}", delete(template::remove).get(template::show));
    let inside = Router::new()
        .route(&format!("{INSIDE}/{{sandbox_id}}/{{port}}/"), any(port::reach))
        .route(&format!("{INSIDE}/{{sandbox_id}}/{{port}}/{{*rest}}"), any(port::reach))
        // SDKs sign addresses of files that name no sandbox, where all sandboxes are at one address.
        .route("/files", get(file::signed_read).post(file::signed_write));
    control.merge(inside).with_state(e2b)
}
