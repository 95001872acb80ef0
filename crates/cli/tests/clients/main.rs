//! Clients that people use, at the real service: OpenAI's own, LangChain, the AI SDK, and a model file that a real
//! engine serves; and the books of requests over the service's death.
//!
//! Wants the clients (`script/test` installs them). Their suites are in `tests/clients`.

#![expect(clippy::expect_used, reason = "a test may end with a panic")]

mod books;
mod mcp;
mod model_file;
mod upstream;

use std::path::PathBuf;
use std::time::Duration;

use berth_testkit::{Caller, Service, Suite};
use serde_json::json;

use upstream::Upstream;

/// The program under test.
const BERTH: &str = env!("CARGO_BIN_EXE_berth");
/// Longest time that a suite may take.
const LIMIT: Duration = Duration::from_mins(3);
/// Models that the upstream plays.
const SCENES: [&str; 7] = ["echo", "tools", "broken", "cut", "limited", "endless", "embed"];

/// A Python that has the clients and the engine.
fn python() -> PathBuf {
    Suite::installed("BERTH_TEST_CLIENTS_PYTHON")
}

/// A key of the project that is good for models.
async fn key(caller: &Caller) -> String {
    key_for(caller, &["inference"]).await
}

/// A key of the project with these scopes.
async fn key_for(caller: &Caller, scopes: &[&str]) -> String {
    let made = caller.post("/api_keys", json!({"name": "clients", "scopes": scopes})).await;
    assert_eq!(made.status, 201, "{made:?}");
    made.body["key"].as_str().expect("a key").to_owned()
}

/// A model of the configuration for each scene.
fn models(upstream: &Upstream) -> String {
    let model = |scene: &&str| {
        let url = format!("{}/{scene}/v1", upstream.base);
        format!("[[models]]\nid = \"acme/{scene}\"\nupstreams = [{{ url = \"{url}\", model = \"{scene}\" }}]\n")
    };
    SCENES.iter().map(model).collect()
}

/// Runs a suite against a service of its own; it has to end well.
async fn passes(suite: Suite) {
    passes_with(&["inference"], suite).await;
}

/// The same, with a key that has these scopes.
async fn passes_with(scopes: &[&str], suite: Suite) {
    let upstream = Upstream::start().await;
    let mut service = Service::new(BERTH, &[]);
    service.configure(&models(&upstream));
    service.start();
    let key = key_for(&service.admin().await, scopes).await;
    let (email, password) = service.login();
    let suite = suite.env("BASE_URL", format!("{}/v1", service.base)).env("API_KEY", key);
    let suite = suite.env("EMAIL", email).env("PASSWORD", password);
    suite.env("MODEL", "acme/echo").env("SCENARIO", &upstream.base).passes(LIMIT).await;
}

async fn python_passes(name: &str) {
    passes(Suite::python("BERTH_TEST_CLIENTS_PYTHON", name)).await;
}

async fn node_passes(name: &str) {
    passes(Suite::node(name)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn openai_for_python() {
    python_passes("python_openai.py").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn langchain() {
    python_passes("python_langchain.py").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn openai_for_javascript() {
    node_passes("openai.mjs").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ai_sdk() {
    node_passes("ai_sdk.mjs").await;
}
