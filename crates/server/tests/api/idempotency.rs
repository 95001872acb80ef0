//! `Idempotency-Key` on every POST that creates.

use berth_server::db::sql;
use berth_testkit::{Answer, Caller, Platform, vm};
use reqwest::Method;
use serde_json::{Value, json};

use super::slow::Slow;

async fn post(caller: &Caller, path: &str, key: &str, body: &Value) -> Answer {
    caller.send(caller.request(Method::POST, path).header("idempotency-key", key).json(body)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_is_the_first_answer() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let disk = json!({"name": "d", "type": "block", "size_gb": 10, "region_id": "local"});
    let named = json!({"name": "Another"});
    let projects = format!("{}/projects", caller.org());
    for (path, body) in [("/vms", &vm("web")), ("/disks", &disk), ("/api/v1/orgs", &named), (projects.as_str(), &named)]
    {
        let first = post(caller, path, "one", body).await;
        assert_eq!((first.status, first.header("idempotent-replayed")), (201, None), "{first:?}");
        let second = post(caller, path, "one", body).await;
        assert_eq!((second.status, second.header("idempotent-replayed")), (201, Some("true")), "{path}");
        assert_eq!((&second.body, second.header("location")), (&first.body, first.header("location")));
        assert_ne!(post(caller, path, "two", body).await.body["id"], first.body["id"], "{path}");
    }
    assert_eq!(caller.get("/vms").await.body["pagination"]["total_items"], 2);
    let image = json!({"id": "mine", "url": "http://127.0.0.1:1/image.qcow2"});
    let first = post(caller, "/api/v1/images", "one", &image).await;
    let second = post(caller, "/api/v1/images", "one", &image).await;
    assert_eq!((second.status, second.header("idempotent-replayed"), &second.body), (201, Some("true"), &first.body));
}

#[tokio::test(flavor = "multi_thread")]
async fn another_body_is_refused_and_refusals_are_not_kept() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    assert_eq!(post(caller, "/vms", "k", &vm("web")).await.status, 201);
    post(caller, "/vms", "k", &vm("other")).await.refused(422, "idempotency_mismatch");
    post(caller, "/vms", "bad", &vm("BAD")).await.refused(400, "invalid_request");
    assert_eq!(post(caller, "/vms", "bad", &vm("good")).await.status, 201);
    let longest = "k".repeat(255);
    assert_eq!(post(caller, "/vms", &longest, &vm("web")).await.status, 201);
    post(caller, "/vms", &"k".repeat(256), &vm("web")).await.refused(400, "invalid_request");
    post(caller, "/vms", "", &vm("web")).await.refused(400, "invalid_request");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_belong_to_their_caller_and_end_after_a_day() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let other = platform.sign_up("other@example.com").await;
    let first = post(caller, "/vms", "k", &vm("web")).await;
    let theirs = post(&other, "/vms", "k", &vm("web")).await;
    assert_eq!((theirs.status, theirs.header("idempotent-replayed")), (201, None));
    platform.advance(24 * 3600 + 1);
    let fresh = Caller::login(&caller.base, "admin@example.com", "a quiet harbour at night").await;
    let later = post(&fresh, "/vms", "k", &vm("web")).await;
    assert_eq!((later.status, later.header("idempotent-replayed")), (201, None));
    assert_ne!(later.body["id"], first.body["id"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_at_once_one_creates() {
    let platform = Platform::start().await;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..10 {
        let caller = platform.admin.clone();
        tasks.spawn(async move { post(&caller, "/vms", "k", &vm("web")).await });
    }
    let answers = tasks.join_all().await;
    // On a slow machine some are told that the first has not come to its end.
    let (made, told): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.status == 201);
    assert!(!made.is_empty() && made.iter().all(|answer| answer.body["id"] == made[0].body["id"]), "{answers:?}");
    for answer in told {
        answer.refused(409, "request_in_progress");
    }
    assert_eq!(platform.admin.get("/vms").await.body["pagination"]["total_items"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_post_that_creates_takes_a_key() {
    let platform = Platform::start().await;
    let document = reqwest::get(format!("{}/openapi.json", platform.admin.base)).await.expect("an answer");
    let document: Value = document.json().await.expect("JSON");
    let mut creating = 0;
    for (path, item) in document["paths"].as_object().expect("paths") {
        let post = &item["post"];
        if post["responses"]["201"].is_null() {
            continue;
        }
        creating += 1;
        let parameters = post["parameters"].as_array().map_or(&[][..], Vec::as_slice);
        let key = parameters.iter().find(|parameter| parameter["name"] == "Idempotency-Key");
        let key = key.unwrap_or_else(|| panic!("POST {path} creates and takes no Idempotency-Key"));
        assert_eq!((&key["in"], &key["required"]), (&json!("header"), &json!(false)), "{path}");
        for status in ["409", "422"] {
            assert!(post["responses"][status].is_object(), "{path} {status}");
        }
    }
    assert!(creating >= 20, "{creating}");
}

#[tokio::test(flavor = "multi_thread")]
async fn accounts_and_signing_keys_are_made_once() {
    let platform = Platform::start().await;
    let (admin, nobody) = (&platform.admin, platform.admin.anonymous());
    let account = |email: &str| json!({"email": email, "password": "a quiet harbour at night"});
    let body = account("new@example.com");
    let first = post(&nobody, "/api/v1/auth/signup", "k", &body).await;
    let second = post(&nobody, "/api/v1/auth/signup", "k", &body).await;
    assert_eq!((first.status, second.status), (201, 201), "{second:?}");
    assert_eq!((second.header("idempotent-replayed"), &second.body), (Some("true"), &first.body));
    assert_eq!(second.header("location"), first.header("location"));
    let other = json!({"email": "NEW@example.com", "password": "another harbour at night"});
    post(&nobody, "/api/v1/auth/signup", "k", &other).await.refused(422, "idempotency_mismatch");
    // Strangers do not know which keys others choose.
    let stranger = post(&nobody, "/api/v1/auth/signup", "k", &account("else@example.com")).await;
    assert_eq!((stranger.status, stranger.header("idempotent-replayed")), (201, None));
    post(&nobody, "/api/v1/auth/signup", "l", &body).await.refused(409, "email_taken");
    for (path, body) in [
        ("/api/v1/admin/users", account("made@example.com")),
        ("/api/v1/admin/users", json!({"email": "invited@example.com"})),
        ("/api/v1/admin/signing_keys", Value::Null),
    ] {
        let key = body["email"].as_str().unwrap_or("k").to_owned();
        let first = post(admin, path, &key, &body).await;
        let second = post(admin, path, &key, &body).await;
        assert_eq!((first.status, first.header("idempotent-replayed")), (201, None), "{first:?}");
        assert_eq!((second.status, second.header("idempotent-replayed")), (201, Some("true")), "{second:?}");
        assert_eq!((&second.body, second.header("location")), (&first.body, first.header("location")));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kept_answer_says_nothing_of_the_password_that_was_sent() {
    let platform = Platform::start().await;
    let body = json!({"email": "new@example.com", "password": "a quiet harbour at night"});
    assert_eq!(post(&platform.admin.anonymous(), "/api/v1/auth/signup", "k", &body).await.status, 201);
    // Whoever has the database alone can neither read the body nor try passwords on its hash.
    let digest = <sha2::Sha256 as sha2::Digest>::digest(body.to_string());
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    for column in ["body_hash", "body"] {
        let kept = sql(format!("SELECT {column} AS kept FROM idempotency"));
        let kept: Vec<String> = kept.fetch_all(&platform.app().db).await.expect("what is kept");
        assert_eq!(kept.len(), 1);
        assert!(kept[0] != digest && !kept[0].contains("harbour"), "{column}");
    }
}

async fn send(caller: &Caller, key: &str, body: impl Into<reqwest::Body>) -> Answer {
    let request = caller.request(Method::POST, "/sandbox_uploads").header("idempotency-key", key);
    caller.send(request.body(body)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_is_kept_once() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let first = send(caller, "k", "an archive").await;
    let second = send(caller, "k", "an archive").await;
    assert_eq!((first.status, second.status), (201, 201), "{second:?}");
    assert_eq!((second.header("idempotent-replayed"), &second.body), (Some("true"), &first.body));
    send(caller, "k", "another one").await.refused(422, "idempotency_mismatch");
    assert_eq!(caller.get("/sandbox_uploads").await.body["pagination"]["total_items"], 1);
    assert_ne!(send(caller, "l", "an archive").await.body["id"], first.body["id"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_second_is_told_that_the_first_still_runs() {
    // The first lets itself be waited for as long as the second waits.
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let mut first = Slow::begin(caller, "POST", "/sandbox_uploads", "Idempotency-Key: k\r\n").await;
    first.send("an ").await;
    send(caller, "k", "an archive").await.refused(409, "request_in_progress");
    // Another key is nobody's turn.
    assert_eq!(send(caller, "l", "an archive").await.status, 201);
    first.send("archive").await;
    let first = first.end().await;
    assert_eq!((first.status, first.header("idempotent-replayed")), (201, None), "{first:?}");
}
