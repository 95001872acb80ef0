//! Images: importing has rules, too.

use berth_testkit::{Platform, vm};
use serde_json::{Value, json};

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
