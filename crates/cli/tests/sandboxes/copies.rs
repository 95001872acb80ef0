//! Snapshots, restores and forks.

use std::collections::HashSet;

use serde_json::{Value, json};

use crate::harness::{OWN, act, content, delete, fork, gone, nothing_left, put, service, shell, snapshot, there};

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_is_restored_forked_and_made_into_others() {
    let (service, caller) = service().await;
    let id = caller.ready_sandbox().await;
    put(&caller, &id, "work.txt", b"good".to_vec()).await;
    let kept = snapshot(&caller, &id, json!({"name": "good"})).await;
    let identity = shell(&caller, &id, "cat /etc/machine-id").await;
    put(&caller, &id, "work.txt", b"broken".to_vec()).await;
    act(&caller, &id, "restore", json!({"snapshot_id": kept})).await;
    caller.sandbox_reaches(&id, "Ready").await;
    assert_eq!(content(&caller, &id, "work.txt").await, b"good");
    assert_ne!(shell(&caller, &id, "cat /etc/machine-id").await, identity, "a restored machine is another one");

    let made = caller.create_sandbox(json!({"snapshot_id": kept})).await;
    caller.sandbox_reaches(&made, "Ready").await;
    assert_eq!(content(&caller, &made, "work.txt").await, b"good");
    put(&caller, &id, "work.txt", b"changed".to_vec()).await;
    let named = fork(&caller, &id, json!({"count": 1, "snapshot_id": kept})).await;
    assert_eq!(content(&caller, &named[0], "work.txt").await, b"good");

    // A snapshot goes at once; what builds on it keeps its layer.
    assert_eq!(caller.delete(&format!("/snapshots/{kept}")).await.status, 202);
    gone(&caller, &format!("/snapshots/{kept}")).await;
    delete(&caller, &id).await;
    assert_eq!(content(&caller, &made, "work.txt").await, b"good");
    delete(&caller, &made).await;
    delete(&caller, &named[0]).await;
    nothing_left(&service);
}

#[tokio::test(flavor = "multi_thread")]
async fn forks_go_on_from_the_live_state_and_are_others() {
    let (_service, caller) = service().await;
    let id = caller.ready_sandbox().await;
    put(&caller, &id, "state.txt", b"live".to_vec()).await;
    let started = json!({"cmd": "i=0; while :; do i=$((i+1)); echo $i >count; sleep 0.1; done"});
    let counter = caller.post(&format!("/sandbox/{id}/processes"), started).await.body["pid"].clone();
    there(&caller, &id, "count").await;

    let forks = fork(&caller, &id, json!({"count": 3})).await;
    let with_memory = fork(&caller, &id, json!({"count": 2, "include_memory": true})).await;
    let mut seen = HashSet::new();
    for one in forks.iter().chain(&with_memory).chain([&id]) {
        assert_eq!(content(&caller, one, "state.txt").await, b"live");
        let told = shell(&caller, one, OWN).await;
        assert!(told.lines().all(|line| seen.insert(line.to_owned())), "{told} is another's, too");
    }
    for one in &with_memory {
        assert_eq!(caller.get(&format!("/sandbox/{one}/processes/{counter}")).await.body["state"], "running");
    }
    for one in &forks {
        assert_eq!(caller.get(&format!("/sandbox/{one}/processes/{counter}")).await.status, 404);
    }
    assert_eq!(caller.get(&format!("/sandbox/{id}/processes/{counter}")).await.body["state"], "running");

    // Nobody's writing is anybody else's.
    put(&caller, &forks[0], "state.txt", b"mine".to_vec()).await;
    assert_eq!(content(&caller, &id, "state.txt").await, b"live");
    assert_eq!(content(&caller, &with_memory[0], "state.txt").await, b"live");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_with_memory_keeps_its_processes() {
    let (_service, caller) = service().await;
    let id = caller.ready_sandbox().await;
    let started = json!({"cmd": "x=secret; while read line; do echo $x; done"});
    let pid = caller.post(&format!("/sandbox/{id}/processes"), started).await.body["pid"].clone();
    let kept = snapshot(&caller, &id, json!({"include_memory": true})).await;
    assert_eq!(caller.get(&format!("/snapshots/{kept}")).await.body["captures"], json!(["disk", "memory"]));
    delete(&caller, &id).await;
    let made = caller.create_sandbox(json!({"snapshot_id": kept})).await;
    let ready = caller.sandbox_reaches(&made, "Ready").await;
    assert_eq!(ready["message"], Value::Null, "{ready}");
    let process = format!("/sandbox/{made}/processes/{pid}");
    let request = caller.request(reqwest::Method::POST, &format!("{process}/stdin?eof=true")).body("go\n");
    assert_eq!(caller.send(request).await.status, 204);
    let log = caller.get(&format!("{process}/logs?follow=true")).await.body;
    assert!(log.as_str().is_some_and(|text| text.contains("\"secret\"")), "{log}");
}

/// Takes a minute: `script/soak` runs it.
mod soak {
    use std::collections::HashSet;

    use serde_json::json;

    use crate::harness::{OWN, content, delete, fork, nothing_left, put, service, shell};

    /// Forks, unless `BERTH_TEST_FORKS` asks for others, up to 100.
    const FORKS: usize = 8;

    #[tokio::test(flavor = "multi_thread")]
    async fn each_of_many_forks_is_another() {
        let (service, caller) = service().await;
        let id = caller.ready_sandbox().await;
        put(&caller, &id, "state.txt", b"live".to_vec()).await;
        let started = caller.post(&format!("/sandbox/{id}/processes"), json!({"argv": ["sleep", "100000"]})).await;
        let count = std::env::var("BERTH_TEST_FORKS").ok().and_then(|text| text.parse().ok()).unwrap_or(FORKS);
        let began = std::time::Instant::now();
        let forks = fork(&caller, &id, json!({"count": count})).await;
        println!("{count} forks: {} ms until all are ready", began.elapsed().as_millis());
        println!("{count} forks and their source: {} MiB (PSS)", proportional(&service) / 1024);
        let mut seen = HashSet::new();
        for one in forks.iter().chain([&id]) {
            let told = shell(&caller, one, OWN).await;
            assert_eq!(told.lines().count(), 5, "{told}");
            assert!(told.lines().all(|line| seen.insert(line.to_owned())), "{told} is another's, too");
            assert_eq!(content(&caller, one, "state.txt").await, b"live");
        }
        println!("{count} forks and their source, used: {} MiB (PSS)", proportional(&service) / 1024);
        let process = caller.get(&format!("/sandbox/{id}/processes/{}", started.body["pid"])).await;
        assert_eq!(process.body["state"], "running", "the source goes on");
        for one in forks.iter().chain([&id]) {
            delete(&caller, one).await;
        }
        nothing_left(&service);
    }

    /// The memory of all machines, each shared page counted once, in KiB.
    fn proportional(service: &berth_testkit::Service) -> u64 {
        let of = |pid: i32| {
            let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
            let line = text.lines().find_map(|line| line.strip_prefix("Pss:"));
            line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or_default()
        };
        service.processes("sandbox/machines").into_iter().map(of).sum()
    }
}
