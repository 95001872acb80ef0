//! What a project uses, and what it may.

use serde::{Deserialize, Serialize};

use crate::transport::segment;
use crate::{Client, ProjectClient, Result};

/// What a project uses and may use.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Quota {
    /// VMs.
    pub vms: QuotaEntry,
    /// Virtual CPUs.
    pub vcpu: QuotaEntry,
    /// Memory in MiB.
    pub memory_mb: QuotaEntry,
    /// Disks.
    pub disks: QuotaEntry,
    /// Disk in GiB.
    pub disk_gb: QuotaEntry,
    /// Requests a minute, if there is a limit.
    #[serde(default)]
    pub requests_per_minute: Option<i64>,
    /// Tokens of models a minute, if there is a limit.
    #[serde(default)]
    pub tokens_per_minute: Option<i64>,
    /// Money for models a calendar month, in whole units, if there is a limit.
    #[serde(default)]
    pub spend_per_month: Option<i64>,
}

/// One quantity.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct QuotaEntry {
    /// Used.
    pub used: i64,
    /// Allowed, if there is a limit.
    pub limit: Option<i64>,
}

/// What an administrator allows a project; what is absent has no limit.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// VMs.
    pub vms: Option<i64>,
    /// Virtual CPUs.
    pub vcpu: Option<i64>,
    /// Memory in MiB.
    pub memory_mb: Option<i64>,
    /// Disks, root disk volumes among them.
    pub disks: Option<i64>,
    /// Disk in GiB.
    pub disk_gb: Option<i64>,
    /// Sandboxes.
    pub sandboxes: Option<i64>,
    /// Requests a minute.
    pub requests_per_minute: Option<i64>,
    /// Tokens of models a minute.
    pub tokens_per_minute: Option<i64>,
    /// Money for models a calendar month (UTC), in whole units of the models' prices.
    pub spend_per_month: Option<i64>,
}

impl Client {
    /// The limits of a project, by its id; for administrators of the platform.
    pub async fn limits(&self, project: &str) -> Result<Limits> {
        self.get(&limits_path(project)).await
    }

    /// Sets all limits of a project, by its id; for administrators of the platform.
    pub async fn set_limits(&self, project: &str, limits: &Limits) -> Result<Limits> {
        self.put(&limits_path(project), limits).await
    }
}

fn limits_path(project: &str) -> String {
    format!("/api/v1/admin/projects/{}/quota", segment(project))
}

impl ProjectClient {
    /// What the project uses and may use.
    pub async fn quota(&self) -> Result<Quota> {
        self.client.get(&format!("{}/quota", self.path)).await
    }
}
