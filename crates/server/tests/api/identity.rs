//! Signing up, in and out; organizations and projects; what tokens are good for.

use std::io;
use std::sync::{Arc, Mutex};

use berth_server::config::Secret;
use berth_testkit::{Caller, Platform};
use serde_json::{Value, json};

const PASSWORD: &str = "a quiet harbour at night";

fn claims(token: &str) -> Value {
    use base64::Engine;
    let part = token.split('.').nth(1).expect("a token");
    let bytes = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(part).expect("base64");
    serde_json::from_slice(&bytes).expect("claims")
}

/// What is logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("a log").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// How often a variable is spoken of.
    fn names(&self, variable: &str) -> usize {
        String::from_utf8_lossy(&self.0.lock().expect("a log")).matches(variable).count()
    }
}

/// On one thread, whose log is this test's own.
#[tokio::test]
async fn a_password_of_the_first_administrator_that_comes_too_late_is_warned_of() {
    let log = Log::default();
    let writer = log.clone();
    let told = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
    // Where there is only one subscriber, a thread that has none may say that nobody listens.
    let _another = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
    let _guard = tracing::subscriber::set_default(told);
    let made_up = Platform::start_with(|config| config.admin_password = Secret(String::new())).await;
    drop(made_up.restart().await);
    let given = Platform::start().await;
    assert_eq!(log.names("BERTH_ADMIN_PASSWORD"), 0);
    drop(given.restart().await);
    assert_eq!(log.names("BERTH_ADMIN_PASSWORD"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sign_up_makes_an_organization_and_a_project() {
    let platform = Platform::start().await;
    let anybody = platform.admin.anonymous();
    let body = json!({"email": "Ada@Example.com", "password": PASSWORD, "name": "Ada"});
    let answer = anybody.post("/api/v1/auth/signup", body.clone()).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    assert_eq!(answer.body["verification_required"], false);
    assert_eq!(answer.body["organization"]["role"], "owner");
    assert_eq!(answer.body["project"]["org_id"], answer.body["organization"]["id"]);
    assert!(!answer.body.to_string().contains(PASSWORD));
    anybody.post("/api/v1/auth/signup", body).await.refused(409, "email_taken");
    // The address is the same, however it is written.
    let ada = Caller::login(&anybody.base, "ada@example.COM", PASSWORD).await;
    let me = ada.get("/api/v1/users/me").await;
    assert_eq!((me.status, me.body["is_admin"].as_bool()), (200, Some(false)));
    ada.running_vm("first").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn passwords_and_addresses_on_both_sides() {
    let platform = Platform::start().await;
    let anybody = platform.admin.anonymous();
    let mut number = 0;
    let mut sign_up = async |email: Option<&str>, password: &str| {
        number += 1;
        let email = email.map_or_else(|| format!("p{number}@example.com"), str::to_owned);
        anybody.post("/api/v1/auth/signup", json!({"email": email, "password": password})).await
    };
    for good in ["x7!kqpzmw2rt".to_owned(), "ä".repeat(12) + "zq", "k9".repeat(64)] {
        assert_eq!(sign_up(None, &good).await.status, 201, "{good}");
    }
    for bad in ["x7!kqpzmw2r".to_owned(), "k9".repeat(64) + "a", String::new(), "passwordpassword".into()] {
        sign_up(None, &bad).await.refused(400, "invalid_request");
    }
    sign_up(Some("somebody@example.com"), "somebody@example.com").await.refused(400, "invalid_request");
    for bad in ["", "x", "@example.com", "a@", "a@b", "a b@example.com", "a@exa mple.com", "a@@example.com"] {
        sign_up(Some(bad), PASSWORD).await.refused(400, "invalid_request");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_is_a_session() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let body = json!({"email": "admin@example.com", "password": PASSWORD});
    let answer = caller.anonymous().post("/api/v1/auth/login", body).await;
    let seconds = Some(platform.config.identity.access_token_seconds);
    assert_eq!((answer.body["token_type"].as_str(), answer.body["expires_in"].as_i64()), (Some("Bearer"), seconds));
    let token = answer.body["access_token"].as_str().expect("a token");
    let claims = claims(token);
    for claim in ["iss", "aud", "sub", "sid", "jti", "exp"] {
        assert!(!claims[claim].is_null(), "{claim}");
    }
    let header = jsonwebtoken::decode_header(token).expect("a header");
    assert_eq!((header.alg, header.typ.as_deref()), (jsonwebtoken::Algorithm::EdDSA, Some("at+jwt")));
    let keys = caller.anonymous().get("/.well-known/jwks.json").await.body;
    assert_eq!((&keys["keys"][0]["kid"], &keys["keys"][0]["crv"]), (&json!(header.kid), &json!("Ed25519")));
    // It works at once that it does not any more.
    let session = caller.with_token(token);
    assert_eq!(session.get("/api/v1/users/me").await.status, 200);
    assert_eq!(session.post("/api/v1/auth/logout", json!({})).await.status, 204);
    session.get("/api/v1/users/me").await.refused(401, "unauthorized");
    assert_eq!(caller.get("/api/v1/users/me").await.status, 200);
    assert_eq!(caller.post("/api/v1/auth/logout", json!({"all": true})).await.status, 204);
    caller.get("/api/v1/users/me").await.refused(401, "unauthorized");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_access_token_ends() {
    let platform = Platform::start_with(|config| config.identity.access_token_seconds = 3_600).await;
    platform.advance(3500);
    assert_eq!(platform.admin.get("/vms").await.status, 200);
    platform.advance(100);
    platform.admin.get("/vms").await.refused(401, "unauthorized");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_logins_look_alike_and_wait() {
    let platform = Platform::start_with(|config| config.identity.backoff_first_seconds = 60).await;
    let anybody = platform.admin.anonymous();
    let known = json!({"email": "admin@example.com", "password": "not the password"});
    let unknown = json!({"email": "nobody@example.com", "password": "not the password"});
    for _ in 0..5 {
        let (a, b) = (
            anybody.post("/api/v1/auth/login", known.clone()).await,
            anybody.post("/api/v1/auth/login", unknown.clone()).await,
        );
        a.refused(401, "invalid_credentials");
        assert_eq!((a.status, &a.body), (b.status, &b.body));
    }
    for body in [known, unknown] {
        let answer = anybody.post("/api/v1/auth/login", body).await;
        answer.refused(429, "rate_limited");
        assert!(answer.header("retry-after").is_some_and(|s| s.parse::<u32>().is_ok_and(|s| s >= 1)));
    }
    platform.advance(61);
    Caller::login(&anybody.base, "admin@example.com", PASSWORD).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn thirty_logins_a_minute() {
    let platform = Platform::start_with(|config| config.identity.logins_per_minute_per_address = 3).await;
    let anybody = platform.admin.anonymous();
    // Whoever started it has signed in, too.
    platform.advance(61);
    let body = json!({"email": "admin@example.com", "password": PASSWORD});
    for _ in 0..3 {
        assert_eq!(anybody.post("/api/v1/auth/login", body.clone()).await.status, 200);
    }
    anybody.post("/api/v1/auth/login", body.clone()).await.refused(429, "rate_limited");
    platform.advance(61);
    assert_eq!(anybody.post("/api/v1/auth/login", body).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn refresh_tokens_rotate_and_reuse_ends_the_family() {
    let platform = Platform::start().await;
    let anybody = platform.admin.anonymous();
    let refresh = async |token: &str| anybody.post("/api/v1/auth/refresh", json!({"refresh_token": token})).await;
    let first = platform.admin.refresh_token.clone();
    let answer = refresh(&first).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let second = answer.body["refresh_token"].as_str().expect("a token").to_owned();
    assert_ne!(first, second);
    assert!(answer.body["refresh_expires_in"].as_i64().is_some_and(|s| s <= 14 * 86_400));
    // For as long as is configured the same successor comes again.
    let again = refresh(&first).await;
    assert_eq!((again.status, again.body["refresh_token"].as_str()), (200, Some(second.as_str())));
    platform.advance(601);
    refresh(&first).await.refused(401, "invalid_refresh_token");
    refresh(&second).await.refused(401, "invalid_refresh_token");
    platform.admin.get("/vms").await.refused(401, "unauthorized");
    for bad in ["x", "", &"A".repeat(43)] {
        let answer = refresh(bad).await;
        assert!([400, 401].contains(&answer.status), "{answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn refresh_tokens_end_when_idle() {
    let platform = Platform::start().await;
    let anybody = platform.admin.anonymous();
    let body = json!({"refresh_token": platform.admin.refresh_token});
    platform.advance(14 * 86_400 + 1);
    anybody.post("/api/v1/auth/refresh", body).await.refused(401, "invalid_refresh_token");
}

#[tokio::test(flavor = "multi_thread")]
async fn organizations_and_projects() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let org = caller.post("/api/v1/orgs", json!({"name": "Acme Corp", "slug": "acme"})).await;
    assert_eq!((org.status, org.body["slug"].as_str()), (201, Some("acme")));
    assert_eq!(org.header("location"), Some(format!("/api/v1/orgs/{}", org.id()).as_str()));
    caller.post("/api/v1/orgs", json!({"name": "Other", "slug": "acme"})).await.refused(409, "slug_taken");
    for bad in
        [json!({}), json!({"name": ""}), json!({"name": "x".repeat(101)}), json!({"name": "x", "slug": "Bad Slug"})]
    {
        caller.post("/api/v1/orgs", bad.clone()).await.refused(400, "invalid_request");
        caller.post("/api/v1/orgs/acme/projects", bad).await.refused(400, "invalid_request");
    }
    let project = caller.post("/api/v1/orgs/acme/projects", json!({"name": "Web Shop"})).await;
    assert_eq!((project.status, project.body["slug"].as_str()), (201, Some("web-shop")));
    assert_eq!(caller.get("/api/v1/orgs/acme").await.body["id"], org.body["id"]);
    assert_eq!(caller.get("/api/v1/orgs/acme/projects/web-shop").await.body["id"], project.body["id"]);
    assert_eq!(caller.get("/api/v1/orgs/acme/projects").await.body["pagination"]["total_items"], 1);
    caller.get("/api/v1/orgs/none").await.refused(404, "organization_not_found");
    caller.get("/api/v1/orgs/acme/projects/none").await.refused(404, "project_not_found");
    let stranger = platform.sign_up("stranger@example.com").await;
    stranger.get("/api/v1/orgs/acme").await.refused(404, "organization_not_found");
    stranger.post("/api/v1/orgs/acme/projects", json!({"name": "x"})).await.refused(404, "organization_not_found");
}
