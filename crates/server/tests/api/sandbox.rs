//! Sandboxes and templates: creation, bounds, references, lists, changes, credentials, quota.

use berth_testkit::{Caller, Platform};
use reqwest::Method;
use serde_json::{Value, json};

async fn key(caller: &Caller, scope: &str) -> String {
    let made = caller.post("/api_keys", json!({"name": "k", "scopes": [scope]})).await;
    made.body["key"].as_str().expect("a key").to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_sandbox_is_pending_and_then_ready() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let body = json!({"name": "agent", "metadata": {"run": "7"}, "env": {"A": "b"}, "timeout_seconds": 60,
        "network": {"egress": "deny", "allow": ["*.example.org"]}});
    let answer = caller.post("/sandboxes", body).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    let (id, made) = (answer.id(), &answer.body);
    assert_eq!(answer.header("location"), Some(&*format!("{}/sandboxes/{id}", caller.project)));
    assert_eq!(
        (&made["phase"], &made["name"], &made["running_seconds"]),
        (&json!("Pending"), &json!("agent"), &json!(0))
    );
    assert_eq!((&made["snapshot_id"], &made["expires_at"]), (&Value::Null, &Value::Null));
    assert_eq!(made["connect_url"], format!("{}/sandbox/{id}", caller.base));
    let ready = caller.sandbox_reaches(&id, "Ready").await;
    assert!(ready["expires_at"].is_string() && ready["message"].is_null(), "{ready}");
    assert_eq!((&ready["vcpu"], &ready["memory_mb"], &ready["disk_gb"]), (&json!(1), &json!(512), &json!(10)));
    let base = caller.get("/sandbox_templates/base").await;
    assert_eq!((base.status, &base.body["id"]), (200, &ready["template_id"]));
    let (spec, from_memory) = platform.sandboxes.spec(&id).expect("a machine");
    assert!(spec.fresh && from_memory && spec.env["A"] == "b" && spec.hostname == "agent" && spec.user == "user");
    assert_eq!((spec.generation, spec.layers.len()), (1, 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn references_and_bounds() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let nothing = uuid::Uuid::now_v7().to_string();
    caller.post("/sandboxes", json!({"template_id": "no-such"})).await.refused(404, "template_not_found");
    caller.post("/sandboxes", json!({"snapshot_id": nothing})).await.refused(404, "snapshot_not_found");
    let both = caller.post("/sandboxes", json!({"template_id": "base", "snapshot_id": nothing})).await;
    both.refused(400, "invalid_request");
    let many = json!({"name": "A", "timeout_seconds": 4, "idle_timeout_seconds": 2_592_001, "on_timeout": "stop",
        "metadata": {"a b": "c"}, "env": {"1": "x"}, "network": {"allow": ["nonsense/"]}});
    let refused = caller.post("/sandboxes", many).await;
    refused.refused(400, "invalid_request");
    for field in
        ["name", "timeout_seconds", "idle_timeout_seconds", "on_timeout", "metadata", "env", "network.allow[0]"]
    {
        assert!(refused.names(field), "{field} {refused:?}");
    }
    for path in
        [format!("/sandboxes/{nothing}"), format!("/sandboxes/{nothing}/wait"), format!("/sandboxes/{nothing}/metrics")]
    {
        caller.get(&path).await.refused(404, "sandbox_not_found");
    }
    caller.get("/sandboxes/x").await.refused(400, "invalid_request");
    caller.get(&format!("/snapshots/{nothing}")).await.refused(404, "snapshot_not_found");
    let id = caller.ready_sandbox().await;
    for (query, good) in [("timeout=0", false), ("timeout=1", true), ("timeout=301", false), ("phase=Asleep", false)] {
        let status = caller.get(&format!("/sandboxes/{id}/wait?{query}")).await.status;
        assert_eq!(status, if good { 200 } else { 400 }, "{query}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_and_filters() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let mut ids = Vec::new();
    for run in ["a", "A", "b"] {
        let id = caller.create_sandbox(json!({"metadata": {"run": run, "team": "x"}})).await;
        caller.sandbox_reaches(&id, "Ready").await;
        ids.push(id);
    }
    caller.act(&format!("/sandboxes/{}/pause", ids[2])).await;
    caller.sandbox_reaches(&ids[2], "Paused").await;
    let listed = async |query: &str| -> Vec<String> {
        let answer = caller.get(&format!("/sandboxes?{query}")).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let data = answer.body["data"].as_array().expect("a list").clone();
        data.iter().map(|s| s["id"].as_str().expect("an id").to_owned()).collect()
    };
    assert_eq!(listed("").await, [&*ids[2], &ids[1], &ids[0]]);
    assert_eq!(listed("metadata.run=a").await, [&*ids[0]]);
    assert_eq!(listed("metadata.team=x&metadata.run=A").await, [&*ids[1]]);
    assert_eq!(listed("metadata.team=y").await.len(), 0);
    assert_eq!(listed("phase=Paused").await, [&*ids[2]]);
    assert_eq!(listed("template=base&phase=Ready").await.len(), 2);
    assert_eq!(listed("template=none").await.len(), 0);
    caller.get("/sandboxes?phase=asleep").await.refused(400, "invalid_request");
    let of_keys = |keys: usize| (0..keys).map(|key| format!("metadata.k{key}=x")).collect::<Vec<_>>().join("&");
    assert_eq!(listed(&of_keys(16)).await.len(), 0);
    let too_many = caller.get(&format!("/sandboxes?{}", of_keys(17))).await;
    too_many.refused(400, "invalid_request");
    assert!(too_many.names("metadata"), "{too_many:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_a_name_is_found_by_it() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let mut ids = Vec::new();
    for name in ["one", "two", "two"] {
        let id = caller.create_sandbox(json!({ "name": name })).await;
        caller.sandbox_reaches(&id, "Ready").await;
        let snapshot = caller.post(&format!("/sandboxes/{id}/snapshots"), json!({ "name": name })).await;
        assert_eq!(snapshot.status, 201, "{snapshot:?}");
        ids.push(id);
    }
    caller.post("/sandboxes", json!({})).await;
    let sizes = json!({"name": "two", "image": "debian", "vcpu": 1, "memory_mb": 512, "disk_gb": 10});
    assert_eq!(caller.post("/sandbox_templates", sizes).await.status, 201);
    let own = format!("/sandboxes/{}/snapshots", ids[1]);
    for (list, name, count) in [
        ("/sandboxes", "one", 1),
        ("/sandboxes", "two", 2),
        ("/sandboxes", "ONE", 0),
        ("/sandboxes", "", 0),
        ("/snapshots", "one", 1),
        ("/snapshots", "two", 2),
        ("/snapshots", "tw%25", 0),
        (&own, "two", 1),
        (&own, "one", 0),
        ("/sandbox_templates", "two", 1),
        ("/sandbox_templates", "base", 1),
        ("/sandbox_templates", "one", 0),
    ] {
        let answer = caller.get(&format!("{list}?name={name}&limit=1")).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.body["pagination"]["total_items"], count, "{list} {name}");
        let data = answer.body["data"].as_array().expect("a list");
        assert!(data.len() == count.min(1) && data.iter().all(|one| one["name"] == name), "{data:?}");
    }
    caller.get("/snapshots?name=one&page=0").await.refused(400, "invalid_request");
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_take_effect_and_replace() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let id = caller.create_sandbox(json!({"metadata": {"a": "b"}})).await;
    let path = format!("/sandboxes/{id}");
    caller.sandbox_reaches(&id, "Ready").await;
    let change = json!({"timeout_seconds": 100, "metadata": {"c": "d"}, "network": {"egress": "deny"}});
    let changed = caller.patch(&path, change).await;
    assert_eq!((changed.status, &changed.body["metadata"]), (200, &json!({"c": "d"})), "{changed:?}");
    assert!(changed.body["expires_at"].is_string());
    let engine = platform.sandboxes.clone();
    caller
        .until("the network", |_| {
            let (engine, id) = (engine.clone(), id.clone());
            async move { json!(engine.spec(&id).expect("a machine").0.network)["egress"] == "deny" }
        })
        .await;
    // Who allows one more host opens no others.
    let allowed = caller.patch(&path, json!({"network": {"allow": ["example.org"]}})).await;
    let rules = json!({"egress": "deny", "allow": ["example.org"], "deny": []});
    assert_eq!((allowed.status, &allowed.body["network"]), (200, &rules));
    let denied = caller.patch(&path, json!({"network": {"deny": ["192.0.2.1"], "allow": []}})).await;
    assert_eq!(denied.body["network"], json!({"egress": "deny", "allow": [], "deny": ["192.0.2.1"]}), "{denied:?}");
    caller.patch(&path, json!({"timeout_seconds": 4})).await.refused(400, "invalid_request");
    assert_eq!(caller.delete(&path).await.status, 202);
    caller.sandbox_reaches(&id, "Deleted").await;
    caller.patch(&path, json!({})).await.refused(404, "sandbox_not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_need_the_scope_and_may_come_in_a_header() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let (good, bad) = (key(caller, "sandbox").await, key(caller, "vm").await);
    assert_eq!(caller.with_token(&good).post("/sandboxes", json!({})).await.status, 201);
    caller.with_token(&bad).get("/sandboxes").await.refused(403, "missing_scope");
    let by_header = async |value: &str| {
        let request = caller.anonymous().request(Method::GET, "/sandboxes").header("x-api-key", value);
        caller.send(request).await
    };
    assert_eq!(by_header(&good).await.status, 200);
    by_header(&bad).await.refused(403, "missing_scope");
    by_header("nonsense").await.refused(401, "unauthorized");
    // An access token is no API key.
    by_header(&caller.token).await.refused(401, "unauthorized");
    let stranger = platform.sign_up("stranger@example.com").await;
    let id = caller.ready_sandbox().await;
    stranger.get(&format!("/sandboxes/{id}")).await.refused(404, "sandbox_not_found");
    stranger.get(&format!("{}/sandboxes/{id}", caller.project)).await.refused(404, "project_not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn creations_are_replayed() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let id = caller.ready_sandbox().await;
    let fork = format!("/sandboxes/{id}/fork");
    let snapshots = format!("/sandboxes/{id}/snapshots");
    for (path, body) in [("/sandboxes", json!({})), (&*fork, json!({"count": 2})), (&*snapshots, json!({"name": "s"}))]
    {
        let post = async |body: &Value| {
            caller.send(caller.request(Method::POST, path).header("idempotency-key", "k").json(body)).await
        };
        let (first, second) = (post(&body).await, post(&body).await);
        assert_eq!((first.status, second.status, &first.body), (201, 201, &second.body), "{path}");
        assert_eq!(second.header("idempotent-replayed"), Some("true"));
        assert_eq!(first.header("location"), second.header("location"));
        post(&json!({"name": "other"})).await.refused(422, "idempotency_mismatch");
    }
    assert_eq!(caller.get("/sandboxes").await.body["pagination"]["total_items"], 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn quota_capacity_and_projects_that_hold_something() {
    let platform = Platform::start().await;
    let admin = &platform.admin;
    let owner = platform.sign_up("owner@example.com").await;
    let (org, project) = owner.project.split_once("/projects/").expect("a project");
    let org = org.rsplit('/').next().expect("an id").to_owned();
    let quota = format!("/api/v1/admin/projects/{project}/quota");
    let put = admin.send(admin.request(Method::PUT, &quota).json(&json!({"sandboxes": 3}))).await;
    assert_eq!(put.status, 200, "{put:?}");
    let id = owner.ready_sandbox().await;
    owner.post(&format!("/sandboxes/{id}/fork"), json!({"count": 3})).await.refused(403, "quota_exceeded");
    assert_eq!(owner.post(&format!("/sandboxes/{id}/fork"), json!({"count": 2})).await.status, 201);
    owner.post("/sandboxes", json!({})).await.refused(403, "quota_exceeded");
    assert_eq!(owner.get("/quota").await.body["sandboxes"], json!({"used": 3, "limit": 3}));
    let usage = admin.get("/api/v1/admin/usage").await.body;
    assert_eq!((&usage["data"][0]["org_id"], &usage["data"][0]["sandboxes"]), (&json!(org), &json!(3)), "{usage}");
    owner.delete(&owner.project).await.refused(409, "conflict");
    platform.sandboxes.set_capacity(|c| c.memory_mb = 128);
    let full = admin.create_sandbox(json!({})).await;
    let failed = admin.sandbox_reaches(&full, "Failed").await;
    assert!(failed["message"].as_str().is_some_and(|m| m.starts_with("insufficient_capacity:")), "{failed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn templates() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let body =
        json!({"name": "mine", "image": "debian:12", "vcpu": 2, "memory_mb": 256, "disk_gb": 5, "env": {"A": "b"}});
    let made = caller.post("/sandbox_templates", body.clone()).await;
    assert_eq!((made.status, &made.body["status"]), (201, &json!("pending")), "{made:?}");
    // Whoever is made of it waits for it.
    let id = caller.create_sandbox(json!({"template_id": "mine"})).await;
    let ready = caller.sandbox_reaches(&id, "Ready").await;
    assert_eq!((&ready["vcpu"], &ready["template_id"]), (&json!(2), &made.body["id"]));
    assert_eq!(platform.sandboxes.spec(&id).expect("a machine").0.env.len(), 2);
    caller.post("/sandbox_templates", body).await.refused(409, "template_exists");
    assert_eq!(caller.get("/sandbox_templates").await.body["pagination"]["total_items"], 2);
    caller.delete("/sandbox_templates/base").await.refused(403, "forbidden");
    assert_eq!(caller.delete("/sandbox_templates/mine").await.status, 204);
    caller.get("/sandbox_templates/mine").await.refused(404, "template_not_found");
    let stranger = platform.sign_up("stranger@example.com").await;
    let theirs = made.body["id"].as_str().expect("an id");
    stranger.get(&format!("/sandbox_templates/{theirs}")).await.refused(404, "template_not_found");
    assert_eq!(stranger.get("/sandbox_templates/base").await.status, 200);
    platform.sandboxes.refuse("build_template", permanent("no such image"));
    let body = json!({"name": "bad", "dockerfile": "FROM x", "vcpu": 1, "memory_mb": 128, "disk_gb": 1});
    assert_eq!(caller.post("/sandbox_templates", body).await.status, 201);
    let waiting = caller.post("/sandboxes", json!({"template_id": "bad"})).await;
    if waiting.status == 201 {
        let failed = caller.sandbox_reaches(&waiting.id(), "Failed").await;
        assert!(failed["message"].as_str().is_some_and(|m| m.contains("no such image")), "{failed}");
    } else {
        waiting.refused(409, "conflict");
    }
}

fn permanent(text: &str) -> berth_host::EngineError {
    berth_host::EngineError::Permanent(text.into())
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_have_one_point_for_each_step() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let id = caller.ready_sandbox().await;
    let answer = caller.get(&format!("/sandboxes/{id}/metrics?window=1m&resolution=5s")).await;
    assert_eq!((answer.status, &answer.body["window"], &answer.body["resolution"]), (200, &json!("60s"), &json!("5s")));
    for series in ["cpu_percent", "memory_bytes", "disk_bytes", "network_rx_bytes", "network_tx_bytes", "processes"] {
        assert_eq!(answer.body["series"][series].as_array().map(Vec::len), Some(12), "{series}");
    }
    for bad in ["window=31d", "window=30d&resolution=5s", "resolution=4s", "window=1x", "window=5s&resolution=10s"] {
        caller.get(&format!("/sandboxes/{id}/metrics?{bad}")).await.refused(400, "invalid_request");
    }
    caller
        .until("a sample", |c| {
            let path = format!("/sandboxes/{id}/metrics?window=1m&resolution=5s");
            async move {
                let points = c.get(&path).await.body["series"]["memory_bytes"].clone();
                points.as_array().expect("a list").iter().any(|point| point[1] == 1 << 20)
            }
        })
        .await;
}
