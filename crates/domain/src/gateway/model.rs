//! What a model is, and how to parse it: from the configuration and from administrators' requests alike.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::fields::{Fields, Parsed, integer, sized, text};
use crate::gateway::money::{Nano, Price};

/// Most upstreams, aliases and fallbacks of a model, and most projects that may use it.
const MANY: usize = 100;
/// Upper bound of `max_output_tokens`.
const MOST_OUTPUT: i64 = 1_000_000_000;
/// Longest time-out, in seconds: a day.
const LONGEST: i64 = 86_400;

/// A model's name as clients send it: 1 to 200 printable ASCII characters without white space; slashes are common.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ModelId(String);

impl ModelId {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The rule of a field that names a model.
    pub fn rule(value: &Value) -> Parsed<Self> {
        let name = text(value)?;
        let good = (1..=200).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_graphic());
        let tidy = !name.starts_with('/') && !name.ends_with('/') && !name.contains("//");
        // A URL's parser would take these for steps of the path.
        let plain = name.split('/').all(|part| part != "." && part != "..");
        if good && tidy && plain && !name.contains(['?', '#', '%', '\\']) {
            Ok(Self(name.to_owned()))
        } else {
            Err("must be 1 to 200 printable characters like acme/tiny-1.5b, without ? # % \\ and empty parts".into())
        }
    }
}

impl fmt::Display for ModelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Which upstream of several answers a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// By chance, in proportion to the weights.
    #[default]
    Weighted,
    /// The one with the fewest requests under way for its weight.
    LeastBusy,
    /// The faster of two chosen by chance.
    Latency,
    /// The one that answered this conversation before.
    Affinity,
}

impl Strategy {
    /// The word of the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Weighted => "weighted",
            Self::LeastBusy => "least_busy",
            Self::Latency => "latency",
            Self::Affinity => "affinity",
        }
    }

    fn rule(value: &Value) -> Parsed<Self> {
        let all = [Self::Weighted, Self::LeastBusy, Self::Latency, Self::Affinity];
        let word = text(value)?;
        all.into_iter()
            .find(|strategy| strategy.as_str() == word)
            .ok_or_else(|| "must be weighted, least_busy, latency or affinity".into())
    }
}

/// How long the gateway waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Until an upstream's first byte.
    pub first_byte: Duration,
    /// Between two pieces of an answer.
    pub idle: Duration,
    /// In all, over every upstream that it tries.
    pub total: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { first_byte: seconds(60), idle: seconds(60), total: seconds(600) }
    }
}

/// Where an upstream's key comes from. The model never holds the key itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// A variable of the service's environment.
    Env(String),
    /// A file that the service can read.
    File(String),
}

/// What answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A server that speaks OpenAI's protocol at this base URL, without a slash at its end.
    Url(String),
    /// A model file, for which the service runs a server.
    Gguf(String),
}

/// One of the servers that answer for a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream {
    /// Where.
    pub place: Place,
    /// The model's name there.
    pub model: String,
    /// Its key.
    pub access: Option<Access>,
    /// Its share, 1 to 1,000.
    pub weight: u32,
    /// Most requests at the same time; `None` is no limit.
    pub max_concurrency: Option<u32>,
}

/// A model on offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// Its name.
    pub id: ModelId,
    /// Other names of it.
    pub aliases: Vec<ModelId>,
    /// Models that answer when no upstream of this one does.
    pub fallbacks: Vec<ModelId>,
    /// How to choose the upstream.
    pub strategy: Strategy,
    /// How long the gateway waits for an answer.
    pub timeouts: Timeouts,
    /// What it costs.
    pub price: Price,
    /// Those that answer, at least one.
    pub upstreams: Vec<Upstream>,
    /// Projects, by id, that may use it; empty is every project.
    pub projects: Vec<String>,
    /// Most requests that wait while all upstreams are busy.
    pub max_queue: u32,
    /// Most tokens of one of its answers, if known: what a request without a limit of its own sets aside.
    pub max_output_tokens: Option<u64>,
    /// Top-level names that a request must not have, such as those by which a server asks other models.
    pub deny_fields: Vec<String>,
}

impl Model {
    /// Its name and its aliases.
    pub fn names(&self) -> impl Iterator<Item = &ModelId> {
        std::iter::once(&self.id).chain(&self.aliases)
    }

    /// Reads the model that takes the place of another: its id need not be said, and cannot be changed.
    ///
    /// # Errors
    /// Every invalid field.
    pub fn replacement(id: &str, mut body: Value) -> Result<Self> {
        if let Some(fields) = body.as_object_mut() {
            let named = fields.entry("id").or_insert(Value::Null);
            if named.is_null() {
                *named = id.into();
            }
        }
        let model = Self::try_from(&body)?;
        if model.id.as_str() == id {
            Ok(model)
        } else {
            Err(Error::field("id", "must be the id in the path; a model keeps its name"))
        }
    }
}

impl TryFrom<&Value> for Model {
    type Error = Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let id = f.required("id", ModelId::rule);
        let upstreams = f.objects("upstreams", MANY, |u| upstream(u, id.as_ref())).unwrap_or_default();
        if upstreams.is_empty() && !f.failed() {
            f.fail("upstreams", "must name at least one upstream, like [{\"url\": \"http://127.0.0.1:9101/v1\"}]");
        }
        let names = |f: &mut Fields<'_>, name: &str| f.list(name, MANY, ModelId::rule).unwrap_or_default();
        let model = Self {
            aliases: names(&mut f, "aliases"),
            fallbacks: names(&mut f, "fallbacks"),
            strategy: f.optional("strategy", Strategy::rule).unwrap_or_default(),
            timeouts: timeouts(&mut f),
            price: f.object("price", |f| Some(price(f))).unwrap_or_default(),
            upstreams,
            projects: f.list("projects", MANY, sized(1, 100)).unwrap_or_default(),
            max_queue: small(f.optional("max_queue", integer(0, 100_000)).unwrap_or(100)),
            max_output_tokens: f.optional("max_output_tokens", integer(1, MOST_OUTPUT)).map(i64::unsigned_abs),
            deny_fields: f.list("deny_fields", MANY, deniable).unwrap_or_default(),
            id: match id {
                Some(id) => id,
                None => return f.finish(None),
            },
        };
        if model.fallbacks.contains(&model.id) {
            f.fail("fallbacks", "must not name the model itself");
        }
        f.finish(Some(model))
    }
}

/// Rule: a name that requests can do without.
fn deniable(value: &Value) -> Parsed<String> {
    let name = sized(1, 100)(value)?;
    if name.eq_ignore_ascii_case("model") {
        return Err("must not be model, which every request has".into());
    }
    Ok(name)
}

fn small(number: i64) -> u32 {
    u32::try_from(number).unwrap_or_default()
}

fn timeouts(f: &mut Fields<'_>) -> Timeouts {
    let default = Timeouts::default();
    let mut seconds = |name: &str, default: Duration| {
        let given = f.optional(name, integer(1, LONGEST));
        given.map_or(default, |seconds| Duration::from_secs(seconds.unsigned_abs()))
    };
    Timeouts {
        first_byte: seconds("first_byte_timeout_seconds", default.first_byte),
        idle: seconds("idle_timeout_seconds", default.idle),
        total: seconds("total_timeout_seconds", default.total),
    }
}

fn price(f: &mut Fields<'_>) -> Price {
    let mut amount = |name: &str| f.optional(name, amount).unwrap_or_default();
    Price { input: amount("input"), output: amount("output") }
}

/// Rule: a price for a million tokens.
fn amount(value: &Value) -> Parsed<Nano> {
    Nano::of_price(value.as_f64().unwrap_or(f64::NAN)).map_err(str::to_owned)
}

fn upstream(f: &mut Fields<'_>, id: Option<&ModelId>) -> Option<Upstream> {
    let url = f.optional("url", base_url).map(Place::Url);
    let gguf = f.optional("gguf", sized(1, 4096)).map(Place::Gguf);
    if f.has("url") == f.has("gguf") {
        f.fail("url", "is required, or 'gguf' with the path of a model file in its place");
    }
    let access = access(f);
    let model = f.optional("model", sized(1, 200));
    Some(Upstream {
        weight: small(f.optional("weight", integer(1, 1000)).unwrap_or(1)),
        max_concurrency: f.optional("max_concurrency", integer(1, 1_000_000)).map(small),
        place: url.or(gguf)?,
        model: model.or_else(|| id.map(ModelId::to_string)).unwrap_or_default(),
        access,
    })
}

/// Where the key comes from, if there is one.
pub(super) fn access(f: &mut Fields<'_>) -> Option<Access> {
    let env = f.optional("api_key_env", variable).map(Access::Env);
    let file = f.optional("api_key_file", sized(1, 4096)).map(Access::File);
    if env.is_some() && file.is_some() {
        f.fail("api_key_file", "must not stand beside api_key_env");
    }
    env.or(file)
}

/// Rule: an http or https URL; drops the slash at its end.
pub(super) fn base_url(value: &Value) -> Parsed<String> {
    let url = text(value)?.trim_end_matches('/');
    let host = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://")).unwrap_or_default();
    let plain = url.bytes().all(|b| b.is_ascii_graphic()) && !url.contains(['?', '#', '@']);
    if plain && !host.is_empty() && !host.starts_with(['/', ':']) && url.len() <= 2000 {
        Ok(url.to_owned())
    } else {
        Err("must be an address like http://127.0.0.1:9101/v1, without a user, a query or a fragment".into())
    }
}

/// Rule: the name of an environment variable.
fn variable(value: &Value) -> Parsed<String> {
    let name = text(value)?;
    let good = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    if (1..=200).contains(&name.len()) && name.bytes().all(good) && !name.starts_with(|c: char| c.is_ascii_digit()) {
        Ok(name.to_owned())
    } else {
        Err("must be the name of an environment variable, like OPENAI_API_KEY".into())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn model(change: impl FnOnce(&mut Value)) -> Result<Model> {
        let mut body = json!({"id": "acme/tiny", "upstreams": [{"url": "http://127.0.0.1:9101/v1/"}]});
        change(&mut body);
        Model::try_from(&body)
    }

    #[test]
    fn defaults_are_those_of_the_contract() {
        let model = model(|_| {}).unwrap();
        assert_eq!(model.timeouts.first_byte, Duration::from_mins(1));
        assert_eq!((model.timeouts.idle.as_secs(), model.timeouts.total.as_secs()), (60, 600));
        assert_eq!(model.upstreams[0].place, Place::Url("http://127.0.0.1:9101/v1".into()));
        assert_eq!((model.upstreams[0].model.as_str(), model.upstreams[0].weight), ("acme/tiny", 1));
    }

    #[test]
    fn every_mistake_is_named() {
        let error = model(|body| {
            body["id"] = json!("a b");
            body["strategy"] = json!("fastest");
            body["price"] = json!({"input": -1});
            body["upstreams"] = json!([{"url": "ftp://x"}, {}, {"url": "http://h", "weight": 0}]);
        });
        let error = error.unwrap_err();
        let fields: Vec<_> = error.details.iter().map(|d| d.field.as_str()).collect();
        for field in ["id", "strategy", "price.input", "upstreams[0].url", "upstreams[1].url", "upstreams[2].weight"] {
            assert!(fields.contains(&field), "{field} is not among {fields:?}");
        }
        assert!(model(|body| body["upstreams"] = json!([])).is_err());
        for (key, good, bad) in [
            ("max_output_tokens", json!(1), json!(0)),
            ("max_output_tokens", json!(1_000_000_000), json!(1_000_000_001)),
            ("deny_fields", json!(["models", "x".repeat(100)]), json!(["Model"])),
            ("deny_fields", json!([]), json!(["x".repeat(101)])),
        ] {
            assert!(model(|body| body[key] = good).is_ok(), "{key}");
            let error = model(|body| body[key] = bad).unwrap_err();
            assert!(error.details[0].field.starts_with(key), "{error:?}");
        }
        assert!(model(|body| body["fallbacks"] = json!(["acme/tiny"])).is_err());
    }

    #[test]
    fn a_replacement_keeps_its_name() {
        let upstreams = json!([{"url": "http://h/v1"}]);
        for body in [
            json!({"upstreams": upstreams}),
            json!({"id": null, "upstreams": upstreams}),
            json!({"id": "acme/tiny", "upstreams": upstreams}),
        ] {
            assert_eq!(Model::replacement("acme/tiny", body).unwrap().id.as_str(), "acme/tiny");
        }
        let other = Model::replacement("acme/tiny", json!({"id": "other", "upstreams": upstreams})).unwrap_err();
        assert_eq!(other.details[0].field, "id");
        assert_eq!(Model::replacement("acme/tiny", json!([])).unwrap_err().details[0].field, "body");
    }

    #[test]
    fn names_on_both_sides() {
        for good in ["a", "acme/tiny", "gpt-4o:latest", &"x".repeat(200)] {
            assert!(ModelId::rule(&json!(good)).is_ok(), "{good}");
        }
        for bad in ["", " ", "a b", "/a", "a/", "a//b", "a/../b", "a?b", "ä", &"x".repeat(201)] {
            assert!(ModelId::rule(&json!(bad)).is_err(), "{bad}");
        }
        for bad in ["http://", "http://u@h", "http://h?x", "h:80", "http:///v1"] {
            assert!(base_url(&json!(bad)).is_err(), "{bad}");
        }
    }
}
