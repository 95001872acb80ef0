//! Hosts, which administrators of the platform see.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::transport::segment;
use crate::{Client, List, Result};

/// What machines run on.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Host {
    /// Id.
    pub id: String,
    /// Name.
    pub name: String,
    /// Regions that it belongs to.
    pub region_ids: Vec<String>,
    /// Where its service listens.
    pub addresses: Vec<String>,
    /// Processors.
    pub cpus: i64,
    /// Memory for machines, in MiB.
    pub memory_mb: i64,
    /// How often each MiB is promised, by who has it.
    pub memory_overcommit: BTreeMap<String, f64>,
    /// Its GPUs.
    #[serde(default)]
    pub gpus: Vec<HostGpu>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// `ready`, `cordoned`, `draining` or `lost`.
    pub state: String,
    /// When its service last said that it is there, RFC 3339.
    pub last_seen_at: String,
    /// When its service first said so, RFC 3339.
    pub created_at: String,
}

/// A GPU of a host.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct HostGpu {
    /// Where it is on the host's buses.
    pub address: String,
    /// Its model.
    pub model: String,
    /// The VM that has it.
    pub vm_id: Option<String>,
    /// The sandbox that has it.
    pub sandbox_id: Option<String>,
    /// Why no machine can have it whole.
    pub unavailable: Option<String>,
}

/// Filters for a list of hosts.
#[derive(Clone, Debug, Default, Serialize)]
pub struct HostFilter {
    /// Only this name.
    pub name: Option<String>,
    /// Only this state.
    pub state: Option<String>,
    /// Only this label: `key` or `key=value`.
    pub label: Option<String>,
    /// From 1.
    pub page: Option<u32>,
    /// 1 to 100.
    pub limit: Option<u32>,
}

/// A change of a host; absent fields stay as they are.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ChangeHost {
    /// What it is called from now on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// All labels that it has from now on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
}

fn path(id: &str) -> String {
    format!("/api/v1/admin/hosts/{}", segment(id))
}

impl Client {
    /// Every host, newest first.
    pub async fn hosts(&self, filter: &HostFilter) -> Result<List<Host>> {
        self.list("/api/v1/admin/hosts", filter).await
    }

    /// One host.
    pub async fn host(&self, id: &str) -> Result<Host> {
        self.get(&path(id)).await
    }

    /// Calls a host otherwise, or labels it anew.
    pub async fn update_host(&self, id: &str, change: &ChangeHost) -> Result<Host> {
        self.patch(&path(id), change).await
    }

    /// Has a host take no new machines; those that it has go on.
    pub async fn cordon_host(&self, id: &str) -> Result<Host> {
        self.post(&format!("{}/cordon", path(id)), None::<&()>).await
    }

    /// Has a host take new machines again.
    pub async fn uncordon_host(&self, id: &str) -> Result<Host> {
        self.post(&format!("{}/uncordon", path(id)), None::<&()>).await
    }
}
