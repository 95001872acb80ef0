//! `[gateway]`, `[[models]]` and `[[voices]]`: what the gateway offers. A model reads itself, here as in a request of
//! an administrator; what is added here is that unknown keys are an error, and that keys of upstreams are there.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use berth_domain::gateway::{Access, Model, Source, Voice};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::Secret;

/// How the gateway behaves.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Gateway {
    /// Milliseconds of silence after which a stream gets a comment, so that nobody between takes it for dead.
    pub keep_alive_millis: u64,
    /// Most requests under way at the same time, all in all.
    pub max_requests: usize,
}

impl Default for Gateway {
    fn default() -> Self {
        Self { keep_alive_millis: 15_000, max_requests: 20_000 }
    }
}

impl Gateway {
    /// Time of silence after which a stream gets a comment.
    pub const fn keep_alive(&self) -> Duration {
        Duration::from_millis(self.keep_alive_millis)
    }

    pub(super) fn check(&self) -> Result<()> {
        ensure!((10..=600_000).contains(&self.keep_alive_millis), "gateway.keep_alive_millis must be 10 to 600000");
        ensure!((1..=1_000_000).contains(&self.max_requests), "gateway.max_requests must be 1 to 1000000");
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
    let in_model = |error: String| format!("models ({name}): {error}");
    only(body, &Model::KEYS).map_err(in_model)?;
    only(&body["price"], &Model::PRICE_KEYS).map_err(in_model)?;
    for upstream in body["upstreams"].as_array().into_iter().flatten() {
        only(upstream, &Model::UPSTREAM_KEYS).map_err(in_model)?;
    }
    Model::try_from(body).map_err(|error| in_model(error.message))
}

/// Reads `[[voices]]`: those stand beside the built-in ones, and in place of those of the same name.
pub(super) fn voices<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Voice>, D::Error> {
    let all = Vec::<Value>::deserialize(deserializer)?;
    let voice = |body: &Value| {
        let name = body["id"].as_str().unwrap_or("without an id");
        only(body, &Voice::KEYS)
            .and_then(|()| Voice::try_from(body).map_err(|error| error.message))
            .map_err(|error| serde::de::Error::custom(format!("voices ({name}): {error}")))
    };
    let mut voices = all.iter().map(voice).collect::<Result<Vec<_>, _>>()?;
    let built_in = Voice::defaults().into_iter();
    let others: Vec<_> = built_in.filter(|own| voices.iter().all(|voice| voice.id != own.id)).collect();
    voices.extend(others);
    Ok(voices)
}

fn only(body: &Value, known: &[&str]) -> Result<(), String> {
    let unknown = body.as_object().into_iter().flatten().find(|(key, _)| !known.contains(&key.as_str()));
    unknown.map_or(Ok(()), |(key, _)| Err(format!("there is no key '{key}'; there are {}", known.join(", "))))
}

/// Checks what only fits together: names that stand once, keys that are there.
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

/// The key of an upstream, as the environment or the file has it now.
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
