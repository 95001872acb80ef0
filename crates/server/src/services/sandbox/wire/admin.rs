//! Sandboxes as administrators of the platform see them.

use serde::Serialize;
use utoipa::ToSchema;

use super::sandbox::SandboxView;
use crate::db::owned::Owned;
use crate::services::owner::OwnerView;
use crate::services::sandbox::store::sandbox::SandboxRow;

/// A sandbox and whose it is.
#[derive(Serialize, ToSchema)]
#[schema(as = AdminSandboxResponse)]
pub struct AdminSandboxView {
    /// The sandbox.
    #[serde(flatten)]
    sandbox: SandboxView,
    /// Its owner.
    #[serde(flatten)]
    owner: OwnerView,
}

impl AdminSandboxView {
    /// A row as `view` shows it, and whose it is.
    pub fn new(row: &Owned<SandboxRow>, view: impl FnOnce(&SandboxRow) -> SandboxView) -> Self {
        Self { sandbox: view(&row.row), owner: row.into() }
    }
}
