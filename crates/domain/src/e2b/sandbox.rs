//! Sandboxes, by E2B's words.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::network::Network;
use crate::error::{Code, Error, Result};
use crate::sandbox::request::TIMEOUT;

/// The version of envd that answers: every feature of today's SDKs begins at or before it.
pub const ENVD: &str = "0.6.4";
/// Who runs it, as SDKs want to read it.
pub const CLIENT: &str = "berth";
/// Seconds a sandbox lives where nobody says.
const TIME: i64 = 300;
/// What can be asked for at a creation and cannot be had here.
const ABSENT: [&str; 3] = ["mcp", "iam", "volumeMounts"];
/// The variable by which programs find out that they are in a sandbox.
const INSIDE: &str = "E2B_SANDBOX";
/// End of a sandbox without one: SDKs want to read a time.
const NEVER: &str = "9999-12-31T23:59:59Z";

/// A sandbox to create.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Create {
    /// Its template, or its snapshot.
    #[serde(rename = "templateID")]
    pub template: String,
    timeout: Option<i64>,
    metadata: Option<BTreeMap<String, String>>,
    env_vars: Option<BTreeMap<String, String>>,
    #[serde(default)]
    auto_pause: bool,
    auto_pause_memory: Option<bool>,
    auto_resume: Option<AutoResume>,
    #[serde(rename = "allow_internet_access")]
    allow_internet_access: Option<bool>,
    network: Option<Network>,
    #[serde(flatten)]
    more: Map<String, Value>,
}

#[derive(Clone, Debug, Deserialize)]
struct AutoResume {
    #[serde(default)]
    enabled: bool,
}

/// Reads a body, of which nothing at all means an empty one.
///
/// # Errors
/// What is wrong with it.
pub fn read<T: serde::de::DeserializeOwned>(body: &Value) -> Result<T> {
    let empty = json!({});
    let body = if body.is_null() { &empty } else { body };
    T::deserialize(body).map_err(|error| refused(format!("The body is wrong: {error}.")))
}

fn refused(message: impl Into<String>) -> Error {
    Error::new(Code::InvalidRequest, message)
}

impl Create {
    /// The creation in Berth's words, without what it is made of.
    ///
    /// # Errors
    /// What cannot be had here.
    pub fn request(&self) -> Result<Value> {
        let is_asked = |name: &&&str| match self.more.get(**name) {
            None | Some(Value::Null) => false,
            Some(Value::Array(list)) => !list.is_empty(),
            Some(_) => true,
        };
        if let Some(name) = ABSENT.iter().find(is_asked) {
            return Err(refused(format!("{name} is not supported here. Leave it out.")));
        }
        if self.auto_pause && self.auto_pause_memory == Some(false) {
            let message = "A sandbox that pauses by itself keeps its memory here. Leave autoPauseMemory out.";
            return Err(refused(message));
        }
        let mut env = BTreeMap::from([(INSIDE.to_owned(), "true".to_owned())]);
        env.extend(self.env_vars.clone().unwrap_or_default());
        let network = self.network.clone().unwrap_or_default().with_internet(self.allow_internet_access);
        let mut request = json!({
            "timeout_seconds": seconds(self.timeout.unwrap_or(TIME)),
            "on_timeout": if self.auto_pause { "pause" } else { "delete" },
            "metadata": self.metadata.clone().unwrap_or_default(),
            "env": env,
        });
        if self.auto_resume.as_ref().is_some_and(|config| config.enabled) {
            request["auto_resume"] = true.into();
        }
        let rules = network.rules().map_err(refused)?;
        if network.is_given() {
            request["network"] = rules;
        }
        Ok(request)
    }
}

/// A life time as Berth takes it, which knows none below five seconds.
pub fn seconds(asked: i64) -> i64 {
    asked.max(TIMEOUT.0)
}

/// How long a sandbox is to live from now on.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Timeout {
    /// Seconds.
    pub timeout: Option<i64>,
    /// Whether it goes on from its memory.
    pub memory: Option<bool>,
}

/// Forks to make.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Fork {
    /// How many.
    pub count: Option<i64>,
    /// Seconds that they live.
    pub timeout: Option<i64>,
}

/// A snapshot to take, or how to pause.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Keep {
    /// Its name.
    pub name: Option<String>,
    /// Whether the memory is kept, too.
    pub memory: Option<bool>,
}

/// A sandbox as Berth's API tells it.
#[derive(Clone, Debug, Deserialize)]
pub struct Sandbox {
    /// Its id.
    pub id: String,
    /// Where it stands.
    pub phase: String,
    /// Why it failed.
    pub message: Option<String>,
    /// What it was made of.
    pub template_id: Option<String>,
    /// The snapshot that it was made of.
    pub snapshot_id: Option<String>,
    metadata: BTreeMap<String, String>,
    /// Virtual CPUs.
    pub vcpu: i64,
    /// Memory, in MiB.
    pub memory_mb: i64,
    /// Disk, in GiB.
    pub disk_gb: i64,
    network: Value,
    on_timeout: String,
    #[serde(default)]
    auto_resume: bool,
    /// Creation.
    pub created_at: String,
    /// End of its life.
    pub expires_at: Option<String>,
}

/// The tokens of a sandbox.
#[derive(Clone, Debug)]
pub struct Tokens {
    /// For everything inside.
    pub inside: String,
    /// For servers inside.
    pub ports: String,
}

/// The two states that E2B knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It runs, or comes up.
    Running,
    /// It is paused.
    Paused,
}

/// The state of a sandbox in a phase; none of one that is on its way out, or failed.
pub fn state(phase: &str) -> Option<State> {
    match phase {
        "Pending" | "Provisioning" | "Ready" | "Resuming" | "Restoring" => Some(State::Running),
        "Pausing" | "Paused" => Some(State::Paused),
        _ => None,
    }
}

impl Sandbox {
    /// Its state; none of one that is on its way out, or failed.
    pub fn state(&self) -> Option<State> {
        state(&self.phase)
    }

    /// As SDKs read it who are about to work in it, with these tokens.
    pub fn connected(&self, tokens: &Tokens, domain: &str) -> Value {
        json!({
            "templateID": self.made_of(), "sandboxID": self.id, "clientID": CLIENT, "envdVersion": ENVD,
            "envdAccessToken": tokens.inside, "trafficAccessToken": tokens.ports, "domain": domain,
        })
    }

    /// As SDKs read it in a list.
    pub fn listed(&self, alias: Option<&str>) -> Value {
        let state = match self.state() {
            Some(State::Paused) => "paused",
            _ => "running",
        };
        let mut told = json!({
            "templateID": self.made_of(), "sandboxID": self.id, "clientID": CLIENT, "envdVersion": ENVD,
            "startedAt": self.created_at, "endAt": self.expires_at.as_deref().unwrap_or(NEVER),
            "cpuCount": self.vcpu, "memoryMB": self.memory_mb, "diskSizeMB": self.disk_gb << 10, "state": state,
            "metadata": self.metadata,
        });
        if let Some(alias) = alias {
            told["alias"] = alias.into();
        }
        told
    }

    /// As SDKs read it alone.
    pub fn detailed(&self, alias: Option<&str>, token: &str, domain: &str) -> Value {
        let mut told = self.listed(alias);
        let on_timeout = if self.on_timeout == "pause" { "pause" } else { "kill" };
        let closed = self.network["egress"] == "deny";
        told["envdAccessToken"] = token.into();
        told["domain"] = domain.into();
        told["lifecycle"] = json!({"onTimeout": on_timeout, "autoResume": self.auto_resume});
        told["allowInternetAccess"] = json!(!closed);
        let everything: &[&str] = if closed { &["0.0.0.0/0"] } else { &[] };
        let denied = self.network["deny"].as_array().into_iter().flatten().cloned();
        let denied: Vec<Value> = everything.iter().map(|rule| json!(rule)).chain(denied).collect();
        told["network"] = json!({"allowOut": self.network["allow"], "denyOut": denied, "allowPublicTraffic": false});
        told
    }

    fn made_of(&self) -> &str {
        self.snapshot_id.as_deref().or(self.template_id.as_deref()).unwrap_or_default()
    }
}

/// A snapshot as Berth's API tells it.
#[derive(Clone, Debug, Deserialize)]
pub struct Snapshot {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Where it stands.
    pub status: String,
    /// Why it failed.
    pub message: Option<String>,
}

impl Snapshot {
    /// As SDKs read it.
    pub fn told(&self) -> Value {
        json!({"snapshotID": self.id, "names": [self.name]})
    }
}

/// What E2B's SDKs call the platform's templates that they start from where nobody names one.
const CALLED: [(&str, &str); 1] = [("code-interpreter-v1", "code-interpreter")];

/// The tag of what has no other.
const DEFAULT_TAG: &str = ":default";

/// The names that a template may have that is called so. It has one version, so no tag but the default one names it.
pub fn template_names(called: &str) -> impl Iterator<Item = &str> {
    let name = called.strip_suffix(DEFAULT_TAG).unwrap_or(called);
    let name = CALLED.into_iter().find(|(theirs, _)| *theirs == name).map_or(name, |(_, ours)| ours);
    std::iter::once(name).filter(|name| !name.is_empty() && !name.contains(':'))
}

/// The names that a snapshot may have that is called so: as it was named, tag and all, or without the default one.
pub fn snapshot_names(called: &str) -> impl Iterator<Item = &str> {
    let names = [Some(called), called.strip_suffix(DEFAULT_TAG)];
    names.into_iter().flatten().filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(body: Value) -> Result<Value> {
        read::<Create>(&body)?.request()
    }

    #[test]
    fn a_creation_is_told_in_berth_s_words() {
        let asked = json!({"templateID": "base", "timeout": 60, "metadata": {"a": "b"}, "envVars": {"C": "d"}, "secure": true,
            "autoPause": true, "autoResume": {"enabled": true}, "allow_internet_access": false});
        let expected = json!({"timeout_seconds": 60, "on_timeout": "pause", "metadata": {"a": "b"}, "env": {"C": "d", "E2B_SANDBOX": "true"},
            "auto_resume": true, "network": {"egress": "deny", "allow": [], "deny": []}});
        assert_eq!(request(asked).unwrap(), expected);
        let plain = request(json!({"templateID": "base", "mcp": null, "volumeMounts": []})).unwrap();
        assert_eq!(
            plain,
            json!({"timeout_seconds": 300, "on_timeout": "delete", "metadata": {}, "env": {"E2B_SANDBOX": "true"}})
        );
        for seconds in [(0, 5), (4, 5), (5, 5), (6, 6)] {
            let asked = request(json!({"templateID": "base", "timeout": seconds.0})).unwrap();
            assert_eq!(asked["timeout_seconds"], seconds.1);
        }
    }

    #[test]
    fn what_cannot_be_had_is_refused_by_name() {
        for (name, value) in [("mcp", json!({"a": {}})), ("iam", json!({})), ("volumeMounts", json!([{}]))] {
            let error = request(json!({"templateID": "base", name: value})).unwrap_err();
            assert!(error.message.contains(name), "{error}");
        }
        let error = request(json!({"templateID": "base", "autoPause": true, "autoPauseMemory": false})).unwrap_err();
        assert!(error.message.contains("autoPauseMemory"));
        assert!(request(json!({})).unwrap_err().message.contains("templateID"));
        let rules = json!({"templateID": "base", "network": {"rules": {"a.example.org": []}}});
        assert!(request(rules).unwrap_err().message.contains("network.rules"));
    }

    fn sandbox(phase: &str) -> Sandbox {
        let told = json!({"id": "s", "phase": phase, "message": null, "template_id": "t", "snapshot_id": null, "metadata": {},
            "vcpu": 1, "memory_mb": 256, "disk_gb": 2, "on_timeout": "delete", "created_at": "2026-01-01T00:00:00Z",
            "expires_at": null, "network": {"egress": "deny", "allow": ["a"], "deny": ["b"]}, "later": 1});
        read(&told).unwrap()
    }

    #[test]
    fn a_sandbox_runs_or_is_paused() {
        for (phase, state) in [
            ("Pending", Some(State::Running)),
            ("Ready", Some(State::Running)),
            ("Pausing", Some(State::Paused)),
            ("Paused", Some(State::Paused)),
            ("Failed", None),
            ("Deleting", None),
        ] {
            assert_eq!(sandbox(phase).state(), state, "{phase}");
        }
        let told = sandbox("Paused").detailed(Some("base"), "tok", "d");
        assert_eq!(
            (&told["state"], &told["diskSizeMB"], &told["endAt"]),
            (&json!("paused"), &json!(2048), &json!(NEVER))
        );
        assert_eq!(told["lifecycle"], json!({"onTimeout": "kill", "autoResume": false}));
        assert_eq!((&told["network"]["denyOut"], &told["alias"]), (&json!(["0.0.0.0/0", "b"]), &json!("base")));
        let told = sandbox("Ready").connected(&Tokens { inside: "tok".into(), ports: "port".into() }, "d");
        assert_eq!((&told["sandboxID"], &told["envdAccessToken"]), (&json!("s"), &json!("tok")));
        assert_eq!(told["trafficAccessToken"], "port");
    }

    #[test]
    fn a_tag_names_what_was_named_so_and_nothing_else() {
        let template = |called| template_names(called).collect::<Vec<_>>();
        for (called, name) in [("base:default", "base"), ("base", "base"), ("code-interpreter-v1", "code-interpreter")]
        {
            assert_eq!(template(called), [name], "{called}");
        }
        assert!(template("base:v1").is_empty() && template("").is_empty() && template(":default").is_empty());
        let snapshot = |called| snapshot_names(called).collect::<Vec<_>>();
        assert_eq!(snapshot("point:v1"), ["point:v1"]);
        assert_eq!(snapshot("point:default"), ["point:default", "point"]);
        assert!(snapshot("").is_empty());
    }
}
