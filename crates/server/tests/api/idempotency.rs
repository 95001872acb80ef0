//! `Idempotency-Key` on every POST that creates.

use berth_testkit::{Answer, Caller, Platform, vm};
use reqwest::Method;
use serde_json::{Value, json};

async fn post(caller: &Caller, path: &str, key: &str, body: &Value) -> Answer {
    caller.send(caller.request(Method::POST, path).header("idempotency-key", key).json(body)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_is_the_first_answer() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let disk = json!({"name": "d", "type": "block", "size_gb": 10, "region_id": "local"});
    let named = json!({"name": "Another"});
    let org = caller.project.split("/projects").next().expect("a path").to_owned();
    let projects = format!("{org}/projects");
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
    assert!(answers.iter().all(|a| a.status == 201 && a.body["id"] == answers[0].body["id"]), "{answers:?}");
    assert_eq!(platform.admin.get("/vms").await.body["pagination"]["total_items"], 1);
}
