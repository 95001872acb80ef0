//! What machines, disks and snapshots took, and what that costs.

use serde::{Deserialize, Serialize};

use crate::transport::segment;
use crate::{Client, ProjectClient, Result};

/// The usage of a span of time.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ResourceUsage {
    /// Its beginning, RFC 3339.
    pub from: String,
    /// Its end, RFC 3339; usage that goes on counts up to now.
    pub to: String,
    /// The cost of all of it, in units of money.
    pub cost: f64,
    /// One row for each group.
    pub data: Vec<ResourceUsageRow>,
}

/// The usage of a group.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ResourceUsageRow {
    /// The day in UTC, if the rows are grouped by day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub day: Option<String>,
    /// The project, if the rows are grouped by project.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_id: Option<String>,
    /// Its kind: `vm`, `root_disk`, `disk`, `disk_snapshot`, `backup`, `image`, `sandbox` or `snapshot`.
    pub resource_type: String,
    /// The resource, if the rows are grouped by resource.
    pub resource_id: Option<String>,
    /// Its latest name.
    pub name: Option<String>,
    /// A machine's size.
    pub size: Option<String>,
    /// The unit of the quantity: `seconds` or `gib_hours`.
    pub unit: String,
    /// The quantity.
    pub quantity: f64,
    /// What it costs, in units of money.
    pub cost: f64,
}

/// A query of usage; an absent field has the service's default: this month, by resource or project.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ResourceUsageFilter {
    /// Beginning, RFC 3339.
    pub from: Option<String>,
    /// End, RFC 3339, at most 366 days later.
    pub to: Option<String>,
    /// How to group the rows: by `day`, `resource` and, for an organization, `project`, separated by commas.
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
