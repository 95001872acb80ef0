//! Snapshots and forks of sandboxes.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

/// A snapshot to take.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Snapshot {
    /// The sandbox's id.
    pub sandbox_id: String,
    /// The snapshot's name, for people.
    #[schemars(example = &"before-upgrade")]
    pub name: Option<String>,
    /// Whether the memory is kept, too, so that processes go on where it is restored. Default true.
    pub include_memory: Option<bool>,
}

impl Snapshot {
    /// The snapshot in words of the API.
    pub fn body(&self) -> Value {
        let mut body = json!({"include_memory": self.include_memory.unwrap_or(true)});
        if let Some(name) = &self.name {
            body["name"] = json!(name);
        }
        body
    }
}

/// A sandbox, and what to bring it back to.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Restore {
    /// The sandbox's id.
    pub sandbox_id: String,
    /// A snapshot of that sandbox.
    pub snapshot_id: String,
}

/// Forks to make.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fork {
    /// The sandbox's id.
    pub sandbox_id: String,
    /// How many, 1 to 20. Default 1.
    #[schemars(example = 3)]
    pub count: Option<u64>,
    /// Name of the new ones; several get `-1`, `-2` behind it.
    pub name: Option<String>,
    /// A snapshot to fork instead of what the sandbox is now.
    pub snapshot_id: Option<String>,
    /// Whether they have its memory, so that its processes go on in them; without it they boot from its disk. Default true;
    /// of a snapshot, what that has.
    pub include_memory: Option<bool>,
}

impl Fork {
    /// The forks in words of the API.
    pub fn body(&self) -> Value {
        let mut body = json!({"count": self.count.unwrap_or(1)});
        let usual = self.snapshot_id.is_none().then_some(true);
        if let Some(include_memory) = self.include_memory.or(usual) {
            body["include_memory"] = json!(include_memory);
        }
        for (name, value) in [("name", &self.name), ("snapshot_id", &self.snapshot_id)] {
            if let Some(value) = value {
                body[name] = json!(value);
            }
        }
        body
    }
}

/// Which snapshots to list.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Snapshots {
    /// Only those of this sandbox.
    pub sandbox_id: Option<String>,
    /// Which page, from 1: each has 20.
    pub page: Option<u64>,
}

/// A snapshot by its id.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OneSnapshot {
    /// The snapshot's id.
    pub snapshot_id: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fork_goes_on_with_its_memory_unless_somebody_says() {
        let body = |asked: Value| serde_json::from_value::<Fork>(asked).unwrap().body();
        assert_eq!(body(json!({"sandbox_id": "s"})), json!({"count": 1, "include_memory": true}));
        assert_eq!(
            body(json!({"sandbox_id": "s", "count": 2, "include_memory": false})),
            json!({"count": 2, "include_memory": false})
        );
        assert_eq!(body(json!({"sandbox_id": "s", "snapshot_id": "p"})), json!({"count": 1, "snapshot_id": "p"}));
    }
}
