//! VMs that are suspended and resumed.

use berth_host::EngineError;
use berth_testkit::{Caller, Platform};
use serde_json::{Value, json};

async fn verb(caller: &Caller, id: &str, verb: &str, status: &str) -> Value {
    let answer = caller.act(&format!("/vms/{id}/{verb}")).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    caller.reaches(id, status).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspended_vm_holds_nothing_of_the_host_and_goes_on() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let id = caller.running_vm("web").await;
    let ready = async |caller: Caller| caller.get(&format!("/vms/{id}")).await.body["guest_ready"] == true;
    caller.until("the guest", |caller| ready(caller.clone())).await;
    let generation = platform.engine.spec(&id).expect("a machine").generation;
    let suspended = verb(caller, &id, "suspend", "suspended").await;
    assert!(suspended["message"].is_null() && suspended["ssh"].is_null() && suspended["public_ip"].is_string());
    assert!(platform.engine.has_memory(&id));
    let again = caller.act(&format!("/vms/{id}/suspend")).await;
    assert_eq!((again.status, &again.body["updated_at"]), (202, &suspended["updated_at"]));
    caller.act(&format!("/vms/{id}/restart")).await.refused(400, "invalid_status");
    // Nobody else's machine waits for what it had.
    platform.engine.set_capacity(|capacity| capacity.memory_mb = 512);
    let other = caller.running_vm("other").await;
    let back = verb(caller, &id, "resume", "suspended").await;
    assert!(back["message"].as_str().is_some_and(|text| text.starts_with("insufficient_capacity:")), "{back}");
    assert!(platform.engine.has_memory(&id), "it is kept");
    let operations = caller.get(&format!("/vms/{id}/operations")).await.body;
    assert_eq!(
        (&operations["data"][0]["verb"], &operations["data"][0]["status"]),
        (&json!("resume"), &json!("failed"))
    );
    caller.delete(&format!("/vms/{other}")).await;
    caller.gone(&other).await;

    let running = verb(caller, &id, "resume", "running").await;
    assert!(running["message"].is_null() && running["guest_ready"] == true, "{running}");
    let spec = platform.engine.spec(&id).expect("a machine");
    assert!(spec.goes_on && spec.generation > generation && !platform.engine.has_memory(&id));
    let operations = caller.get(&format!("/vms/{id}/operations")).await.body;
    let verbs: Vec<_> = operations["data"].as_array().expect("a list").iter().map(|o| o["verb"].clone()).collect();
    assert_eq!(json!(verbs), json!(["resume", "resume", "suspend", "create"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspended_vm_is_started_stopped_and_deleted() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let id = caller.running_vm("web").await;
    verb(caller, &id, "suspend", "suspended").await;
    verb(caller, &id, "start", "running").await;
    assert!(platform.engine.spec(&id).expect("a machine").goes_on);
    verb(caller, &id, "suspend", "suspended").await;
    verb(caller, &id, "stop", "stopped").await;
    assert!(!platform.engine.has_memory(&id));
    caller.act(&format!("/vms/{id}/resume")).await.refused(400, "invalid_status");
    caller.act(&format!("/vms/{id}/suspend")).await.refused(400, "invalid_status");
    verb(caller, &id, "start", "running").await;
    assert!(!platform.engine.spec(&id).expect("a machine").goes_on);
    verb(caller, &id, "suspend", "suspended").await;
    assert_eq!(caller.delete(&format!("/vms/{id}")).await.status, 202);
    caller.gone(&id).await;
    assert!(!platform.engine.has_memory(&id));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_whose_memory_is_lost_boots_and_says_so() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let id = caller.running_vm("web").await;
    verb(caller, &id, "suspend", "suspended").await;
    platform.engine.lose_memory(&id);
    let running = verb(caller, &id, "resume", "running").await;
    assert!(running["message"].as_str().is_some_and(|text| text.contains("booted instead of going on")), "{running}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_cannot_be_suspended_goes_on() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let id = caller.running_vm("web").await;
    platform.engine.refuse("suspend", EngineError::NoCapacity("the host's disk has no room for its memory".into()));
    let answer = caller.act(&format!("/vms/{id}/suspend")).await;
    assert_eq!((answer.status, answer.body["status"].as_str()), (202, Some("suspending")));
    let back = caller.reaches(&id, "running").await;
    assert!(back["message"].as_str().is_some_and(|text| text.contains("no room for its memory")), "{back}");
    // So does one that takes too long.
    platform.engine.refuse("suspend", EngineError::Transient("it is silent".into()));
    caller.act(&format!("/vms/{id}/suspend")).await;
    caller.reaches(&id, "suspending").await;
    caller.act(&format!("/vms/{id}/stop")).await.refused(400, "invalid_status");
    platform.advance(301);
    let back = caller.reaches(&id, "running").await;
    assert!(back["message"].as_str().is_some_and(|text| text.contains("too long")), "{back}");
    platform.engine.allow("suspend");
    verb(caller, &id, "suspend", "suspended").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_disks_of_a_suspended_vm_stay_as_they_are() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let id = caller.running_vm("web").await;
    let body = json!({"name": "data", "type": "block", "size_gb": 10, "region_id": "local"});
    let disk = caller.post("/disks", body).await.id();
    let is_ready = async |caller: Caller| caller.get(&format!("/disks/{disk}")).await.body["status"] == "ready";
    caller.until("the disk", |caller| is_ready(caller.clone())).await;
    let suspended = verb(caller, &id, "suspend", "suspended").await;
    let root = suspended["root_disk"]["id"].as_str().expect("an id");
    caller.post(&format!("/root_disks/{root}/resize"), json!({"size_gb": 40})).await.refused(400, "invalid_status");
    caller.post(&format!("/disks/{disk}/attach"), json!({"vm_id": id})).await.refused(400, "invalid_status");
    verb(caller, &id, "resume", "running").await;
    assert_eq!(caller.post(&format!("/root_disks/{root}/resize"), json!({"size_gb": 40})).await.status, 202);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_whose_memory_does_not_fit_stays_suspended_until_its_owner_gives_that_up() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let id = caller.running_vm("web").await;
    verb(caller, &id, "suspend", "suspended").await;
    platform.engine.refuse("start", EngineError::Permanent("its memory was saved by another QEMU".into()));
    let back = verb(caller, &id, "resume", "suspended").await;
    assert!(back["message"].as_str().is_some_and(|text| text.contains("another QEMU")), "{back}");
    assert!(platform.engine.has_memory(&id));
    platform.engine.allow("start");
    verb(caller, &id, "stop", "stopped").await;
    assert!(!platform.engine.has_memory(&id));
    verb(caller, &id, "start", "running").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_keeps_one_from_being_suspended_its_guest_goes_on() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let id = caller.running_vm("web").await;
    platform.engine.refuse("suspend", EngineError::Permanent("QEMU is missing".into()));
    caller.act(&format!("/vms/{id}/suspend")).await;
    let back = caller.reaches(&id, "running").await;
    assert!(back["message"].as_str().is_some_and(|text| text.contains("QEMU is missing")), "{back}");
    assert_eq!(platform.engine.counts().2, 1, "it was not started again");
}
