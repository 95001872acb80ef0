//! What a project uses, and what it may use.

use serde::{Deserialize, Serialize};

use crate::transport::segment;
use crate::{Client, ProjectClient, Result};

/// What a project uses and may use, or all projects of an organization together.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Quota {
    /// VMs.
    pub vms: QuotaEntry,
    /// Virtual CPUs.
    pub vcpu: QuotaEntry,
    /// Memory in MiB.
    pub memory_mb: QuotaEntry,
    /// GPUs of VMs and sandboxes; a service of before there was such a quota does not say.
    #[serde(default)]
    pub gpus: QuotaEntry,
    /// Disks.
    pub disks: QuotaEntry,
    /// Disk in GiB.
    pub disk_gb: QuotaEntry,
    /// Sandboxes.
    pub sandboxes: QuotaEntry,
    /// Networks.
    pub networks: QuotaEntry,
    /// Projects, of an organization.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub projects: Option<QuotaEntry>,
    /// Requests a minute, if there is a limit.
    #[serde(default)]
    pub requests_per_minute: Option<i64>,
    /// Tokens of models a minute, if there is a limit.
    #[serde(default)]
    pub tokens_per_minute: Option<i64>,
    /// Money for models, machines and disks a calendar month, in whole units, if there is a limit.
    #[serde(default)]
    pub spend_per_month: Option<i64>,
    /// Money spent of it, in units.
    #[serde(default)]
    pub spent_this_month: f64,
}

/// One quantity.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct QuotaEntry {
    /// Used.
    pub used: i64,
    /// Allowed, if there is a limit.
    pub limit: Option<i64>,
}

/// The limits that an administrator sets for a project, or for all projects of an organization together; an absent one
/// is no limit.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// VMs.
    pub vms: Option<i64>,
    /// Virtual CPUs.
    pub vcpu: Option<i64>,
    /// Memory in MiB.
    pub memory_mb: Option<i64>,
    /// GPUs of VMs and sandboxes.
    pub gpus: Option<i64>,
    /// Disks, root disk volumes among them.
    pub disks: Option<i64>,
    /// Disk in GiB.
    pub disk_gb: Option<i64>,
    /// Sandboxes.
    pub sandboxes: Option<i64>,
    /// Networks.
    pub networks: Option<i64>,
    /// Projects, of an organization.
    pub projects: Option<i64>,
    /// Requests a minute.
    pub requests_per_minute: Option<i64>,
    /// Tokens of models a minute.
    pub tokens_per_minute: Option<i64>,
    /// Money for models, machines and disks a calendar month (UTC), in whole units of the prices.
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

    /// The limits of an organization, by its id; for administrators of the platform.
    pub async fn org_limits(&self, org: &str) -> Result<Limits> {
        self.get(&org_limits_path(org)).await
    }

    /// Sets all limits of an organization, by its id; for administrators of the platform.
    pub async fn set_org_limits(&self, org: &str, limits: &Limits) -> Result<Limits> {
        self.put(&org_limits_path(org), limits).await
    }

    /// What the projects of an organization use and may use together; for its owners and admins.
    pub async fn org_quota(&self, org: &str) -> Result<Quota> {
        self.get(&format!("/api/v1/orgs/{}/quota", segment(org))).await
    }
}

fn org_limits_path(org: &str) -> String {
    format!("/api/v1/admin/orgs/{}/quota", segment(org))
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
