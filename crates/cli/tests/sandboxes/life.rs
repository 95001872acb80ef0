//! From creation to deletion.

use berth_testkit::eventually;
use serde_json::json;

use crate::harness::{act, content, delete, nothing_left, put, run, service, shell, there};

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_lives_pauses_and_goes() {
    let (service, caller) = service().await;
    let body = json!({"name": "box", "env": {"GREETING": "hello"}, "metadata": {"team": "blue"}});
    let id = caller.create_sandbox(body).await;
    let ready = caller.sandbox_reaches(&id, "Ready").await;
    assert_eq!(ready["connect_url"], format!("{}/sandbox/{id}", service.base));
    let told = shell(&caller, &id, "echo $GREETING; id -un; pwd; hostname; python3 -c 'print(6*7)'").await;
    assert_eq!(told, "hello\nuser\n/home/user\nbox\n42\n");
    assert_eq!(put(&caller, &id, "kept.txt", b"kept".to_vec()).await.status, 201);

    // Its process goes on where it was: its memory is kept.
    shell(&caller, &id, "nohup sh -c 'while :; do date +%s%N >tick; sleep 0.1; done' >/dev/null 2>&1 & echo $! >pid")
        .await;
    there(&caller, &id, "tick").await;
    act(&caller, &id, "pause", json!({})).await;
    let paused = caller.sandbox_reaches(&id, "Paused").await;
    assert!(service.sandbox(&id).is_none(), "no machine is left of a paused sandbox");
    caller.post(&format!("/sandbox/{id}/commands"), json!({"cmd": "true"})).await.refused(409, "sandbox_paused");
    act(&caller, &id, "resume", json!({})).await;
    caller.sandbox_reaches(&id, "Ready").await;
    assert_eq!(content(&caller, &id, "kept.txt").await, b"kept");
    let before = content(&caller, &id, "tick").await;
    caller
        .until("the process goes on", |c| {
            let (id, before) = (id.clone(), before.clone());
            async move { content(&c, &id, "tick").await != before }
        })
        .await;
    shell(&caller, &id, "kill $(cat pid)").await;

    // Without its memory it begins anew from its disk.
    act(&caller, &id, "pause", json!({"include_memory": false})).await;
    caller.sandbox_reaches(&id, "Paused").await;
    act(&caller, &id, "resume", json!({})).await;
    let resumed = caller.sandbox_reaches(&id, "Ready").await;
    assert!(resumed["running_seconds"].as_i64() >= paused["running_seconds"].as_i64(), "{resumed}");
    assert_eq!(content(&caller, &id, "kept.txt").await, b"kept");

    let pid = service.sandbox(&id).expect("a machine");
    delete(&caller, &id).await;
    caller.get(&format!("/sandbox/{id}/files/list")).await.refused(404, "sandbox_not_found");
    eventually("the machine's end", 120, || {
        (!std::path::Path::new(&format!("/proc/{}", pid.as_raw_nonzero())).exists()).then_some(())
    });
    nothing_left(&service);
}

/// A machine with a GPU boots, since nothing that was captured knows its devices. One that boots is a sandbox like others,
/// also where the service dies before it is anybody.
#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_nothing_was_captured_for_boots_with_its_disk() {
    let (mut service, caller) = service().await;
    service.stop();
    service.set("BERTH_FAULT", "sandbox.start.captured=fails,sandbox.start.launched=kill");
    service.start();
    let id = caller.create_sandbox(json!({"name": "box"})).await;
    service.died_at("sandbox.start.launched");
    service.set("BERTH_FAULT", "sandbox.start.captured=fails");
    service.start();
    caller.sandbox_reaches(&id, "Ready").await;
    let told = shell(&caller, &id, "id -un; pwd; hostname; echo kept >kept.txt; sync").await;
    assert_eq!(told, "user\n/home/user\nbox\n");
    act(&caller, &id, "pause", json!({"include_memory": false})).await;
    caller.sandbox_reaches(&id, "Paused").await;
    act(&caller, &id, "resume", json!({})).await;
    caller.sandbox_reaches(&id, "Ready").await;
    assert_eq!(shell(&caller, &id, "cat kept.txt; hostname").await, "kept\nbox\n");
    let pid = service.sandbox(&id).expect("a machine").as_raw_nonzero();
    let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).expect("a command line");
    assert!(line.contains("\0-kernel\0") && !line.contains("\0-incoming\0"), "{line}");
    delete(&caller, &id).await;
    nothing_left(&service);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_dies_comes_back_with_its_disk() {
    let (service, caller) = service().await;
    let id = caller.ready_sandbox().await;
    assert_eq!(put(&caller, &id, "kept.txt", b"kept".to_vec()).await.status, 201);
    let first = service.sandbox(&id).expect("a machine");
    let open = {
        let (caller, id) = (caller.clone(), id.clone());
        tokio::spawn(async move { run(&caller, &id, json!({"cmd": "echo >begun; echo begun; sleep 100"})).await })
    };
    there(&caller, &id, "begun").await;
    rustix::process::kill_process(first, rustix::process::Signal::KILL).expect("it runs");
    let outcome = open.await.expect("an end");
    assert_eq!((outcome.last.0.as_str(), &outcome.last.1["code"]), ("error", &json!("sandbox_interrupted")));
    eventually("another machine", 120, || service.sandbox(&id).filter(|pid| *pid != first));
    let back = caller.sandbox_reaches(&id, "Ready").await;
    assert!(back["message"].as_str().is_some_and(|text| text.contains("died")), "{back}");
    assert_eq!(content(&caller, &id, "kept.txt").await, b"kept");

    // The agent is its first process: without it the machine ends, and comes back.
    let second = service.sandbox(&id).expect("a machine");
    let crash = json!({"cmd": "echo c >/proc/sysrq-trigger", "user": "root"});
    // It may be gone before the command's beginning is told.
    caller.post(&format!("/sandbox/{id}/commands"), crash).await;
    eventually("a third machine", 120, || service.sandbox(&id).filter(|pid| *pid != second));
    caller.sandbox_reaches(&id, "Ready").await;
    assert_eq!(content(&caller, &id, "kept.txt").await, b"kept");
}
