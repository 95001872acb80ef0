//! Clients that people use, at the real service: OpenAI's own, LangChain, the AI SDK, and a model file that a real
//! engine serves; and the books of requests over the service's death.
//!
//! Wants the clients (`script/test` installs them). Their suites are in `tests/clients`.

#![expect(clippy::expect_used, clippy::panic, reason = "a test may end with a panic")]

mod books;
mod model_file;
mod upstream;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use berth_testkit::{Caller, Service};
use serde_json::json;
use tokio::process::Command;

use upstream::Upstream;

/// The program under test.
const BERTH: &str = env!("CARGO_BIN_EXE_berth");
/// Longest time that a suite may take.
const LIMIT: Duration = Duration::from_mins(3);
/// Models that the upstream plays.
const SCENES: [&str; 7] = ["echo", "tools", "broken", "cut", "limited", "endless", "embed"];

/// A file of the suites.
fn suite(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/clients").join(name)
}

/// Where `script/test` installed clients.
fn installed(variable: &str) -> PathBuf {
    std::env::var_os(variable).map(PathBuf::from).expect("the clients are installed by: script/test")
}

/// A Python that has the clients and the engine.
fn python() -> PathBuf {
    installed("BERTH_TEST_CLIENTS_PYTHON")
}

/// A key of the project that is good for models.
async fn key(caller: &Caller) -> String {
    let made = caller.post("/api_keys", json!({"name": "clients", "scopes": ["inference"]})).await;
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
async fn passes(command: impl FnOnce(&Path) -> Command) {
    let upstream = Upstream::start().await;
    let mut service = Service::new(BERTH, &[]);
    service.configure(&models(&upstream));
    service.start();
    let key = key(&service.admin().await).await;
    let dir = tempfile::tempdir().expect("a folder");
    let said = dir.path().join("said");
    let output = File::create(&said).expect("a file");
    let mut command = command(dir.path());
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("HOME", dir.path());
    command.env("BASE_URL", format!("{}/v1", service.base)).env("API_KEY", key);
    command.env("MODEL", "acme/echo").env("SCENARIO", &upstream.base).kill_on_drop(true);
    command.stdout(output.try_clone().expect("a file")).stderr(output);
    let mut child = command.spawn().expect("the suite starts");
    let ended = tokio::time::timeout(LIMIT, child.wait()).await;
    let said = std::fs::read_to_string(said).expect("its output");
    let status = ended.unwrap_or_else(|_| panic!("not within {LIMIT:?}:\n{said}")).expect("an end");
    assert!(status.success(), "{status}:\n{said}");
}

async fn python_passes(name: &str) {
    passes(|_| {
        let mut command = Command::new(python());
        command.arg(suite(name));
        command
    })
    .await;
}

async fn node_passes(name: &str) {
    passes(|dir| {
        // Node looks for packages beside the file that wants them.
        let modules = installed("BERTH_TEST_CLIENTS_NODE_MODULES");
        std::os::unix::fs::symlink(modules, dir.join("node_modules")).expect("a link");
        std::fs::copy(suite(name), dir.join(name)).expect("a copy");
        let mut command = Command::new("node");
        command.arg(dir.join(name));
        command
    })
    .await;
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
