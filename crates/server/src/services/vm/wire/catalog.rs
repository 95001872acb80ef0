//! What is on offer, as callers see it.

use serde::Serialize;
use utoipa::ToSchema;

use crate::config::{Amount, Plan, PlanPrice};

/// A pricing plan.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Plan)]
pub struct PlanView {
    /// Id in requests.
    id: String,
    /// Name for people.
    name: String,
    /// Machine sizes it is valid for; empty means all.
    vm_configs: Vec<String>,
    /// What an hour of its VMs costs.
    price: PlanPrice,
    /// What an hour of a GiB of a root disk volume or a data disk costs, whatever the plan.
    #[schema(value_type = f64)]
    disk_gb_hour: Amount,
}

impl PlanView {
    /// The view of a plan, with the price of disks.
    pub fn new(plan: &Plan, disk_gb_hour: Amount) -> Self {
        Self {
            id: plan.id.clone(),
            name: plan.name.clone(),
            vm_configs: plan.vm_configs.clone(),
            price: plan.price,
            disk_gb_hour,
        }
    }
}
