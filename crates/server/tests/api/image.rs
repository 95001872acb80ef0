//! Images: importing has rules, too.

use axum::Router;
use axum::routing::get;
use berth_host::EngineError;
use berth_server::db::sql;
use berth_testkit::{Caller, Platform, vm};
use reqwest::Method;
use serde_json::{Value, json};

/// A server with one file, `/disk.qcow2`; the URL of the file.
async fn served(content: Vec<u8>) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/disk.qcow2", listener.local_addr().expect("an address"));
    let files = Router::new().route("/disk.qcow2", get(|| async move { content }));
    tokio::spawn(async move { axum::serve(listener, files).await });
    url
}

async fn status_of(caller: &Caller, image: &str) -> Value {
    caller.get(&format!("/api/v1/images/{image}")).await.body["status"].clone()
}

async fn becomes(caller: &Caller, image: &'static str, status: &'static str) {
    caller.until(status, |c| async move { status_of(&c, image).await == status }).await;
}

async fn upload(caller: &Caller, image: &str, content: Vec<u8>) -> berth_testkit::Answer {
    let path = format!("/api/v1/images/{image}/content?login_user=ada");
    caller.send(caller.request(Method::PUT, &path).body(content)).await
}

async fn audited(platform: &Platform, action: &str, subject: &str) -> i64 {
    let count = sql("SELECT COUNT(*) FROM audit WHERE action = $1 AND subject = $2 AND actor IS NOT NULL");
    count.bind(action).bind(subject).fetch_one(&platform.app().db).await.expect("a count")
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_from_a_url_can_be_cloned_and_removed() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let url = served(vec![7; 3 << 20]).await;
    let answer = caller.post("/api/v1/images", json!({"id": "mine", "url": url, "login_user": "ada"})).await;
    assert_eq!((answer.status, answer.header("location")), (201, Some("/api/v1/images/mine")));
    becomes(caller, "mine", "ready").await;
    let mut body = vm("web");
    body["root_disk"]["create_disk_request"]["image_id"] = json!("mine");
    body["delete_root_disk"] = json!(true);
    let id = caller.create_vm(body).await;
    assert_eq!(caller.reaches(&id, "running").await["ssh"]["user"], "ada");
    caller.post("/api/v1/images", json!({"id": "mine", "url": url})).await.refused(409, "image_in_use");
    caller.delete("/api/v1/images/mine").await.refused(409, "image_in_use");
    caller.delete(&format!("/vms/{id}")).await;
    caller.gone(&id).await;
    // Its disk goes after it.
    caller.until("the image's end", |c| async move { c.delete("/api/v1/images/mine").await.status == 204 }).await;
    caller.get("/api/v1/images/mine").await.refused(404, "image_not_found");
    caller.until("an empty folder", |_| async { platform.engine.staged().is_empty() }).await;
    assert_eq!(
        (audited(&platform, "image.import", "mine").await, audited(&platform, "image.delete", "mine").await),
        (1, 1)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_is_taken_in_after_the_answer() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    platform.engine.refuse("import_image", EngineError::Transient("not now".into()));
    let answer = upload(caller, "mine", vec![7; 1 << 20]).await;
    assert_eq!((answer.status, answer.body["status"].as_str()), (201, Some("importing")), "{answer:?}");
    assert_eq!(platform.engine.staged().len(), 1);
    assert_eq!(upload(caller, "mine", vec![7; 1 << 20]).await.status, 409);
    assert_eq!(platform.engine.staged().len(), 1, "what was refused is not kept");
    platform.engine.allow("import_image");
    platform.advance(10);
    becomes(caller, "mine", "ready").await;
    caller.until("an empty folder", |_| async { platform.engine.staged().is_empty() }).await;
    assert_eq!(audited(&platform, "image.import", "mine").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_that_nobody_wants_any_more_leaves_nothing() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    platform.engine.hold("import_image");
    assert_eq!(upload(caller, "mine", vec![7; 1 << 20]).await.status, 201);
    caller.until("the host's work", |_| async { platform.engine.waiting() == 1 }).await;
    assert_eq!(caller.delete("/api/v1/images/mine").await.status, 204);
    caller.until("an empty folder", |_| async { platform.engine.staged().is_empty() }).await;
    assert!(!platform.engine.has_image("mine"));
    platform.engine.let_go();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_and_a_removal_outlive_the_service() {
    let platform = Platform::start().await;
    platform.engine.refuse("import_image", EngineError::Transient("not now".into()));
    platform.engine.refuse("remove_image", EngineError::Transient("not now".into()));
    assert_eq!(upload(&platform.admin, "mine", vec![7; 1 << 20]).await.status, 201);
    assert_eq!(platform.admin.delete("/api/v1/images/large").await.status, 204);
    platform.admin.get("/api/v1/images/large").await.refused(404, "image_not_found");
    let staged = platform.engine.staged();
    let platform = platform.restart().await;
    assert_eq!(platform.engine.staged(), staged, "what a row names is kept");
    platform.admin.get("/api/v1/images/large").await.refused(404, "image_not_found");
    platform.engine.allow("import_image");
    platform.engine.allow("remove_image");
    platform.advance(10);
    becomes(&platform.admin, "mine", "ready").await;
    // Its files are gone, so nothing brings it back.
    platform.admin.until("the end of its files", |_| async { !platform.engine.has_image("large") }).await;
    let platform = platform.restart().await;
    platform.admin.get("/api/v1/images/large").await.refused(404, "image_not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_nobody_owns_is_swept_at_the_start() {
    let platform = Platform::start().await;
    let staging = berth_host::vm::Engine::staging(&*platform.engine).await.expect("a folder");
    std::fs::write(staging.join("half.upload"), b"half").expect("a file");
    let platform = platform.restart().await;
    assert!(platform.engine.staged().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_can_be_asked_for_as_soon_as_the_service_answers() {
    let platform = Platform::start_with(|_| {}).await;
    assert_eq!(platform.admin.post("/vms", vm("web")).await.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_has_rules() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let good = json!({"id": "mine", "url": "http://127.0.0.1:1/image.qcow2"});
    for (field, bad) in [
        ("id", json!("Bad Name")),
        ("id", json!("x".repeat(41))),
        ("id", Value::Null),
        ("url", json!("ftp://example.org/x")),
        ("url", Value::Null),
        ("sha256", json!("abc")),
        ("firmware", json!("coreboot")),
        ("login_user", json!("Root!")),
    ] {
        let mut body = good.clone();
        body[field] = bad;
        caller.post("/api/v1/images", body).await.refused(400, "invalid_request");
    }
    let mut both = good.clone();
    both["path"] = json!("/tmp/x");
    caller.post("/api/v1/images", both).await.refused(400, "invalid_request");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_that_fails_says_why_and_can_be_removed() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let answer = caller.post("/api/v1/images", json!({"id": "mine", "url": "http://127.0.0.1:1/image.qcow2"})).await;
    assert_eq!((answer.status, answer.body["status"].as_str()), (201, Some("importing")));
    caller.until("the failure", |c| async move { c.get("/api/v1/images/mine").await.body["status"] == "failed" }).await;
    let image = caller.get("/api/v1/images/mine").await.body;
    assert!(image["message"].as_str().is_some_and(|m| m.contains("cannot be downloaded")), "{image}");
    let mut body = vm("web");
    body["root_disk"]["create_disk_request"]["image_id"] = json!("mine");
    caller.post("/vms", body).await.refused(404, "image_not_found");
    assert_eq!(caller.delete("/api/v1/images/mine").await.status, 204);
    caller.get("/api/v1/images/mine").await.refused(404, "image_not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_disks_build_on_stays() {
    let platform = Platform::start().await;
    platform.admin.running_vm("web").await;
    let answer = platform.admin.delete("/api/v1/images/micro").await;
    assert_eq!(answer.status, 409, "{answer:?}");
}
