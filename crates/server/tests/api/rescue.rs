//! VMs that run a rescue system.

use berth_domain::vm::plan::Machine;
use berth_host::EngineError;
use berth_testkit::{Answer, Caller, Platform, vm};
use serde_json::{Value, json};

async fn rescue(caller: &Caller, id: &str) -> Answer {
    caller.act(&format!("/vms/{id}/rescue")).await
}

async fn verb(caller: &Caller, id: &str, verb: &str, status: &str) -> Value {
    let answer = caller.act(&format!("/vms/{id}/{verb}")).await;
    assert_eq!(answer.status, 202, "{verb}: {answer:?}");
    caller.reaches(id, status).await
}

/// Whether a VM says of itself that it is in rescue, and whether its machine was told so.
fn in_rescue(platform: &Platform, vm: &Value) -> (bool, bool) {
    let spec = platform.engine.spec(vm["id"].as_str().expect("an id")).expect("a machine");
    (vm["rescue"].as_bool().expect("a flag"), spec.rescue.as_deref() == Some("micro"))
}

/// A running VM of an image with another user than the rescue system's, with a data disk, a port and user data.
async fn full(caller: &Caller) -> Value {
    let content =
        caller.request(reqwest::Method::PUT, "/api/v1/images/mine/content?login_user=ada").body(vec![7; 1 << 20]);
    assert_eq!(caller.send(content).await.status, 201);
    caller.until("the image", async |c: Caller| c.get("/api/v1/images/mine").await.body["status"] == "ready").await;
    let mut body = vm("web");
    body["root_disk"]["create_disk_request"]["image_id"] = json!("mine");
    body["data_disks"] = json!({"create_disks": [{"name": "data", "type": "filesystem", "size_gb": 10}]});
    body["exposed_ports"] = json!([{"port": 8000, "protocol": "tcp"}]);
    body["user_data"] = json!("#!/bin/sh\ntrue\n");
    let id = caller.create_vm(body).await;
    caller.reaches(&id, "running").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_goes_into_rescue_and_out_of_it() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let own = full(caller).await;
    let id = own["id"].as_str().expect("an id");
    assert_eq!((in_rescue(&platform, &own), &own["ssh"]["user"]), ((false, false), &json!("ada")));
    let answer = rescue(caller, id).await;
    assert_eq!(
        (answer.status, &answer.body["status"], &answer.body["rescue"]),
        (202, &json!("restarting"), &json!(true))
    );
    // Once more changes nothing, whether it is on its way or there.
    assert_eq!(rescue(caller, id).await.status, 202);
    let rescued = caller.reaches(id, "running").await;
    assert_eq!((in_rescue(&platform, &rescued), &rescued["ssh"]["user"]), ((true, true), &json!("root")));
    let message = rescued["message"].as_str().expect("a message");
    let root = own["root_disk"]["id"].as_str().expect("an id");
    let serial = caller.get(&format!("/root_disks/{root}")).await.body["serial"].as_str().expect("a serial").to_owned();
    for part in ["log in as root", "restart it", &format!("/dev/disk/by-id/virtio-{serial}")] {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert_eq!((rescue(caller, id).await.status, in_rescue(&platform, &rescued)), (202, (true, true)));
    assert_eq!(platform.engine.counts().2, 2, "starts");
    let spec = platform.engine.spec(id).expect("a machine");
    assert_eq!((spec.image_id.as_str(), spec.data_disks.len(), platform.engine.open_ports(id).len()), ("mine", 1, 2));
    let operations = caller.get(&format!("/vms/{id}/operations")).await.body;
    let (verbs, done) = (&operations["data"], &json!("done"));
    assert_eq!(verbs.as_array().map(Vec::len), Some(2));
    assert_eq!((&verbs[0]["verb"], &verbs[0]["status"], &verbs[1]["verb"]), (&json!("rescue"), done, &json!("create")));

    let back = verb(caller, id, "restart", "running").await;
    assert_eq!((in_rescue(&platform, &back), &back["message"]), ((false, false), &Value::Null));
    for field in ["ssh", "image_id", "root_disk", "data_disks", "exposed_ports", "public_ip"] {
        assert_eq!(back[field], own[field], "{field}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_ends_it_leads_back_to_its_own_system() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let id = caller.running_vm("web").await;
    verb(caller, &id, "stop", "stopped").await;
    let answer = rescue(caller, &id).await;
    assert_eq!((answer.status, &answer.body["status"]), (202, &json!("starting")));
    assert_eq!(in_rescue(&platform, &caller.reaches(&id, "running").await), (true, true));
    // A stop, and what makes its disk anew.
    let stopped = verb(caller, &id, "stop", "stopped").await;
    assert_eq!((&stopped["rescue"], &stopped["message"]), (&json!(false), &Value::Null));
    assert_eq!(in_rescue(&platform, &verb(caller, &id, "start", "running").await), (false, false));
    verb(caller, &id, "rescue", "running").await;
    let answer = caller.post(&format!("/vms/{id}/reinstall"), json!({"image_id": "micro"})).await;
    assert_eq!((answer.status, &answer.body["rescue"]), (202, &json!(false)));
    assert_eq!(in_rescue(&platform, &caller.reaches(&id, "running").await), (false, false));
    // Its rescue system powers itself off.
    verb(caller, &id, "rescue", "running").await;
    platform.engine.happen(&id, Machine::PoweredOff);
    assert_eq!(caller.reaches(&id, "stopped").await["rescue"], false);
    assert_eq!(in_rescue(&platform, &verb(caller, &id, "start", "running").await), (false, false));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rescue_system_that_dies_begins_again() {
    let platform = Platform::start().await;
    let caller = platform.admin.clone();
    let id = caller.running_vm("web").await;
    assert_eq!(caller.patch(&format!("/vms/{id}"), json!({"restart_policy": "on-failure"})).await.status, 200);
    verb(&caller, &id, "rescue", "running").await;
    let starts = platform.engine.counts().2;
    platform.engine.happen(&id, Machine::Absent);
    caller.until("another start", async |_| platform.engine.counts().2 > starts).await;
    assert_eq!(in_rescue(&platform, &caller.reaches(&id, "running").await), (true, true));
    // So it does where the service is another one.
    let platform = platform.restart().await;
    let caller = &platform.admin;
    let vm = caller.get(&format!("/vms/{id}")).await.body;
    assert_eq!((in_rescue(&platform, &vm), &vm["status"]), ((true, true), &json!("running")));
    assert_eq!(caller.patch(&format!("/vms/{id}"), json!({"restart_policy": "never"})).await.status, 200);
    platform.engine.happen(&id, Machine::Absent);
    assert_eq!(caller.reaches(&id, "failed").await["rescue"], false);
    // One that failed is what a rescue is for.
    assert_eq!(in_rescue(&platform, &verb(caller, &id, "rescue", "running").await), (true, true));
    platform.engine.refuse("start", EngineError::Permanent("the image is damaged".into()));
    platform.engine.happen(&id, Machine::PoweredOff);
    caller.reaches(&id, "stopped").await;
    assert_eq!(rescue(caller, &id).await.status, 202);
    let failed = caller.reaches(&id, "failed").await;
    assert_eq!((&failed["rescue"], failed["message"].as_str()), (&json!(false), Some("the image is damaged")));
    platform.engine.allow("start");
    assert_eq!(in_rescue(&platform, &verb(caller, &id, "start", "running").await), (false, false));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_is_refused() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    rescue(caller, "01900000-0000-7000-8000-000000000000").await.refused(404, "vm_not_found");
    let id = caller.running_vm("web").await;
    // A memory fits the disks as they were.
    verb(caller, &id, "suspend", "suspended").await;
    rescue(caller, &id).await.refused(400, "invalid_status");
    assert!(platform.engine.has_memory(&id));
    assert_eq!(in_rescue(&platform, &verb(caller, &id, "resume", "running").await), (false, false));
    // Nothing of a rescue system is kept.
    verb(caller, &id, "rescue", "running").await;
    caller.act(&format!("/vms/{id}/suspend")).await.refused(409, "not_supported");
    assert_eq!(in_rescue(&platform, &caller.get(&format!("/vms/{id}")).await.body), (true, true));
    verb(caller, &id, "restart", "running").await;
    platform.engine.lose_image("micro");
    caller.until("its loss", async |c: Caller| c.get("/api/v1/images/micro").await.body["status"] == "failed").await;
    rescue(caller, &id).await.refused(409, "not_supported");
    let vm = caller.get(&format!("/vms/{id}")).await.body;
    assert_eq!((in_rescue(&platform, &vm), &vm["status"]), ((false, false), &json!("running")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_root_disk_that_is_to_be_made_anew_is_not_rescued() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let id = caller.running_vm("web").await;
    let root = caller.get(&format!("/vms/{id}")).await.body["root_disk"]["id"].as_str().expect("an id").to_owned();
    platform.engine.refuse("remake_disk", EngineError::Permanent("the image is gone".into()));
    caller.post(&format!("/vms/{id}/reinstall"), json!({"image_id": "micro"})).await;
    caller.reaches(&id, "failed").await;
    let refused = rescue(caller, &id).await;
    refused.refused(409, "conflict");
    assert!(refused.body["message"].as_str().is_some_and(|text| text.contains("Start the VM")), "{refused:?}");
    assert_eq!(platform.engine.clones(&root), ["micro"], "what was there is there");
    platform.engine.allow("remake_disk");
    verb(caller, &id, "start", "running").await;
    assert_eq!(in_rescue(&platform, &verb(caller, &id, "rescue", "running").await), (true, true));
}

#[tokio::test(flavor = "multi_thread")]
async fn disks_come_go_and_grow_in_rescue_as_ever() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let id = caller.running_vm("web").await;
    let root = caller.get(&format!("/vms/{id}")).await.body["root_disk"]["id"].as_str().expect("an id").to_owned();
    verb(caller, &id, "rescue", "running").await;
    let body = json!({"name": "spare", "type": "block", "size_gb": 10, "region_id": "local"});
    let disk = format!("/disks/{}", caller.post("/disks", body).await.id());
    caller.until("the disk", async |c: Caller| c.get(&disk).await.body["status"] == "ready").await;
    assert_eq!(caller.post(&format!("{disk}/attach"), json!({"vm_id": id})).await.status, 202);
    caller.until("its place", async |c: Caller| c.get(&disk).await.body["change"].is_null()).await;
    assert_eq!(caller.post(&format!("/root_disks/{root}/resize"), json!({"size_gb": 30})).await.status, 202);
    caller.until("its growth", async |_| platform.engine.disk_gb(&root) == Some(30)).await;
    let vm = caller.get(&format!("/vms/{id}")).await.body;
    assert_eq!((in_rescue(&platform, &vm), &vm["status"]), ((true, true), &json!("running")));
    let back = verb(caller, &id, "restart", "running").await;
    assert_eq!((&back["data_disks"][0]["name"], in_rescue(&platform, &back)), (&json!("spare"), (false, false)));
}
