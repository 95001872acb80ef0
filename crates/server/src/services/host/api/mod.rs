//! The routes: parse, authorize, read or change, view. A file holds the handlers of one noun.

mod host;
mod join;

use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Enrolment, Hosts};

/// The routes of hosts that there are.
pub(super) fn routes() -> OpenApiRouter<Hosts> {
    OpenApiRouter::new()
        .routes(routes!(host::list_hosts))
        .routes(routes!(host::get_host, host::update_host))
        .routes(routes!(host::cordon_host))
        .routes(routes!(host::uncordon_host))
        .routes(routes!(host::drain_host))
}

/// The routes of hosts that join and go.
pub(super) fn joining() -> OpenApiRouter<Enrolment> {
    OpenApiRouter::new()
        .routes(routes!(join::create_host))
        .routes(routes!(join::delete_host))
        .routes(routes!(join::create_host_token))
        .routes(routes!(join::join_host))
}
