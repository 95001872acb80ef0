//! Valid bodies of requests; a test changes one thing in them.

use serde_json::{Value, json};

/// A VM with a root disk cloned from `micro`.
pub fn vm(name: &str) -> Value {
    json!({
        "name": name,
        "region_id": "local",
        "vm_config_id": "tiny",
        "plan_id": "on-demand",
        "root_disk": {"create_disk_request": {"name": "root", "size_gb": 20, "image_id": "micro"}},
    })
}

/// A public key, a different one for each number.
pub fn key(number: usize) -> String {
    format!("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{number:044} me@host")
}
