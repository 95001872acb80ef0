//! VMs whose root disk is made anew.

use berth_host::EngineError;
use berth_testkit::{Answer, Caller, Platform, vm};
use serde_json::{Value, json};

fn root(vm: &Value) -> String {
    vm["root_disk"]["id"].as_str().expect("an id").to_owned()
}

async fn reinstall(caller: &Caller, id: &str, image: &str) -> Answer {
    caller.post(&format!("/vms/{id}/reinstall"), json!({"image_id": image})).await
}

/// A running VM with a data disk, a port and user data.
async fn full(caller: &Caller) -> Value {
    let mut body = vm("web");
    body["root_disk"]["create_disk_request"]["size_gb"] = json!(25);
    body["data_disks"] = json!({"create_disks": [{"name": "data", "type": "filesystem", "size_gb": 10}]});
    body["exposed_ports"] = json!([{"port": 8000, "protocol": "tcp"}]);
    body["user_data"] = json!("#!/bin/sh\ntrue\n");
    let id = caller.create_vm(body).await;
    caller.reaches(&id, "running").await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_on_the_root_disk_stays() {
    let platform = Platform::start().await;
    let (caller, engine) = (&platform.admin, &platform.engine);
    let before = full(caller).await;
    let id = before["id"].as_str().expect("an id");
    let answer = reinstall(caller, id, "large").await;
    assert_eq!(
        (answer.status, &answer.body["status"], &answer.body["image_id"]),
        (202, &json!("restarting"), &json!("large"))
    );
    let after = caller.reaches(id, "running").await;
    assert_eq!(engine.clones(&root(&before)), ["micro", "large"]);
    let mut expected = before.clone();
    for (field, value) in [
        ("image_id", json!("large")),
        ("updated_at", after["updated_at"].clone()),
        ("guest_ready", after["guest_ready"].clone()),
    ] {
        expected[field] = value;
    }
    assert_eq!(after, expected);
    let spec = engine.spec(id).expect("a machine");
    assert_eq!((spec.image_id.as_str(), spec.data_disks.len(), spec.user_data.is_some()), ("large", 1, true));
    let volume = caller.get(&format!("/root_disks/{}", root(&before))).await.body;
    assert_eq!((&volume["status"], &volume["image_id"]), (&json!("ready"), &json!("large")));
    let operations = caller.get(&format!("/vms/{id}/operations")).await.body;
    assert_eq!(
        (&operations["data"][0]["verb"], &operations["data"][0]["status"]),
        (&json!("reinstall"), &json!("done"))
    );
    assert_eq!(engine.counts(), (1, 2, 2), "one machine, two disks, two starts");
}

#[tokio::test(flavor = "multi_thread")]
async fn it_runs_afterwards_whatever_it_did_before() {
    let platform = Platform::start().await;
    let (caller, engine) = (&platform.admin, &platform.engine);
    let id = caller.running_vm("web").await;
    let disk = root(&caller.get(&format!("/vms/{id}")).await.body);
    for (verb, status) in [("stop", "stopped"), ("suspend", "suspended")] {
        assert_eq!(caller.act(&format!("/vms/{id}/{verb}")).await.status, 202);
        caller.reaches(&id, status).await;
        let answer = reinstall(caller, &id, "micro").await;
        assert_eq!((answer.status, &answer.body["status"]), (202, &json!("starting")), "{status}");
        let running = caller.reaches(&id, "running").await;
        assert!(running["message"].is_null(), "{running}");
        assert!(!engine.has_memory(&id) && !engine.spec(&id).expect("a machine").goes_on, "{status}");
    }
    assert_eq!(engine.clones(&disk), ["micro"; 3]);
    // A guest that does not hear the button is switched off.
    engine.set_deaf(true);
    assert_eq!(reinstall(caller, &id, "micro").await.status, 202);
    reinstall(caller, &id, "micro").await.refused(400, "invalid_status");
    caller
        .until("the switch", async |caller: Caller| {
            platform.advance(5);
            caller.get(&format!("/vms/{id}")).await.body["status"] == "running"
        })
        .await;
    assert_eq!(engine.clones(&disk), ["micro"; 4]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_is_refused_before_anything_goes() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let id = caller.running_vm("web").await;
    let disk = root(&caller.get(&format!("/vms/{id}")).await.body);
    let large = reinstall(caller, &id, "large").await;
    large.refused(400, "invalid_request");
    assert!(large.names("image_id"), "{large:?}");
    reinstall(caller, &id, "none").await.refused(404, "image_not_found");
    caller.post(&format!("/vms/{id}/reinstall"), json!({})).await.refused(400, "invalid_request");
    reinstall(caller, "01900000-0000-7000-8000-000000000000", "micro").await.refused(404, "vm_not_found");
    let now = caller.get(&format!("/vms/{id}")).await.body;
    assert_eq!((&now["status"], &now["image_id"]), (&json!("running"), &json!("micro")));
    assert_eq!(platform.engine.clones(&disk), ["micro"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_root_disk_grows_to_its_end_before_it_is_made_anew() {
    let platform = Platform::start().await;
    let (caller, engine) = (&platform.admin, &platform.engine);
    let id = caller.running_vm("web").await;
    let disk = root(&caller.get(&format!("/vms/{id}")).await.body);
    engine.hold("grow_disk");
    assert_eq!(caller.post(&format!("/root_disks/{disk}/resize"), json!({"size_gb": 30})).await.status, 202);
    let refused = reinstall(caller, &id, "large").await;
    refused.refused(409, "conflict");
    assert!(refused.body["message"].as_str().is_some_and(|text| text.contains("Wait")), "{refused:?}");
    engine.let_go();
    caller.until("its growth", async |_| engine.disk_gb(&disk) == Some(30)).await;
    let at_rest = async |caller: Caller| caller.get(&format!("/root_disks/{disk}")).await.body["change"].is_null();
    caller.until("its rest", at_rest).await;
    assert_eq!(reinstall(caller, &id, "large").await.status, 202);
    caller.reaches(&id, "running").await;
    assert_eq!((engine.clones(&disk), engine.disk_gb(&disk)), (vec!["micro".into(), "large".into()], Some(30)));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_cannot_be_made_fails_and_is_tried_again() {
    let platform = Platform::start().await;
    let (caller, engine) = (&platform.admin, &platform.engine);
    let id = caller.running_vm("web").await;
    let disk = root(&caller.get(&format!("/vms/{id}")).await.body);
    engine.refuse("remake_disk", EngineError::Permanent("the image is gone".into()));
    assert_eq!(reinstall(caller, &id, "micro").await.status, 202);
    let failed = caller.reaches(&id, "failed").await;
    assert!(failed["message"].as_str().is_some_and(|text| text.contains("the image is gone")), "{failed}");
    // What was there is, and has its place.
    engine.set_capacity(|capacity| capacity.disk_gb = 29);
    let body = json!({"name": "data", "type": "block", "size_gb": 10, "region_id": "local"});
    let data = format!("/disks/{}", caller.post("/disks", body).await.id());
    caller.until("its refusal", async |c: Caller| c.get(&data).await.body["status"] == "failed").await;
    engine.set_capacity(|capacity| capacity.disk_gb = 20);
    engine.allow("remake_disk");
    // Nothing starts from what was given up.
    assert_eq!(caller.act(&format!("/vms/{id}/start")).await.status, 202);
    caller.reaches(&id, "running").await;
    assert_eq!(engine.clones(&disk), ["micro", "micro"]);
    // One that is stopped before its disk was made anew has it made at its next start.
    engine.refuse("remake_disk", EngineError::Transient("not now".into()));
    assert_eq!(reinstall(caller, &id, "micro").await.status, 202);
    let begun =
        async |caller: Caller| caller.get(&format!("/root_disks/{disk}")).await.body["status"] == "provisioning";
    caller.until("its beginning", begun).await;
    assert_eq!(caller.act(&format!("/vms/{id}/stop")).await.status, 202);
    caller.reaches(&id, "stopped").await;
    engine.allow("remake_disk");
    assert_eq!(caller.act(&format!("/vms/{id}/start")).await.status, 202);
    caller.reaches(&id, "running").await;
    assert_eq!(engine.clones(&disk), ["micro"; 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_root_disk_that_was_given_up_goes_with_its_vm() {
    let platform = Platform::start().await;
    let (caller, engine) = (&platform.admin, &platform.engine);
    let id = caller.running_vm("web").await;
    let disk = root(&caller.get(&format!("/vms/{id}")).await.body);
    engine.refuse("remake_disk", EngineError::Transient("not now".into()));
    assert_eq!(reinstall(caller, &id, "micro").await.status, 202);
    // Though it would stay as it was.
    assert_eq!(caller.delete(&format!("/vms/{id}")).await.status, 202);
    caller.gone(&id).await;
    caller
        .until("its end", async |caller: Caller| caller.get(&format!("/root_disks/{disk}")).await.status == 404)
        .await;
    assert_eq!((engine.counts().0, engine.counts().1), (0, 0));
}
