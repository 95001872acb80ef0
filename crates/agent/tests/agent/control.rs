//! What the host asks for: identity, freezing, metrics; and who may ask for what.

use std::path::PathBuf;

use http::{Method, StatusCode};
use serde_json::json;

use crate::harness::{Agent, request, until, whole};

#[tokio::test]
async fn nothing_is_served_before_there_is_an_identity() {
    let agent = Agent::start_bare(&[]);
    let client = agent.client().await;
    for path in ["/runtime/files/list", "/runtime/processes"] {
        client.get(path).await.refused(503, "not_ready");
    }
    client.call(request(Method::POST, "/tunnel/80", whole(""))).await.refused(503, "not_ready");
    client.get("/control/metrics").await.ok();
    assert_eq!(client.identify(json!({})).await.status, StatusCode::NO_CONTENT);
    client.get("/runtime/files/list").await.ok();
}

#[tokio::test]
async fn only_the_token_opens() {
    let (_agent, mut client) = Agent::start().await;
    for token in [None, Some("wrong"), Some("a-toke"), Some("a-token2"), Some("")] {
        client.token = token;
        client.get("/runtime/files/list").await.refused(401, "wrong_token");
        client.call(request(Method::POST, "/tunnel/80", whole(""))).await.refused(401, "wrong_token");
        client.get("/control/metrics").await.ok();
    }
    client.identify(json!({"token": "another"})).await.ok();
    client.token = Some(crate::harness::TOKEN);
    client.get("/runtime/files/list").await.refused(401, "wrong_token");
    client.token = Some("another");
    client.get("/runtime/files/list").await.ok();
}

#[tokio::test]
async fn routes_and_methods_are_known() {
    let (_agent, client) = Agent::start().await;
    for path in ["/", "/runtime", "/runtime/files", "/control", "/tunnel/", "/runtime/nothing"] {
        client.get(path).await.refused(404, "not_found");
    }
    let reply = client.delete("/runtime/files/content?path=a").await;
    reply.refused(405, "method_not_allowed");
    assert_eq!(reply.headers["allow"], "GET, PUT");
    client.put("/runtime/terminal", "").await.refused(405, "method_not_allowed");
}

#[tokio::test]
async fn an_identity_names_every_wrong_field() {
    let (_agent, client) = Agent::start().await;
    let wrong = client.identify(json!({"token": "", "machine_id": "x", "network": {"prefix": 33}})).await;
    wrong.names(&["token", "machine_id", "network.address", "network.prefix", "network.gateway", "network.dns"]);
    client.get("/runtime/files/list").await.ok();
}

#[tokio::test]
async fn boot_tells_where_and_who() {
    let agent = Agent::start_bare(&[]);
    let client = agent.client().await;
    for _ in 0..2 {
        let booted = client.post("/control/boot", json!({"root": "/dev/vda"})).await.ok().json();
        let workspace = agent.workspace().to_str().unwrap().to_owned();
        assert_eq!((booted["user"].clone(), booted["workspace"].clone()), (json!(agent.user), json!(workspace)));
    }
    client.post("/control/boot", json!({})).await.names(&["root"]);
}

#[tokio::test]
async fn metrics_count_what_runs() {
    let (_agent, client) = Agent::start().await;
    let before = client.get("/control/metrics").await.ok().json();
    assert_eq!(before["running"], 0);
    for field in ["cpu_seconds", "memory_bytes", "memory_total_bytes", "disk_bytes", "disk_total_bytes"] {
        assert!(before[field].as_f64().unwrap() > 0.0, "{field}");
    }
    assert!(before["memory_bytes"].as_u64() < before["memory_total_bytes"].as_u64());
    let pid = client.start(json!({"cmd": "exec sleep 1000"})).await;
    let _terminal = client.send(request(Method::POST, "/runtime/terminal?cmd=exec+cat", whole(""))).await;
    let now = client.get("/control/metrics").await.ok().json();
    assert_eq!((now["running"].clone(), now["processes"].as_u64() >= Some(2)), (json!(2), true));
    client.delete(&format!("/runtime/processes/{pid}")).await.ok();
    assert_eq!(client.get("/control/metrics").await.ok().json()["running"], 1);
}

/// A cgroup for the test, if it may make one.
struct Group(PathBuf);

impl Group {
    fn make() -> Option<Self> {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let mount = mounts.lines().find(|line| line.split(' ').nth(2) == Some("cgroup2"))?.split(' ').nth(1)?;
        let path = PathBuf::from(mount).join(format!("berth-agent-{}", std::process::id()));
        std::fs::create_dir(&path).is_ok().then_some(Self(path))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[tokio::test]
async fn frozen_processes_and_files_stand_still_until_they_are_let_go() {
    let group = Group::make();
    assert_eq!(group.is_some(), rustix::process::geteuid().is_root(), "root has a cgroup");
    let path = group.as_ref().map(|group| group.0.to_str().unwrap().to_owned());
    let more = path.as_deref().map_or_else(Vec::new, |path| vec!["--cgroup", path]);
    let agent = Agent::start_bare(&more);
    let client = agent.client().await;
    client.identify(json!({})).await.ok();
    let counting = json!({"cmd": "n=0; while :; do n=$((n+1)); echo $n > count.new; mv count.new count; done"});
    let pid = client.start(counting).await;
    let count = || std::fs::read_to_string(agent.path("count")).unwrap_or_default();
    until("the first count", || !count().is_empty()).await;
    for _ in 0..2 {
        let frozen = client.post("/control/freeze", json!({"processes": true})).await.ok().json();
        let kind = if group.is_some() { "still" } else { "synced" };
        assert_eq!(frozen, json!({"processes": group.is_some(), "file_system": kind}));
    }
    let seen = count();
    let writing = tokio::spawn({
        let client = client.clone();
        async move { client.put("/runtime/files/content?path=late", "x").await }
    });
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    assert!(group.is_none() || count() == seen, "it stands still");
    assert!(!agent.path("late").exists());
    if group.is_some() {
        client.identify(json!({"thaw": true})).await.ok();
    } else {
        client.call(request(Method::POST, "/control/thaw", whole(""))).await.ok();
    }
    client.call(request(Method::POST, "/control/thaw", whole(""))).await.ok();
    writing.await.unwrap().ok();
    until("another count", || count() != seen).await;
    client.delete(&format!("/runtime/processes/{pid}")).await.ok();
    let synced = client.post("/control/freeze", json!({})).await.ok().json();
    assert_eq!(synced, json!({"processes": false, "file_system": "synced"}));
    client.call(request(Method::POST, "/control/thaw", whole(""))).await.ok();
    drop(agent);
}
