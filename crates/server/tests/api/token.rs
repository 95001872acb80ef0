//! What is not one of our access tokens (RFC 8725), and what happens at once.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as B64;
use berth_client::{Client, Tokens};
use berth_server::db::sql;
use berth_testkit::{Caller, Platform};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Value, json};

const PASSWORD: &str = "a quiet harbour at night";

fn part(token: &str, n: usize) -> Value {
    let bytes = B64.decode(token.split('.').nth(n).expect("a part")).expect("base64");
    serde_json::from_slice(&bytes).expect("JSON")
}

/// The platform's own key, which only a test has.
async fn own_key(platform: &Platform) -> EncodingKey {
    let app = platform.app();
    let sealed: String = sql("SELECT secret_key FROM signing_keys").fetch_one(&app.db).await.expect("a key");
    let kid: String = sql("SELECT kid FROM signing_keys").fetch_one(&app.db).await.expect("its name");
    let secret = app.sealer.open_sealed(&format!("signing_keys/{kid}"), &sealed).expect("the platform's own key");
    let der = base64::engine::general_purpose::STANDARD.decode(secret).expect("base64");
    EncodingKey::from_ed_der(&der)
}

/// Signs any header, also one that no library would make.
fn signed(header: &Value, claims: &Value, key: &EncodingKey) -> String {
    let message = format!("{}.{}", B64.encode(header.to_string()), B64.encode(claims.to_string()));
    let signature = jsonwebtoken::crypto::sign(message.as_bytes(), key, Algorithm::EdDSA).expect("a signature");
    format!("{message}.{signature}")
}

#[tokio::test(flavor = "multi_thread")]
async fn only_our_own_tokens_count() {
    let platform = Platform::start().await;
    let token = platform.admin.token.clone();
    let (header, claims, key) = (part(&token, 0), part(&token, 1), own_key(&platform).await);
    let with = |base: &Value, name: &str, value: Value| {
        let mut changed = base.clone();
        changed[name] = value;
        changed
    };
    let me = async |token: &str| platform.admin.with_token(token).get("/api/v1/users/me").await.status;
    assert_eq!(me(&signed(&header, &claims, &key)).await, 200, "the test itself can sign");
    for (name, value) in [
        ("typ", json!("JWT")),
        ("typ", json!(null)),
        ("alg", json!("none")),
        ("alg", json!("HS256")),
        ("alg", json!("ES256")),
        ("kid", json!("unknown")),
        ("kid", json!(null)),
        ("jku", json!("http://127.0.0.1:1/keys.json")),
        ("jwk", json!({"kty": "OKP", "crv": "Ed25519", "x": "AAAA"})),
        ("x5u", json!("http://127.0.0.1:1/key.pem")),
        ("crit", json!(["exp"])),
        ("cty", json!("JWT")),
        ("b64", json!(false)),
    ] {
        assert_eq!(me(&signed(&with(&header, name, value.clone()), &claims, &key)).await, 401, "{name} {value}");
    }
    for (name, value) in [
        ("iss", json!("http://elsewhere")),
        ("iss", json!(null)),
        ("aud", json!("another")),
        ("aud", json!([])),
        ("aud", json!(null)),
        ("exp", json!(1)),
        ("exp", json!(null)),
        ("exp", json!("soon")),
        ("sub", json!(uuid::Uuid::now_v7())),
        ("sid", json!(uuid::Uuid::now_v7())),
        ("sid", json!(null)),
    ] {
        assert_eq!(me(&signed(&header, &with(&claims, name, value.clone()), &key)).await, 401, "{name} {value}");
    }
    // The public key as a secret, no signature, another's signature, a changed body.
    let public =
        platform.admin.get("/.well-known/jwks.json").await.body["keys"][0]["x"].as_str().expect("a key").to_owned();
    let mut symmetric = Header::new(Algorithm::HS256);
    symmetric.typ = Some("at+jwt".into());
    symmetric.kid = header["kid"].as_str().map(str::to_owned);
    let secret = EncodingKey::from_secret(&B64.decode(public).expect("base64"));
    let confused = jsonwebtoken::encode(&symmetric, &claims, &secret).expect("a token");
    let parts: Vec<_> = token.split('.').collect();
    let unsigned = format!("{}.{}.", parts[0], parts[1]);
    let changed = format!("{}.{}.{}", parts[0], B64.encode(with(&claims, "jti", json!("x")).to_string()), parts[2]);
    for bad in [confused, unsigned, changed, format!("{token}x"), format!("{}.{}", parts[0], parts[1])] {
        assert_eq!(me(&bad).await, 401, "{bad}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_refreshes_at_once_have_one_successor() {
    let platform = Platform::start().await;
    let anybody = platform.admin.anonymous();
    let body = json!({"refresh_token": platform.admin.refresh_token});
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (anybody, body) = (anybody.clone(), body.clone());
        tasks.spawn(async move { anybody.post("/api/v1/auth/refresh", body).await });
    }
    let answers = tasks.join_all().await;
    assert!(answers.iter().all(|a| a.status == 200), "{answers:?}");
    assert!(answers.iter().all(|a| a.body["refresh_token"] == answers[0].body["refresh_token"]), "{answers:?}");
    let next = json!({"refresh_token": answers[0].body["refresh_token"]});
    assert_eq!(anybody.post("/api/v1/auth/refresh", next).await.status, 200);
}

/// Asserts that a stream ends by itself; one that does not would keep the test from its end.
async fn ends(what: &str, stream: impl Future) {
    assert!(tokio::time::timeout(Duration::from_mins(1), stream).await.is_ok(), "{what} goes on");
}

async fn events(caller: &Caller) -> reqwest::Response {
    let stream = caller.request(reqwest::Method::GET, "/events").send().await.expect("a stream");
    assert_eq!(stream.status().as_u16(), 200);
    stream
}

async fn console(caller: &Caller, vm: &str, is_screen: bool) -> impl Future {
    let tokens = Tokens { access_token: caller.token.clone(), refresh_token: String::new() };
    let names: Vec<_> = caller.project.split('/').collect();
    let client = Client::new(&caller.base).expect("a client").with_tokens(tokens).project(names[4], names[6]);
    let console = if is_screen { client.screen(vm).await } else { client.console(vm).await };
    let mut console = console.expect("a console");
    async move { while console.read().await.is_ok_and(|bytes| bytes.is_some()) {} }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_no_end_ends_with_the_credential() {
    let platform = Platform::start().await;
    let vm = platform.admin.running_vm("web").await;
    let made = platform.admin.post("/api_keys", json!({"name": "k", "scopes": ["vm"]})).await;
    let by_key = platform.admin.with_token(made.body["key"].as_str().expect("a key"));
    let screen = console(&by_key, &vm, true).await;
    let (stream, console) = (events(&by_key).await, console(&by_key, &vm, false).await);
    assert_eq!(platform.admin.delete(&format!("/api_keys/{}", made.id())).await.status, 204);
    tokio::join!(ends("the stream", stream.text()), ends("the console", console), ends("the screen", screen));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_no_end_ends_with_the_suspension() {
    let platform = Platform::start().await;
    let ada = platform.sign_up("ada@example.com").await;
    let stream = events(&ada).await;
    let org = ada.get("").await.body["org_id"].as_str().expect("an id").to_owned();
    assert_eq!(platform.admin.act(&format!("/api/v1/admin/orgs/{org}/suspend")).await.status, 200);
    ends("the stream", stream.text()).await;
}

/// Everything that lies in a folder, but for the messages themselves.
fn files(dir: &std::path::Path) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(dir).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() && !path.ends_with("outbox") {
            all.extend(files(&path));
        } else if path.is_file() {
            let bytes = std::fs::read(&path).expect("a file");
            all.push((path, bytes));
        }
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_lies_in_the_data_folder_or_is_shown() {
    let platform = Platform::start().await;
    let ada = platform.sign_up("ada@example.com").await;
    let other = "another harbour by day";
    let change = json!({"current_password": PASSWORD, "new_password": other});
    assert_eq!(ada.post("/api/v1/auth/password/change", change).await.status, 204);
    let made = ada.post("/api_keys", json!({"name": "k", "scopes": ["vm"]})).await;
    let key = made.body["key"].as_str().expect("a key").to_owned();
    assert_eq!(ada.with_token(&key).get("/vms").await.status, 200);
    ada.anonymous().post("/api/v1/auth/password/forgot", json!({"email": "ada@example.com"})).await;
    let reset = berth_testkit::token_in(&platform.message("ada@example.com", 3).await);
    let verify = berth_testkit::token_in(&platform.message("ada@example.com", 1).await);
    let again = Caller::login(&ada.base, "ada@example.com", other).await;
    let refreshed = ada.anonymous().post("/api/v1/auth/refresh", json!({"refresh_token": again.refresh_token})).await;
    let successor = refreshed.body["refresh_token"].as_str().expect("a token").to_owned();
    for file in std::fs::read_dir(platform.config.data_dir.join("outbox")).expect("a folder").flatten() {
        let bits = file.metadata().expect("a file").permissions().mode();
        assert_eq!(bits & 0o077, 0, "others may read {}", file.path().display());
    }
    let secrets = [PASSWORD, other, &key, &reset, &verify, &ada.refresh_token, &again.refresh_token, &successor];
    let shown = [
        ada.get("/api_keys").await,
        ada.get("/api/v1/users/me").await,
        ada.get("/api/v1/users/me/sessions").await,
        platform.admin.get("/api/v1/admin/users").await,
    ];
    let metrics = reqwest::get(format!("{}/metrics", ada.base)).await.expect("an answer").text().await.expect("text");
    let lying = files(&platform.config.data_dir);
    assert!(!lying.is_empty() || platform.config.database_url.starts_with("postgres"));
    for secret in secrets.iter().chain([&ada.token.as_str(), &again.token.as_str()]) {
        for (path, bytes) in &lying {
            let found = bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
            assert!(!found, "{} holds a secret", path.display());
        }
        for answer in &shown {
            assert!(!answer.body.to_string().contains(*secret), "{answer:?}");
        }
        assert!(!metrics.contains(*secret));
    }
}
