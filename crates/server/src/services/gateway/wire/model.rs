//! Models as administrators see them and say them.

use berth_domain::Timestamp;
use berth_domain::gateway::breaker::State;
use berth_domain::gateway::{Access, Model, ModelId, Place, Upstream};
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::services::gateway::upstream::slot;

/// An upstream of a model, and how it stands.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = ModelUpstreamResponse)]
pub struct UpstreamView {
    /// Its base URL.
    #[schema(required = true)]
    pub url: Option<String>,
    /// The model file that the service runs a server for.
    #[schema(required = true)]
    pub gguf: Option<String>,
    /// The model's name there.
    pub model: String,
    /// Its share.
    pub weight: u32,
    /// Most requests at the same time; null is no limit.
    #[schema(required = true)]
    pub max_concurrency: Option<u32>,
    /// The variable of the service's environment that holds its key.
    #[schema(required = true)]
    pub api_key_env: Option<String>,
    /// The file that holds its key.
    #[schema(required = true)]
    pub api_key_file: Option<String>,
    /// Requests under way.
    pub in_flight: u32,
    /// `closed` lets requests through, `open` does not, `half_open` tries one.
    pub breaker: &'static str,
    /// Whether there is somebody to answer: false while the server of a model file starts.
    pub ready: bool,
}

impl UpstreamView {
    /// An upstream at work.
    pub fn of(upstream: &slot::Upstream) -> Self {
        Self {
            in_flight: upstream.busy(),
            breaker: match upstream.breaker() {
                State::Closed => "closed",
                State::Open => "open",
                State::HalfOpen => "half_open",
            },
            ready: upstream.address().is_some(),
            ..Self::absent(&upstream.spec)
        }
    }

    /// An upstream that is not at work.
    fn absent(upstream: &Upstream) -> Self {
        let (url, gguf) = place(upstream);
        let (api_key_env, api_key_file) = access(upstream);
        Self {
            url: url.map(str::to_owned),
            gguf: gguf.map(str::to_owned),
            model: upstream.model.clone(),
            weight: upstream.weight,
            max_concurrency: upstream.max_concurrency,
            api_key_env: api_key_env.map(str::to_owned),
            api_key_file: api_key_file.map(str::to_owned),
            in_flight: 0,
            breaker: "closed",
            ready: false,
        }
    }
}

fn place(upstream: &Upstream) -> (Option<&str>, Option<&str>) {
    match &upstream.place {
        Place::Url(url) => (Some(url), None),
        Place::Gguf(file) => (None, Some(file)),
    }
}

fn access(upstream: &Upstream) -> (Option<&str>, Option<&str>) {
    match &upstream.access {
        Some(Access::Env(name)) => (Some(name), None),
        Some(Access::File(path)) => (None, Some(path)),
        None => (None, None),
    }
}

/// What a million tokens cost, in units of money.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[schema(as = ModelPriceResponse)]
pub struct PriceView {
    /// Of prompts.
    input: f64,
    /// Of answers.
    output: f64,
}

/// A model as administrators see it.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = AdminModelResponse)]
pub struct ModelView {
    /// Its name.
    id: String,
    /// Other names of it.
    aliases: Vec<String>,
    /// Models that answer when no upstream of this one does.
    fallbacks: Vec<String>,
    /// `weighted`, `least_busy`, `latency` or `affinity`.
    strategy: &'static str,
    /// Longest time until an upstream's first byte.
    first_byte_timeout_seconds: u64,
    /// Longest time between two pieces of an answer.
    idle_timeout_seconds: u64,
    /// Longest time all in all.
    total_timeout_seconds: u64,
    /// What it costs.
    price: PriceView,
    /// Those that answer.
    upstreams: Vec<UpstreamView>,
    /// Projects, by id, that may use it; empty is every project.
    projects: Vec<String>,
    /// Most requests that wait while all upstreams are busy.
    max_queue: u32,
    /// Most tokens of one of its answers; null where that is not said.
    #[schema(required = true)]
    max_output_tokens: Option<u64>,
    /// Names at the top of a request that it does not take.
    deny_fields: Vec<String>,
    /// `config` where it stands in the configuration, `api` where an administrator added it.
    source: &'static str,
    /// When it was added; null for one of the configuration.
    #[schema(value_type = Option<String>, format = DateTime, required = true)]
    created_at: Option<Timestamp>,
    /// When it was changed last; null for one of the configuration.
    #[schema(value_type = Option<String>, format = DateTime, required = true)]
    updated_at: Option<Timestamp>,
}

impl ModelView {
    /// A model: of the configuration, or one that was added, with the times when it was added and last changed.
    /// `standing` is empty where no upstream is at work.
    pub fn new(model: &Model, standing: Vec<UpstreamView>, added: Option<(Timestamp, Timestamp)>) -> Self {
        let upstreams =
            if standing.is_empty() { model.upstreams.iter().map(UpstreamView::absent).collect() } else { standing };
        let source = if added.is_some() { "api" } else { "config" };
        let (created_at, updated_at) = added.unzip();
        Self {
            id: model.id.to_string(),
            aliases: model.aliases.iter().map(ModelId::to_string).collect(),
            fallbacks: model.fallbacks.iter().map(ModelId::to_string).collect(),
            strategy: model.strategy.as_str(),
            first_byte_timeout_seconds: model.timeouts.first_byte.as_secs(),
            idle_timeout_seconds: model.timeouts.idle.as_secs(),
            total_timeout_seconds: model.timeouts.total.as_secs(),
            price: PriceView { input: model.price.input.units(), output: model.price.output.units() },
            upstreams,
            projects: model.projects.clone(),
            max_queue: model.max_queue,
            max_output_tokens: model.max_output_tokens,
            deny_fields: model.deny_fields.clone(),
            source,
            created_at,
            updated_at,
        }
    }
}

/// The body that describes this model, for its row and its audit record. It names keys and holds none.
pub fn document(model: &Model) -> Value {
    let upstreams: Vec<Value> = model.upstreams.iter().map(upstream_document).collect();
    json!({
        "id": model.id,
        "aliases": model.aliases,
        "fallbacks": model.fallbacks,
        "strategy": model.strategy.as_str(),
        "first_byte_timeout_seconds": model.timeouts.first_byte.as_secs(),
        "idle_timeout_seconds": model.timeouts.idle.as_secs(),
        "total_timeout_seconds": model.timeouts.total.as_secs(),
        "price": {"input": model.price.input.units(), "output": model.price.output.units()},
        "upstreams": upstreams,
        "projects": model.projects,
        "max_queue": model.max_queue,
        "max_output_tokens": model.max_output_tokens,
        "deny_fields": model.deny_fields,
    })
}

fn upstream_document(upstream: &Upstream) -> Value {
    let ((url, gguf), (env, file)) = (place(upstream), access(upstream));
    json!({
        "url": url,
        "gguf": gguf,
        "model": upstream.model,
        "weight": upstream.weight,
        "max_concurrency": upstream.max_concurrency,
        "api_key_env": env,
        "api_key_file": file,
    })
}

/// A model to offer.
#[derive(ToSchema)]
#[schema(as = ModelRequest)]
#[expect(dead_code, reason = "describes; `Model` parses")]
pub struct ModelBody {
    /// Its name: printable ASCII without `?`, `#`, `%`, a backslash and empty parts.
    #[schema(min_length = 1, max_length = 200)]
    id: String,
    /// Other names of it.
    #[schema(max_items = 100)]
    aliases: Option<Vec<String>>,
    /// Models that answer when no upstream of this one does.
    #[schema(max_items = 100)]
    fallbacks: Option<Vec<String>>,
    /// Which upstream answers; `weighted` by default.
    #[schema(pattern = "^(weighted|least_busy|latency|affinity)$")]
    strategy: Option<String>,
    /// Longest time until an upstream's first byte; 60 by default.
    #[schema(minimum = 1, maximum = 86_400)]
    first_byte_timeout_seconds: Option<i64>,
    /// Longest time between two pieces of an answer; 60 by default.
    #[schema(minimum = 1, maximum = 86_400)]
    idle_timeout_seconds: Option<i64>,
    /// Longest time all in all; 600 by default.
    #[schema(minimum = 1, maximum = 86_400)]
    total_timeout_seconds: Option<i64>,
    /// What it costs; nothing by default.
    price: Option<PriceBody>,
    /// Those that answer.
    #[schema(min_items = 1, max_items = 100)]
    upstreams: Vec<UpstreamBody>,
    /// Projects, by id, that may use it; none is every project.
    #[schema(max_items = 100)]
    projects: Option<Vec<String>>,
    /// Most requests that wait while all upstreams are busy; 100 by default.
    #[schema(minimum = 0, maximum = 100_000)]
    max_queue: Option<i64>,
    /// Most tokens of one of its answers: what is set aside for one without a limit of its own.
    #[schema(minimum = 1, maximum = 1_000_000_000)]
    max_output_tokens: Option<i64>,
    /// Names at the top of a request that are refused, as `models` and `plugins` of a server that serves others, too.
    #[schema(max_items = 100)]
    deny_fields: Option<Vec<String>>,
}

/// What a million tokens cost, in units of money.
#[derive(ToSchema)]
#[schema(as = ModelPriceRequest)]
#[expect(dead_code, reason = "describes; `Model` parses")]
pub struct PriceBody {
    /// Of prompts.
    #[schema(minimum = 0, maximum = 1_000_000)]
    input: Option<f64>,
    /// Of answers.
    #[schema(minimum = 0, maximum = 1_000_000)]
    output: Option<f64>,
}

/// One that answers. Exactly one of `url` and `gguf`, at most one of `api_key_env` and `api_key_file`.
#[derive(ToSchema)]
#[schema(as = ModelUpstreamRequest)]
#[expect(dead_code, reason = "describes; `Model` parses")]
pub struct UpstreamBody {
    /// Base URL of a server that speaks OpenAI's protocol, like `http://127.0.0.1:9101/v1`.
    #[schema(max_length = 2000)]
    url: Option<String>,
    /// Absolute path of a model file on the service's machine, which runs a server for it.
    #[schema(min_length = 1, max_length = 4096)]
    gguf: Option<String>,
    /// The model's name there; the id by default.
    #[schema(min_length = 1, max_length = 200)]
    model: Option<String>,
    /// The variable of the service's environment that holds its key.
    #[schema(pattern = "^[A-Za-z_][A-Za-z0-9_]*$", max_length = 200)]
    api_key_env: Option<String>,
    /// The file on the service's machine that holds its key.
    #[schema(min_length = 1, max_length = 4096)]
    api_key_file: Option<String>,
    /// Its share; 1 by default.
    #[schema(minimum = 1, maximum = 1_000)]
    weight: Option<i64>,
    /// Most requests at the same time; no limit by default.
    #[schema(minimum = 1, maximum = 1_000_000)]
    max_concurrency: Option<i64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> Model {
        let body = json!({
            "id": "acme/tiny", "aliases": ["tiny"], "fallbacks": ["acme/small"], "strategy": "affinity",
            "first_byte_timeout_seconds": 7, "price": {"input": 0.15, "output": 0.6}, "projects": ["p"],
            "max_queue": 0, "max_output_tokens": 8192, "deny_fields": ["plugins"], "upstreams": [
                {"url": "http://127.0.0.1:9101/v1", "model": "t", "api_key_env": "KEY", "weight": 3},
                {"gguf": "/models/tiny.gguf", "max_concurrency": 4, "api_key_file": "/keys/tiny"},
            ],
        });
        Model::try_from(&body).unwrap()
    }

    #[test]
    fn a_document_makes_the_same_model_again() {
        let model = model();
        assert_eq!(Model::try_from(&document(&model)).unwrap(), model);
    }

    #[test]
    fn upstreams_of_which_nothing_is_known_are_not_ready() {
        let view = ModelView::new(&model(), Vec::new(), None);
        let ready: Vec<_> = view.upstreams.iter().map(|u| (u.ready, u.breaker, u.in_flight)).collect();
        assert_eq!(ready, [(false, "closed", 0), (false, "closed", 0)]);
        assert_eq!((view.source, view.created_at), ("config", None));
        let known = UpstreamView { in_flight: 2, ..UpstreamView::absent(&model().upstreams[0]) };
        let view = ModelView::new(&model(), vec![known], Some((Timestamp(1), Timestamp(2))));
        assert_eq!((view.upstreams.len(), view.upstreams[0].in_flight), (1, 2));
        assert_eq!((view.source, view.updated_at), ("api", Some(Timestamp(2))));
    }
}
