//! What is recorded of attacks and of administrators, and how administrators read it.

use std::collections::BTreeSet;

use berth_server::db::sql;
use berth_testkit::{Answer, Caller, Platform, token_in, vm};
use serde_json::{Value, json};

const LOG: &str = "/api/v1/admin/audit";

async fn records(admin: &Caller, query: &str) -> Vec<Value> {
    let answer = admin.get(&format!("{LOG}?{query}")).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.body["data"].as_array().expect("a list").clone()
}

async fn login(caller: &Caller, email: &str, password: &str) -> Answer {
    caller.anonymous().post("/api/v1/auth/login", json!({"email": email, "password": password})).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_is_recorded_with_where_it_came_from() {
    let platform = Platform::start().await;
    let ada = platform.sign_up("ada@example.com").await;
    let id = ada.get("/api/v1/users/me").await.id();
    login(&ada, "ada@example.com", "wrong").await.refused(401, "invalid_credentials");
    login(&ada, "nobody@example.com", "wrong").await.refused(401, "invalid_credentials");
    let found = records(&platform.admin, "action=user.login_failed").await;
    assert_eq!(found.len(), 2);
    assert_eq!(
        (found[1]["subject"].as_str(), &found[1]["data"]["email"]),
        (Some(id.as_str()), &json!("ada@example.com"))
    );
    assert_eq!(found[0]["data"]["email"], "nobody@example.com");
    for record in &found {
        assert_eq!((&record["actor_kind"], &record["org_id"]), (&json!("anonymous"), &Value::Null));
        assert_eq!(record["data"]["address"], "127.0.0.1");
        assert_eq!(record["data"]["reason"], "credentials");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_after_wrong_passwords_is_recorded() {
    let platform = Platform::start_with(|config| config.identity.login_failures_before_backoff = 2).await;
    let ada = platform.sign_up("ada@example.com").await;
    login(&ada, "ada@example.com", "wrong").await.refused(401, "invalid_credentials");
    assert_eq!(records(&platform.admin, "action=user.locked_out").await.len(), 0);
    login(&ada, "ada@example.com", "wrong").await.refused(401, "invalid_credentials");
    let found = records(&platform.admin, "action=user.locked_out").await;
    assert_eq!(found.len(), 1);
    assert!(found[0]["data"]["wait_seconds"].as_u64().is_some_and(|seconds| seconds >= 1), "{found:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_key_is_recorded_once_a_minute_and_seen_by_its_organization() {
    let platform = Platform::start().await;
    let ada = platform.sign_up("ada@example.com").await;
    let made = ada.post("/api_keys", json!({"name": "ci", "scopes": ["vm"]})).await;
    let by_key = ada.with_token(made.body["key"].as_str().expect("a key"));
    assert_eq!(ada.delete(&format!("/api_keys/{}", made.id())).await.status, 204);
    // At the beginning of a minute, so that none turns in between.
    let seconds = platform.app().clock.now().seconds();
    platform.advance(60 - seconds.rem_euclid(60));
    for _ in 0..3 {
        by_key.get("/vms").await.refused(401, "unauthorized");
    }
    let own = ada.get(&format!("{}/audit_log?action=api_key.refused", ada.org())).await.body;
    assert_eq!(own["pagination"]["total_items"], 1, "{own}");
    let record = &own["data"][0];
    assert_eq!((record["subject"].as_str(), &record["data"]["reason"]), (made.body["id"].as_str(), &json!("revoked")));
    assert_eq!((&record["data"]["name"], &record["data"]["address"]), (&json!("ci"), &json!("127.0.0.1")));
    platform.advance(60);
    by_key.get("/vms").await.refused(401, "unauthorized");
    assert_eq!(records(&platform.admin, "action=api_key.refused").await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn administrators_see_what_belongs_to_no_organization_and_filter_it() {
    let platform = Platform::start().await;
    let admin = &platform.admin;
    let ada = platform.sign_up("ada@example.com").await;
    ada.running_vm("web").await;
    let id = ada.get("/api/v1/users/me").await.id();
    assert_eq!(admin.act(&format!("/api/v1/admin/users/{id}/suspend")).await.status, 200);
    // What is stopped for that is recorded a moment later.
    let stopped = |admin: Caller| async move { records(&admin, "action=vm.stop").await.len() == 1 };
    admin.until("the VM's stop", stopped).await;
    let signed_in = records(admin, &format!("action=user.login&subject={id}")).await;
    assert_eq!((signed_in.len(), &signed_in[0]["org_id"]), (1, &Value::Null));
    assert_eq!(signed_in[0]["actor_name"], "ada@example.com");
    let suspended = records(admin, "action=user.suspend").await;
    assert_eq!((suspended.len(), &suspended[0]["subject_name"]), (1, &json!("ada@example.com")));
    assert_eq!(suspended[0]["data"]["address"], "127.0.0.1");
    let (org, project) = (ada.project.split('/').nth(4).expect("an id"), ada.project_id());
    let of_project = records(admin, &format!("org_id={org}&project_id={project}&action=vm")).await;
    assert!(of_project.iter().all(|record| record["action"].as_str().is_some_and(|action| action.starts_with("vm."))));
    assert!(of_project.iter().any(|record| record["action"] == "vm.create" && record["data"]["name"] == "web"));
    assert!(of_project.iter().all(|record| record["project"] == "default"));
    assert_eq!(records(admin, "action=vm.*").await, of_project);
    assert!(records(admin, "action=v").await.is_empty(), "a noun is whole");
    admin.get(&format!("{LOG}?org_id=x")).await.refused(400, "invalid_request");
    ada.get(LOG).await.refused(403, "user_suspended");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_organization_does_not_learn_the_address_of_the_platform_s_administrator() {
    let platform = Platform::start().await;
    let ada = platform.sign_up("ada@example.com").await;
    let (org, project) = (ada.project.split('/').nth(4).expect("an id"), ada.project_id());
    let set = platform.admin.request(reqwest::Method::PUT, &format!("/api/v1/admin/projects/{project}/quota"));
    assert_eq!(platform.admin.send(set.json(&json!({"vms": 5}))).await.status, 200);
    let own = ada.get(&format!("/api/v1/orgs/{org}/audit_log?action=quota.set")).await.body;
    assert_eq!(own["data"][0]["actor_name"], "an administrator of the platform");
    assert_eq!(records(&platform.admin, "action=quota.set").await[0]["actor_name"], "admin@example.com");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_export_is_every_record_as_a_line() {
    let platform = Platform::start().await;
    let admin = &platform.admin;
    let mut tx = platform.app().db.begin().await.expect("a transaction");
    // More than one step of the export, some of them of the same microsecond, and none so old that it is removed.
    let begun = platform.app().clock.now().0;
    for number in 0..1_203_i64 {
        sql("INSERT INTO audit (id, action, subject, data, created_at, actor_kind) VALUES ($1, 'test.many', 's', '{}', $2, \
             'platform')")
        .bind(uuid::Uuid::now_v7().to_string())
        .bind(begun + number / 3)
        .execute(&mut tx)
        .await
        .expect("a record");
    }
    tx.commit().await.expect("committed");
    let export = admin.request(reqwest::Method::GET, &format!("{LOG}?action=test.many"));
    let answer = admin.send(export.header("accept", "application/x-ndjson")).await;
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/x-ndjson")));
    let text = answer.body.as_str().expect("lines");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines.len(), 1_203);
    let ids: std::collections::HashSet<_> = lines.iter().map(|line| line["id"].to_string()).collect();
    assert_eq!(ids.len(), 1_203, "each once");
    let times: Vec<_> = lines.iter().map(|line| line["created_at"].as_str().expect("a time").to_owned()).collect();
    assert!(times.is_sorted_by(|a, b| a >= b), "newest first");
    assert_eq!(records(admin, "action=audit.export").await.len(), 1, "taking the log is recorded");
}

#[tokio::test(flavor = "multi_thread")]
async fn old_records_are_removed_and_none_where_that_is_off() {
    for (days, kept) in [(365, 1), (0, 2)] {
        let platform = Platform::start_with(|config| config.audit.retention_days = days).await;
        let now = platform.app().clock.now().0;
        let day = 86_400_000_000_i64;
        let mut tx = platform.app().db.begin().await.expect("a transaction");
        for at in [now - 366 * day, now - 364 * day] {
            sql("INSERT INTO audit (id, action, subject, data, created_at, actor_kind) VALUES ($1, 'test.old', 's', '{}', \
                 $2, 'platform')")
            .bind(uuid::Uuid::now_v7().to_string())
            .bind(at)
            .execute(&mut tx)
            .await
            .expect("a record");
        }
        tx.commit().await.expect("committed");
        // The first thing that housekeeping does is to look at what is old.
        let platform = platform.restart().await;
        let left = |admin: Caller| async move { records(&admin, "action=test.old").await.len() == kept };
        platform.admin.until("housekeeping", left).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn records_name_what_was_done_to() {
    let platform = Platform::start().await;
    let ada = platform.sign_up("ada@example.com").await;
    let made = ada.post("/api/v1/orgs", json!({"name": "Acme", "slug": "acme"})).await;
    assert_eq!(made.status, 201, "{made:?}");
    assert_eq!(ada.post("/api/v1/orgs/acme/projects", json!({"name": "Web Site", "slug": "web"})).await.status, 201);
    let project = ada.in_project("/api/v1/orgs/acme/projects/web");
    let id = project.create_vm(vm("one")).await;
    project.reaches(&id, "running").await;
    assert_eq!(project.act(&format!("/vms/{id}/stop")).await.status, 202);
    let named = async |action: &str| {
        let log = ada.get(&format!("/api/v1/orgs/acme/audit_log?action={action}")).await.body;
        log["data"][0]["data"]["name"].as_str().map(str::to_owned)
    };
    for (action, name) in
        [("org.create", "Acme"), ("project.create", "Web Site"), ("vm.create", "one"), ("vm.stop", "one")]
    {
        assert_eq!(named(action).await.as_deref(), Some(name), "{action}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn so_many_records_of_refusals_are_kept_the_newest() {
    let platform = Platform::start_with(|config| config.audit.refusals = 2).await;
    let now = platform.app().clock.now().0;
    let mut tx = platform.app().db.begin().await.expect("a transaction");
    for (action, age) in [
        ("test.old", 9),
        ("refusals.more", 9),
        ("api_key.refused", 8),
        ("user.locked_out", 7),
        ("user.login_failed", 6),
        ("api_key.refused", 5),
    ] {
        sql("INSERT INTO audit (id, action, subject, data, created_at, actor_kind) VALUES ($1, $2, $3, '{}', $4, \
             'platform')")
        .bind(uuid::Uuid::now_v7().to_string())
        .bind(action)
        .bind(format!("age {age}"))
        .bind(now - age * 1_000_000)
        .execute(&mut tx)
        .await
        .expect("a record");
    }
    tx.commit().await.expect("committed");
    let platform = platform.restart().await;
    let of = async |action: &str| {
        let found = records(&platform.admin, &format!("action={action}")).await;
        found.iter().map(|record| record["subject"].as_str().expect("a subject").to_owned()).collect::<Vec<_>>()
    };
    platform.admin.until("housekeeping", |_| async { of("user.locked_out").await.is_empty() }).await;
    assert!(of("refusals.more").await.is_empty(), "what strangers cause is bounded, this too");
    assert_eq!(of("api_key.refused").await, ["age 5"]);
    assert_eq!(of("user.login_failed").await, ["age 6"]);
    assert_eq!(of("test.old").await, ["age 9"], "what people do is kept by its age alone");
}

/// What an administrator does: a route of the document, what stands for its parameter, the body, and the action by which
/// it is recorded.
type Deed = (&'static str, &'static str, String, Value, &'static str);

/// Does it, and finds the one record of it; the answer.
async fn does(admin: &Caller, (method, route, id, body, action): &Deed) -> Answer {
    let written = async || records(admin, &format!("action={action}")).await;
    let before = written().await.len();
    let path = match (route.split_once('{'), route.split_once('}')) {
        (Some((start, _)), Some((_, end))) => format!("{start}{id}{end}"),
        _ => (*route).to_owned(),
    };
    let request = admin.request(method.parse().expect("a method"), &path);
    let answer = match body {
        Value::Null => admin.send(request).await,
        Value::String(bytes) => admin.send(request.body(bytes.clone())).await,
        body => admin.send(request.json(body)).await,
    };
    assert!((200..300).contains(&answer.status), "{method} {path}: {answer:?}");
    let after = written().await;
    assert_eq!(after.len(), before + 1, "{method} {path} is recorded as {action}, once");
    let made = answer.body["id"].as_str().or(answer.body["kid"].as_str());
    let subject = if id.is_empty() { made.expect("a name") } else { id };
    let record = &after[0];
    assert_eq!((record["subject"].as_str(), &record["actor_name"]), (Some(subject), &json!("admin@example.com")));
    answer
}

/// A referral that can be rewarded.
async fn referral(platform: &Platform, ada: &Caller) -> String {
    let code = ada.get("/api/v1/referrals/code").await.body["code"].clone();
    let body = json!({"email": "eve@example.com", "password": "a quiet harbour at night", "referral_code": code});
    assert_eq!(ada.anonymous().post("/api/v1/auth/signup", body).await.status, 201);
    let token = token_in(&platform.message("eve@example.com", 1).await);
    assert_eq!(ada.anonymous().post("/api/v1/auth/email/verify", json!({"token": token})).await.status, 204);
    let found = platform.admin.get("/api/v1/admin/referrals?status=qualified").await.body;
    found["data"][0]["id"].as_str().expect("an id").to_owned()
}

/// Everything that an administrator does to what others have, and to what the platform has.
async fn deeds(platform: &Platform) -> Vec<Deed> {
    let ada = platform.sign_up("ada@example.com").await;
    let none = String::new;
    let (machine, sandbox, referral) =
        (ada.running_vm("web").await, ada.ready_sandbox().await, referral(platform, &ada).await);
    let (org, project) = (ada.org().rsplit('/').next().expect("an id").to_owned(), ada.project_id().to_owned());
    let empty = ada.another_project("empty").await.project_id().to_owned();
    let model = json!({"id": "mine", "upstreams": [{"url": "http://127.0.0.1:9/v1"}]});
    let (models, voices) = ("/api/v1/admin/models/{model_id}", "/api/v1/admin/voices/{voice_id}");
    let image = json!({"id": "far", "url": "http://127.0.0.1:9/disk.qcow2"});
    vec![
        ("POST", "/api/v1/admin/signing_keys", none(), Value::Null, "signing_key.rotate"),
        ("POST", "/api/v1/admin/models", none(), model.clone(), "model.create"),
        ("PUT", models, "mine".into(), model, "model.update"),
        ("DELETE", models, "mine".into(), Value::Null, "model.delete"),
        ("POST", "/api/v1/admin/voices", none(), json!({"id": "robin", "espeak": "en-us+f2"}), "voice.create"),
        ("PATCH", voices, "robin".into(), json!({"espeak": "en-us+f3"}), "voice.update"),
        ("DELETE", voices, "robin".into(), Value::Null, "voice.delete"),
        ("POST", "/api/v1/images", none(), image, "image.import"),
        ("PUT", "/api/v1/images/{image_id}/content", "mine".into(), json!("a disk"), "image.import"),
        ("PATCH", "/api/v1/admin/referrals/{referral_id}", referral, json!({"status": "rewarded"}), "referral.reward"),
        ("PUT", "/api/v1/admin/orgs/{org_id}/quota", org.clone(), json!({"vms": 5}), "org_quota.set"),
        ("PUT", "/api/v1/admin/projects/{project_id}/quota", project, json!({"vms": 5}), "quota.set"),
        ("POST", "/api/v1/admin/vms/{vm_id}/stop", machine.clone(), Value::Null, "vm.stop"),
        ("DELETE", "/api/v1/admin/vms/{vm_id}", machine, Value::Null, "vm.delete"),
        ("POST", "/api/v1/admin/sandboxes/{sandbox_id}/pause", sandbox.clone(), Value::Null, "sandbox.pause"),
        ("DELETE", "/api/v1/admin/sandboxes/{sandbox_id}", sandbox, Value::Null, "sandbox.delete"),
        ("DELETE", "/api/v1/admin/projects/{project_id}", empty, Value::Null, "project.delete"),
        ("POST", "/api/v1/admin/orgs/{org_id}/suspend", org.clone(), json!({"reason": "abuse"}), "org.suspend"),
        ("POST", "/api/v1/admin/orgs/{org_id}/unsuspend", org, Value::Null, "org.unsuspend"),
    ]
}

/// What an administrator does to a person.
fn deeds_to(person: &str) -> Vec<Deed> {
    let (of, of_one) = ("/api/v1/admin/users/{user_id}", || person.to_owned());
    vec![
        ("POST", "/api/v1/admin/users/{user_id}/suspend", of_one(), Value::Null, "user.suspend"),
        ("POST", "/api/v1/admin/users/{user_id}/unsuspend", of_one(), Value::Null, "user.unsuspend"),
        ("PATCH", of, of_one(), json!({"administrator": true}), "user.promote"),
        ("PATCH", of, of_one(), json!({"administrator": false}), "user.demote"),
        ("DELETE", of, of_one(), Value::Null, "user.delete"),
    ]
}

/// What an administrator says of the service's own host, and of others.
async fn deeds_to_host(admin: &Caller) -> Vec<Deed> {
    let hosts = admin.get("/api/v1/admin/hosts").await.body;
    let host = || hosts["data"][0]["id"].as_str().expect("an id").to_owned();
    let name = json!({"name": "north 1"});
    let joins = json!({"name": "north 2", "region_id": "local"});
    let other = || admin.post("/api/v1/admin/hosts", joins.clone());
    let (told, gone) = (other().await.id(), other().await.id());
    vec![
        ("POST", "/api/v1/admin/hosts", String::new(), joins, "host.create"),
        ("POST", "/api/v1/admin/hosts/{host_id}/token", told, Value::Null, "host.token"),
        ("DELETE", "/api/v1/admin/hosts/{host_id}", gone, Value::Null, "host.delete"),
        ("PATCH", "/api/v1/admin/hosts/{host_id}", host(), name, "host.update"),
        ("POST", "/api/v1/admin/hosts/{host_id}/cordon", host(), Value::Null, "host.cordon"),
        ("POST", "/api/v1/admin/hosts/{host_id}/drain", host(), Value::Null, "host.drain"),
        ("POST", "/api/v1/admin/hosts/{host_id}/uncordon", host(), Value::Null, "host.uncordon"),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_that_an_administrator_does_is_recorded() {
    let platform = Platform::start().await;
    let admin = &platform.admin;
    let mut done = BTreeSet::new();
    let mut do_all = async |deeds: Vec<Deed>| {
        let mut last = None;
        for deed in deeds {
            last = Some(does(admin, &deed).await);
            done.insert(format!("{} {}", deed.0, deed.1));
        }
        last.expect("an answer").body["id"].as_str().map(str::to_owned)
    };
    do_all(deeds(&platform).await).await;
    do_all(deeds_to_host(admin).await).await;
    admin.until("the image", |c| async move { c.get("/api/v1/images/mine").await.body["status"] == "ready" }).await;
    do_all(vec![("DELETE", "/api/v1/images/{image_id}", "mine".into(), Value::Null, "image.delete")]).await;
    let bob = json!({"email": "bob@example.com"});
    let bob = do_all(vec![("POST", "/api/v1/admin/users", String::new(), bob, "user.create")]).await;
    do_all(deeds_to(&bob.expect("an id"))).await;
    let document = reqwest::get(format!("{}/openapi.json", admin.base)).await.expect("an answer");
    let document: Value = document.json().await.expect("JSON");
    let paths = document["paths"].as_object().expect("paths");
    let of_administrators = |path: &&String| path.starts_with("/api/v1/admin/") || path.starts_with("/api/v1/images");
    let all = paths.keys().filter(of_administrators).flat_map(|path| {
        let methods =
            ["post", "put", "patch", "delete"].into_iter().filter(|method| paths[path].get(*method).is_some());
        methods.map(move |method| format!("{} {path}", method.to_uppercase()))
    });
    let missing: Vec<_> = all.filter(|operation| !done.contains(operation)).collect();
    assert!(missing.is_empty(), "do these, too, and name the actions by which they are recorded: {missing:?}");
}
