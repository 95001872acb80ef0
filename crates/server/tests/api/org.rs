//! Organizations and projects with several people: members, invitations, roles.

use berth_testkit::{Answer, Caller, Platform, token_in, vm};
use serde_json::{Value, json};

const PASSWORD: &str = "a quiet harbour at night";

/// An organization `acme` of Ada's with a project `shop`; calls of hers go there.
async fn acme(platform: &Platform) -> Caller {
    let ada = platform.sign_up("ada@example.com").await;
    assert_eq!(ada.post("/api/v1/orgs", json!({"name": "Acme", "slug": "acme"})).await.status, 201);
    assert_eq!(ada.post("/api/v1/orgs/acme/projects", json!({"name": "Shop"})).await.status, 201);
    ada.in_project("/api/v1/orgs/acme/projects/shop")
}

async fn invite(caller: &Caller, email: &str, role: &str) -> Answer {
    caller.post("/api/v1/orgs/acme/invitations", json!({"email": email, "role": role})).await
}

/// Somebody who signs up by an invitation to `acme`.
async fn join(platform: &Platform, ada: &Caller, email: &str, role: &str) -> Caller {
    assert_eq!(invite(ada, email, role).await.status, 201);
    let token = token_in(&platform.message(email, 1).await);
    let body = json!({"email": email, "password": PASSWORD, "invitation_token": token});
    assert_eq!(ada.anonymous().post("/api/v1/auth/signup", body).await.status, 201);
    Caller::login(&ada.base, email, PASSWORD).await.in_project(&ada.project)
}

async fn id_of(caller: &Caller) -> String {
    caller.get("/api/v1/users/me").await.id()
}

async fn set_role(by: &Caller, user: &str, role: &str) -> Answer {
    by.patch(&format!("/api/v1/orgs/acme/members/{user}"), json!({"role": role})).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invitation_is_for_its_address_and_for_once() {
    let platform = Platform::start().await;
    let ada = acme(&platform).await;
    let bob = platform.sign_up("bob@example.com").await;
    let eve = platform.sign_up("eve@example.com").await;
    let project = ada.get("").await.id();
    let roles = json!([{"project_id": project, "role": "viewer"}]);
    let body = json!({"email": "Bob@example.com", "role": "member", "project_roles": roles});
    let made = ada.post("/api/v1/orgs/acme/invitations", body).await;
    assert_eq!((made.status, made.body["status"].as_str()), (201, Some("pending")), "{made:?}");
    invite(&ada, "bob@example.com", "member").await.refused(409, "conflict");
    let token = token_in(&platform.message("Bob@example.com", 1).await);
    let accept = async |caller: &Caller| caller.post("/api/v1/invitations/accept", json!({"token": token})).await;
    let for_another = accept(&eve).await;
    for_another.refused(400, "invalid_token");
    let told = for_another.body["message"].as_str().expect("a message");
    assert!(told.contains("for another address, B***@example.com"), "{told}");
    accept(&bob.anonymous()).await.refused(401, "unauthorized");
    let bob = bob.in_project(&ada.project);
    bob.get("/vms").await.refused(404, "project_not_found");
    // Of two acceptances at once one counts.
    let (one, other) = tokio::join!(accept(&bob), accept(&bob));
    let mut statuses = [one.status, other.status];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 400]);
    assert_eq!(bob.get("/api/v1/orgs/acme").await.body["role"], "member");
    assert_eq!(bob.get("/vms").await.status, 200);
    bob.post("/vms", vm("web")).await.refused(403, "forbidden");
    invite(&ada, "bob@example.com", "member").await.refused(409, "conflict");
    let listed = ada.get("/api/v1/orgs/acme/invitations").await.body;
    assert_eq!(listed["data"][0]["status"], "accepted");
    assert_eq!(bob.get("/api/v1/users/me").await.body["email_verified"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invitation_is_resent_revoked_and_ends() {
    let platform = Platform::start().await;
    let ada = acme(&platform).await;
    let path = |id: &str| format!("/api/v1/orgs/acme/invitations/{id}");
    let id = invite(&ada, "bob@example.com", "member").await.id();
    let first = token_in(&platform.message("bob@example.com", 1).await);
    let again = ada.act(&format!("{}/resend", path(&id))).await;
    assert_eq!((again.status, again.body["status"].as_str()), (202, Some("pending")));
    let second = token_in(&platform.message("bob@example.com", 2).await);
    assert_ne!(first, second);
    assert_eq!(ada.delete(&path(&id)).await.status, 204);
    ada.act(&format!("{}/resend", path(&id))).await.refused(409, "conflict");
    let sign_up = async |token: &str| {
        let body = json!({"email": "bob@example.com", "password": PASSWORD, "invitation_token": token});
        ada.anonymous().post("/api/v1/auth/signup", body).await
    };
    for token in [&first, &second] {
        sign_up(token).await.refused(400, "invalid_token");
    }
    invite(&ada, "bob@example.com", "member").await;
    let third = token_in(&platform.message("bob@example.com", 3).await);
    platform.advance(7 * 86_400 + 1);
    sign_up(&third).await.refused(400, "invalid_token");
    // What was refused left nothing behind.
    let body = json!({"email": "bob@example.com", "password": PASSWORD});
    assert_eq!(ada.anonymous().post("/api/v1/auth/signup", body).await.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn invitations_have_rules() {
    let platform = Platform::start().await;
    let ada = acme(&platform).await;
    let stranger = platform.sign_up("stranger@example.com").await;
    let theirs = stranger.get("").await.id();
    for bad in [
        json!({"email": "x", "role": "member"}),
        json!({"email": "bob@example.com"}),
        json!({"email": "bob@example.com", "role": "editor"}),
        json!({"email": "bob@example.com", "role": "member", "project_roles": [{"project_id": "x", "role": "viewer"}]}),
        json!({"email": "bob@example.com", "role": "member", "project_roles": [{"project_id": theirs, "role": "viewer"}]}),
    ] {
        ada.post("/api/v1/orgs/acme/invitations", bad).await.refused(400, "invalid_request");
    }
    ada.delete("/api/v1/orgs/acme/invitations/x").await.refused(400, "invalid_request");
    let missing = format!("/api/v1/orgs/acme/invitations/{}", uuid::Uuid::now_v7());
    ada.delete(&missing).await.refused(404, "not_found");
    let admin = join(&platform, &ada, "bob@example.com", "admin").await;
    assert_eq!(invite(&admin, "c@example.com", "admin").await.status, 201);
    invite(&admin, "d@example.com", "owner").await.refused(403, "forbidden");
    let member = join(&platform, &ada, "eve@example.com", "member").await;
    invite(&member, "f@example.com", "member").await.refused(403, "forbidden");
}

#[tokio::test(flavor = "multi_thread")]
async fn roles_are_changed_by_who_may_and_the_last_owner_stays() {
    let platform = Platform::start().await;
    let ada = acme(&platform).await;
    let admin = join(&platform, &ada, "bob@example.com", "admin").await;
    let member = join(&platform, &ada, "eve@example.com", "member").await;
    let (ada_id, admin_id, member_id) = (id_of(&ada).await, id_of(&admin).await, id_of(&member).await);
    assert_eq!(set_role(&admin, &member_id, "admin").await.body["role"], "admin");
    assert_eq!(set_role(&admin, &member_id, "member").await.body["role"], "member");
    set_role(&admin, &member_id, "owner").await.refused(403, "forbidden");
    set_role(&admin, &ada_id, "member").await.refused(403, "forbidden");
    set_role(&member, &member_id, "admin").await.refused(403, "forbidden");
    set_role(&ada, &ada_id, "member").await.refused(409, "last_owner");
    ada.delete(&format!("/api/v1/orgs/acme/members/{ada_id}")).await.refused(409, "last_owner");
    member.delete(&format!("/api/v1/orgs/acme/members/{admin_id}")).await.refused(403, "forbidden");
    set_role(&ada, "x", "member").await.refused(400, "invalid_request");
    set_role(&ada, &uuid::Uuid::now_v7().to_string(), "member").await.refused(404, "not_found");
    // Two demotions of the last two owners at once: one stays.
    assert_eq!(set_role(&ada, &admin_id, "owner").await.status, 200);
    let (one, other) = tokio::join!(set_role(&ada, &ada_id, "member"), set_role(&admin, &admin_id, "member"));
    let mut statuses = [one.status, other.status];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 409]);
    // Whoever leaves loses the projects, too.
    assert_eq!(member.delete(&format!("/api/v1/orgs/acme/members/{member_id}")).await.status, 204);
    member.get("/api/v1/orgs/acme").await.refused(404, "organization_not_found");
    assert_eq!(ada.get("/api/v1/orgs/acme/members").await.body["pagination"]["total_items"], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_project_has_members_of_its_own() {
    let platform = Platform::start().await;
    let ada = acme(&platform).await;
    let bob = join(&platform, &ada, "bob@example.com", "member").await;
    let id = id_of(&bob).await;
    bob.get("").await.refused(404, "project_not_found");
    let add = async |body: Value| ada.post("/members", body).await;
    assert!(add(json!({"email": "nobody@example.com", "role": "viewer"})).await.names("email"));
    assert!(add(json!({"role": "viewer"})).await.names("user_id"));
    assert!(add(json!({"user_id": id, "email": "bob@example.com", "role": "viewer"})).await.names("user_id"));
    assert!(add(json!({"user_id": id, "role": "owner"})).await.names("role"));
    let added = add(json!({"email": "Bob@example.com", "role": "viewer"})).await;
    assert_eq!((added.status, added.body["user_id"].as_str()), (201, Some(id.as_str())));
    add(json!({"user_id": id, "role": "viewer"})).await.refused(409, "conflict");
    assert_eq!(bob.get("").await.body["role"], "viewer");
    bob.get("/members").await.refused(403, "forbidden");
    bob.post("/vms", vm("web")).await.refused(403, "forbidden");
    let path = format!("/members/{id}");
    assert_eq!(ada.patch(&path, json!({"role": "editor"})).await.body["role"], "editor");
    assert_eq!(bob.post("/vms", vm("web")).await.status, 201);
    bob.post("/api_keys", json!({"name": "x", "scopes": ["vm"]})).await.refused(403, "forbidden");
    assert_eq!(ada.patch(&path, json!({"role": "admin"})).await.status, 200);
    assert_eq!(bob.post("/api_keys", json!({"name": "x", "scopes": ["vm"]})).await.status, 201);
    assert_eq!(bob.get("/members").await.body["pagination"]["total_items"], 2);
    bob.delete("").await.refused(403, "forbidden");
    assert_eq!(ada.delete(&path).await.status, 204);
    bob.get("").await.refused(404, "project_not_found");
    ada.delete(&path).await.refused(404, "not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn names_change_and_slugs_are_one_s_own() {
    let platform = Platform::start().await;
    let ada = acme(&platform).await;
    assert_eq!(ada.post("/api/v1/orgs", json!({"name": "Other", "slug": "other"})).await.status, 201);
    ada.patch("/api/v1/orgs/acme", json!({"slug": "other"})).await.refused(409, "slug_taken");
    ada.patch("/api/v1/orgs/acme", json!({"slug": "Bad Slug"})).await.refused(400, "invalid_request");
    let renamed = ada.patch("/api/v1/orgs/acme", json!({"name": "Acme Ltd", "slug": "acme-ltd"})).await;
    assert_eq!((renamed.status, renamed.body["name"].as_str()), (200, Some("Acme Ltd")));
    ada.get("").await.refused(404, "project_not_found");
    let project = "/api/v1/orgs/acme-ltd/projects/shop";
    assert_eq!(ada.patch(project, json!({"name": "Web Shop", "slug": "web"})).await.body["slug"], "web");
    ada.get(project).await.refused(404, "project_not_found");
    assert_eq!(ada.get("/api/v1/orgs/acme-ltd/projects/web").await.body["name"], "Web Shop");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_holds_something_stays() {
    let platform = Platform::start().await;
    let ada = acme(&platform).await;
    let mut body = vm("web");
    body["delete_root_disk"] = json!(true);
    let id = ada.create_vm(body).await;
    ada.delete("").await.refused(409, "conflict");
    ada.delete("/api/v1/orgs/acme").await.refused(409, "conflict");
    ada.delete(&format!("/vms/{id}")).await;
    ada.gone(&id).await;
    // Its disk goes after it.
    ada.until("the project's end", |c| async move { c.delete("").await.status == 204 }).await;
    ada.get("").await.refused(404, "project_not_found");
    // Its slug is free again, and empty projects go with their organization.
    assert_eq!(ada.post("/api/v1/orgs/acme/projects", json!({"name": "Shop", "slug": "shop"})).await.status, 201);
    assert_eq!(ada.delete("/api/v1/orgs/acme").await.status, 204);
    ada.get("/api/v1/orgs/acme").await.refused(404, "organization_not_found");
    ada.get("/vms").await.refused(404, "project_not_found");
    assert_eq!(ada.post("/api/v1/orgs", json!({"name": "Acme", "slug": "acme"})).await.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_log_tells_who_did_what() {
    let platform = Platform::start().await;
    let ada = acme(&platform).await;
    let bob = join(&platform, &ada, "bob@example.com", "member").await;
    bob.get("/api/v1/orgs/acme/audit_log").await.refused(403, "forbidden");
    let made =
        ada.send(ada.request(reqwest::Method::POST, "/vms").header("x-request-id", "mine").json(&vm("web"))).await;
    let log = async |query: &str| ada.get(&format!("/api/v1/orgs/acme/audit_log?{query}")).await.body;
    let found = log("action=vm.create").await;
    assert_eq!(found["pagination"]["total_items"], 1);
    let record = &found["data"][0];
    assert_eq!((record["subject"].as_str(), record["request_id"].as_str()), (made.body["id"].as_str(), Some("mine")));
    assert_eq!(record["actor"], id_of(&ada).await.as_str());
    let all = log("limit=100").await;
    let actions: Vec<_> = all["data"].as_array().expect("a list").iter().map(|r| r["action"].clone()).collect();
    for action in ["org.create", "project.create", "invitation.create", "invitation.accept", "vm.create"] {
        assert!(actions.contains(&json!(action)), "{action}: {actions:?}");
    }
    let by_bob = log(&format!("actor={}", id_of(&bob).await)).await;
    assert_eq!((by_bob["data"][0]["action"].as_str(), by_bob["data"][1].is_null()), (Some("invitation.accept"), true));
    assert_eq!(log("since=2100-01-01T00:00:00Z").await["pagination"]["total_items"], 0);
    assert_eq!(log("until=2100-01-01T00:00:00Z&action=vm.create").await["pagination"]["total_items"], 1);
    ada.get("/api/v1/orgs/acme/audit_log?since=yesterday").await.refused(400, "invalid_request");
    ada.get("/api/v1/orgs/acme/audit_log?page=0").await.refused(400, "invalid_request");
}
