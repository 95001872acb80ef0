//! The Model Context Protocol's own suite of conformance, its inspector, and a client that asks a person for a key.

use berth_testkit::Suite;

use crate::passes_with;

#[tokio::test(flavor = "multi_thread")]
async fn conformance_and_inspector() {
    let suite = Suite::later_node("mcp_conformance.mjs");
    let suite = suite.env("BASELINE", Suite::file("mcp_conformance.yml"));
    passes_with(&["inference", "sandbox", "vm"], suite).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_a_key_asks_a_person() {
    passes_with(&["inference"], Suite::python("BERTH_TEST_CLIENTS_PYTHON", "python_mcp_oauth.py")).await;
}
