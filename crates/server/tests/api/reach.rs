//! What administrators of the platform see of everybody and do about it.

use berth_host::EngineError;
use berth_server::config::VerifiedEmail;
use berth_testkit::{Caller, Platform, token_in};
use reqwest::Method;
use serde_json::{Value, json};

const PASSWORD: &str = "a quiet harbour at night";

async fn listed(admin: &Caller, path: &str) -> Vec<Value> {
    let answer = admin.get(&format!("/api/v1/admin/{path}")).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.body["data"].as_array().expect("a list").clone()
}

fn ids(list: &[Value]) -> Vec<String> {
    list.iter().map(|one| one["id"].as_str().expect("an id").to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn everybody_s_vms_are_listed_stopped_and_deleted() {
    let platform = Platform::start().await;
    let admin = &platform.admin;
    let (ada, bob) = (platform.sign_up("ada@example.com").await, platform.sign_up("bob@example.com").await);
    let (hers, his) = (ada.running_vm("web").await, bob.running_vm("db").await);
    let all = listed(admin, "vms").await;
    assert_eq!(ids(&all), [his.clone(), hers.clone()], "newest first");
    assert_eq!(
        (&all[1]["org"], &all[1]["project"], &all[1]["name"]),
        (&json!("ada"), &json!("default"), &json!("web"))
    );
    let project = all[1]["project_id"].as_str().expect("an id");
    for query in ["org=ada", "name=web", &format!("project={project}"), "org=ada&project=default&status=running"] {
        let found = ids(&listed(admin, &format!("vms?{query}")).await);
        assert_eq!(found, [hers.as_str()], "{query}");
    }
    assert!(listed(admin, "vms?status=stopped").await.is_empty());
    admin.get("/api/v1/admin/vms?status=sleepy").await.refused(400, "invalid_request");
    assert_eq!(admin.get("/api/v1/admin/vms?limit=1&page=2").await.body["pagination"]["total_pages"], 2);
    ada.act(&format!("/api/v1/admin/vms/{his}/stop")).await.refused(403, "forbidden");
    assert_eq!(admin.act(&format!("/api/v1/admin/vms/{hers}/stop")).await.status, 202);
    let stopped = ada.reaches(&hers, "stopped").await;
    assert_eq!(stopped["message"], "an administrator of the platform stops it");
    // It is the owner's own wish, in the owner's log, by another hand.
    let log = ada.get(&format!("{}/audit_log?action=vm.stop", ada.org())).await.body;
    assert_eq!(log["data"][0]["actor_name"], "an administrator of the platform");
    assert_eq!(ada.act(&format!("/vms/{hers}/start")).await.status, 202);
    ada.reaches(&hers, "running").await;
    platform.engine.refuse("discard", EngineError::Transient("slow".into()));
    for _ in 0..2 {
        let answer = admin.delete(&format!("/api/v1/admin/vms/{hers}")).await;
        assert_eq!(answer.status, 202, "{answer:?}");
    }
    platform.engine.allow("discard");
    platform.advance(30);
    ada.gone(&hers).await;
    admin.delete(&format!("/api/v1/admin/vms/{hers}")).await.refused(404, "vm_not_found");
    assert_eq!(bob.get(&format!("/vms/{his}")).await.body["status"], "running");
}

#[tokio::test(flavor = "multi_thread")]
async fn everybody_s_sandboxes_are_listed_and_deleted() {
    let platform = Platform::start().await;
    let admin = &platform.admin;
    let ada = platform.sign_up("ada@example.com").await;
    let id = ada.ready_sandbox().await;
    let all = listed(admin, "sandboxes?phase=Ready&org=ada").await;
    assert_eq!((ids(&all), &all[0]["project"]), (vec![id.clone()], &json!("default")));
    assert!(listed(admin, "sandboxes?phase=Paused").await.is_empty());
    ada.delete(&format!("/api/v1/admin/sandboxes/{id}")).await.refused(403, "forbidden");
    assert_eq!(admin.delete(&format!("/api/v1/admin/sandboxes/{id}")).await.status, 202);
    ada.until("its end", |c| {
        let path = format!("/sandboxes/{id}");
        async move { c.get(&path).await.status == 404 }
    })
    .await;
    admin.delete(&format!("/api/v1/admin/sandboxes/{id}")).await.refused(404, "sandbox_not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn everybody_s_projects_are_found_by_slug() {
    let platform = Platform::start().await;
    let admin = &platform.admin;
    let ada = platform.sign_up("ada@example.com").await;
    let all = listed(admin, "projects").await;
    assert_eq!(all.len(), 2);
    assert_eq!((&all[0]["org"], &all[0]["slug"]), (&json!("ada"), &json!("default")));
    let own = ada.get("").await.id();
    assert_eq!(ids(&listed(admin, "projects?org=ada&project=default").await), [own]);
    assert!(listed(admin, "projects?org=nobody").await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_administrator_makes_people_with_a_password_or_a_link() {
    let platform = Platform::start_with(|config| config.identity.require_verified_email = VerifiedEmail::SignIn).await;
    let admin = &platform.admin;
    let create = async |body: Value| admin.post("/api/v1/admin/users", body).await;
    let made = create(json!({"email": "ada@example.com", "name": "Ada", "password": PASSWORD})).await;
    assert_eq!((made.status, &made.body["email_verified"]), (201, &json!(true)), "{made:?}");
    assert!(!made.body.to_string().contains(PASSWORD));
    let ada = Caller::login(admin.base(), "ada@example.com", PASSWORD).await;
    assert_eq!(ada.get("/vms").await.status, 200, "a project of her own");
    create(json!({"email": "ADA@example.com"})).await.refused(409, "email_taken");
    create(json!({"email": "x@example.com", "password": "short"})).await.refused(400, "invalid_request");
    create(json!({"name": "Nobody"})).await.refused(400, "invalid_request");
    ada.post("/api/v1/admin/users", json!({"email": "y@example.com"})).await.refused(403, "forbidden");
    let made = create(json!({"email": "bob@example.com", "administrator": true})).await;
    assert_eq!((made.status, &made.body["is_admin"]), (201, &json!(true)), "{made:?}");
    let token = token_in(&platform.message("bob@example.com", 1).await);
    let reset = json!({"token": token, "new_password": PASSWORD});
    assert_eq!(admin.anonymous().post("/api/v1/auth/password/reset", reset).await.status, 204);
    let bob = Caller::login(admin.base(), "bob@example.com", PASSWORD).await;
    assert_eq!(bob.get("/api/v1/admin/users").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn administrators_are_made_and_unmade_but_never_the_last() {
    let platform = Platform::start().await;
    let admin = &platform.admin;
    let ada = platform.sign_up("ada@example.com").await;
    let (own, hers) = (admin.get("/api/v1/users/me").await.id(), ada.get("/api/v1/users/me").await.id());
    let set = async |by: &Caller, id: &str, administrator: Value| {
        let request = by.request(Method::PATCH, &format!("/api/v1/admin/users/{id}"));
        by.send(request.json(&json!({"administrator": administrator}))).await
    };
    set(&ada, &hers, json!(true)).await.refused(403, "forbidden");
    set(admin, &own, json!(false)).await.refused(409, "conflict");
    set(admin, &hers, json!("yes")).await.refused(400, "invalid_request");
    set(admin, &uuid::Uuid::now_v7().to_string(), json!(true)).await.refused(404, "not_found");
    assert_eq!(set(admin, &hers, json!(true)).await.body["is_admin"], true);
    assert_eq!(ada.get("/api/v1/admin/users").await.status, 200, "at once, in the session that is there");
    assert_eq!(set(&ada, &own, json!(false)).await.status, 200);
    admin.get("/api/v1/admin/users").await.refused(403, "forbidden");
    let log = listed(&ada, "audit?action=user").await;
    let actions: Vec<_> = log.iter().map(|record| record["action"].as_str().unwrap_or_default()).collect();
    assert!(actions.contains(&"user.promote") && actions.contains(&"user.demote"), "{actions:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_is_deleted_once_nothing_hangs_on_them() {
    let platform = Platform::start().await;
    let admin = &platform.admin;
    let ada = platform.sign_up("ada@example.com").await;
    let id = ada.get("/api/v1/users/me").await.id();
    let vm = ada.running_vm("web").await;
    let path = format!("/api/v1/admin/users/{id}");
    admin.delete(&path).await.refused(409, "last_owner");
    let own = admin.get("/api/v1/users/me").await.id();
    admin.delete(&format!("/api/v1/admin/users/{own}")).await.refused(409, "conflict");
    assert_eq!(admin.delete(&format!("/api/v1/admin/vms/{vm}")).await.status, 202);
    ada.gone(&vm).await;
    for disk in ada.get("/root_disks").await.body["data"].as_array().expect("a list").clone() {
        let id = disk["id"].as_str().expect("an id").to_owned();
        assert_eq!(ada.delete(&format!("/root_disks/{id}")).await.status, 202);
        ada.until("its end", |c| {
            let path = format!("/root_disks/{id}");
            async move { c.get(&path).await.status == 404 }
        })
        .await;
    }
    assert_eq!(admin.delete(&path).await.status, 204);
    ada.get("/api/v1/users/me").await.refused(401, "unauthorized");
    admin.delete(&path).await.refused(404, "not_found");
}
