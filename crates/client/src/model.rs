//! Models: those on offer, for users with a project's credential, and all of them, for administrators.

use http::Method;
use reqwest::Response;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::transport::{json, segment};
use crate::{Client, List, Page, Result};

/// A model as administrators see it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct AdminModel {
    /// Its name.
    pub id: String,
    /// Other names of it.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// Which upstream answers: `weighted`, `least_busy`, `latency` or `affinity`.
    pub strategy: String,
    /// The servers that answer.
    pub upstreams: Vec<ModelUpstream>,
    /// `config` or `api`; only one of `api` can be replaced and deleted.
    pub source: String,
    /// All other fields of the service's answer.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// An upstream, and its state.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ModelUpstream {
    /// Its base URL.
    pub url: Option<String>,
    /// The model file, for which the service runs a server.
    pub gguf: Option<String>,
    /// The model's name there.
    pub model: String,
    /// Its share.
    pub weight: u32,
    /// Most requests at the same time, if there is a limit.
    pub max_concurrency: Option<u32>,
    /// Requests under way.
    pub in_flight: u32,
    /// `closed`, `open` or `half_open`.
    pub breaker: String,
    /// Whether it answers.
    pub ready: bool,
    /// All other fields of the service's answer.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// A model to offer; what is absent has its default.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NewModel {
    /// Its name.
    pub id: String,
    /// Other names of it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
    /// Models that answer when no upstream of this one does.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fallbacks: Vec<String>,
    /// `weighted`, `least_busy`, `latency` or `affinity`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strategy: Option<String>,
    /// What it costs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price: Option<ModelPrice>,
    /// The servers that answer, at least one.
    pub upstreams: Vec<NewModelUpstream>,
    /// Ids of the projects that may use it; empty means every project.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub projects: Vec<String>,
    /// Most requests that wait while all upstreams are busy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_queue: Option<u32>,
    /// Most tokens of one of its answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_output_tokens: Option<u64>,
    /// Top-level field names that a request must not have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deny_fields: Vec<String>,
}

/// What a million tokens cost, in units of money.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ModelPrice {
    /// Of prompts.
    pub input: f64,
    /// Of answers.
    pub output: f64,
}

/// An upstream: a server at a URL, or one that the service runs for a model file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NewModelUpstream {
    /// Base URL of a server that speaks OpenAI's protocol.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Absolute path of a model file on the service's machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gguf: Option<String>,
    /// The model's name there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The variable of the service's environment that holds its key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key_env: Option<String>,
    /// The file on the service's machine that holds its key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key_file: Option<String>,
    /// Its share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// Most requests at the same time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_concurrency: Option<u32>,
}

/// A model as users see it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Model {
    /// Its name in requests.
    pub id: String,
    /// All other fields of the service's answer.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// The models on offer, in OpenAI's form of a list.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Models {
    /// The models.
    pub data: Vec<Model>,
    /// All other fields of the service's answer.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

fn admin_path(id: &str) -> String {
    format!("/api/v1/admin/models/{}", segment(id))
}

impl Client {
    /// Every model and its state; for administrators of the platform.
    pub async fn admin_models(&self, page: Page) -> Result<List<AdminModel>> {
        self.list("/api/v1/admin/models", &page).await
    }

    /// One model and its state; for administrators of the platform.
    pub async fn admin_model(&self, id: &str) -> Result<AdminModel> {
        self.get(&admin_path(id)).await
    }

    /// Adds a model; for administrators of the platform.
    pub async fn create_model(&self, model: &NewModel) -> Result<AdminModel> {
        self.post("/api/v1/admin/models", Some(model)).await
    }

    /// Replaces the model with this name; for administrators of the platform.
    pub async fn replace_model(&self, model: &NewModel) -> Result<AdminModel> {
        self.put(&admin_path(&model.id), model).await
    }

    /// Removes a model; for administrators of the platform.
    pub async fn delete_model(&self, id: &str) -> Result<()> {
        self.delete(&admin_path(id)).await
    }

    /// The models of a project, by its id or slug. An API key implies its project.
    pub fn inference(&self, project: Option<&str>) -> Inference {
        Inference { client: self.clone(), project: project.map(str::to_owned) }
    }
}

/// The models that a project may use.
#[derive(Clone)]
pub struct Inference {
    client: Client,
    project: Option<String>,
}

impl Inference {
    /// The models on offer.
    pub async fn models(&self) -> Result<Models> {
        json(self.send(Method::GET, "/v1/models", None).await?).await
    }

    /// One model on offer, by its name or an alias.
    pub async fn model(&self, id: &str) -> Result<Model> {
        json(self.send(Method::GET, &format!("/v1/models/{}", segment(id)), None).await?).await
    }

    pub(crate) async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Response> {
        let build = || {
            let request = self.client.request(method.clone(), path);
            let request = match &self.project {
                Some(project) => request.header("x-project-id", project),
                None => request,
            };
            if let Some(body) = body { request.json(body) } else { request }
        };
        self.client.send_again(build).await
    }
}
