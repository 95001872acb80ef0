//! What ends with a person's standing: keys and invitations of who was suspended, left or never proved their address.

use berth_server::config::{SignUpMode, VerifiedEmail};
use berth_testkit::{Answer, Caller, Platform, token_in};
use futures::StreamExt;
use serde_json::{Value, json};

const PASSWORD: &str = "a quiet harbour at night";

async fn me(caller: &Caller) -> String {
    caller.get("/api/v1/users/me").await.id()
}

async fn invite(sender: &Caller, email: &str, role: &str) -> Answer {
    sender.post(&format!("{}/invitations", sender.org()), json!({"email": email, "role": role})).await
}

async fn accept(platform: &Platform, email: &str) -> Answer {
    let number = platform.messages(email).len().max(1);
    let token = token_in(&platform.message(email, number).await);
    let body = json!({"email": email, "password": PASSWORD, "invitation_token": token});
    platform.admin.anonymous().post("/api/v1/auth/signup", body).await
}

/// Somebody new with a role in another's organization, whose project their calls go to.
async fn join(platform: &Platform, sender: &Caller, email: &str, role: &str) -> Caller {
    assert_eq!(invite(sender, email, role).await.status, 201);
    assert_eq!(accept(platform, email).await.status, 201);
    Caller::login(sender.base(), email, PASSWORD).await.in_project(&sender.project)
}

/// A key of all scopes.
async fn key(caller: &Caller) -> Caller {
    let body = json!({"name": "k", "scopes": ["vm", "sandbox", "inference"]});
    let made = caller.post("/api_keys", body).await;
    assert_eq!(made.status, 201, "{made:?}");
    caller.with_token(made.body["key"].as_str().expect("a key"))
}

/// Asks every service with a key.
async fn refused(by_key: &Caller, status: u16, code: &str) {
    for path in ["/vms", "/sandboxes"] {
        by_key.get(path).await.refused(status, code);
    }
    let models = by_key.get("/v1/models").await;
    let code = if code == "unauthorized" { "invalid_api_key" } else { code };
    assert_eq!((models.status, models.body["error"]["code"].as_str()), (status, Some(code)), "{models:?}");
}

async fn answered(by_key: &Caller) {
    for path in ["/vms", "/sandboxes", "/v1/models"] {
        let answer = by_key.get(path).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_look_any_more_does_not_wait_to_the_end() {
    let platform = Platform::start().await;
    let ada = platform.sign_up("ada@example.com").await;
    let made = ada.post("/api_keys", json!({"name": "k", "scopes": ["vm", "sandbox"]})).await;
    let by_key = ada.with_token(made.body["key"].as_str().expect("a key"));
    let (vm, sandbox) = (ada.running_vm("web").await, ada.ready_sandbox().await);
    let paths = [
        format!("/vms/{vm}/wait?status=stopped&timeout=300"),
        format!("/sandboxes/{sandbox}/wait?phase=Paused&timeout=300"),
    ];
    let waiting = paths.map(|path| {
        let by_key = by_key.clone();
        tokio::spawn(async move { by_key.get(&path).await })
    });
    let key = made.body["id"].as_str().expect("an id");
    assert_eq!(ada.delete(&format!("/api_keys/{key}")).await.status, 204);
    for answer in waiting {
        answer.await.expect("an answer").refused(401, "unauthorized");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspension_refuses_the_keys_that_the_person_made() {
    let platform = Platform::start().await;
    let owner = platform.sign_up("owner@example.com").await;
    let other = join(&platform, &owner, "other@example.com", "admin").await;
    let (theirs, ours) = (key(&other).await, key(&owner).await);
    let id = me(&other).await;
    let act = async |verb: &str| {
        assert_eq!(platform.admin.act(&format!("/api/v1/admin/users/{id}/{verb}")).await.status, 200);
    };
    for caller in [&theirs, &ours] {
        answered(caller).await;
    }
    act("suspend").await;
    refused(&theirs, 403, "user_suspended").await;
    answered(&ours).await;
    act("unsuspend").await;
    answered(&theirs).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_organization_without_an_active_owner_is_suspended_with_its_last() {
    let platform = Platform::start().await;
    let owner = platform.sign_up("owner@example.com").await;
    let admin = join(&platform, &owner, "admin@example.org", "admin").await;
    let second = join(&platform, &owner, "second@example.com", "owner").await;
    let by_key = key(&admin).await;
    let ids = [me(&owner).await, me(&second).await];
    let act = async |id: &str, verb: &str| {
        assert_eq!(platform.admin.act(&format!("/api/v1/admin/users/{id}/{verb}")).await.status, 200);
    };
    act(&ids[0], "suspend").await;
    answered(&by_key).await;
    act(&ids[1], "suspend").await;
    refused(&by_key, 403, "organization_suspended").await;
    admin.get("/vms").await.refused(403, "organization_suspended");
    admin.get(admin.org()).await.refused(403, "organization_suspended");
    act(&ids[0], "unsuspend").await;
    answered(&by_key).await;
    assert_eq!(admin.get("/vms").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_given_more_organizations_to_own_than_they_may() {
    let platform = Platform::start_with(|config| config.quota.organizations_per_person = 1).await;
    let ada = platform.sign_up("ada@example.com").await;
    let bob = platform.sign_up("bob@example.com").await;
    assert_eq!(invite(&ada, "bob@example.com", "member").await.status, 201);
    let token = token_in(&platform.message("bob@example.com", 2).await);
    let answer = bob.post("/api/v1/invitations/accept", json!({"token": token})).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let path = format!("{}/members/{}", ada.org(), me(&bob).await);
    ada.patch(&path, json!({"role": "owner"})).await.refused(403, "quota_exceeded");
    assert_eq!(ada.patch(&path, json!({"role": "admin"})).await.status, 200);
    // Nor by an invitation: who owns none may have one.
    let eve = platform.sign_up("eve@example.com").await;
    assert_eq!(invite(&eve, "bob@example.com", "owner").await.status, 201);
    let token = token_in(&platform.message("bob@example.com", 3).await);
    let accept = async || bob.post("/api/v1/invitations/accept", json!({"token": token})).await;
    accept().await.refused(403, "quota_exceeded");
    assert_eq!(bob.delete(bob.org()).await.status, 204);
    assert_eq!(accept().await.status, 200);
    // An owner who is named once more stays what they are.
    let path = format!("{}/members/{}", eve.org(), me(&bob).await);
    assert_eq!(eve.patch(&path, json!({"role": "owner"})).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_member_go_their_keys_and_their_invitations() {
    let platform = Platform::start().await;
    let owner = platform.sign_up("owner@example.com").await;
    let other = join(&platform, &owner, "other@example.com", "owner").await;
    let (theirs, ours) = (key(&other).await, key(&owner).await);
    assert_eq!(invite(&other, "own@example.org", "owner").await.status, 201);
    platform.message("own@example.org", 1).await;
    let member = format!("{}/members/{}", owner.org(), me(&other).await);
    answered(&theirs).await;
    assert_eq!(owner.delete(&member).await.status, 204);
    refused(&theirs, 401, "unauthorized").await;
    answered(&ours).await;
    accept(&platform, "own@example.org").await.refused(400, "invalid_token");
    let keys = owner.get("/api_keys").await.body;
    let states: Vec<_> = keys["data"].as_array().expect("a list").iter().map(|k| k["status"].clone()).collect();
    assert_eq!(states, ["active", "revoked"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ends_with_a_membership_is_told_in_its_projects() {
    let platform = Platform::start().await;
    let owner = platform.sign_up("owner@example.com").await;
    let other = join(&platform, &owner, "other@example.com", "admin").await;
    let id = me(&other).await;
    assert_eq!(owner.post("/members", json!({"user_id": id, "role": "editor"})).await.status, 201);
    key(&other).await;
    assert_eq!(owner.delete(&format!("{}/members/{id}", owner.org())).await.status, 204);
    let key = owner.get("/api_keys").await.body["data"][0]["id"].as_str().expect("an id").to_owned();
    let mut events = std::pin::pin!(crate::event::client(&owner).events(Some(0)).await.expect("a stream"));
    let mut awaited = vec![("api_key.revoke", key), ("project_member.remove", id)];
    while !awaited.is_empty() {
        let event = events.next().await.expect("more").expect("an event");
        awaited.retain(|(kind, subject)| (*kind, subject) != (event.kind.as_str(), &event.subject));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_ends_when_its_maker_does_not_see_the_project_any_more() {
    let platform = Platform::start().await;
    let owner = platform.sign_up("owner@example.com").await;
    let other = join(&platform, &owner, "other@example.com", "admin").await;
    let id = me(&other).await;
    let by_key = key(&other).await;
    let member = format!("{}/members/{id}", owner.org());
    assert_eq!(owner.post("/members", json!({"user_id": id, "role": "admin"})).await.status, 201);
    assert_eq!(owner.delete(&format!("/members/{id}")).await.status, 204);
    answered(&by_key).await;
    assert_eq!(owner.post("/members", json!({"user_id": id, "role": "admin"})).await.status, 201);
    assert_eq!(owner.patch(&member, json!({"role": "member"})).await.status, 200);
    answered(&by_key).await;
    assert_eq!(owner.delete(&format!("/members/{id}")).await.status, 204);
    refused(&by_key, 401, "unauthorized").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invitation_counts_by_its_sender_s_right() {
    let platform = Platform::start().await;
    let owner = platform.sign_up("owner@example.com").await;
    let other = join(&platform, &owner, "other@example.com", "owner").await;
    let made = invite(&other, "own@example.org", "owner").await;
    let resend = format!("{}/invitations/{}/resend", owner.org(), made.id());
    let member = format!("{}/members/{}", owner.org(), me(&other).await);
    assert_eq!(owner.patch(&member, json!({"role": "admin"})).await.status, 200);
    accept(&platform, "own@example.org").await.refused(400, "invalid_token");
    other.act(&resend).await.refused(403, "forbidden");
    // Whose right it is now: the owner's.
    assert_eq!(owner.act(&resend).await.status, 202);
    platform.message("own@example.org", 2).await;
    assert_eq!(accept(&platform, "own@example.org").await.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_nobody_proved_makes_no_keys_and_invites_nobody() {
    for (setting, expected) in [(VerifiedEmail::Acting, 403), (VerifiedEmail::Never, 201)] {
        let platform = Platform::start_with(|config| config.identity.require_verified_email = setting).await;
        let ada = platform.sign_up("ada@example.com").await;
        let body = json!({"name": "k", "scopes": ["vm"]});
        for answer in [ada.post("/api_keys", body.clone()).await, invite(&ada, "own@example.org", "owner").await] {
            assert_eq!(answer.status, expected, "{answer:?}");
            assert_eq!(answer.body["code"] == "email_not_verified", expected == 403);
        }
        if expected == 403 {
            let token = token_in(&platform.message("ada@example.com", 1).await);
            let verified = ada.anonymous().post("/api/v1/auth/email/verify", json!({"token": token})).await;
            assert_eq!(verified.status, 204);
            assert_eq!(ada.post("/api_keys", body).await.status, 201);
        }
    }
}

/// Sets a new password by a mail.
async fn reset(platform: &Platform, email: &str) {
    let token = reset_token(platform, email).await;
    reset_by(platform, &token).await;
}

/// What a mail says that a new password is set by.
async fn reset_token(platform: &Platform, email: &str) -> String {
    let anybody = platform.admin.anonymous();
    let seen = platform.messages(email).len();
    assert_eq!(anybody.post("/api/v1/auth/password/forgot", json!({"email": email})).await.status, 202);
    token_in(&platform.message(email, seen + 1).await)
}

async fn reset_by(platform: &Platform, token: &str) {
    let body = json!({"token": token, "new_password": "a loud harbour by day"});
    assert_eq!(platform.admin.anonymous().post("/api/v1/auth/password/reset", body).await.status, 204);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_takes_over_an_address_that_nobody_proved_gets_it_empty() {
    let platform = Platform::start().await;
    let ada = platform.sign_up("ada@example.com").await;
    let by_key = key(&ada).await;
    assert_eq!(invite(&ada, "own@example.org", "owner").await.status, 201);
    platform.message("own@example.org", 1).await;
    platform.message("ada@example.com", 1).await;
    answered(&by_key).await;
    reset(&platform, "ada@example.com").await;
    refused(&by_key, 401, "unauthorized").await;
    accept(&platform, "own@example.org").await.refused(400, "invalid_token");
    // Who proved the address before keeps what they made.
    let ada = Caller::login(ada.base(), "ada@example.com", "a loud harbour by day").await;
    assert_eq!(ada.get("/api/v1/users/me").await.body["email_verified"], Value::Bool(true));
    let by_key = key(&ada).await;
    // The mail that tells of the change.
    platform.message("ada@example.com", 3).await;
    reset(&platform, "ada@example.com").await;
    answered(&by_key).await;
}

/// What somebody gets who signs in from many networks at once, while something happens to the account. Most of them were
/// looked up before it, and had their passwords looked at after it.
async fn signing_in_beside(platform: &Platform, email: &str, happening: impl Future<Output = ()>) -> Vec<Caller> {
    let anybody = &platform.admin.anonymous();
    let login = async |number: u8| {
        let request = anybody.request(reqwest::Method::POST, "/api/v1/auth/login");
        let request = request.header("x-forwarded-for", format!("198.51.100.{number}"));
        anybody.send(request.json(&json!({"email": email, "password": PASSWORD}))).await
    };
    let first = futures::future::join_all((0..4).map(login));
    let rest = futures::future::join_all((4..20).map(login));
    let (mut answers, (), others) = tokio::join!(first, happening, rest);
    answers.extend(others);
    assert!(answers.iter().all(|answer| [200, 401, 403].contains(&answer.status)), "{answers:?}");
    let tokens = answers.iter().filter_map(|answer| answer.body["access_token"].as_str());
    tokens.map(|token| anybody.with_token(token)).collect()
}

async fn behind_a_proxy() -> Platform {
    Platform::start_with(|config| {
        config.http.trusted_proxies = vec!["127.0.0.1/32".parse().expect("a network")];
        config.identity.hash_queue = 64;
        config.identity.signup = Some(SignUpMode::Open);
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_stays_signed_in_by_a_password_that_was_reset_meanwhile() {
    let platform = behind_a_proxy().await;
    platform.sign_up("ada@example.com").await;
    platform.message("ada@example.com", 1).await;
    let token = reset_token(&platform, "ada@example.com").await;
    let signed_in = signing_in_beside(&platform, "ada@example.com", reset_by(&platform, &token)).await;
    for caller in signed_in {
        caller.get("/api/v1/users/me").await.refused(401, "unauthorized");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_signs_in_while_being_suspended_is_let_in_nowhere() {
    let platform = behind_a_proxy().await;
    let ada = platform.sign_up("ada@example.com").await;
    let id = me(&ada).await;
    let suspended = async {
        assert_eq!(platform.admin.act(&format!("/api/v1/admin/users/{id}/suspend")).await.status, 200);
    };
    for caller in signing_in_beside(&platform, "ada@example.com", suspended).await {
        caller.get("/api/v1/users/me").await.refused(403, "user_suspended");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_signs_in_while_being_demoted_administers_nothing() {
    let platform = behind_a_proxy().await;
    let ada = platform.sign_up("ada@example.com").await;
    let user = format!("/api/v1/admin/users/{}", me(&ada).await);
    assert_eq!(platform.admin.patch(&user, json!({"administrator": true})).await.status, 200);
    assert_eq!(ada.get("/api/v1/admin/users").await.status, 200);
    let demoted = async {
        assert_eq!(platform.admin.patch(&user, json!({"administrator": false})).await.status, 200);
    };
    let signed_in = signing_in_beside(&platform, "ada@example.com", demoted).await;
    assert!(!signed_in.is_empty());
    for caller in signed_in {
        caller.get("/api/v1/admin/users").await.refused(403, "forbidden");
    }
}
