//! What the facade works with.

use std::sync::Arc;

use axum::Router;
use berth_host::clock::Clock;

use super::code::Codes;
use crate::facade::api::Api;
use crate::seal::Sealer;

/// What the facade works with.
#[derive(Clone)]
pub struct OAuth {
    /// The API's routes.
    pub(super) api: Api,
    /// The seal of ids, codes and sessions.
    pub(super) sealer: Sealer,
    /// The time.
    pub(super) clock: Clock,
    /// What people agreed to.
    pub(super) codes: Arc<Codes>,
}

impl OAuth {
    /// The facade over the API's routes.
    pub fn new(api: Router, sealer: Sealer, clock: Clock) -> Self {
        let api = Api::new(api);
        let codes = Codes::new(api.clone(), clock.clone());
        Self { api, sealer, clock, codes }
    }
}
