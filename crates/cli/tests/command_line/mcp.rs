//! `berth mcp`: tools for agents over standard input and output, and what clients are told of them.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::harness::{Here, ended, err, out};

/// What a client that sends these lines and leaves is answered, by the ids of its requests.
async fn answers(here: &Here, lines: &str) -> BTreeMap<String, Value> {
    let output = here.fed_to(&["mcp"], lines.as_bytes()).await;
    assert!(output.status.success(), "{output:?}");
    let answers =
        out(&output).lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON")).collect::<Vec<_>>();
    answers.into_iter().map(|answer| (answer["id"].to_string(), answer)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_starts_a_program_has_the_same_tools() {
    let here = Here::start().await;
    let greeting = json!({"jsonrpc": "2.0", "id": "a", "method": "initialize", "params": {"protocolVersion": "2025-11-25",
        "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}});
    let listed = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list"});
    let called = json!({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "sandbox_list"}});
    let noted = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 99}});
    let answers = answers(&here, &format!("{greeting}\n{noted}\n\nno JSON\n{listed}\n{called}")).await;
    assert_eq!(answers["\"a\""]["result"]["serverInfo"]["name"], "berth", "{answers:?}");
    assert!(answers["2"]["result"]["tools"].as_array().is_some_and(|tools| tools.len() > 20), "{answers:?}");
    assert_eq!(answers["3"]["result"]["structuredContent"]["data"][0]["name"], json!("box"), "{answers:?}");
    assert_eq!(answers["null"]["error"]["code"], -32700, "{answers:?}");
    assert_eq!(answers.len(), 4, "{answers:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_is_not_there_is_told_to_the_client() {
    let here = Here::start().await;
    let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}).to_string();
    let output = here.fed_to(&["--url", "http://127.0.0.1:9", "mcp"], ping.as_bytes()).await;
    let told = format!("{}{}", out(&output), err(&output));
    assert!(told.contains("127.0.0.1:9"), "{output:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_for_agents_is_printed_as_their_clients_take_it() {
    let here = Here::start().await;
    let output = ended(here.berth(&["key", "create", "agents", "--scope", "sandbox", "--mcp"])).await;
    let shown: Value = serde_json::from_str(&out(&output)).expect("JSON");
    let server = &shown["mcpServers"]["berth"];
    assert_eq!((&server["type"], &server["url"]), (&json!("http"), &json!(format!("{}/mcp", here.way.url))));
    assert!(
        server["headers"]["Authorization"].as_str().is_some_and(|value| value.starts_with("Bearer brt_")),
        "{shown}"
    );
}
