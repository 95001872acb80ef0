//! Administration of the platform: suspensions, quotas, limits of requests, keys that sign.

use berth_testkit::{Caller, Platform, vm};
use serde_json::{Value, json};

use super::quota::limits_for_tiny_vms;

const PASSWORD: &str = "a quiet harbour at night";

async fn ids(caller: &Caller) -> (String, String) {
    let project = caller.get("").await.body;
    (project["org_id"].as_str().expect("an id").to_owned(), project["id"].as_str().expect("an id").to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspended_organization_is_refused_and_its_machines_stop() {
    let platform = Platform::start().await;
    let ada = platform.sign_up("ada@example.com").await;
    let id = ada.running_vm("web").await;
    let sandbox = ada.ready_sandbox().await;
    let made = ada.post("/api_keys", json!({"name": "ci", "scopes": ["vm"]})).await;
    let by_key = ada.with_token(made.body["key"].as_str().expect("a key"));
    assert_eq!(by_key.get("/vms").await.status, 200);
    let (org, _) = ids(&ada).await;
    let path = format!("/api/v1/admin/orgs/{org}/suspend");
    ada.act(&path).await.refused(403, "forbidden");
    let suspended = platform.admin.post(&path, json!({"reason": "abuse"})).await;
    assert_eq!(suspended.status, 200, "{suspended:?}");
    for caller in [&ada, &by_key] {
        caller.get("/vms").await.refused(403, "organization_suspended");
        caller.post("/vms", vm("other")).await.refused(403, "organization_suspended");
    }
    ada.get(&format!("/api/v1/orgs/{org}")).await.refused(403, "organization_suspended");
    assert_eq!(ada.get("/api/v1/users/me").await.status, 200);
    let run = || (platform.engine.counts().0, platform.sandboxes.counts().0);
    platform.admin.until("no machine", |_| async { run() == (0, 0) }).await;
    assert_eq!(platform.admin.act(&format!("/api/v1/admin/orgs/{org}/unsuspend")).await.status, 200);
    // Its machines wait for somebody to start them.
    assert_eq!(ada.reaches(&id, "stopped").await["status"], "stopped");
    ada.sandbox_reaches(&sandbox, "Paused").await;
    assert_eq!(by_key.act(&format!("/vms/{id}/start")).await.status, 202);
    ada.reaches(&id, "running").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspended_person_gets_nowhere() {
    let platform = Platform::start().await;
    let ada = platform.sign_up("ada@example.com").await;
    ada.running_vm("web").await;
    let id = ada.get("/api/v1/users/me").await.id();
    let admin = &platform.admin;
    let suspend = async |verb: &str| admin.act(&format!("/api/v1/admin/users/{id}/{verb}")).await;
    assert_eq!(suspend("suspend").await.status, 200);
    ada.get("/vms").await.refused(403, "user_suspended");
    ada.get("/api/v1/users/me").await.refused(403, "user_suspended");
    let login = json!({"email": "ada@example.com", "password": PASSWORD});
    ada.anonymous().post("/api/v1/auth/login", login.clone()).await.refused(403, "user_suspended");
    let refresh = json!({"refresh_token": ada.refresh_token});
    ada.anonymous().post("/api/v1/auth/refresh", refresh).await.refused(403, "user_suspended");
    let wrong = json!({"email": "ada@example.com", "password": "wrong"});
    ada.anonymous().post("/api/v1/auth/login", wrong).await.refused(401, "invalid_credentials");
    // Nobody else owns the organization, so its machines stop.
    admin.until("no machine", |_| async { platform.engine.counts().0 == 0 }).await;
    let listed = admin.get("/api/v1/admin/users?email=ADA@").await.body;
    assert_eq!(listed["pagination"]["total_items"], 1);
    assert!(listed["data"][0]["suspended_at"].is_string());
    assert_eq!(suspend("unsuspend").await.body["suspended_at"], Value::Null);
    assert_eq!(ada.get("/vms").await.status, 200);
    let own = admin.get("/api/v1/users/me").await.id();
    admin.act(&format!("/api/v1/admin/users/{own}/suspend")).await.refused(409, "conflict");
    admin.act(&format!("/api/v1/admin/users/{}/suspend", uuid::Uuid::now_v7())).await.refused(404, "not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_bounds_what_is_made() {
    let platform = Platform::start().await;
    let ada = platform.sign_up("ada@example.com").await;
    let (_, project) = ids(&ada).await;
    let path = format!("/api/v1/admin/projects/{project}/quota");
    let set = async |caller: &Caller, limits: Value| {
        caller.send(caller.request(reqwest::Method::PUT, &path).json(&limits)).await
    };
    set(&ada, json!({"vms": 100})).await.refused(403, "forbidden");
    set(&platform.admin, json!({"vms": -1})).await.refused(400, "invalid_request");
    for (limits, allowed) in limits_for_tiny_vms() {
        let answer = set(&platform.admin, limits.clone()).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let made = ada.post("/vms", vm("web")).await;
        if allowed {
            assert_eq!(made.status, 201, "{limits}: {made:?}");
        } else {
            made.refused(403, "quota_exceeded");
        }
    }
    let quota = ada.get("/quota").await.body;
    assert_eq!((&quota["vms"]["used"], &quota["vms"]["limit"]), (&json!(5), &Value::Null));
    assert_eq!((&quota["disk_gb"]["used"], &quota["disk_gb"]["limit"]), (&json!(100), &json!(100)));
    let disk = json!({"name": "d", "type": "block", "size_gb": 10, "region_id": "local"});
    ada.post("/disks", disk.clone()).await.refused(403, "quota_exceeded");
    set(&platform.admin, json!({"disk_gb": 110})).await;
    assert_eq!(ada.post("/disks", disk).await.status, 201);
    let unknown = format!("/api/v1/admin/projects/{}/quota", uuid::Uuid::now_v7());
    platform.admin.get(&unknown).await.refused(404, "project_not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_of_models_are_set_and_shown() {
    let platform = Platform::start().await;
    let ada = platform.sign_up("ada@example.com").await;
    let (_, project) = ids(&ada).await;
    let path = format!("/api/v1/admin/projects/{project}/quota");
    let admin = &platform.admin;
    let set = async |limits: Value| admin.send(admin.request(reqwest::Method::PUT, &path).json(&limits)).await;
    let shown = async || {
        let (limits, quota) = (admin.get(&path).await.body, ada.get("/quota").await.body);
        for name in ["tokens_per_minute", "spend_per_month"] {
            assert_eq!(limits[name], quota[name]);
        }
        (limits["tokens_per_minute"].as_i64(), limits["spend_per_month"].as_i64())
    };
    assert_eq!(shown().await, (None, None));
    assert_eq!(set(json!({"tokens_per_minute": 1_000_000_000, "spend_per_month": 0})).await.status, 200);
    assert_eq!(shown().await, (Some(1_000_000_000), Some(0)));
    for name in ["tokens_per_minute", "spend_per_month"] {
        for bad in [json!(-1), json!(1_000_000_001), json!(1.5), json!("1")] {
            set(json!({name: bad})).await.refused(400, "invalid_request");
        }
    }
    assert_eq!(set(json!({"vms": 1})).await.status, 200);
    assert_eq!(shown().await, (None, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_creations_at_once_the_quota_holds() {
    let platform = Platform::start().await;
    let ada = platform.sign_up("ada@example.com").await;
    let (_, project) = ids(&ada).await;
    let request = platform.admin.request(reqwest::Method::PUT, &format!("/api/v1/admin/projects/{project}/quota"));
    platform.admin.send(request.json(&json!({"vms": 3}))).await;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..12 {
        let ada = ada.clone();
        tasks.spawn(async move { ada.post("/vms", vm("web")).await.status });
    }
    let statuses = tasks.join_all().await;
    assert_eq!(statuses.iter().filter(|s| **s == 201).count(), 3, "{statuses:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_a_project_are_limited_and_told() {
    let platform = Platform::start().await;
    let ada = platform.sign_up("ada@example.com").await;
    assert_eq!(ada.get("/vms").await.header("ratelimit"), None, "nothing is limited unless somebody says so");
    let (_, project) = ids(&ada).await;
    let request = platform.admin.request(reqwest::Method::PUT, &format!("/api/v1/admin/projects/{project}/quota"));
    platform.admin.send(request.json(&json!({"requests_per_minute": 1}))).await;
    let answer = ada.get("/vms").await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("ratelimit-policy"), Some("\"project\";q=1;w=60"));
    assert!(answer.header("ratelimit").is_some_and(|h| h.starts_with("\"project\";r=0;t=")), "{answer:?}");
    let refused = ada.get("/vms").await;
    refused.refused(429, "rate_limited");
    assert!(refused.header("retry-after").is_some_and(|s| s.parse::<u32>().is_ok_and(|s| (1..=60).contains(&s))));
    assert_eq!(ada.get("/api/v1/users/me").await.status, 200, "the person is not limited");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_a_person_are_limited_over_all_sessions() {
    let platform = Platform::start_with(|c| c.identity.requests_per_minute_per_credential = 10).await;
    let ada = platform.sign_up("ada@example.com").await;
    let other = Caller::login(&ada.base, "ada@example.com", PASSWORD).await;
    let mut refused = 0;
    // On a slow machine some of the minute's worth comes back meanwhile.
    for session in [&ada, &other].into_iter().cycle().take(30) {
        refused += usize::from(session.get("/api/v1/users/me").await.status == 429);
    }
    // Each session alone would have been let in eight times.
    assert!((15..=26).contains(&refused), "{refused}: four were used to sign in");
    assert_eq!(platform.admin.get("/api/v1/users/me").await.status, 200, "another person has their own");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_key_signs_and_the_old_one_s_tokens_stay() {
    let platform = Platform::start().await;
    let ada = platform.sign_up("ada@example.com").await;
    ada.act("/api/v1/admin/signing_keys").await.refused(403, "forbidden");
    let made = platform.admin.act("/api/v1/admin/signing_keys").await;
    assert_eq!(made.status, 201, "{made:?}");
    let keys = ada.anonymous().get("/.well-known/jwks.json").await.body;
    assert_eq!((keys["keys"].as_array().map(Vec::len), &keys["keys"][0]["kid"]), (Some(2), &made.body["kid"]));
    assert_eq!(ada.get("/vms").await.status, 200);
    let again = Caller::login(&ada.base, "ada@example.com", PASSWORD).await;
    let header = jsonwebtoken::decode_header(&again.token).expect("a header");
    assert_eq!(Some(header.kid.as_deref()), Some(made.body["kid"].as_str()));
    // Whatever the clock was once set to, the key that was made last signs.
    platform.advance(7200);
    assert_eq!(platform.admin.act("/api/v1/admin/signing_keys").await.status, 201);
    platform.advance(-7200);
    let last = platform.admin.act("/api/v1/admin/signing_keys").await;
    let token = Caller::login(&ada.base, "ada@example.com", PASSWORD).await.token;
    let header = jsonwebtoken::decode_header(&token).expect("a header");
    assert_eq!(header.kid.as_deref(), last.body["kid"].as_str(), "{last:?}");
    // After a restart both are known still.
    let platform = platform.restart().await;
    let there = |caller: &Caller| caller.at(&platform.admin.base);
    assert_eq!((there(&ada).get("/vms").await.status, there(&again).get("/vms").await.status), (200, 200));
}

#[tokio::test(flavor = "multi_thread")]
async fn administrators_see_who_has_what() {
    let platform = Platform::start().await;
    let ada = platform.sign_up("ada@example.com").await;
    ada.running_vm("web").await;
    let disk = json!({"name": "d", "type": "block", "size_gb": 10, "region_id": "local"});
    assert_eq!(platform.admin.post("/disks", disk).await.status, 201);
    let usage = platform.admin.get("/api/v1/admin/usage").await.body;
    assert_eq!(usage["pagination"]["total_items"], 2);
    let (org, project) = ids(&ada).await;
    let first = &usage["data"][0];
    assert_eq!((first["org_id"].as_str(), first["project_id"].as_str()), (Some(org.as_str()), Some(project.as_str())));
    let counts = ["vms", "running", "vcpu", "memory_mb", "disks", "disk_gb"].map(|key| first[key].as_i64());
    assert_eq!(counts, [1, 1, 1, 512, 1, 20].map(Some));
    assert_eq!((&usage["data"][1]["vms"], &usage["data"][1]["disk_gb"]), (&json!(0), &json!(10)));
    assert_eq!(platform.admin.get("/api/v1/admin/orgs").await.body["pagination"]["total_items"], 2);
}
