//! What the facade works with.

use std::sync::Arc;

use axum::Router;
use berth_host::clock::Clock;

use super::access::Access;
use crate::facade::api::Api;
use crate::http::auth::Gate;
use crate::seal::Sealer;
use crate::services::sandbox::Sandboxes;

/// What the facade works with.
#[derive(Clone)]
pub struct E2b {
    /// The API's routes.
    pub api: Api,
    /// Tokens of sandboxes.
    pub access: Arc<Access>,
    /// The time.
    pub clock: Clock,
}

impl E2b {
    /// The facade over the API's routes.
    pub fn new(api: Router, sealer: Sealer, gate: Arc<dyn Gate>, sandboxes: Sandboxes) -> Self {
        let clock = sandboxes.clock().clone();
        Self { api: Api::new(api), access: Arc::new(Access::new(sealer, gate, sandboxes)), clock }
    }
}
