//! Watches that are polled.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use berth_domain::agent::runtime::{ChangeKind, Changes};
use http::StatusCode;
use serde_json::{Value, json};

use crate::harness::{Agent, Client};

async fn open(client: &Client, query: &str, body: Value) -> String {
    let reply = client.post(&format!("/runtime/files/watches{query}"), body).await.ok();
    let id = reply.json()["id"].as_str().unwrap().to_owned();
    assert_eq!(
        (reply.status, reply.headers["location"].to_str().unwrap()),
        (StatusCode::CREATED, &*format!("files/watches/{id}"))
    );
    id
}

async fn poll(client: &Client, id: &str) -> Changes {
    let reply = client.get(&format!("/runtime/files/watches/{id}")).await.ok();
    serde_json::from_slice(&reply.bytes).unwrap()
}

/// What was told, in short.
async fn told(client: &Client, id: &str) -> Vec<(ChangeKind, String, bool)> {
    let changes = poll(client, id).await;
    assert!(!changes.overflow);
    changes.data.into_iter().map(|change| (change.kind, change.path, change.metadata)).collect()
}

/// Changes a file once: to write one anew empties it first.
fn append(path: &Path) {
    OpenOptions::new().append(true).open(path).unwrap().write_all(b"x").unwrap();
}

#[tokio::test]
async fn each_change_is_told_once_and_at_the_next_question() {
    let (agent, client) = Agent::start().await;
    agent.write("dir/sub/old", b"");
    let flat = open(&client, "", json!({"path": "dir"})).await;
    let deep = open(&client, "", json!({"path": "dir", "recursive": true})).await;
    assert_eq!(told(&client, &flat).await, []);
    // Nobody waits: what is done is told.
    for turn in 0..20 {
        std::fs::write(agent.path(&format!("dir/f{turn}")), b"").unwrap();
        assert_eq!(told(&client, &flat).await, [(ChangeKind::Created, format!("dir/f{turn}"), false)]);
    }
    assert_eq!(told(&client, &deep).await.len(), 20);
    append(&agent.path("dir/sub/old"));
    assert_eq!(told(&client, &flat).await, []);
    assert_eq!(told(&client, &deep).await, [(ChangeKind::Modified, "dir/sub/old".into(), false)]);
    client.put("/runtime/files/content?path=dir/api", "x").await.ok();
    // As of a program that makes a file and writes it.
    let written = [(ChangeKind::Created, "dir/api".into(), false), (ChangeKind::Modified, "dir/api".into(), false)];
    assert_eq!(told(&client, &flat).await, written);
}

#[tokio::test]
async fn a_change_of_metadata_alone_says_so() {
    let (agent, client) = Agent::start().await;
    agent.write("a", b"");
    let id = open(&client, "", json!({"path": "."})).await;
    std::fs::set_permissions(agent.path("a"), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    assert_eq!(told(&client, &id).await, [(ChangeKind::Modified, "a".into(), true)]);
    let raw = client.get(&format!("/runtime/files/watches/{id}")).await.ok().json();
    assert_eq!(raw, json!({"data": [], "overflow": false}));
}

#[tokio::test]
async fn the_machine_is_watched_by_absolute_paths() {
    let (agent, client) = Agent::start().await;
    agent.write("dir/a", b"");
    let whole = agent.path("dir").to_str().unwrap().to_owned();
    let id = open(&client, "?root=true", json!({ "path": whole, "recursive": true })).await;
    std::fs::create_dir(agent.path("dir/new")).unwrap();
    assert_eq!(told(&client, &id).await, [(ChangeKind::Created, format!("{whole}/new"), false)]);
    std::fs::write(agent.path("dir/new/b"), b"").unwrap();
    assert_eq!(told(&client, &id).await, [(ChangeKind::Created, format!("{whole}/new/b"), false)]);
    client.post("/runtime/files/watches", json!({ "path": whole })).await.refused(400, "invalid_path");
}

#[tokio::test]
async fn what_is_missing_is_told() {
    let (agent, client) = Agent::start().await;
    let id = open(&client, "", json!({"path": "."})).await;
    for n in 0..5000 {
        std::fs::write(agent.path(&format!("f{n}")), b"").unwrap();
    }
    let changes = poll(&client, &id).await;
    assert!(changes.overflow && changes.data.len() == 4096, "{}", changes.data.len());
    assert_eq!(poll(&client, &id).await, Changes::default(), "told once");
}

#[tokio::test]
async fn they_live_until_they_are_removed_or_make_room() {
    let (agent, client) = Agent::start().await;
    let first = open(&client, "", json!({"path": "."})).await;
    let second = open(&client, "", json!({"path": "."})).await;
    let path = |id: &str| format!("/runtime/files/watches/{id}");
    for _ in 0..30 {
        open(&client, "", json!({"path": "."})).await;
    }
    poll(&client, &first).await;
    let last = open(&client, "", json!({"path": "."})).await;
    client.get(&path(&second)).await.refused(404, "not_found");
    std::fs::write(agent.path("a"), b"").unwrap();
    for id in [&first, &last] {
        assert_eq!(told(&client, id).await.len(), 1);
    }
    assert_eq!(client.delete(&path(&first)).await.status, StatusCode::NO_CONTENT);
    client.delete(&path(&first)).await.refused(404, "not_found");
    for id in ["0", "nonsense", "-1"] {
        client.get(&path(id)).await.refused(404, "not_found");
    }
}

#[tokio::test]
async fn what_is_wrong_is_refused() {
    let (agent, client) = Agent::start().await;
    let ask = async |query: &str, body: Value| client.post(&format!("/runtime/files/watches{query}"), body).await;
    ask("", json!({"path": "missing"})).await.refused(404, "not_found");
    ask("", json!({"path": ""})).await.refused(400, "invalid_path");
    ask("", json!({"recursive": 1, "x": 1})).await.names(&["recursive", "path", "x"]);
    ask("?user=root", json!({"path": "."})).await.names(&["user"]);
    agent.write("file", b"");
    let id = open(&client, "", json!({"path": "file"})).await;
    append(&agent.path("file"));
    assert_eq!(told(&client, &id).await, [(ChangeKind::Modified, "file".into(), false)], "a file is watched itself");
}
