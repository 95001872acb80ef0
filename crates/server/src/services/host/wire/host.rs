//! A host as administrators of the platform see it.

use std::collections::BTreeMap;

use berth_domain::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use crate::services::host::store::host::HostRow;

/// What machines run on.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = HostResponse)]
pub struct HostView {
    /// Identifier: that of its data folder.
    #[schema(value_type = uuid::Uuid)]
    id: String,
    /// Its name.
    name: String,
    /// Regions that it belongs to.
    region_ids: Vec<String>,
    /// Where its service listens.
    addresses: Vec<String>,
    /// Processors.
    cpus: i64,
    /// Memory for machines, in MiB: without what the host keeps for itself.
    memory_mb: i64,
    /// How often each MiB is promised: to VMs (`vm`) and to sandboxes (`sandbox`).
    memory_overcommit: BTreeMap<String, f64>,
    /// Free pairs.
    labels: BTreeMap<String, String>,
    /// What becomes of its machines.
    #[schema(value_type = HostState)]
    state: &'static str,
    /// When its service last said that it is there: every ten seconds, while it runs.
    #[schema(value_type = String, format = DateTime)]
    last_seen_at: Timestamp,
    /// When its service first said so.
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
}

/// What becomes of the machines of a host.
#[derive(ToSchema)]
#[serde(rename_all = "snake_case")]
#[expect(dead_code, reason = "describes a word of the wire")]
pub(crate) enum HostState {
    /// Its service runs there, or ran there last.
    Ready,
    /// It keeps those that it has until they are somewhere else; no route sets this yet.
    Draining,
    /// Another one has its database and its machines.
    Lost,
}

impl From<HostRow> for HostView {
    fn from(row: HostRow) -> Self {
        Self {
            id: row.id.to_string(),
            name: row.name,
            region_ids: row.regions,
            addresses: row.addresses,
            cpus: row.capacity.cpus,
            memory_mb: row.capacity.memory_mb,
            memory_overcommit: row.overcommit,
            labels: row.labels,
            state: row.state.as_str(),
            last_seen_at: row.last_seen,
            created_at: row.created_at,
        }
    }
}
