//! Snapshots, restores, forks, and the layers they share.

use berth_host::EngineError;
use berth_server::db::sql;
use berth_testkit::{Caller, Platform};
use serde_json::{Value, json};
use tokio::task::JoinSet;

async fn snapshot(caller: &Caller, sandbox: &str, body: Value) -> String {
    let made = caller.post(&format!("/sandboxes/{sandbox}/snapshots"), body).await;
    assert_eq!((made.status, &made.body["status"]), (201, &json!("Pending")), "{made:?}");
    made.id()
}

async fn settles(caller: &Caller, snapshot: &str, status: &str) -> Value {
    let path = format!("/snapshots/{snapshot}");
    caller
        .until(status, |c| {
            let path = path.clone();
            async move { c.get(&path).await.body["status"] == status }
        })
        .await;
    caller.get(&path).await.body
}

async fn layers(platform: &Platform, wanted: (usize, usize)) {
    let engine = platform.sandboxes.clone();
    platform
        .admin
        .until("the layers", |_| {
            let engine = engine.clone();
            async move {
                let (_, layers, memories, _) = engine.counts();
                (layers, memories) == wanted
            }
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_is_what_was_there_and_a_restore_goes_back_to_it() {
    let platform = Platform::start().await;
    let (caller, engine) = (&platform.admin, &platform.sandboxes);
    let id = caller.ready_sandbox().await;
    engine.write(&id, "before");
    let first = snapshot(caller, &id, json!({"name": "a good state"})).await;
    let view = settles(caller, &first, "Ready").await;
    assert_eq!(
        (&view["captures"], &view["name"], &view["sandbox_id"]),
        (&json!(["disk"]), &json!("a good state"), &json!(id))
    );
    engine.write(&id, "after");
    assert_eq!(engine.read(&id), ["after", "before"]);
    let restored = caller.post(&format!("/sandboxes/{id}/restore"), json!({"snapshot_id": first})).await;
    assert_eq!((restored.status, &restored.body["phase"]), (202, &json!("Restoring")));
    caller.sandbox_reaches(&id, "Ready").await;
    assert_eq!(engine.read(&id), ["before"]);
    let (spec, from_memory) = engine.spec(&id).expect("a machine");
    assert!(spec.fresh && !from_memory && spec.generation == 2);
    let made = caller.create_sandbox(json!({"snapshot_id": first})).await;
    let made_of = caller.sandbox_reaches(&made, "Ready").await;
    assert_eq!((&made_of["snapshot_id"], engine.read(&made)), (&json!(first), vec!["before".to_owned()]));
    for path in ["/snapshots".to_owned(), format!("/sandboxes/{id}/snapshots")] {
        assert_eq!(caller.get(&path).await.body["pagination"]["total_items"], 1, "{path}");
    }
    assert_eq!(caller.delete(&format!("/snapshots/{first}")).await.status, 202);
    caller.get(&format!("/snapshots/{first}")).await.refused(404, "snapshot_not_found");
    assert_eq!(engine.read(&made), ["before"], "what builds on it keeps it");
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_is_captured_where_it_is_asked_for() {
    let platform = Platform::start().await;
    let (caller, engine) = (&platform.admin, &platform.sandboxes);
    let id = caller.ready_sandbox().await;
    let live = snapshot(caller, &id, json!({"include_memory": true})).await;
    assert_eq!(settles(caller, &live, "Ready").await["captures"], json!(["disk", "memory"]));
    let made = caller.create_sandbox(json!({"snapshot_id": live})).await;
    caller.sandbox_reaches(&made, "Ready").await;
    assert!(engine.spec(&made).expect("a machine").1);
    caller.act(&format!("/sandboxes/{id}/pause")).await;
    caller.sandbox_reaches(&id, "Paused").await;
    let cold = snapshot(caller, &id, json!({"include_memory": true})).await;
    settles(caller, &cold, "Ready").await;
    let made = caller.create_sandbox(json!({"snapshot_id": cold})).await;
    caller.sandbox_reaches(&made, "Ready").await;
    assert!(engine.spec(&made).expect("a machine").1, "what the pause kept");
    caller.act(&format!("/sandboxes/{id}/resume")).await;
    caller.sandbox_reaches(&id, "Ready").await;
    assert!(engine.spec(&id).expect("a machine").1);
    caller.post(&format!("/sandboxes/{id}/pause"), json!({"include_memory": false})).await;
    caller.sandbox_reaches(&id, "Paused").await;
    let none = snapshot(caller, &id, json!({"include_memory": true})).await;
    assert!(settles(caller, &none, "Failed").await["message"].is_string());
    let disk = snapshot(caller, &id, json!({})).await;
    settles(caller, &disk, "Ready").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn forks_begin_where_the_source_is() {
    let platform = Platform::start().await;
    let (caller, engine) = (&platform.admin, &platform.sandboxes);
    let id = caller.create_sandbox(json!({"metadata": {"a": "b"}})).await;
    caller.sandbox_reaches(&id, "Ready").await;
    engine.write(&id, "before");
    let fork = async |body: Value| caller.post(&format!("/sandboxes/{id}/fork"), body).await;
    for count in [0, 101] {
        fork(json!({"count": count})).await.refused(400, "invalid_request");
    }
    let one = fork(json!({"count": 1, "name": "twin"})).await;
    assert_eq!((one.status, one.body["data"].as_array().map(Vec::len)), (201, Some(1)), "{one:?}");
    let twin = &one.body["data"][0];
    assert_eq!((&twin["name"], &twin["snapshot_id"], &twin["forked_from"]), (&json!("twin"), &Value::Null, &json!(id)));
    assert_eq!(twin["metadata"], json!({"a": "b"}));
    let many = fork(json!({"count": 100, "name": "many", "include_memory": true})).await.body;
    let children: Vec<_> = many["data"].as_array().expect("a list").clone();
    assert_eq!((children.len(), &children[99]["name"]), (100, &json!("many-100")));
    for child in &children {
        let child = child["id"].as_str().expect("an id");
        caller.sandbox_reaches(child, "Ready").await;
        assert_eq!(engine.read(child), ["before"]);
        let (spec, from_memory) = engine.spec(child).expect("a machine");
        assert!(spec.fresh && from_memory);
    }
    assert_eq!(engine.read(&id), ["before"], "the source goes on");
    assert_eq!(engine.spec(&id).expect("a machine").0.generation, 1);
    // What the forks made for themselves is nobody's to see, and goes.
    assert_eq!(caller.get("/snapshots").await.body["pagination"]["total_items"], 0);
    caller.delete(&format!("/sandboxes/{id}")).await;
    for sandbox in caller.get("/sandboxes?limit=100").await.body["data"].as_array().expect("a list") {
        caller.delete(&format!("/sandboxes/{}", sandbox["id"].as_str().expect("an id"))).await;
    }
    caller
        .until("the end of all", |c| async move {
            for sandbox in c.get("/sandboxes").await.body["data"].as_array().expect("a list") {
                c.delete(&format!("/sandboxes/{}", sandbox["id"].as_str().expect("an id"))).await;
            }
            c.get("/sandboxes").await.body["pagination"]["total_items"] == 0
        })
        .await;
    // The template's two layers and its memory are left.
    layers(&platform, (2, 1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_ready_cannot_be_built_on() {
    let platform = Platform::start().await;
    let (caller, engine) = (&platform.admin, &platform.sandboxes);
    let id = caller.ready_sandbox().await;
    engine.refuse("checkpoint", EngineError::Transient("busy".into()));
    let slow = snapshot(caller, &id, json!({})).await;
    let named = json!({"snapshot_id": slow});
    caller.post("/sandboxes", named.clone()).await.refused(409, "snapshot_not_ready");
    caller.post(&format!("/sandboxes/{id}/restore"), named.clone()).await.refused(409, "snapshot_not_ready");
    caller.post(&format!("/sandboxes/{id}/fork"), named).await.refused(409, "snapshot_not_ready");
    let child = caller.post(&format!("/sandboxes/{id}/fork"), json!({})).await.body["data"][0]["id"].clone();
    // A snapshot that takes too long has failed; its checkpoint ends all the same, and the next one follows.
    caller
        .until("the checkpoint", |c| {
            let path = format!("/snapshots/{slow}");
            platform.advance(10);
            async move { c.get(&path).await.body["status"] == "Failed" }
        })
        .await;
    engine.allow("checkpoint");
    platform.advance(20);
    caller.sandbox_reaches(child.as_str().expect("an id"), "Ready").await;
    engine.refuse("checkpoint", EngineError::Permanent("the disk is damaged".into()));
    let bad = snapshot(caller, &id, json!({})).await;
    assert_eq!(settles(caller, &bad, "Failed").await["message"], "the disk is damaged");
    assert_eq!(caller.get(&format!("/sandboxes/{id}")).await.body["phase"], "Ready");
    let child = caller.post(&format!("/sandboxes/{id}/fork"), json!({})).await.body["data"][0]["id"].clone();
    let failed = caller.sandbox_reaches(child.as_str().expect("an id"), "Failed").await;
    assert_eq!(failed["message"], "the disk is damaged");
}

#[tokio::test(flavor = "multi_thread")]
async fn deletion_of_the_source_fails_who_waits_for_it() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let id = caller.ready_sandbox().await;
    platform.sandboxes.refuse("checkpoint", EngineError::Transient("busy".into()));
    let pending = snapshot(caller, &id, json!({})).await;
    let child = caller.post(&format!("/sandboxes/{id}/fork"), json!({})).await.body["data"][0]["id"].clone();
    assert_eq!(caller.delete(&format!("/sandboxes/{id}")).await.status, 202);
    platform.advance(20);
    caller.sandbox_reaches(&id, "Deleted").await;
    let message = json!("the sandbox was deleted");
    assert_eq!(settles(caller, &pending, "Failed").await["message"], message);
    assert_eq!(caller.sandbox_reaches(child.as_str().expect("an id"), "Failed").await["message"], message);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_restores_one_is_refused() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let id = caller.ready_sandbox().await;
    let body = json!({"snapshot_id": snapshot(caller, &id, json!({})).await});
    settles(caller, body["snapshot_id"].as_str().expect("an id"), "Ready").await;
    platform.sandboxes.refuse("end", EngineError::Transient("busy".into()));
    let mut tasks = JoinSet::new();
    for _ in 0..2 {
        let (caller, path, body) = (caller.clone(), format!("/sandboxes/{id}/restore"), body.clone());
        tasks.spawn(async move { caller.post(&path, body).await.status });
    }
    let mut statuses = tasks.join_all().await;
    statuses.sort_unstable();
    assert_eq!(statuses, [202, 409]);
    platform.sandboxes.allow("end");
    platform.advance(20);
    caller.sandbox_reaches(&id, "Ready").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn templates_are_made_of_snapshots() {
    let platform = Platform::start().await;
    let (caller, engine) = (&platform.admin, &platform.sandboxes);
    let id = caller.ready_sandbox().await;
    engine.write(&id, "tools");
    let taken = snapshot(caller, &id, json!({})).await;
    settles(caller, &taken, "Ready").await;
    let made = caller.post("/sandbox_templates", json!({"name": "tools", "from_snapshot": taken})).await;
    assert_eq!((made.status, &made.body["memory_mb"]), (201, &json!(512)), "{made:?}");
    caller.delete(&format!("/snapshots/{taken}")).await;
    let of_it = caller.create_sandbox(json!({"template_id": "tools"})).await;
    caller.sandbox_reaches(&of_it, "Ready").await;
    assert_eq!(engine.read(&of_it), ["tools"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_platform_template_that_is_built_anew_replaces_the_old_one() {
    let platform = Platform::start().await;
    let (caller, engine) = (&platform.admin, &platform.sandboxes);
    let old = caller.ready_sandbox().await;
    let ground = |id: &str| *engine.spec(id).expect("a machine").0.layers.last().expect("a layer");
    engine.rebuild_base();
    // The old image's two layers stay for the sandbox that builds on them.
    layers(&platform, (5, 1)).await;
    let new = caller.ready_sandbox().await;
    assert_ne!(ground(&old), ground(&new));
    caller.delete(&format!("/sandboxes/{old}")).await;
    layers(&platform, (3, 1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn time_in_which_no_service_runs_is_none_of_a_checkpoint_s() {
    let platform = Platform::start().await;
    let id = platform.admin.ready_sandbox().await;
    platform.sandboxes.refuse("checkpoint", EngineError::Transient("slow".into()));
    let made = snapshot(&platform.admin, &id, json!({})).await;
    let begun = async || {
        let at = sql("SELECT cut_at FROM sandbox_snapshots WHERE id = $1 AND cut_at IS NOT NULL").bind(made.clone());
        at.fetch_optional::<i64>(&platform.app().db).await.expect("a row").is_some()
    };
    platform.admin.until("its beginning", |_| begun()).await;
    let away = platform.config.sandbox.snapshot_seconds + 1;
    platform.sandboxes.allow("checkpoint");
    let platform = platform.crash_for(away).await;
    settles(&platform.admin, &made, "Ready").await;
}
