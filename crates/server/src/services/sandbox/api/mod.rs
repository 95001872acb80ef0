//! The routes: parse, authorize, call ops, view. A file holds the handlers of one noun.

mod admin;
mod metrics;
mod sandbox;
mod snapshot;
mod template;
mod upload;

use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Sandboxes;

/// Every route of the service.
pub fn routes() -> OpenApiRouter<Sandboxes> {
    OpenApiRouter::new()
        .routes(routes!(template::list_templates, template::create_template))
        .routes(routes!(template::get_template, template::delete_template))
        .routes(routes!(template::get_template_logs))
        .routes(routes!(upload::list_uploads, upload::create_upload))
        .routes(routes!(upload::delete_upload))
        .routes(routes!(sandbox::list_sandboxes, sandbox::create_sandbox))
        .routes(routes!(sandbox::get_sandbox, sandbox::update_sandbox, sandbox::delete_sandbox))
        .routes(routes!(admin::list_all_sandboxes))
        .routes(routes!(admin::pause_any_sandbox))
        .routes(routes!(admin::delete_any_sandbox))
        .routes(routes!(sandbox::pause_sandbox))
        .routes(routes!(sandbox::resume_sandbox))
        .routes(routes!(sandbox::fork_sandbox))
        .routes(routes!(sandbox::restore_sandbox))
        .routes(routes!(sandbox::wait_sandbox))
        .routes(routes!(metrics::get_sandbox_metrics))
        .routes(routes!(snapshot::list_sandbox_snapshots, snapshot::create_snapshot))
        .routes(routes!(snapshot::list_snapshots))
        .routes(routes!(snapshot::get_snapshot, snapshot::delete_snapshot))
}
