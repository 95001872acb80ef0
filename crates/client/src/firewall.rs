//! Firewall rules of VMs and of networks.

use serde::{Deserialize, Serialize};

use crate::transport::segment;
use crate::{ProjectClient, Result};

/// Firewall rules in their order; the first that matches decides, and what none matches passes.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct FirewallRules {
    /// The rules.
    pub rules: Vec<FirewallRule>,
}

/// A firewall rule. It speaks of who begins; answers pass.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct FirewallRule {
    /// `in` or `out`.
    pub direction: String,
    /// `tcp`, `udp`, `icmp` or `any`.
    pub protocol: String,
    /// The ports that it goes to; all where there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<FirewallPorts>,
    /// The other side, as an address or a range; anywhere where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// `allow` or `deny`.
    pub action: String,
}

/// A port, or a range of them.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(untagged)]
pub enum FirewallPorts {
    /// One.
    Port(u16),
    /// A range, as `8000-8100`.
    Range(String),
}

impl ProjectClient {
    /// The firewall rules of a VM.
    pub async fn vm_rules(&self, id: &str) -> Result<FirewallRules> {
        self.client.get(&self.rules_path("vms", id)).await
    }

    /// Sets the firewall rules of a VM: these and no others.
    pub async fn set_vm_rules(&self, id: &str, rules: &FirewallRules) -> Result<FirewallRules> {
        self.client.put(&self.rules_path("vms", id), rules).await
    }

    /// The firewall rules between the members of a network.
    pub async fn network_rules(&self, id: &str) -> Result<FirewallRules> {
        self.client.get(&self.rules_path("networks", id)).await
    }

    /// Sets the firewall rules between the members of a network: these and no others.
    pub async fn set_network_rules(&self, id: &str, rules: &FirewallRules) -> Result<FirewallRules> {
        self.client.put(&self.rules_path("networks", id), rules).await
    }

    fn rules_path(&self, kind: &str, id: &str) -> String {
        format!("{}/{kind}/{}/rules", self.path, segment(id))
    }
}
