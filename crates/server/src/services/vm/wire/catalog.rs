//! Quota as callers see it.

use serde::Serialize;
use utoipa::ToSchema;

/// What a project has, and what it may have; a limit of `null` is none.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = QuotaResponse)]
pub struct QuotaView {
    /// VMs.
    pub vms: Quota,
    /// Virtual CPUs.
    pub vcpu: Quota,
    /// Memory, in MiB.
    pub memory_mb: Quota,
    /// Disks.
    pub disks: Quota,
    /// Disk, in GiB.
    pub disk_gb: Quota,
    /// Sandboxes.
    pub sandboxes: Quota,
    /// Requests a minute; `null` is no limit.
    #[schema(required = true)]
    pub requests_per_minute: Option<i64>,
    /// Tokens of models a minute; `null` is no limit.
    #[schema(required = true)]
    pub tokens_per_minute: Option<i64>,
    /// Money for models a calendar month (UTC), in whole units of the models' prices; `null` is no limit.
    #[schema(required = true)]
    pub spend_per_month: Option<i64>,
}

/// One quantity.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = QuotaEntry)]
pub struct Quota {
    /// What is used.
    pub used: i64,
    /// What is allowed; `null` is no limit.
    #[schema(required = true)]
    pub limit: Option<i64>,
}
