//! Quotas.

use berth_domain::fields::{Fields, integer};
use berth_domain::{Error, Result};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::http::auth::Limits;

/// Highest limit.
const MAX: i64 = 1_000_000_000;

impl TryFrom<&Value> for Limits {
    type Error = Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let mut limit = |name: &str| f.optional(name, integer(0, MAX));
        let limits = Self {
            vms: limit("vms"),
            vcpu: limit("vcpu"),
            memory_mb: limit("memory_mb"),
            disks: limit("disks"),
            disk_gb: limit("disk_gb"),
            sandboxes: limit("sandboxes"),
            requests_per_minute: limit("requests_per_minute"),
            tokens_per_minute: limit("tokens_per_minute"),
            spend_per_month: limit("spend_per_month"),
        };
        f.finish(Some(limits))
    }
}

/// What a project may have; absent or `null` is no limit.
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
    /// Disks, root disk volumes among them.
    #[schema(minimum = 0, maximum = 1_000_000_000)]
    disks: Option<i64>,
    /// Disk, in GiB.
    #[schema(minimum = 0, maximum = 1_000_000_000)]
    disk_gb: Option<i64>,
    /// Sandboxes.
    #[schema(minimum = 0, maximum = 1_000_000_000)]
    sandboxes: Option<i64>,
    /// Requests a minute.
    #[schema(minimum = 0, maximum = 1_000_000_000)]
    requests_per_minute: Option<i64>,
    /// Tokens of models a minute.
    #[schema(minimum = 0, maximum = 1_000_000_000)]
    tokens_per_minute: Option<i64>,
    /// Money for models a calendar month (UTC), in whole units of the models' prices.
    #[schema(minimum = 0, maximum = 1_000_000_000)]
    spend_per_month: Option<i64>,
}

impl From<Limits> for LimitsView {
    fn from(limits: Limits) -> Self {
        let Limits {
            vms,
            vcpu,
            memory_mb,
            disks,
            disk_gb,
            sandboxes,
            requests_per_minute,
            tokens_per_minute,
            spend_per_month,
        } = limits;
        Self {
            vms,
            vcpu,
            memory_mb,
            disks,
            disk_gb,
            sandboxes,
            requests_per_minute,
            tokens_per_minute,
            spend_per_month,
        }
    }
}
