//! E2B's SDKs, unchanged, on real machines: the latest ones, and those of 2.45. Their suites are in `tests/clients`.

use std::time::Duration;

use berth_domain::e2b;
use serde_json::json;

use berth_testkit::{Caller, Service, Suite};

use crate::harness::{gone, service};

/// Longest time that a suite may take.
pub const LIMIT: Duration = Duration::from_mins(6);

/// Runs a suite against a service of its own; it has to end well, and to leave nothing.
async fn passes(suite: Suite) {
    let (service, caller) = service().await;
    passes_at(&service, &caller, suite).await;
}

/// The same against this one.
pub async fn passes_at(service: &Service, caller: &Caller, suite: Suite) {
    let key = e2b::key::written(&key(caller).await);
    let suite = suite.env("E2B_API_KEY", key).env("E2B_API_URL", format!("{}/e2b", service.base));
    suite.env("E2B_SANDBOX_URL", &service.base).passes(LIMIT).await;
    leaves_nothing(caller).await;
}

/// A key of the project that is good for sandboxes.
pub async fn key(caller: &Caller) -> String {
    let made = caller.post("/api_keys", json!({"name": "sdk", "scopes": ["sandbox"]})).await;
    made.body["key"].as_str().expect("a key").to_owned()
}

/// What a suite deleted is gone soon.
pub async fn leaves_nothing(caller: &Caller) {
    for left in caller.get("/sandboxes").await.body["data"].as_array().expect("a list") {
        gone(caller, &format!("/sandboxes/{}", left["id"].as_str().expect("an id"))).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_latest_sdk_for_python() {
    passes(Suite::python("BERTH_TEST_CLIENTS_PYTHON", "python_e2b.py")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_earlier_sdk_for_python() {
    passes(Suite::python("BERTH_TEST_EARLIER_PYTHON", "python_e2b.py")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_latest_sdk_for_javascript() {
    passes(Suite::node("e2b.mjs").env("E2B_PACKAGE", "e2b")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_earlier_sdk_for_javascript() {
    passes(Suite::node("e2b.mjs").env("E2B_PACKAGE", "e2b-2.45")).await;
}
