//! `[gateway]`, `[[models]]` and `[[voices]]`: what the gateway offers. A model parses itself, here as in an
//! administrator's request. This file adds that unknown keys are an error, and that the keys of upstreams exist.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use berth_domain::gateway::{Access, Model, Source, Voice};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use berth_domain::Secret;

/// How the gateway works.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Gateway {
    /// Milliseconds of silence after which a stream gets a comment, so that no proxy takes the connection for dead.
    pub keep_alive_millis: u64,
    /// Most requests under way at the same time, in all; never more than three quarters of the connections. An
    /// organization holds at most as many as it leaves free.
    pub max_requests: usize,
    /// Most requests under way of a single project.
    pub max_requests_per_project: usize,
    /// Most MiB of request bodies held at the same time, in all. An organization holds at most as much as it leaves
    /// free.
    pub body_mb: u64,
    /// Most MiB of bodies of a single project.
    pub body_mb_per_project: u64,
    /// Variables that a model added through the API may name for an upstream's key: full names, or a prefix with a `*`.
    /// Models of the configuration may name any variable: the operator wrote them.
    pub key_env: Vec<String>,
    /// The folder of key files that such a model may name; `keys` of the data folder when empty.
    pub key_folder: PathBuf,
}

impl Default for Gateway {
    fn default() -> Self {
        Self {
            keep_alive_millis: 15_000,
            max_requests: 20_000,
            max_requests_per_project: 10_000,
            body_mb: 1024,
            body_mb_per_project: 256,
            key_env: vec!["BERTH_UPSTREAM_*".into()],
            key_folder: PathBuf::new(),
        }
    }
}

impl Gateway {
    /// Time of silence after which a stream gets a comment.
    pub const fn keep_alive(&self) -> Duration {
        Duration::from_millis(self.keep_alive_millis)
    }

    /// Whether a model added through the API may name this variable.
    pub fn lets_name(&self, variable: &str) -> bool {
        self.key_env.iter().any(|rule| match rule.strip_suffix('*') {
            Some(beginning) => variable.starts_with(beginning),
            None => variable == rule,
        })
    }

    /// Whether a file lies in the folder of keys, after following the links in its path.
    pub fn lets_read(&self, file: &Path) -> bool {
        let (folder, file) = (self.key_folder.canonicalize(), file.canonicalize());
        folder.is_ok_and(|folder| file.is_ok_and(|file| file.starts_with(folder)))
    }

    pub(super) fn complete(&mut self, data_dir: &Path) -> Result<()> {
        if self.key_folder.as_os_str().is_empty() {
            self.key_folder = data_dir.join("keys");
        }
        self.key_folder = std::path::absolute(&self.key_folder)?;
        self.check()
    }

    fn check(&self) -> Result<()> {
        let good = |rule: &&String| {
            let name = rule.strip_suffix('*').unwrap_or(rule);
            !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        };
        if let Some(wrong) = self.key_env.iter().find(|rule| !good(rule)) {
            bail!("gateway.key_env: '{wrong}' is neither a variable's name nor a beginning like ACME_*");
        }
        ensure!((10..=600_000).contains(&self.keep_alive_millis), "gateway.keep_alive_millis must be 10 to 600000");
        for (name, requests) in
            [("max_requests", self.max_requests), ("max_requests_per_project", self.max_requests_per_project)]
        {
            ensure!((1..=1_000_000).contains(&requests), "gateway.{name} must be 1 to 1000000");
        }
        let (all, each) = (self.body_mb, self.body_mb_per_project);
        ensure!((64..=1_048_576).contains(&all), "gateway.body_mb must be 64, twice the largest body, to 1048576");
        ensure!(
            (32..=1_048_576).contains(&each),
            "gateway.body_mb_per_project must be 32, the largest body, to 1048576"
        );
        Ok(())
    }
}

/// Reads `[[models]]`.
pub(super) fn models<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Model>, D::Error> {
    let all = Vec::<Value>::deserialize(deserializer)?;
    all.iter().map(|body| model(body).map_err(serde::de::Error::custom)).collect()
}

fn model(body: &Value) -> Result<Model, String> {
    let name = body["id"].as_str().unwrap_or("without an id");
    Model::try_from(body).map_err(|error| format!("models ({name}): {}", error.message))
}

/// Reads `[[voices]]`: they add to the built-in ones, and replace those of the same name.
pub(super) fn voices<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Voice>, D::Error> {
    let all = Vec::<Value>::deserialize(deserializer)?;
    let voice = |body: &Value| {
        let name = body["id"].as_str().unwrap_or("without an id");
        Voice::try_from(body).map_err(|error| serde::de::Error::custom(format!("voices ({name}): {}", error.message)))
    };
    let mut voices = all.iter().map(voice).collect::<Result<Vec<_>, _>>()?;
    let built_in = Voice::defaults().into_iter();
    let others: Vec<_> = built_in.filter(|own| voices.iter().all(|voice| voice.id != own.id)).collect();
    voices.extend(others);
    Ok(voices)
}

/// Checks entries against each other: names are unique, and keys exist.
pub(super) fn check(models: &[Model], voices: &[Voice]) -> Result<()> {
    let mut names = HashSet::new();
    for model in models {
        for name in model.names() {
            ensure!(names.insert(name), "models: the name '{name}' stands twice");
        }
        for access in model.upstreams.iter().filter_map(|upstream| upstream.access.as_ref()) {
            key_of(access).with_context(|| format!("models ({})", model.id))?;
        }
    }
    let mut names = HashSet::new();
    for voice in voices {
        ensure!(names.insert(&voice.id), "voices: the name '{}' stands twice", voice.id);
        if let Source::Url { access: Some(access), .. } = &voice.source {
            key_of(access).with_context(|| format!("voices ({})", voice.id))?;
        }
    }
    Ok(())
}

/// The key of an upstream, from the environment or the file at this moment.
pub fn key_of(access: &Access) -> Result<Secret> {
    let (key, place) = match access {
        Access::Env(name) => {
            let value = std::env::var(name).ok().filter(|value| !value.trim().is_empty());
            let unset = || format!("the environment variable {name} is not set; set it to the upstream's key");
            (value.with_context(unset)?, format!("the environment variable {name}"))
        }
        Access::File(path) => {
            let text = std::fs::read_to_string(path).with_context(|| format!("the key file {path} cannot be read"))?;
            (text, format!("the key file {path}"))
        }
    };
    let key = key.trim();
    if key.is_empty() || !key.bytes().all(|b| b.is_ascii_graphic()) {
        bail!("{place} does not hold a key: one word of printable characters");
    }
    Ok(Secret(key.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_is_named_whole_or_by_its_beginning() {
        let gateway = Gateway { key_env: vec!["ACME_KEY".into(), "BERTH_UPSTREAM_*".into()], ..Gateway::default() };
        for allowed in ["ACME_KEY", "BERTH_UPSTREAM_", "BERTH_UPSTREAM_ACME"] {
            assert!(gateway.lets_name(allowed), "{allowed}");
        }
        for refused in ["ACME_KEY2", "ACME_KE", "acme_key", "BERTH_ADMIN_PASSWORD", "BERTH_UPSTREAM", ""] {
            assert!(!gateway.lets_name(refused), "{refused}");
        }
        for wrong in ["*", "", "A*B", "A-B", "A B"] {
            assert!(Gateway { key_env: vec![wrong.into()], ..Gateway::default() }.check().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_file_of_the_folder_is_one_wherever_links_lead() {
        let place = tempfile::tempdir().unwrap();
        let (folder, outside) = (place.path().join("keys"), place.path().join("outside"));
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("acme"), "k").unwrap();
        std::fs::write(&outside, "k").unwrap();
        std::os::unix::fs::symlink(&outside, folder.join("link")).unwrap();
        let gateway = Gateway { key_folder: folder.clone(), ..Gateway::default() };
        assert!(gateway.lets_read(&folder.join("acme")));
        for refused in [outside, folder.join("link"), folder.join("../outside"), folder.join("missing"), "acme".into()]
        {
            assert!(!gateway.lets_read(&refused), "{refused:?}");
        }
        let none = Gateway { key_folder: place.path().join("none"), ..Gateway::default() };
        assert!(!none.lets_read(&folder.join("acme")));
    }
}
