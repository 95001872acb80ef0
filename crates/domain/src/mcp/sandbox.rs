//! Sandboxes: how they are made, found and kept.

use std::collections::BTreeMap;
use std::num::NonZeroU16;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::list::PAGE;

/// Seconds after which a sandbox is paused that nobody uses, where nobody says.
pub const IDLE: u64 = 900;
/// Seconds after which one is paused in any case, where nobody says.
pub const LIFE: u64 = 86_400;

/// A sandbox to make.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Create {
    /// What it starts from: the name or id of a template. `sandbox_templates` lists them. Default `base`: Debian with bash,
    /// python3, git, curl and sudo, on 1 vCPU and 256 MiB.
    #[schemars(example = &"base")]
    pub template: Option<String>,
    /// A snapshot to start from instead of a template.
    pub snapshot_id: Option<String>,
    /// Its name: a host name.
    #[schemars(example = &"analysis")]
    pub name: Option<String>,
    /// Seconds after which it is paused when nobody uses it, 5 to 2592000. It keeps its memory, and resumes by itself when it
    /// is used again. Default 900.
    #[schemars(example = 900)]
    pub idle_timeout_seconds: Option<u64>,
    /// Seconds after which it is paused in any case, 5 to 2592000, counted anew when it resumes. Default 86400.
    #[schemars(example = 86400)]
    pub timeout_seconds: Option<u64>,
    /// Whether it is deleted at either time, instead of paused. Default false.
    pub delete_on_timeout: Option<bool>,
    /// Environment of every command.
    #[schemars(example = json!({"LANG": "C.UTF-8"}))]
    pub env: Option<BTreeMap<String, String>>,
    /// Pairs to find it by.
    #[schemars(example = json!({"task": "report"}))]
    pub metadata: Option<BTreeMap<String, String>>,
    /// Whether it reaches the internet; by default as the operator says. With `allow` only what that names.
    pub internet: Option<bool>,
    /// Names, addresses and CIDRs that it reaches, and nothing else.
    #[schemars(example = ["pypi.org", "*.pythonhosted.org"])]
    pub allow: Option<Vec<String>>,
}

impl Create {
    /// The creation in words of the API.
    pub fn body(&self) -> Value {
        let mut body = Map::new();
        let on_timeout = if self.delete_on_timeout == Some(true) { "delete" } else { "pause" };
        let given = [
            ("snapshot_id", self.snapshot_id.as_ref().map(|id| json!(id))),
            ("name", self.name.as_ref().map(|name| json!(name))),
            ("env", self.env.as_ref().map(|env| json!(env))),
            ("metadata", self.metadata.as_ref().map(|metadata| json!(metadata))),
            ("template_id", self.template()),
            ("network", self.network()),
            ("timeout_seconds", Some(json!(self.timeout_seconds.unwrap_or(LIFE)))),
            ("idle_timeout_seconds", Some(json!(self.idle_timeout_seconds.unwrap_or(IDLE)))),
            ("on_timeout", Some(json!(on_timeout))),
            ("auto_resume", Some(json!(true))),
        ];
        body.extend(given.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
        body.into()
    }

    fn template(&self) -> Option<Value> {
        match (&self.template, &self.snapshot_id) {
            (Some(template), _) => Some(json!(template)),
            (None, None) => Some(json!("base")),
            (None, Some(_)) => None,
        }
    }

    fn network(&self) -> Option<Value> {
        match (&self.allow, self.internet) {
            (Some(allow), _) => Some(json!({"egress": "deny", "allow": allow})),
            (None, Some(true)) => Some(json!({"egress": "allow"})),
            (None, Some(false)) => Some(json!({"egress": "deny"})),
            (None, None) => None,
        }
    }
}

/// A sandbox by its id.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct One {
    /// The sandbox's id.
    #[schemars(example = &"0197a5e2-4c7b-7c3e-9d53-2f1c8f5b0a11")]
    pub sandbox_id: String,
}

/// Which sandboxes to list.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct List {
    /// Only those with this name.
    pub name: Option<String>,
    /// Only those in this phase: `Ready`, `Paused` or `Failed`, for instance.
    #[schemars(example = &"Ready")]
    pub phase: Option<String>,
    /// Only those whose metadata has these pairs.
    pub metadata: Option<BTreeMap<String, String>>,
    /// Which page, from 1: each has 20.
    #[schemars(example = 1)]
    pub page: Option<u64>,
}

impl List {
    /// The query in words of the API.
    pub fn query(&self) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.append_pair("limit", &PAGE.to_string());
        query.append_pair("page", &self.page.unwrap_or(1).to_string());
        for (name, value) in [("name", &self.name), ("phase", &self.phase)] {
            if let Some(value) = value {
                query.append_pair(name, value);
            }
        }
        for (key, value) in self.metadata.iter().flatten() {
            query.append_pair(&format!("metadata.{key}"), value);
        }
        query.finish()
    }
}

/// A sandbox, and how long it is to live from now on.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Extend {
    /// The sandbox's id.
    pub sandbox_id: String,
    /// Seconds from now on, 5 to 2592000.
    #[schemars(example = 7200)]
    pub timeout_seconds: u64,
}

/// A port of a sandbox.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Port {
    /// The sandbox's id.
    pub sandbox_id: String,
    /// The port that a server inside listens on, 1 to 65535.
    #[schemars(example = 8000, range(min = 1, max = 65_535))]
    pub port: NonZeroU16,
}

/// Which templates to list.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Templates {
    /// Which page, from 1: each has 20.
    pub page: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, String> {
        serde_json::from_value(value).map_err(|error| error.to_string())
    }

    #[test]
    fn a_sandbox_is_of_base_and_outlives_a_conversation_unless_one_says() {
        let plain: Create = read(json!({})).unwrap();
        let expected = json!({"template_id": "base", "timeout_seconds": 86_400, "idle_timeout_seconds": 900,
            "on_timeout": "pause", "auto_resume": true});
        assert_eq!(plain.body(), expected);
        let of_snapshot: Create = read(json!({"snapshot_id": "s", "delete_on_timeout": true})).unwrap();
        let body = of_snapshot.body();
        let told = [&body["template_id"], &body["snapshot_id"], &body["on_timeout"]];
        assert_eq!(told, [&Value::Null, &json!("s"), &json!("delete")]);
    }

    #[test]
    fn what_may_be_reached_is_closed_by_a_list() {
        for (asked, expected) in [
            (json!({}), Value::Null),
            (json!({"internet": true}), json!({"egress": "allow"})),
            (json!({"internet": false}), json!({"egress": "deny"})),
            (json!({"internet": true, "allow": ["pypi.org"]}), json!({"egress": "deny", "allow": ["pypi.org"]})),
            (json!({"allow": []}), json!({"egress": "deny", "allow": []})),
        ] {
            assert_eq!(read::<Create>(asked.clone()).unwrap().body()["network"], expected, "{asked}");
        }
    }

    #[test]
    fn a_slip_is_named() {
        assert!(read::<Create>(json!({"templat": "base"})).unwrap_err().contains("`templat`"));
        assert!(read::<One>(json!({})).unwrap_err().contains("`sandbox_id`"));
        for (port, is_one) in [(0, false), (1, true), (65_535, true), (65_536, false)] {
            assert_eq!(read::<Port>(json!({"sandbox_id": "a", "port": port})).is_ok(), is_one, "{port}");
        }
    }

    #[test]
    fn a_list_is_asked_for_by_what_is_given() {
        let list: List = read(json!({"phase": "Ready", "metadata": {"a b": "c&d"}, "page": 2})).unwrap();
        assert_eq!(list.query(), "limit=20&page=2&phase=Ready&metadata.a+b=c%26d");
    }
}
