//! The routes: parse, authorize, read or change, view. A file holds the handlers of one noun.

mod host;

use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Hosts;

/// Every route of the service.
pub(super) fn routes() -> OpenApiRouter<Hosts> {
    OpenApiRouter::new()
        .routes(routes!(host::list_hosts))
        .routes(routes!(host::get_host, host::update_host))
        .routes(routes!(host::cordon_host))
        .routes(routes!(host::uncordon_host))
}
