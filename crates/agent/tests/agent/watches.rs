//! Watches: changes, deeper ones too, and across a dropped connection.

use std::collections::BTreeSet;

use berth_domain::agent::runtime::{Change, ChangeKind};
use http::Method;

use crate::harness::{Agent, Client, Event, Events, request, whole};

async fn watch(client: &Client, query: &str, last: Option<&str>) -> Events {
    let mut request = request(Method::GET, &format!("/runtime/files/watch{query}"), whole(""));
    if let Some(last) = last {
        request.headers_mut().insert("last-event-id", last.parse().unwrap());
    }
    client.events(request).await
}

fn change(event: &Event) -> Change {
    assert_eq!(event.name, "change", "{event:?}");
    serde_json::from_str(&event.data).unwrap()
}

fn told(kind: ChangeKind, path: &str, to: Option<&str>) -> Change {
    Change { kind, path: path.into(), to: to.map(Into::into), metadata: false }
}

/// Reads until a change comes.
async fn sees(events: &mut Events, kind: ChangeKind, path: &str, to: Option<&str>) -> Event {
    let wanted = told(kind, path, to);
    loop {
        let event = events.next().await.expect("an event");
        if event.name == "change" && change(&event) == wanted {
            return event;
        }
    }
}

#[tokio::test]
async fn each_kind_of_change_is_told() {
    let (agent, client) = Agent::start().await;
    agent.write("old", b"");
    let mut events = watch(&client, "?path=.", None).await;
    agent.write("a", b"content");
    sees(&mut events, ChangeKind::Created, "a", None).await;
    sees(&mut events, ChangeKind::Modified, "a", None).await;
    std::fs::rename(agent.path("a"), agent.path("b")).unwrap();
    sees(&mut events, ChangeKind::Renamed, "a", Some("b")).await;
    std::fs::remove_file(agent.path("b")).unwrap();
    sees(&mut events, ChangeKind::Removed, "b", None).await;
    std::fs::rename(agent.path("old"), agent.folder.path().join("away")).unwrap();
    sees(&mut events, ChangeKind::Removed, "old", None).await;
    std::fs::rename(agent.folder.path().join("away"), agent.path("back")).unwrap();
    sees(&mut events, ChangeKind::Created, "back", None).await;
}

#[tokio::test]
async fn writes_of_the_api_are_one_change_each() {
    let (_agent, client) = Agent::start().await;
    let mut events = watch(&client, "", None).await;
    client.put("/runtime/files/content?path=a", "one").await.ok();
    assert_eq!(change(&events.next().await.unwrap()), told(ChangeKind::Created, "a", None));
    client.put("/runtime/files/content?path=a", "two").await.ok();
    assert_eq!(change(&events.next().await.unwrap()), told(ChangeKind::Modified, "a", None));
}

#[tokio::test]
async fn only_a_recursive_watch_goes_deeper_and_follows_new_directories() {
    let (agent, client) = Agent::start().await;
    agent.write("top/old/file", b"");
    let mut flat = watch(&client, "?path=top", None).await;
    let mut deep = watch(&client, "?path=top&recursive=true", None).await;
    agent.write("top/old/new", b"");
    agent.write("top/x/y/z/file", b"");
    for path in ["top/old/new", "top/x", "top/x/y", "top/x/y/z", "top/x/y/z/file"] {
        sees(&mut deep, ChangeKind::Created, path, None).await;
    }
    std::fs::rename(agent.path("top/x"), agent.path("top/moved")).unwrap();
    sees(&mut deep, ChangeKind::Renamed, "top/x", Some("top/moved")).await;
    agent.write("top/moved/y/z/later", b"");
    sees(&mut deep, ChangeKind::Created, "top/moved/y/z/later", None).await;
    std::fs::remove_dir_all(agent.path("top/moved")).unwrap();
    sees(&mut deep, ChangeKind::Removed, "top/moved", None).await;
    let mut paths = BTreeSet::new();
    while !paths.contains("top/moved") {
        let change = change(&flat.next().await.unwrap());
        paths.insert(change.to.unwrap_or(change.path));
    }
    assert!(!paths.iter().any(|path| path.starts_with("top/old/") || path.starts_with("top/x/")), "{paths:?}");
}

#[tokio::test]
async fn no_file_of_a_new_tree_is_missed_or_told_twice() {
    let (agent, client) = Agent::start().await;
    let mut events = watch(&client, "?recursive=true", None).await;
    let expected = (0..20).flat_map(|d| (0..10).map(move |f| format!("t/d{d}/e/f{f}"))).collect::<BTreeSet<_>>();
    for path in &expected {
        agent.write(path, b"");
    }
    agent.write("last", b"");
    let mut created = Vec::new();
    loop {
        let change = change(&events.next().await.unwrap());
        if change.kind == ChangeKind::Created && change.path == "last" {
            break;
        }
        if change.kind == ChangeKind::Created && change.path.contains("/f") {
            created.push(change.path);
        }
    }
    let unique = created.iter().cloned().collect::<BTreeSet<_>>();
    assert_eq!((created.len(), unique), (200, expected));
}

#[tokio::test]
async fn a_file_is_watched_itself() {
    let (agent, client) = Agent::start().await;
    agent.write("dir/a", b"");
    let mut events = watch(&client, "?path=dir/a", None).await;
    agent.write("dir/b", b"");
    agent.write("dir/a", b"x");
    assert_eq!(change(&events.next().await.unwrap()), told(ChangeKind::Modified, "dir/a", None));
}

#[tokio::test]
async fn a_reader_who_comes_back_goes_on() {
    let (agent, client) = Agent::start().await;
    let dropped = agent.client().await;
    let mut events = watch(&dropped, "?path=.", None).await;
    agent.write("seen", b"");
    let last = sees(&mut events, ChangeKind::Created, "seen", None).await.id.unwrap();
    drop((events, dropped));
    agent.write("missed", b"");
    let mut events = watch(&client, "?path=.", Some(&last)).await;
    loop {
        let event = events.next().await.unwrap();
        let change = change(&event);
        assert_ne!((change.kind, change.path.as_str()), (ChangeKind::Created, "seen"), "told again");
        if change.path == "missed" {
            break;
        }
    }
    for unknown in ["nonsense", "0-0", &last.replace('-', "0-")] {
        let mut events = watch(&client, "?path=.", Some(unknown)).await;
        assert_eq!(events.next().await.unwrap().name, "overflow", "{unknown}");
    }
    let mut other = watch(&client, "?path=.&recursive=true", Some(&last)).await;
    assert_eq!(other.next().await.unwrap().name, "overflow", "another watch");
}

#[tokio::test]
async fn who_reads_too_slowly_is_told() {
    let (agent, client) = Agent::start().await;
    let dropped = agent.client().await;
    let mut events = watch(&dropped, "?path=.", None).await;
    agent.write("first", b"");
    let last = sees(&mut events, ChangeKind::Created, "first", None).await.id.unwrap();
    drop((events, dropped));
    for n in 0..5000 {
        std::fs::write(agent.path(&format!("f{n}")), b"").unwrap();
    }
    let mut events = watch(&client, "?path=.", None).await;
    agent.write("settled", b"");
    sees(&mut events, ChangeKind::Created, "settled", None).await;
    let mut late = watch(&client, "?path=.", Some(&last)).await;
    let first = late.next().await.unwrap();
    assert_eq!(first.name, "overflow");
    let again = watch(&client, "?path=.", first.id.as_deref()).await.next().await.unwrap();
    assert_eq!(again.name, "change", "from there on nothing is missing");
    sees(&mut late, ChangeKind::Created, "settled", None).await;
}

#[tokio::test]
async fn what_is_wrong_is_refused() {
    let (_agent, client) = Agent::start().await;
    client.get("/runtime/files/watch?path=missing").await.refused(404, "not_found");
    client.get("/runtime/files/watch?path=/etc").await.refused(400, "invalid_path");
    client.get("/runtime/files/watch?recursive=perhaps").await.names(&["recursive"]);
}

#[tokio::test]
async fn there_are_64_at_most() {
    let (_agent, client) = Agent::start().await;
    let mut all = Vec::new();
    for _ in 0..64 {
        all.push(watch(&client, "", None).await);
    }
    client.get("/runtime/files/watch").await.refused(429, "too_many");
}
