//! Virtual machines.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

/// Most bytes of a console that one answer tells.
pub const CONSOLE: u64 = 16 * 1024;

/// The smallest root disk, in GiB.
const SMALLEST: u64 = 20;

/// A VM to make.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Create {
    /// Its name.
    #[schemars(example = &"web")]
    pub name: String,
    /// Its image, by name or id. Default `debian-12`.
    #[schemars(example = &"debian-12")]
    pub image: Option<String>,
    /// Its size, by name or id: `tiny`, `small`, `medium` or `large`. Default `small`: one processor, 1 GiB.
    #[schemars(example = &"small")]
    pub size: Option<String>,
    /// Its root disk, in GiB, 20 to 2048. Default 20.
    #[schemars(example = 20)]
    pub disk_gb: Option<u64>,
    /// Public SSH keys of its login user, each a line of `authorized_keys`. At least one, or nobody can sign in.
    #[schemars(example = ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ4 me@laptop"])]
    pub ssh_keys: Vec<String>,
    /// TCP ports, beside 22, at which it is reached from outside.
    #[schemars(example = [80, 443])]
    pub ports: Option<Vec<u16>>,
    /// A script or configuration for cloud-init.
    pub user_data: Option<String>,
    /// Seconds after which it is deleted, whatever it does then.
    pub ttl_seconds: Option<u64>,
}

impl Create {
    /// The creation in words of the API, in a region. SSH is open without being asked for.
    pub fn body(&self, region: &str) -> Value {
        let others = self.ports.iter().flatten().filter(|port| **port != 22);
        let ports: Vec<Value> = others.map(|port| json!({"port": port, "protocol": "tcp"})).collect();
        let mut body = json!({
            "name": self.name,
            "region_id": region,
            "plan_id": "on-demand",
            "vm_config_id": self.size.as_deref().unwrap_or("small"),
            "root_disk": {"create_disk_request": {
                "name": self.name,
                "image_id": self.image.as_deref().unwrap_or("debian-12"),
                "size_gb": self.disk_gb.unwrap_or(SMALLEST),
            }},
            "ssh_keys": self.ssh_keys,
            "exposed_ports": ports,
            "delete_root_disk": true,
        });
        if let Some(data) = &self.user_data {
            body["user_data"] = json!(data);
        }
        if let Some(seconds) = self.ttl_seconds {
            body["ttl_seconds"] = json!(seconds);
        }
        body
    }
}

/// A VM by its id.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct One {
    /// The VM's id.
    #[schemars(example = &"0197a5e2-4c7b-7c3e-9d53-2f1c8f5b0a11")]
    pub vm_id: String,
}

/// Which VMs to list.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct List {
    /// Only those with this status: `running` or `stopped`, for instance.
    #[schemars(example = &"running")]
    pub status: Option<String>,
    /// Which page, from 1: each has 20.
    pub page: Option<u64>,
}

/// A console to read.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Console {
    /// The VM's id.
    pub vm_id: String,
    /// How many of its last bytes, up to 16384. Default 4096.
    pub bytes: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ssh_is_open_without_being_asked_for() {
        let asked = json!({"name": "a", "ssh_keys": ["k"], "ports": [22, 80]});
        let body = serde_json::from_value::<Create>(asked).unwrap().body("local");
        let ports: Vec<_> = body["exposed_ports"].as_array().unwrap().iter().map(|port| port["port"].clone()).collect();
        assert_eq!(ports, [80]);
        assert_eq!(body["vm_config_id"], "small");
    }
}
