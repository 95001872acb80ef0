//! The routes: parse, authorize, read, view. A file holds the handlers of one noun.

mod event;
mod quota;
mod resource_usage;
mod usage;

use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Projects;

/// Every route of the service.
pub(super) fn routes() -> OpenApiRouter<Projects> {
    OpenApiRouter::new()
        .routes(routes!(event::stream_events))
        .routes(routes!(quota::get_quota))
        .routes(routes!(usage::list_usage))
        .routes(routes!(resource_usage::get_resource_usage))
        .routes(routes!(resource_usage::get_org_resource_usage))
}
