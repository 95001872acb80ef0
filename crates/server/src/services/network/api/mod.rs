//! The routes: parse, authorize, call ops, view. A file holds the handlers of one noun.

mod firewall;
mod network;

use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Networks;

/// Every route of the service.
pub fn routes() -> OpenApiRouter<Networks> {
    OpenApiRouter::new()
        .routes(routes!(network::list_networks, network::create_network))
        .routes(routes!(network::get_network, network::update_network, network::delete_network))
        .routes(routes!(firewall::get_network_rules, firewall::set_network_rules))
}
