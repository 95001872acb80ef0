//! What every project has, as administrators of the platform see it.

use serde::Serialize;
use utoipa::ToSchema;

use crate::db::usage::{Held, UsageRow};

/// What a project has.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AdminUsageResponse)]
pub struct UsageView {
    #[schema(value_type = uuid::Uuid)]
    org_id: String,
    #[schema(value_type = uuid::Uuid)]
    project_id: String,
    /// VMs.
    vms: i64,
    /// Those of them that run.
    running: i64,
    /// Virtual CPUs of all VMs.
    vcpu: i64,
    /// Memory of all VMs, in MiB.
    memory_mb: i64,
    /// GPUs of all VMs and sandboxes, also of those that are stopped or paused.
    gpus: i64,
    /// Disks.
    disks: i64,
    /// Their sizes summed, in GiB.
    disk_gb: i64,
    /// Sandboxes.
    sandboxes: i64,
    /// Networks.
    networks: i64,
}

impl From<UsageRow> for UsageView {
    fn from(row: UsageRow) -> Self {
        let UsageRow { org, project, running, held } = row;
        let Held { vms, vcpu, memory_mb, gpus, disks, disk_gb, sandboxes, networks } = held;
        let (org_id, project_id) = (org.to_string(), project.to_string());
        Self { org_id, project_id, vms, running, vcpu, memory_mb, gpus, disks, disk_gb, sandboxes, networks }
    }
}
