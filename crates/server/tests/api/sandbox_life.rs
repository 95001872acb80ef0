//! The life of a sandbox: pause and resume, time, deaths, restarts, deletion, failures, requests at once.

use berth_domain::Timestamp;
use berth_host::EngineError;
use berth_testkit::Platform;
use serde_json::{Value, json};
use tokio::task::JoinSet;

fn transient(text: &str) -> EngineError {
    EngineError::Transient(text.into())
}

#[tokio::test(flavor = "multi_thread")]
async fn pause_keeps_memory_and_disk_and_resume_brings_them_back() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let id = caller.ready_sandbox().await;
    platform.sandboxes.write(&id, "a file");
    let paused = caller.act(&format!("/sandboxes/{id}/pause")).await;
    assert_eq!((paused.status, &paused.body["phase"]), (202, &json!("Pausing")));
    let paused = caller.sandbox_reaches(&id, "Paused").await;
    assert_eq!(platform.sandboxes.counts().0, 0);
    // Unchanged, also its last change.
    let again = caller.act(&format!("/sandboxes/{id}/pause")).await;
    assert_eq!((again.status, &again.body["updated_at"]), (202, &paused["updated_at"]));
    let resumed = caller.act(&format!("/sandboxes/{id}/resume")).await;
    assert_eq!((resumed.status, &resumed.body["phase"]), (202, &json!("Resuming")));
    caller.sandbox_reaches(&id, "Ready").await;
    let (spec, from_memory) = platform.sandboxes.spec(&id).expect("a machine");
    assert!(from_memory && !spec.fresh && spec.generation == 2);
    assert_eq!(platform.sandboxes.read(&id), ["a file"]);
    assert_eq!(caller.act(&format!("/sandboxes/{id}/resume")).await.status, 202);
    caller
        .post(&format!("/sandboxes/{id}/pause"), json!({"include_memory": "no"}))
        .await
        .refused(400, "invalid_request");
    assert_eq!(caller.post(&format!("/sandboxes/{id}/pause"), json!({"include_memory": false})).await.status, 202);
    caller.sandbox_reaches(&id, "Paused").await;
    caller.act(&format!("/sandboxes/{id}/resume")).await;
    caller.sandbox_reaches(&id, "Ready").await;
    assert!(!platform.sandboxes.spec(&id).expect("a machine").1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_on_its_way_to_be_ready_is_put_away_with_the_rest() {
    let platform = Platform::start().await;
    let ada = platform.sign_up("ada@example.com").await;
    platform.sandboxes.refuse("start", transient("busy"));
    let id = ada.create_sandbox(json!({})).await;
    ada.sandbox_reaches(&id, "Provisioning").await;
    let org = ada.get("").await.body["org_id"].as_str().expect("an id").to_owned();
    let admin = &platform.admin;
    assert_eq!(admin.act(&format!("/api/v1/admin/orgs/{org}/suspend")).await.status, 200);
    admin
        .until("its pause", |c| {
            let id = id.clone();
            async move {
                let all = c.get("/api/v1/admin/sandboxes").await.body;
                all["data"].as_array().expect("a list").iter().any(|one| one["id"] == *id && one["phase"] == "Paused")
            }
        })
        .await;
    platform.sandboxes.allow("start");
    assert_eq!(admin.act(&format!("/api/v1/admin/orgs/{org}/unsuspend")).await.status, 200);
    assert_eq!(ada.act(&format!("/sandboxes/{id}/resume")).await.status, 202);
    ada.sandbox_reaches(&id, "Ready").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_runs_for_a_row_of_an_older_copy_is_ended_and_the_row_goes_on_behind_it() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let id = caller.ready_sandbox().await;
    platform.sandboxes.overtake(&id, 7);
    assert_eq!(caller.act(&format!("/sandboxes/{id}/pause")).await.status, 202);
    caller.sandbox_reaches(&id, "Paused").await;
    assert_eq!(platform.sandboxes.counts().0, 0);
    assert_eq!(caller.act(&format!("/sandboxes/{id}/resume")).await.status, 202);
    caller.sandbox_reaches(&id, "Ready").await;
    assert_eq!(platform.sandboxes.spec(&id).expect("a machine").0.generation, 9);
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_that_does_not_load_is_told() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let id = caller.ready_sandbox().await;
    caller.act(&format!("/sandboxes/{id}/pause")).await;
    caller.sandbox_reaches(&id, "Paused").await;
    platform.sandboxes.set_loads_memory(false);
    caller.act(&format!("/sandboxes/{id}/resume")).await;
    let ready = caller.sandbox_reaches(&id, "Ready").await;
    assert!(ready["message"].as_str().is_some_and(|m| m.contains("from its disk")), "{ready}");
}

#[tokio::test(flavor = "multi_thread")]
async fn phases_refuse_what_they_do_not_allow() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let other = caller.ready_sandbox().await;
    let snapshot = caller.post(&format!("/sandboxes/{other}/snapshots"), json!({})).await.id();
    platform.sandboxes.refuse("start", transient("slow"));
    let id = caller.create_sandbox(json!({})).await;
    caller.sandbox_reaches(&id, "Provisioning").await;
    for verb in ["pause", "resume", "fork"] {
        caller.act(&format!("/sandboxes/{id}/{verb}")).await.refused(409, "invalid_phase");
    }
    caller.act(&format!("/sandboxes/{id}/snapshots")).await.refused(409, "invalid_phase");
    caller
        .until("the snapshot", |c| {
            let path = format!("/snapshots/{snapshot}");
            async move { c.get(&path).await.body["status"] == "Ready" }
        })
        .await;
    let restore = json!({"snapshot_id": snapshot});
    caller.post(&format!("/sandboxes/{id}/restore"), restore).await.refused(409, "invalid_phase");
    assert_eq!(caller.delete(&format!("/sandboxes/{id}")).await.status, 202);
    caller.sandbox_reaches(&id, "Deleted").await;
    caller.get(&format!("/sandboxes/{id}")).await.refused(404, "sandbox_not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn life_counts_while_not_paused() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let id = caller.create_sandbox(json!({"timeout_seconds": 100})).await;
    let ready = caller.sandbox_reaches(&id, "Ready").await;
    assert!(ready["expires_at"].is_string());
    platform.advance(60);
    caller.act(&format!("/sandboxes/{id}/pause")).await;
    let paused = caller.sandbox_reaches(&id, "Paused").await;
    assert_eq!(paused["expires_at"], Value::Null);
    let running = paused["running_seconds"].as_i64().expect("a number");
    assert!((60..90).contains(&running), "{running}");
    platform.advance(1000);
    let paused = caller.get(&format!("/sandboxes/{id}")).await.body;
    assert_eq!((&paused["phase"], paused["running_seconds"].as_i64()), (&json!("Paused"), Some(running)));
    caller.act(&format!("/sandboxes/{id}/resume")).await;
    caller.sandbox_reaches(&id, "Ready").await;
    platform.advance(41);
    let over = caller.sandbox_reaches(&id, "Paused").await;
    assert_eq!(over["expires_at"], Value::Null);
    // Whoever resumes it gives it another life.
    caller.act(&format!("/sandboxes/{id}/resume")).await;
    caller.sandbox_reaches(&id, "Ready").await;
    platform.advance(50);
    assert_eq!(caller.get(&format!("/sandboxes/{id}")).await.body["phase"], "Ready");
    let body = json!({"timeout_seconds": 5, "on_timeout": "delete"});
    assert_eq!(caller.patch(&format!("/sandboxes/{id}"), body).await.status, 200);
    platform.advance(5);
    caller.sandbox_reaches(&id, "Deleted").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_idle_is_paused_and_who_is_used_is_not() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let id = caller.create_sandbox(json!({"idle_timeout_seconds": 30})).await;
    caller.sandbox_reaches(&id, "Ready").await;
    platform.sandboxes.set_activity(&id, 1, None);
    platform.advance(31);
    let waited = caller.get(&format!("/sandboxes/{id}/wait?phase=Paused&timeout=3")).await.body;
    assert_eq!(waited["phase"], "Ready");
    let used = platform.app().clock.now();
    platform.sandboxes.set_activity(&id, 0, Some(used));
    platform.advance(29);
    let waited = caller.get(&format!("/sandboxes/{id}/wait?phase=Paused&timeout=1")).await.body;
    assert!(platform.app().clock.now() > Timestamp(0) && waited["phase"] != "Failed");
    platform.advance(31);
    caller.sandbox_reaches(&id, "Paused").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_runs_in_a_sandbox_is_waited_for_by_nobody_and_decides_whether_it_is_idle() {
    let platform = Platform::start_with(|config| config.sandbox.workers = 1).await;
    let (caller, engine) = (&platform.admin, &platform.sandboxes);
    let id = caller.create_sandbox(json!({"idle_timeout_seconds": 30})).await;
    caller.sandbox_reaches(&id, "Ready").await;
    engine.set_running(&id, None);
    // Its time is over, and whether something runs in it is not known: it is asked again and again.
    for _ in 0..3 {
        let asked = engine.questions();
        platform.advance(31);
        caller.until("another question", |_| async { engine.questions() > asked }).await;
        // The one worker is free for others meanwhile.
        caller.ready_sandbox().await;
        assert_eq!(caller.get(&format!("/sandboxes/{id}")).await.body["phase"], "Ready");
    }
    // The answer is acted upon when it comes, and something that runs is no idleness.
    let asked = engine.questions();
    engine.set_running(&id, Some(1));
    platform.advance(31);
    caller.ready_sandbox().await;
    assert_eq!(caller.get(&format!("/sandboxes/{id}")).await.body["phase"], "Ready");
    engine.set_running(&id, None);
    platform.advance(31);
    caller.until("another question", |_| async { engine.questions() > asked }).await;
    engine.set_running(&id, Some(0));
    caller.sandbox_reaches(&id, "Paused").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_dies_is_started_again_three_times() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let id = caller.ready_sandbox().await;
    platform.sandboxes.write(&id, "a file");
    for death in 1..=3 {
        platform.sandboxes.kill(&id);
        let engine = platform.sandboxes.clone();
        caller
            .until("another machine", |_| {
                let (engine, id) = (engine.clone(), id.clone());
                async move { engine.spec(&id).is_some_and(|(spec, _)| spec.generation == death + 1) }
            })
            .await;
        let ready = caller.sandbox_reaches(&id, "Ready").await;
        assert!(ready["message"].as_str().is_some_and(|m| m.contains("died")), "{ready}");
        assert_eq!(platform.sandboxes.read(&id), ["a file"]);
    }
    platform.sandboxes.kill(&id);
    let failed = caller.sandbox_reaches(&id, "Failed").await;
    assert!(failed["message"].as_str().is_some_and(|m| m.contains("3 times")), "{failed}");
    caller.act(&format!("/sandboxes/{id}/resume")).await.refused(409, "invalid_phase");
    assert_eq!(caller.delete(&format!("/sandboxes/{id}")).await.status, 202);
    caller.sandbox_reaches(&id, "Deleted").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn restarts_of_service_and_host() {
    let platform = Platform::start().await;
    let id = platform.admin.ready_sandbox().await;
    let paused = platform.admin.ready_sandbox().await;
    platform.admin.act(&format!("/sandboxes/{paused}/pause")).await;
    platform.admin.sandbox_reaches(&paused, "Paused").await;
    let starts = platform.sandboxes.counts().3;
    let platform = platform.restart().await;
    platform.admin.sandbox_reaches(&id, "Ready").await;
    assert_eq!(platform.sandboxes.counts().3, starts, "nothing was started anew");
    platform.sandboxes.restart_host();
    let platform = platform.restart().await;
    let engine = platform.sandboxes.clone();
    platform
        .admin
        .until("the machine", |_| {
            let engine = engine.clone();
            async move { engine.counts().3 == starts + 1 }
        })
        .await;
    let ready = platform.admin.sandbox_reaches(&id, "Ready").await;
    assert!(ready["message"].as_str().is_some_and(|m| m.contains("host was restarted")), "{ready}");
    assert_eq!(platform.admin.get(&format!("/sandboxes/{paused}")).await.body["phase"], "Paused");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_phase_that_takes_too_long_is_tried_again_and_then_failed() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    platform.sandboxes.refuse("start", transient("no luck"));
    let id = caller.create_sandbox(json!({})).await;
    caller.sandbox_reaches(&id, "Provisioning").await;
    caller
        .until("its failure", |c| {
            let path = format!("/sandboxes/{id}/wait?phase=Failed&timeout=3");
            platform.advance(121);
            async move { c.get(&path).await.body["phase"] == "Failed" }
        })
        .await;
    let failed = caller.sandbox_reaches(&id, "Failed").await;
    assert!(failed["message"].as_str().is_some_and(|m| m.contains("after 120 seconds")), "{failed}");
    assert_eq!(caller.delete(&format!("/sandboxes/{id}")).await.status, 202);
    caller.sandbox_reaches(&id, "Deleted").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_at_once_come_to_an_end() {
    let platform = Platform::start().await;
    platform.sandboxes.set_delay(std::time::Duration::from_millis(5));
    let caller = &platform.admin;
    for _ in 0..5 {
        let id = caller.ready_sandbox().await;
        let mut tasks = JoinSet::new();
        for verb in ["pause", "resume", "fork", "snapshots"] {
            let (caller, path) = (caller.clone(), format!("/sandboxes/{id}/{verb}"));
            tasks.spawn(async move { caller.act(&path).await.status });
        }
        let (other, path) = (caller.clone(), format!("/sandboxes/{id}"));
        tasks.spawn(async move { other.delete(&path).await.status });
        for status in tasks.join_all().await {
            assert!([201, 202, 404, 409].contains(&status), "{status}");
        }
        caller.sandbox_reaches(&id, "Deleted").await;
    }
}
