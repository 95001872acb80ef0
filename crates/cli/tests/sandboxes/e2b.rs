//! E2B's SDKs, unchanged, on real machines: the latest ones, and those of 2.45. Their suites are in `tests/clients`.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use berth_domain::e2b;
use serde_json::json;
use tokio::process::Command;

use berth_testkit::{Caller, Service};

use crate::harness::{gone, service};

/// Longest time that a suite may take.
const LIMIT: Duration = Duration::from_mins(6);

pub fn suite(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/clients").join(name)
}

/// Where `script/test` installed clients.
pub fn installed(variable: &str) -> PathBuf {
    std::env::var_os(variable).map(PathBuf::from).expect("the clients are installed by: script/test")
}

/// Runs a suite against a service of its own; it has to end well, and to leave nothing.
async fn passes(command: impl FnOnce(&Path) -> Command) {
    let (service, caller) = service().await;
    passes_at(&service, &caller, command).await;
}

/// The same against this one.
pub async fn passes_at(service: &Service, caller: &Caller, command: impl FnOnce(&Path) -> Command) {
    let made = caller.post("/api_keys", json!({"name": "sdk", "scopes": ["sandbox"]})).await;
    let key = e2b::key::written(made.body["key"].as_str().expect("a key"));
    let folder = tempfile::tempdir().expect("a folder");
    let said = folder.path().join("said");
    let output = File::create(&said).expect("a file");
    let mut command = command(folder.path());
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("HOME", folder.path());
    command.env("E2B_API_KEY", key).env("E2B_API_URL", format!("{}/e2b", service.base));
    command.env("E2B_SANDBOX_URL", &service.base).kill_on_drop(true);
    command.stdout(output.try_clone().expect("a file")).stderr(output);
    let mut child = command.spawn().expect("the suite starts");
    let ended = tokio::time::timeout(LIMIT, child.wait()).await;
    let said = std::fs::read_to_string(said).expect("its output");
    let status = ended.unwrap_or_else(|_| panic!("not within {LIMIT:?}:\n{said}")).expect("an end");
    assert!(status.success(), "{status}:\n{said}");
    for left in caller.get("/sandboxes").await.body["data"].as_array().expect("a list") {
        gone(caller, &format!("/sandboxes/{}", left["id"].as_str().expect("an id"))).await;
    }
}

async fn python_passes(python: &str) {
    let python = installed(python);
    passes(|_| {
        let mut command = Command::new(python);
        command.arg(suite("python_e2b.py"));
        command
    })
    .await;
}

async fn node_passes(package: &str) {
    passes(|folder| {
        let mut command = of_node("e2b.mjs", folder);
        command.env("E2B_PACKAGE", package);
        command
    })
    .await;
}

/// A suite in JavaScript: Node looks for packages beside the file that wants them.
pub fn of_node(name: &str, folder: &Path) -> Command {
    let modules = installed("BERTH_TEST_CLIENTS_NODE_MODULES");
    std::os::unix::fs::symlink(modules, folder.join("node_modules")).expect("a link");
    std::fs::copy(suite(name), folder.join(name)).expect("a copy");
    let mut command = Command::new("node");
    command.arg(folder.join(name));
    command
}

#[tokio::test(flavor = "multi_thread")]
async fn the_latest_sdk_for_python() {
    python_passes("BERTH_TEST_CLIENTS_PYTHON").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_earlier_sdk_for_python() {
    python_passes("BERTH_TEST_E2B_PYTHON").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_latest_sdk_for_javascript() {
    node_passes("e2b").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_earlier_sdk_for_javascript() {
    node_passes("e2b-2.45").await;
}
