//! Events as server-sent events.

use std::time::Duration;

use berth_client::{Client, Event, Tokens};
use berth_server::db::sql;
use berth_testkit::{Caller, Platform, vm};
use futures::StreamExt;
use serde_json::json;

/// A client of a caller's project.
pub(crate) fn client(caller: &Caller) -> berth_client::ProjectClient {
    let tokens = Tokens { access_token: caller.token.clone(), refresh_token: String::new() };
    let names: Vec<_> = caller.project.split('/').collect();
    Client::new(&caller.base).expect("a client").with_tokens(tokens).project(names[4], names[6])
}

#[tokio::test(flavor = "multi_thread")]
async fn the_life_of_a_vm_is_told_in_order_and_can_be_read_again() {
    let platform = Platform::start().await;
    let project = client(&platform.admin);
    let mut live = std::pin::pin!(project.events(None).await.expect("a stream"));
    let id = platform.admin.create_vm(vm("web")).await;
    let mut told = Vec::new();
    loop {
        let event = live.next().await.expect("more").expect("an event");
        if event.subject == id {
            told.push((event.kind.clone(), event.data["status"].as_str().unwrap_or_default().to_owned()));
        }
        if event.kind == "vm.ready" {
            break;
        }
    }
    assert_eq!(told.first(), Some(&("vm.created".into(), "pending".into())));
    let mut statuses: Vec<_> = told.iter().map(|(_, status)| status.as_str()).filter(|s| !s.is_empty()).collect();
    statuses.dedup();
    assert_eq!(statuses, ["pending", "provisioning", "starting", "running"]);
    let mut again = std::pin::pin!(project.events(Some(0)).await.expect("a stream"));
    let mut last = 0;
    for _ in &told {
        let event = again.next().await.expect("more").expect("an event");
        assert!(event.id > last);
        last = event.id;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn events_say_that_they_are_utf_8() {
    let platform = Platform::start().await;
    let answer = platform.admin.request(reqwest::Method::GET, "/events").send().await.expect("an answer");
    assert_eq!(answer.headers()["content-type"], "text/event-stream; charset=utf-8");
}

#[tokio::test(flavor = "multi_thread")]
async fn uploads_are_told() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let sent = caller.request(reqwest::Method::POST, "/sandbox_uploads").body(vec![1]);
    let id = caller.send(sent).await.id();
    assert_eq!(caller.delete(&format!("/sandbox_uploads/{id}")).await.status, 204);
    let mut events = std::pin::pin!(client(&platform.admin).events(Some(0)).await.expect("a stream"));
    let mut told = Vec::new();
    while told.len() < 2 {
        let event = events.next().await.expect("more").expect("an event");
        if event.subject == id {
            told.push(event.kind);
        }
    }
    assert_eq!(told, ["upload.create", "upload.delete"]);
}

/// The first two events after one.
async fn two(platform: &Platform, after: i64) -> [Event; 2] {
    let mut events = std::pin::pin!(client(&platform.admin).events(Some(after)).await.expect("a stream"));
    let mut next = async || events.next().await.expect("more").expect("an event");
    [next().await, next().await]
}

#[tokio::test(flavor = "multi_thread")]
async fn who_comes_back_after_the_events_they_missed_are_gone_is_told() {
    let platform = Platform::start().await;
    platform.admin.running_vm("web").await;
    let [first, second] = two(&platform, 0).await;
    assert_eq!(two(&platform, first.id).await[0].id, second.id);
    platform.advance(8 * 86_400);
    let platform = platform.crash_and_restart().await;
    platform.admin.running_vm("late").await;
    platform.admin.until("the end of old events", |_| async { two(&platform, 0).await[0].id > second.id }).await;
    let [oldest, _] = two(&platform, 0).await;
    let [told, next] = two(&platform, first.id).await;
    assert_eq!((told.kind.as_str(), told.id, told.data), ("truncated", first.id, json!({"from": oldest.id})));
    assert_eq!(next.id, oldest.id);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_missed_is_told_as_fast_as_it_is_read() {
    // A wait after every 500 of them would take longer than `until` does.
    const MISSED: i64 = 40_000;
    let platform = Platform::start().await;
    let project = platform.admin.project_id().to_owned();
    let mut tx = platform.app().db.begin().await.expect("a transaction");
    let rows = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < $2)
        INSERT INTO events (project_id, kind, subject, data, created_at) SELECT $1, 'vm.status', 'x', '{}', $3 FROM n";
    // Of now: the service removes what is older than it keeps.
    let now = platform.app().clock.now();
    sql(rows).bind(project).bind(MISSED).bind(now).execute(&mut tx).await.expect("rows");
    tx.commit().await.expect("events");
    let mut events = std::pin::pin!(client(&platform.admin).events(Some(0)).await.expect("a stream"));
    let mut read = async || {
        for _ in 0..MISSED {
            events.next().await.expect("more").expect("an event");
        }
    };
    tokio::time::timeout(Duration::from_mins(5), read()).await.expect("all within five minutes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_number_that_is_none_is_refused() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    for bad in ["x", "-1", "1.5", ""] {
        let request = caller.request(reqwest::Method::GET, "/events").header("last-event-id", bad);
        caller.send(request).await.refused(400, "invalid_request");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn projects_do_not_hear_each_other() {
    let platform = Platform::start().await;
    let other = platform.sign_up("other@example.com").await;
    let theirs = other.create_vm(vm("theirs")).await;
    other.reaches(&theirs, "running").await;
    let ours = platform.admin.create_vm(vm("ours")).await;
    let mut events = std::pin::pin!(client(&platform.admin).events(Some(0)).await.expect("a stream"));
    let first = events.next().await.expect("more").expect("an event");
    assert_eq!(first.subject, ours);
}
