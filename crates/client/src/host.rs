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
    /// Stores of disks that it was asked about. An older service has none.
    #[serde(default)]
    pub stores: Vec<HostStore>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// `ready`, `cordoned`, `draining`, `lost` or `joining`.
    pub state: String,
    /// How VMs leave it while it is drained: `off`, or with restarts where they cannot go as they run, `all`.
    pub drain: Option<String>,
    /// What it has that is not deleted.
    #[serde(default)]
    pub holds: HostHolds,
    /// What machines hold of it. An older service does not say.
    #[serde(default)]
    pub load: Option<HostLoad>,
    /// Whether it joined and is asked over the network.
    #[serde(default)]
    pub joined: bool,
    /// The service that runs there: `active` or `standby`.
    #[serde(default)]
    pub service: Option<String>,
    /// The version of Berth there.
    pub version: Option<String>,
    /// Why it cannot be asked now.
    pub trouble: Option<String>,
    /// When its certificate ends, RFC 3339.
    pub certificate_expires_at: Option<String>,
    /// When its service last said that it is there, RFC 3339.
    pub last_seen_at: String,
    /// When its service first said so, RFC 3339.
    pub created_at: String,
}

/// A store of disks, as a host reaches it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct HostStore {
    /// Its name.
    pub name: String,
    /// Whether the host reaches it.
    pub reached: bool,
    /// Why it does not.
    pub trouble: Option<String>,
}

/// What a host has that is not deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct HostHolds {
    /// Machines: of VMs, sandboxes and templates.
    pub machines: i64,
    /// Disks, and snapshots of disks.
    pub disks: i64,
    /// Images of projects.
    pub images: i64,
    /// Layers of disks of sandboxes, snapshots and templates, and captured memories.
    #[serde(default)]
    pub layers: i64,
    /// Of these disks, those whose VM is on another host by now: they follow it. An older service does not say.
    #[serde(default)]
    pub leaving: i64,
}

/// What machines hold of a host: those that run or are about to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct HostLoad {
    /// Virtual CPUs.
    pub vcpu: i64,
    /// Memory, in MiB.
    pub memory_mb: i64,
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

/// A host that is to join.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NewHost {
    /// What it is called.
    pub name: String,
    /// The region that it belongs to.
    pub region_id: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

/// A host with what it joins with, shown once.
#[derive(Clone, Deserialize, Serialize)]
pub struct HostToken {
    /// The host.
    #[serde(flatten)]
    pub host: Host,
    /// Its token.
    pub token: String,
    /// What to type on the machine that joins.
    pub command: String,
}

/// What a host says that joins.
#[derive(Clone, Serialize)]
pub struct JoinHost {
    /// Its token.
    pub token: String,
    /// Its request for a certificate, in PEM.
    pub csr: String,
    /// Where it can be asked, as `host:port`.
    pub address: String,
    /// What its machine calls itself.
    pub name: String,
    /// The version of Berth there.
    pub version: String,
}

/// What a host has joined with.
#[derive(Clone, Debug, Deserialize)]
pub struct JoinedHost {
    /// Its id.
    pub host_id: String,
    /// What it is called.
    pub name: String,
    /// Its certificate, in PEM.
    pub certificate: String,
    /// The certificate of the platform's authority, in PEM.
    pub authority: String,
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

    /// Names a host that is to join.
    pub async fn create_host(&self, new: &NewHost) -> Result<HostToken> {
        self.post("/api/v1/admin/hosts", Some(new)).await
    }

    /// Gives a host another token.
    pub async fn create_host_token(&self, id: &str) -> Result<HostToken> {
        self.post(&format!("{}/token", path(id)), None::<&()>).await
    }

    /// Removes a host; with `lost` with all that it has.
    pub async fn delete_host(&self, id: &str, lost: bool) -> Result<()> {
        self.delete(&format!("{}?lost={lost}", path(id))).await
    }

    /// Exchanges a host's token for its certificate. Nobody is signed in for that.
    pub async fn join_host(&self, join: &JoinHost) -> Result<JoinedHost> {
        self.post("/api/v1/hosts/join", Some(join)).await
    }

    /// Has a host take no new machines; those that it has go on.
    pub async fn cordon_host(&self, id: &str) -> Result<Host> {
        self.post(&format!("{}/cordon", path(id)), None::<&()>).await
    }

    /// Has a host take no new machines, and its VMs go to others; with `restart` those that run, too.
    pub async fn drain_host(&self, id: &str, restart: bool) -> Result<Host> {
        self.post(&format!("{}/drain?restart={restart}", path(id)), None::<&()>).await
    }

    /// Has a host take new machines again.
    pub async fn uncordon_host(&self, id: &str) -> Result<Host> {
        self.post(&format!("{}/uncordon", path(id)), None::<&()>).await
    }
}
