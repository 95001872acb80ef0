//! The Model Context Protocol's own suite of conformance and its inspector.

use berth_testkit::Suite;

use crate::passes_with;

#[tokio::test(flavor = "multi_thread")]
async fn conformance_and_inspector() {
    let suite = Suite::later_node("mcp_conformance.mjs");
    let suite = suite.env("BASELINE", Suite::file("mcp_conformance.yml"));
    passes_with(&["inference", "sandbox", "vm"], suite).await;
}
