//! Who may is decided when something is done, not when its request began.

use berth_testkit::{Caller, Platform, token_in, vm};
use serde_json::{Value, json};

use super::slow::{Slow, with};

const PASSWORD: &str = "a quiet harbour at night";

/// Somebody new with a role in another's organization, whose project their calls go to.
async fn join(platform: &Platform, owner: &Caller, email: &str, role: &str) -> (Caller, String) {
    let org = owner.org();
    let made = owner.post(&format!("{org}/invitations"), json!({"email": email, "role": role})).await;
    assert_eq!(made.status, 201, "{made:?}");
    let token = token_in(&platform.message(email, 1).await);
    let body = json!({"email": email, "password": PASSWORD, "invitation_token": token});
    assert_eq!(owner.anonymous().post("/api/v1/auth/signup", body).await.status, 201);
    let caller = Caller::login(owner.base(), email, PASSWORD).await.in_project(&owner.project);
    let id = caller.get("/api/v1/users/me").await.id();
    (caller, format!("{org}/members/{id}"))
}

async fn key(caller: &Caller, scope: &str) -> (String, Caller) {
    let made = caller.post("/api_keys", json!({"name": "k", "scopes": [scope]})).await;
    assert_eq!(made.status, 201, "{made:?}");
    (format!("/api_keys/{}", made.id()), caller.with_token(made.body["key"].as_str().expect("a key")))
}

#[tokio::test(flavor = "multi_thread")]
async fn who_was_demoted_meanwhile_does_not_promote_themselves() {
    let platform = Platform::start().await;
    let owner = platform.sign_up("owner@example.com").await;
    let (other, membership) = join(&platform, &owner, "other@example.com", "owner").await;
    let demote = async |role: &str| {
        assert_eq!(owner.patch(&membership, json!({"role": role})).await.status, 200);
    };
    for role in ["member", "admin"] {
        let again = with(&other, "PATCH", &membership, json!({"role": "owner"}), demote(role)).await;
        again.refused(403, "forbidden");
        demote("owner").await;
    }
    let org = membership.split("/members").next().expect("an organization").to_owned();
    let invitation = json!({"email": "third@example.com", "role": "owner"});
    let invited = with(&other, "POST", &format!("{org}/invitations"), invitation, demote("admin")).await;
    invited.refused(403, "forbidden");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_was_demoted_meanwhile_makes_no_key() {
    let platform = Platform::start().await;
    let owner = platform.sign_up("owner@example.com").await;
    let (other, membership) = join(&platform, &owner, "other@example.com", "admin").await;
    let body = json!({"name": "mine", "scopes": ["vm"]});
    let made = with(&other, "POST", "/api_keys", body, async {
        assert_eq!(owner.patch(&membership, json!({"role": "member"})).await.status, 200);
    });
    made.await.refused(404, "project_not_found");
    assert_eq!(owner.get("/api_keys").await.body["pagination"]["total_items"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_was_revoked_or_narrowed_meanwhile_makes_no_machine() {
    let platform = Platform::start().await;
    let admin = &platform.admin;
    for (change, scope, path, body, refusal) in [
        (Value::Null, "vm", "/vms", vm("web"), (401, "unauthorized")),
        (Value::Null, "sandbox", "/sandboxes", json!({"name": "box"}), (401, "unauthorized")),
        (json!({"scopes": ["inference"]}), "vm", "/vms", vm("web"), (401, "unauthorized")),
        (json!({"scopes": ["vm"]}), "sandbox", "/sandboxes", json!({"name": "box"}), (403, "missing_scope")),
        (json!({"source_networks": ["198.51.100.0/24"]}), "vm", "/vms", vm("web"), (403, "address_not_allowed")),
    ] {
        let (key, by_key) = key(admin, scope).await;
        let made = with(&by_key, "POST", path, body, async {
            let changed =
                if change.is_null() { admin.delete(&key).await } else { admin.patch(&key, change.clone()).await };
            assert!(changed.status < 300, "{changed:?}");
        });
        made.await.refused(refusal.0, refusal.1);
        assert_eq!(admin.get(path).await.body["pagination"]["total_items"], 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_was_suspended_or_signed_out_meanwhile_makes_nothing() {
    let platform = Platform::start().await;
    let ada = platform.sign_up("ada@example.com").await;
    let id = ada.get("/api/v1/users/me").await.id();
    let made = with(&ada, "POST", "/sandboxes", json!({"name": "box"}), async {
        let answer = platform.admin.act(&format!("/api/v1/admin/users/{id}/suspend")).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    });
    made.await.refused(403, "user_suspended");
    assert_eq!(platform.admin.act(&format!("/api/v1/admin/users/{id}/unsuspend")).await.status, 200);
    let other = Caller::login(ada.base(), "ada@example.com", PASSWORD).await;
    let made = with(&ada, "POST", "/vms", vm("web"), async {
        assert_eq!(other.post("/api/v1/auth/logout", json!({"all": true})).await.status, 204);
    });
    made.await.refused(401, "unauthorized");
    let again = Caller::login(ada.base(), "ada@example.com", PASSWORD).await;
    for path in ["/vms", "/sandboxes"] {
        assert_eq!(again.get(path).await.body["pagination"]["total_items"], 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_administrator_who_was_signed_out_meanwhile_changes_nothing() {
    let platform = Platform::start().await;
    let admin = &platform.admin;
    let other = Caller::login(admin.base(), "admin@example.com", PASSWORD).await;
    let project = admin.project_id();
    let path = format!("/api/v1/admin/projects/{project}/quota");
    let set = with(&other, "PUT", &path, json!({"vms": 7, "disks": 7}), async {
        assert_eq!(other.post("/api/v1/auth/logout", json!({})).await.status, 204);
    });
    set.await.refused(401, "unauthorized");
    assert_eq!(admin.get(&path).await.body["vms"], Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_may_stall_for_as_long_as_configured() {
    let hasty = Platform::start_with(|config| config.http.body_grace_seconds = 1).await;
    let patient = Platform::start().await;
    let mut waited_for = Slow::begin(&patient.admin, "POST", "/vms", "").await;
    waited_for.send("{\"name\":").await;
    let mut slow = Slow::begin(&hasty.admin, "POST", "/vms", "").await;
    slow.send("{\"name\":").await;
    let refused = slow.answer().await;
    refused.refused(408, "request_timeout");
    assert_eq!(refused.header("connection"), Some("close"), "the rest of the body is nobody's request");
    assert!(refused.body["message"].as_str().is_some_and(|text| text.contains("within 1 s")), "{refused:?}");
    waited_for.send("1}").await;
    waited_for.end().await.refused(400, "invalid_request");
}
