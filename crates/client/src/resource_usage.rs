//! What machines, disks and snapshots took, and what it costs.

use serde::{Deserialize, Serialize};

use crate::transport::segment;
use crate::{Client, ProjectClient, Result};

/// What was taken from one time to another.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ResourceUsage {
    /// Its beginning, RFC 3339.
    pub from: String,
    /// Its end, RFC 3339; what goes on is counted up to now.
    pub to: String,
    /// What all of it costs, in units of money.
    pub cost: f64,
    /// One row for each thing that is told apart.
    pub data: Vec<ResourceUsageRow>,
}

/// What was taken of something.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ResourceUsageRow {
    /// The day in UTC, where days are told apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub day: Option<String>,
    /// The project, where projects are told apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_id: Option<String>,
    /// What it is: `vm`, `root_disk`, `disk`, `sandbox` or `snapshot`.
    pub resource_type: String,
    /// The resource, where resources are told apart.
    pub resource_id: Option<String>,
    /// Its latest name.
    pub name: Option<String>,
    /// A machine's size.
    pub size: Option<String>,
    /// What the quantity is counted in: `seconds` or `gib_hours`.
    pub unit: String,
    /// How much it is.
    pub quantity: f64,
    /// What it costs, in units of money.
    pub cost: f64,
}

/// What is asked of usage; what is absent is the service's default: this month, by resource or project.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ResourceUsageFilter {
    /// From when on, RFC 3339.
    pub from: Option<String>,
    /// Until when, RFC 3339, at most 366 days later.
    pub to: Option<String>,
    /// What rows tell apart: of `day`, `resource` and, for an organization, `project`, with commas between them.
    pub by: Option<String>,
}

impl ProjectClient {
    /// What the project's machines, disks and snapshots took.
    pub async fn resource_usage(&self, filter: &ResourceUsageFilter) -> Result<ResourceUsage> {
        let query = crate::transport::query_text(filter)?;
        self.client.get(&format!("{}/resource_usage?{query}", self.path)).await
    }
}

impl Client {
    /// What machines, disks and snapshots of all projects of an organization took; for its owners and admins.
    pub async fn org_resource_usage(&self, org: &str, filter: &ResourceUsageFilter) -> Result<ResourceUsage> {
        let query = crate::transport::query_text(filter)?;
        self.get(&format!("/api/v1/orgs/{}/resource_usage?{query}", segment(org))).await
    }
}
