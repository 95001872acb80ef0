//! The routes: parse, authorize, call ops, view.

mod ssh_key;

use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::SshKeys;

/// Every route of the service.
pub(super) fn routes() -> OpenApiRouter<SshKeys> {
    OpenApiRouter::new()
        .routes(routes!(ssh_key::list_my_ssh_keys, ssh_key::create_my_ssh_key))
        .routes(routes!(ssh_key::get_my_ssh_key, ssh_key::delete_my_ssh_key))
        .routes(routes!(ssh_key::list_ssh_keys, ssh_key::create_ssh_key))
        .routes(routes!(ssh_key::get_ssh_key, ssh_key::delete_ssh_key))
}
