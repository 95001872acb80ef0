//! Sandboxes.

use std::collections::BTreeMap;

use http::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Number, Value};

use crate::transport::{json, query_text, segment};
use crate::{List, Membership, ProjectClient, Result};

/// A sandbox.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Sandbox {
    /// Id.
    pub id: String,
    /// Its phase: `Pending`, `Provisioning`, `Ready`, `Pausing`, `Paused`, `Resuming`, `Restoring`, `Deleting` or
    /// `Failed`.
    pub phase: String,
    /// The URL of its runtime.
    pub connect_url: String,
    /// Name.
    #[serde(default)]
    pub name: Option<String>,
    /// The template of which it was made.
    #[serde(default)]
    pub template_id: Option<String>,
    /// The snapshot of which it was made.
    #[serde(default)]
    pub snapshot_id: Option<String>,
    /// The step under way, or the reason of a failure.
    #[serde(default)]
    pub message: Option<String>,
    /// Free pairs for finding it.
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
    /// Networks of the project that it belongs to.
    #[serde(default)]
    pub networks: Vec<Membership>,
    /// Seconds that it was `Ready`.
    #[serde(default)]
    pub running_seconds: Option<Number>,
    /// When its time is up, RFC 3339.
    #[serde(default)]
    pub expires_at: Option<String>,
    /// Creation, RFC 3339.
    pub created_at: String,
    /// Last change, RFC 3339.
    pub updated_at: String,
    /// All other fields of the service's answer.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// A sandbox to create; by default of the template `base`.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CreateSandbox {
    /// Template, by id or name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template_id: Option<String>,
    /// Snapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_id: Option<String>,
    /// Name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Free pairs for finding it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// Environment of its commands.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// How long it lives while it is not paused, 5 s to 30 days.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u64>,
    /// How long it may be idle, 5 s to 30 days.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_timeout_seconds: Option<u64>,
    /// What happens then: `pause` or `delete`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_timeout: Option<String>,
    /// Whether requests to it resume it while it is paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_resume: Option<bool>,
    /// What it may reach.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkPolicy>,
    /// Networks that it belongs to, by their ids; by default those of the snapshot's sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_ids: Option<Vec<String>>,
    /// How many GPUs it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_config_count: Option<i64>,
    /// Of which model; needed only where several are on offer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_model: Option<String>,
}

/// What a sandbox may reach: addresses, ranges (CIDR) and domain names such as `*.example.org`. Deny wins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct NetworkPolicy {
    /// `allow` or `deny`: the rule for everything that is not named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress: Option<String>,
    /// What it may always reach.
    #[serde(default)]
    pub allow: Vec<String>,
    /// What it may never reach.
    #[serde(default)]
    pub deny: Vec<String>,
}

/// A change of a sandbox; what is absent stays.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ChangeSandbox {
    /// How long it lives from now on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u64>,
    /// How long it may be idle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_timeout_seconds: Option<u64>,
    /// `pause` or `delete`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_timeout: Option<String>,
    /// Whether requests to it resume it while it is paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_resume: Option<bool>,
    /// All its metadata.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<BTreeMap<String, String>>,
    /// The change of its network rules.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<ChangeNetworkPolicy>,
}

/// A change of what a sandbox may reach; what is absent stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ChangeNetworkPolicy {
    /// `allow` or `deny`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress: Option<String>,
    /// All that it may always reach.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow: Option<Vec<String>>,
    /// All that it may never reach.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deny: Option<Vec<String>>,
}

/// Filters for a list of sandboxes.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SandboxFilter {
    /// From 1.
    pub page: Option<u32>,
    /// 1 to 100.
    pub limit: Option<u32>,
    /// Only this phase.
    pub phase: Option<String>,
    /// Only of this template, by id or name.
    pub template: Option<String>,
    /// Only this name.
    pub name: Option<String>,
    /// Only with these pairs.
    #[serde(skip)]
    pub metadata: BTreeMap<String, String>,
}

/// The sandboxes to fork.
#[derive(Clone, Debug, Serialize)]
pub struct ForkSandbox {
    /// How many, 1 to 100.
    pub count: u32,
    /// Their name; several get a number appended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Whether they continue from the memory.
    pub include_memory: bool,
    /// A snapshot instead of the live state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_id: Option<String>,
}

#[derive(Deserialize)]
struct Forks {
    data: Vec<Sandbox>,
}

impl SandboxFilter {
    fn query(&self) -> Result<String> {
        let plain = query_text(self)?;
        let pairs = self.metadata.iter().map(|(key, value)| format!("metadata.{}={}", segment(key), segment(value)));
        Ok(std::iter::once(plain).chain(pairs).filter(|text| !text.is_empty()).collect::<Vec<_>>().join("&"))
    }
}

impl ProjectClient {
    pub(crate) fn sandbox_path(&self, id: &str) -> String {
        format!("{}/sandboxes/{}", self.path, segment(id))
    }

    /// Sandboxes, newest first.
    pub async fn sandboxes(&self, filter: &SandboxFilter) -> Result<List<Sandbox>> {
        self.client.get(&format!("{}/sandboxes?{}", self.path, filter.query()?)).await
    }

    /// One sandbox.
    pub async fn sandbox(&self, id: &str) -> Result<Sandbox> {
        self.client.get(&self.sandbox_path(id)).await
    }

    /// Creates a sandbox; the work goes on after the answer.
    pub async fn create_sandbox(&self, request: &CreateSandbox) -> Result<Sandbox> {
        self.client.post(&format!("{}/sandboxes", self.path), Some(request)).await
    }

    /// Changes a sandbox.
    pub async fn update_sandbox(&self, id: &str, change: &ChangeSandbox) -> Result<Sandbox> {
        self.client.patch(&self.sandbox_path(id), change).await
    }

    /// Deletes a sandbox; the work goes on after the answer.
    pub async fn delete_sandbox(&self, id: &str) -> Result<()> {
        self.client.delete(&self.sandbox_path(id)).await
    }

    /// Pauses a sandbox; the work goes on after the answer. Whether it is to outlive its host while it is paused may be left open.
    pub async fn pause_sandbox(&self, id: &str, durable: Option<bool>) -> Result<()> {
        let body = durable.map(|durable| serde_json::json!({ "durable": durable }));
        self.client.send(Method::POST, &format!("{}/pause", self.sandbox_path(id)), body).await.map(drop)
    }

    /// Resumes a paused sandbox; the work goes on after the answer.
    pub async fn resume_sandbox(&self, id: &str) -> Result<()> {
        self.client.send(Method::POST, &format!("{}/resume", self.sandbox_path(id)), None).await.map(drop)
    }

    /// Copies a sandbox into new ones; it goes on itself.
    pub async fn fork_sandbox(&self, id: &str, fork: &ForkSandbox) -> Result<Vec<Sandbox>> {
        let path = format!("{}/fork", self.sandbox_path(id));
        self.client.post(&path, Some(fork)).await.map(|forks: Forks| forks.data)
    }

    /// Takes a sandbox back to a snapshot, in place; the work goes on after the answer.
    pub async fn restore_sandbox(&self, id: &str, snapshot: &str) -> Result<()> {
        let body = serde_json::json!({ "snapshot_id": snapshot });
        self.client.send(Method::POST, &format!("{}/restore", self.sandbox_path(id)), Some(body)).await.map(drop)
    }

    /// Waits until a sandbox has a phase, at most `seconds` (1 to 300); returns the sandbox either way.
    pub async fn wait_sandbox(&self, id: &str, phase: &str, seconds: u64) -> Result<Sandbox> {
        let path = format!("{}/wait?phase={}&timeout={seconds}", self.sandbox_path(id), segment(phase));
        self.client.get(&path).await
    }

    /// What a sandbox uses.
    pub async fn sandbox_metrics(&self, id: &str, window: &str, resolution: &str) -> Result<Value> {
        let query = query_text(&serde_json::json!({ "window": window, "resolution": resolution }))?;
        let path = format!("{}/metrics?{query}", self.sandbox_path(id));
        json(self.client.send(Method::GET, &path, None).await?).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_name_each_pair_of_metadata() {
        let mut filter = SandboxFilter { phase: Some("Ready".into()), ..SandboxFilter::default() };
        assert_eq!(filter.query().unwrap(), "phase=Ready");
        filter.metadata.insert("team".into(), "a b".into());
        assert_eq!(filter.query().unwrap(), "phase=Ready&metadata.team=a%20b");
        filter.phase = None;
        assert_eq!(filter.query().unwrap(), "metadata.team=a%20b");
    }

    #[test]
    fn what_the_service_tells_is_all_kept() {
        let told = serde_json::json!({
            "id": "1", "phase": "Ready", "connect_url": "http://h/sandbox/1", "created_at": "", "updated_at": "",
            "network": {"egress": "deny"}, "running_seconds": 3, "name": null,
        });
        let sandbox: Sandbox = serde_json::from_value(told).unwrap();
        assert!(sandbox.name.is_none());
        assert_eq!(serde_json::to_value(&sandbox).unwrap()["network"]["egress"], "deny");
    }
}
