//! VMs as administrators of the platform see them.

use serde::Serialize;
use utoipa::ToSchema;

use super::vm::VmView;
use crate::services::owner::OwnerView;

/// A VM and whose it is.
#[derive(Serialize, ToSchema)]
#[schema(as = AdminVmResponse)]
pub struct AdminVmView {
    /// The VM.
    #[serde(flatten)]
    pub vm: VmView,
    /// Its owner.
    #[serde(flatten)]
    pub owner: OwnerView,
}
