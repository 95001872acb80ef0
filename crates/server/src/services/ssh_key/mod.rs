//! The service of stored SSH keys: those of people, and those of projects. VMs choose them by their ids
//! (`services/chosen_key`) and keep copies, so that a deleted key changes no machine. Nothing here touches a host.

mod api;
mod keeper;
mod ops;
mod service;
mod store;
mod wire;

use berth_domain::identity::KeyScope;
use berth_host::clock::Clock;
use utoipa_axum::router::OpenApiRouter;

use crate::db::Db;
use crate::http::auth::{AnyOf, Right};

pub use service::SshKeys;

impl SshKeys {
    /// The service over a database.
    pub const fn new(db: Db, clock: Clock) -> Self {
        Self { db, clock }
    }

    /// Its routes.
    pub fn routes(&self) -> OpenApiRouter {
        api::routes().with_state(self.clone())
    }
}

/// Keys are for VMs, and so is a key of scope `vm` good for them.
impl Right for SshKeys {
    const SCOPES: AnyOf = AnyOf::of(&[KeyScope::Vm]);
}
