//! Quotas.

use berth_domain::identity::Limits;
use serde::Serialize;
use utoipa::ToSchema;

/// What a project may have, or all projects of an organization together; absent or `null` is no limit.
#[derive(Serialize, ToSchema)]
#[schema(as = Limits)]
pub struct LimitsView {
    /// VMs.
    #[schema(minimum = 0, maximum = 1_000_000_000)]
    vms: Option<i64>,
    /// Virtual CPUs.
    #[schema(minimum = 0, maximum = 1_000_000_000)]
    vcpu: Option<i64>,
    /// Memory, in MiB.
    #[schema(minimum = 0, maximum = 1_000_000_000)]
    memory_mb: Option<i64>,
    /// GPUs of VMs and sandboxes, also of those that are stopped or paused.
    #[schema(minimum = 0, maximum = 1_000_000_000)]
    gpus: Option<i64>,
    /// Disks, root disk volumes among them.
    #[schema(minimum = 0, maximum = 1_000_000_000)]
    disks: Option<i64>,
    /// Disk, in GiB.
    #[schema(minimum = 0, maximum = 1_000_000_000)]
    disk_gb: Option<i64>,
    /// Sandboxes.
    #[schema(minimum = 0, maximum = 1_000_000_000)]
    sandboxes: Option<i64>,
    /// Networks.
    #[schema(minimum = 0, maximum = 1_000_000_000)]
    networks: Option<i64>,
    /// Projects; of an organization alone.
    #[schema(minimum = 0, maximum = 1_000_000_000)]
    projects: Option<i64>,
    /// Requests a minute.
    #[schema(minimum = 0, maximum = 1_000_000_000)]
    requests_per_minute: Option<i64>,
    /// Tokens of models a minute.
    #[schema(minimum = 0, maximum = 1_000_000_000)]
    tokens_per_minute: Option<i64>,
    /// Money for models, machines and disks a calendar month (UTC), in whole units of the prices.
    #[schema(minimum = 0, maximum = 1_000_000_000)]
    spend_per_month: Option<i64>,
}

impl From<Limits> for LimitsView {
    fn from(limits: Limits) -> Self {
        let Limits {
            vms,
            vcpu,
            memory_mb,
            gpus,
            disks,
            disk_gb,
            sandboxes,
            networks,
            projects,
            requests_per_minute,
            tokens_per_minute,
            spend_per_month,
        } = limits;
        Self {
            vms,
            vcpu,
            memory_mb,
            gpus,
            disks,
            disk_gb,
            sandboxes,
            networks,
            projects,
            requests_per_minute,
            tokens_per_minute,
            spend_per_month,
        }
    }
}
