//! VMs with a time to live.

use berth_domain::Timestamp;
use berth_testkit::{Caller, Platform, vm};
use serde_json::{Value, json};

fn living(name: &str, seconds: i64) -> Value {
    let mut body = vm(name);
    body["ttl_seconds"] = json!(seconds);
    body
}

/// The seconds between two moments of a VM.
fn between(vm: &Value, from: &str, to: &str) -> i64 {
    let at = |field: &str| Timestamp::parse(vm[field].as_str().expect("a time")).expect("a time");
    (at(to).0 - at(from).0) / Timestamp::SECOND
}

/// A deleted VM that was ended by the platform itself.
async fn ended_by_platform(caller: &Caller, id: &str) {
    let vm = caller.get(&format!("/vms/{id}?include_deleted=true")).await.body;
    assert_eq!(vm["status"], "deleted", "{vm}");
    let operations = caller.get(&format!("/vms/{id}/operations")).await.body;
    let newest = &operations["data"][0];
    assert_eq!(
        (&newest["verb"], &newest["actor"], &newest["status"]),
        (&json!("delete"), &Value::Null, &json!("done"))
    );
    let log = caller.get(&format!("{}/audit_log?action=vm.delete&subject={id}", caller.org())).await.body;
    assert_eq!(log["data"][0]["actor_kind"], "platform", "{log}");
    assert_eq!(log["data"][0]["data"]["message"], "its time is over (ttl_seconds)");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_is_deleted_at_its_time_and_not_before() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let mut body = living("web", 1000);
    body["data_disks"] = json!({"create_disks": [{"name": "data", "type": "block", "size_gb": 10}]});
    let made = caller.post("/vms", body).await;
    assert_eq!((made.status, between(&made.body, "created_at", "expires_at")), (201, 1000), "{made:?}");
    let id = made.id();
    let (off, forever) = (caller.create_vm(living("off", 1000)).await, caller.running_vm("forever").await);
    for id in [&id, &off] {
        caller.reaches(id, "running").await;
    }
    caller.act(&format!("/vms/{off}/stop")).await;
    caller.reaches(&off, "stopped").await;
    platform.advance(900);
    assert_eq!(caller.get(&format!("/vms/{id}")).await.body["status"], "running");
    assert_eq!(caller.get(&format!("/vms/{off}")).await.body["status"], "stopped");
    platform.advance(101);
    for id in [&id, &off] {
        caller.gone(id).await;
        ended_by_platform(caller, id).await;
    }
    let kept = caller.get("/disks").await.body;
    assert_eq!((&kept["data"][0]["name"], &kept["data"][0]["vm_id"]), (&json!("data"), &Value::Null), "{kept}");
    let forever = caller.get(&format!("/vms/{forever}")).await.body;
    assert_eq!((&forever["status"], &forever["expires_at"]), (&json!("running"), &Value::Null));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_time_is_set_anew_from_now() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let id = caller.create_vm(living("web", 1000)).await;
    let before = caller.reaches(&id, "running").await;
    platform.advance(900);
    let path = format!("/vms/{id}");
    // Like every field that is null, it stays.
    let same = caller.patch(&path, json!({"ttl_seconds": null})).await.body;
    assert_eq!(same["expires_at"], before["expires_at"]);
    let longer = caller.patch(&path, json!({"ttl_seconds": 2000})).await.body;
    assert_eq!(between(&longer, "updated_at", "expires_at"), 2000);
    platform.advance(1900);
    assert_eq!(caller.get(&path).await.body["status"], "running");
    assert_eq!(caller.patch(&path, json!({"ttl_seconds": 5})).await.status, 200);
    platform.advance(6);
    caller.gone(&id).await;
    ended_by_platform(caller, &id).await;
    let other = caller.running_vm("other").await;
    for (seconds, status) in [(4, 400), (2_592_001, 400), (2_592_000, 200)] {
        let answer = caller.patch(&format!("/vms/{other}"), json!({"ttl_seconds": seconds})).await;
        assert_eq!(answer.status, status, "{answer:?}");
    }
    for (seconds, status) in [(4, 400), (2_592_001, 400), (5, 201), (2_592_000, 201)] {
        assert_eq!(caller.post("/vms", living("bound", seconds)).await.status, status, "{seconds}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ended_while_no_service_ran_goes_when_one_begins() {
    let platform = Platform::start().await;
    let id = platform.admin.create_vm(living("web", 100)).await;
    platform.admin.reaches(&id, "running").await;
    let platform = platform.crash_for(101).await;
    platform.admin.gone(&id).await;
    ended_by_platform(&platform.admin, &id).await;
}
