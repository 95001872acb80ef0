//! API keys: their form, what they are good for, and their end.

use berth_testkit::{Answer, Caller, Platform, vm};
use serde_json::{Value, json};

async fn make(caller: &Caller, body: Value) -> Answer {
    caller.post("/api_keys", body).await
}

async fn key(caller: &Caller, scopes: &[&str]) -> (String, Caller) {
    let made = make(caller, json!({"name": "ci", "scopes": scopes})).await;
    assert_eq!(made.status, 201, "{made:?}");
    let text = made.body["key"].as_str().expect("a key");
    (made.id(), caller.with_token(text))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_has_its_form_and_is_shown_once() {
    let platform = Platform::start().await;
    let admin = &platform.admin;
    let made = make(admin, json!({"name": "ci", "scopes": ["vm", "sandbox", "vm"]})).await;
    let text = made.body["key"].as_str().expect("a key").to_owned();
    let parts: Vec<_> = text.split('_').collect();
    assert_eq!((parts[0], parts[1].len(), parts[2].len()), ("brt", 12, 49), "{text}");
    assert_eq!(made.body["scopes"], json!(["vm", "sandbox"]));
    assert_eq!(made.header("cache-control"), Some("no-store"));
    let path = format!("/api_keys/{}", made.id());
    for answer in [admin.get(&path).await, admin.get("/api_keys").await] {
        assert_eq!(answer.status, 200);
        assert!(!answer.body.to_string().contains(&text), "{answer:?}");
        assert!(answer.body.to_string().contains(&format!("brt_{}", parts[1])));
    }
    for bad in [
        json!({"scopes": ["vm"]}),
        json!({"name": "x"}),
        json!({"name": "x", "scopes": []}),
        json!({"name": "x", "scopes": ["root"]}),
        json!({"name": "x", "scopes": ["vm"], "expires_at": "tomorrow"}),
        json!({"name": "x", "scopes": ["vm"], "expires_at": "2020-01-01T00:00:00Z"}),
    ] {
        make(admin, bad).await.refused(400, "invalid_request");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_does_not_show_the_key() {
    let platform = Platform::start().await;
    let post = async || {
        let request = platform.admin.request(reqwest::Method::POST, "/api_keys").header("idempotency-key", "one");
        platform.admin.send(request.json(&json!({"name": "ci", "scopes": ["vm"]}))).await
    };
    let (first, second) = (post().await, post().await);
    assert!(first.body["key"].is_string());
    assert_eq!((second.status, second.header("idempotent-replayed")), (201, Some("true")));
    assert_eq!((&second.body["id"], &second.body["key"]), (&first.body["id"], &Value::Null));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_good_for_its_scope_in_its_project() {
    let platform = Platform::start().await;
    let admin = &platform.admin;
    let (_, by_vm) = key(admin, &["vm"]).await;
    let (_, by_inference) = key(admin, &["inference"]).await;
    assert_eq!(by_vm.get("/vms").await.status, 200);
    let id = by_vm.create_vm(vm("web")).await;
    by_vm.reaches(&id, "running").await;
    by_inference.get("/vms").await.refused(401, "unauthorized");
    by_inference.post("/vms", vm("web")).await.refused(401, "unauthorized");
    // Usage, quota and events are for every key; what is on offer, too.
    for path in ["/quota", "/api/v1/regions", "/api/v1/images", "/api/v1/vm_configs", "/api/v1/plans"] {
        assert_eq!(by_inference.get(path).await.status, 200, "{path}");
    }
    // Identity is for people.
    for path in ["/api/v1/users/me", "/api/v1/orgs", "", "/members", "/api_keys", "/api/v1/referrals"] {
        by_vm.get(path).await.refused(401, "unauthorized");
    }
    by_vm.post("/api_keys", json!({"name": "x", "scopes": ["vm"]})).await.refused(401, "unauthorized");
    by_vm.delete("/api/v1/images/micro").await.refused(401, "unauthorized");
    // Another project is as one that does not exist.
    let stranger = platform.sign_up("stranger@example.com").await;
    let missing = by_vm.get("/api/v1/orgs/none/projects/none/vms").await;
    let theirs = by_vm.get(&format!("{}/vms", stranger.project)).await;
    assert_eq!((theirs.status, &theirs.body), (404, &missing.body));
    let sibling = admin.post("/api/v1/orgs/administrator/projects", json!({"name": "Sibling"})).await;
    let path = sibling.header("location").expect("a path").to_owned();
    by_vm.get(&format!("{path}/vms")).await.refused(404, "project_not_found");
    // By its slugs it is the same project.
    assert_eq!(by_vm.get("/api/v1/orgs/administrator/projects/default/vms").await.status, 200);
    // Records name the key.
    let log = admin.get("/api/v1/orgs/administrator/audit_log?action=vm.create").await.body;
    assert_eq!(log["data"][0]["actor_kind"], "api_key");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_ends_at_once() {
    let platform = Platform::start().await;
    let admin = &platform.admin;
    let (id, by_key) = key(admin, &["vm"]).await;
    assert_eq!(by_key.get("/vms").await.status, 200);
    assert_eq!(admin.delete(&format!("/api_keys/{id}")).await.status, 204);
    by_key.get("/vms").await.refused(401, "unauthorized");
    assert_eq!(admin.delete(&format!("/api_keys/{id}")).await.status, 204);
    assert_eq!(admin.get(&format!("/api_keys/{id}")).await.body["status"], "revoked");
    admin.patch(&format!("/api_keys/{id}"), json!({"name": "x"})).await.refused(409, "conflict");
    admin.delete("/api_keys/x").await.refused(400, "invalid_request");
    admin.delete(&format!("/api_keys/{}", uuid::Uuid::now_v7())).await.refused(404, "not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_watches_the_project_hears_of_its_keys() {
    let platform = Platform::start().await;
    let (id, _) = key(&platform.admin, &["vm"]).await;
    platform.admin.delete(&format!("/api_keys/{id}")).await;
    let request = platform.admin.request(reqwest::Method::GET, "/events").header("last-event-id", "0");
    let mut stream = request.send().await.expect("a stream");
    let mut text = String::new();
    while !text.contains("api_key.revoke") {
        text.push_str(&String::from_utf8_lossy(&stream.chunk().await.expect("more").expect("bytes")));
    }
    assert!(text.contains("event: api_key.create") && text.contains(&id), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_changes_and_expires() {
    let platform = Platform::start().await;
    let admin = &platform.admin;
    let (id, by_key) = key(admin, &["vm"]).await;
    assert_eq!(by_key.get("/vms").await.status, 200);
    let path = format!("/api_keys/{id}");
    assert_eq!(admin.patch(&path, json!({"scopes": ["inference"]})).await.body["scopes"], json!(["inference"]));
    by_key.get("/vms").await.refused(401, "unauthorized");
    assert_eq!(admin.patch(&path, json!({"scopes": ["vm"], "name": "other"})).await.body["name"], "other");
    assert_eq!(by_key.get("/vms").await.status, 200);
    let soon = platform.app().clock.now().plus_seconds(100);
    assert_eq!(admin.patch(&path, json!({"expires_at": soon.to_string()})).await.status, 200);
    assert_eq!(by_key.get("/vms").await.status, 200);
    platform.advance(101);
    by_key.get("/vms").await.refused(401, "unauthorized");
    assert_eq!(admin.get(&path).await.body["status"], "expired");
    admin.act(&format!("{path}/rotate")).await.refused(409, "conflict");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotation_has_an_overlap() {
    let platform = Platform::start().await;
    let admin = &platform.admin;
    let (id, old) = key(admin, &["vm"]).await;
    let rotate = async |id: &str, body: Value| admin.post(&format!("/api_keys/{id}/rotate"), body).await;
    rotate(&id, json!({"overlap_seconds": -1})).await.refused(400, "invalid_request");
    rotate(&id, json!({"overlap_seconds": 604_801})).await.refused(400, "invalid_request");
    let made = rotate(&id, json!({"overlap_seconds": 60})).await;
    assert_eq!(made.status, 201, "{made:?}");
    let new = admin.with_token(made.body["key"].as_str().expect("a key"));
    assert_eq!((old.get("/vms").await.status, new.get("/vms").await.status), (200, 200));
    platform.advance(61);
    old.get("/vms").await.refused(401, "unauthorized");
    assert_eq!(new.get("/vms").await.status, 200);
    // Without an overlap the old one ends with the answer.
    let last = admin.act(&format!("/api_keys/{}/rotate", made.id())).await;
    assert_eq!(last.status, 201);
    new.get("/vms").await.refused(401, "unauthorized");
}

#[tokio::test(flavor = "multi_thread")]
async fn uses_are_noted_to_the_minute() {
    let platform = Platform::start().await;
    let admin = platform.admin.clone();
    let (id, by_key) = key(&admin, &["vm"]).await;
    let path = format!("/api_keys/{id}");
    assert_eq!(admin.get(&path).await.body["last_used_at"], Value::Null);
    by_key.get("/vms").await;
    admin
        .until("the note", |c| {
            let path = path.clone();
            async move { c.get(&path).await.body["last_used_at"].is_string() }
        })
        .await;
    let at = admin.get(&path).await.body["last_used_at"].as_str().expect("a time").to_owned();
    assert!(at.ends_with(":00.000000Z"), "{at}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_key_is_refused() {
    let platform = Platform::start().await;
    let (_, by_key) = key(&platform.admin, &["vm"]).await;
    let good = by_key.token.clone();
    let mut wrong = good.clone().into_bytes();
    wrong[20] = if wrong[20] == b'a' { b'b' } else { b'a' };
    let wrong = String::from_utf8(wrong).expect("ASCII");
    for bad in ["brt_", "brt_x_y", wrong.as_str(), &good[..good.len() - 1], &format!("{good}0")] {
        by_key.with_token(bad).get("/vms").await.refused(401, "unauthorized");
    }
    assert_eq!(by_key.get("/vms").await.status, 200);
}

/// On PostgreSQL a service that was taken over from answers for some seconds more; on SQLite the one there is knows at
/// once.
#[tokio::test(flavor = "multi_thread")]
async fn a_revocation_counts_in_every_service_within_a_second() {
    let platform = Platform::start().await;
    let (id, by_key) = key(&platform.admin, &["vm"]).await;
    let other = platform.beside().await;
    assert_eq!(by_key.get("/vms").await.status, 200);
    // What was taken over from writes nothing any more.
    let (by, there) = match &other {
        Some(other) => (&other.admin, by_key.at(&other.admin.base)),
        None => (&platform.admin, by_key.clone()),
    };
    assert_eq!(by.delete(&format!("/api_keys/{id}")).await.status, 204);
    there.get("/vms").await.refused(401, "unauthorized");
    if other.is_some() {
        platform.advance(1);
    }
    by_key.get("/vms").await.refused(401, "unauthorized");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_good_in_its_networks_only() {
    let platform = Platform::start().await;
    let admin = &platform.admin;
    let create =
        async |networks: Value| make(admin, json!({"name": "ci", "scopes": ["vm"], "source_networks": networks})).await;
    for bad in [json!(["10.0.0.1/8"]), json!(["example.org"]), json!("10.0.0.0/8"), json!(vec!["192.0.2.1"; 51])] {
        create(bad).await.refused(400, "invalid_request");
    }
    assert_eq!(create(json!(vec!["192.0.2.1"; 50])).await.status, 201);
    let made = create(json!(["198.51.100.0/24", "2001:db8::1"])).await;
    assert_eq!(made.body["source_networks"], json!(["198.51.100.0/24", "2001:db8::1"]));
    let by_key = admin.with_token(made.body["key"].as_str().expect("a key"));
    let path = format!("/api_keys/{}", made.id());
    by_key.get("/vms").await.refused(403, "address_not_allowed");
    assert_eq!(admin.get(&path).await.body["last_used_at"], Value::Null, "what is refused is no use");
    for (networks, status) in [(json!(["127.0.0.0/8"]), 200), (json!(["127.0.0.2"]), 403), (json!([]), 200)] {
        assert_eq!(admin.patch(&path, json!({"source_networks": networks})).await.status, 200);
        assert_eq!(by_key.get("/vms").await.status, status);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_shows_whose_it_is_and_where_it_was_used() {
    let platform = Platform::start().await;
    let admin = &platform.admin;
    let (id, by_key) = key(admin, &["vm"]).await;
    let path = format!("/api_keys/{id}");
    let shown = admin.get(&path).await.body;
    let me = admin.get("/api/v1/users/me").await.id();
    assert_eq!(shown["owner"], json!({"id": me, "email": "admin@example.com"}));
    assert_eq!((&shown["created_by"], &shown["last_used_address"]), (&json!(me), &Value::Null));
    by_key.get("/vms").await;
    admin
        .until("the note", |c| {
            let path = path.clone();
            async move { c.get(&path).await.body["last_used_address"] == "127.0.0.1" }
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_organization_says_how_long_its_keys_live() {
    let platform = Platform::start().await;
    let admin = &platform.admin;
    let (old, _) = key(admin, &["vm"]).await;
    let set = async |seconds: Value| admin.patch(admin.org(), json!({"max_key_seconds": seconds})).await;
    for bad in [json!(-1), json!(315_360_001), json!("x")] {
        set(bad).await.refused(400, "invalid_request");
    }
    assert_eq!(set(json!(3600)).await.body["max_key_seconds"], 3600);
    let at = |seconds: i64| platform.app().clock.now().plus_seconds(seconds).to_string();
    let body = |end: Value| json!({"name": "ci", "scopes": ["vm"], "expires_at": end});
    for beyond in [Value::Null, json!(at(3700))] {
        let refused = make(admin, body(beyond)).await;
        refused.refused(400, "invalid_request");
        assert!(refused.names("expires_at"), "{refused:?}");
    }
    let made = make(admin, body(json!(at(3500)))).await;
    assert_eq!((made.status, &made.body["exceeds_max_life"]), (201, &json!(false)), "{made:?}");
    let path = format!("/api_keys/{}", made.id());
    assert!(admin.patch(&path, json!({"expires_at": at(3700)})).await.names("expires_at"));
    assert_eq!(admin.patch(&path, json!({"expires_at": at(3400)})).await.status, 200);
    // What was there goes on and is told; its successor lives as long as a new one.
    let shown = admin.get(&format!("/api_keys/{old}")).await.body;
    assert_eq!((&shown["status"], &shown["exceeds_max_life"]), (&json!("active"), &json!(true)));
    let next = admin.act(&format!("/api_keys/{old}/rotate")).await;
    assert!(next.status == 201 && next.body["expires_at"].is_string() && next.body["exceeds_max_life"] == false);
    assert_eq!(set(json!(0)).await.body["max_key_seconds"], Value::Null);
    assert_eq!(make(admin, body(Value::Null)).await.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_asks_what_it_is() {
    let platform = Platform::start().await;
    let admin = &platform.admin;
    let (id, by_key) = key(admin, &["sandbox"]).await;
    let project = admin.get("").await.body;
    let told = by_key.get("/api/v1/key").await;
    assert_eq!(told.status, 200, "{told:?}");
    assert_eq!((told.id(), &told.body["scopes"]), (id, &json!(["sandbox"])));
    assert_eq!(told.body["project"]["id"], project["id"]);
    assert_eq!(told.body["organization"]["slug"], "administrator");
    admin.get("/api/v1/key").await.refused(403, "forbidden");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_taken_in_a_header_of_its_own_and_refused_as_a_key() {
    let platform = Platform::start().await;
    let admin = &platform.admin;
    let ask = async |by: &Caller, path: &str| {
        let request = by.anonymous().request(reqwest::Method::GET, path).header("x-api-key", by.token());
        by.send(request).await
    };
    let (_, by_key) = key(admin, &["vm", "sandbox", "inference"]).await;
    for path in ["/vms", "/sandboxes", "/quota", "/api/v1/images", "/api/v1/key", "/v1/models"] {
        assert_eq!(ask(&by_key, path).await.status, 200, "{path}");
    }
    ask(admin, "/vms").await.refused(401, "unauthorized");
    let (_, narrow) = key(admin, &["sandbox"]).await;
    let refused = narrow.get("/vms").await;
    refused.refused(401, "unauthorized");
    assert!(refused.body["message"].as_str().is_some_and(|m| m.contains("lacks the scope 'vm'")), "{refused:?}");
    let refused = narrow.get("/api/v1/orgs").await;
    refused.refused(401, "unauthorized");
    assert!(refused.body["message"].as_str().is_some_and(|m| m.contains("API key")), "{refused:?}");
}
