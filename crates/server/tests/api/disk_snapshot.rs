//! Snapshots of disks.

use berth_domain::vm::plan::Machine;
use berth_host::EngineError;
use berth_testkit::{Caller, Platform};
use futures::StreamExt;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::backup;
use crate::event::client;
use crate::project_image::root_of;

/// A data disk that is ready.
async fn disk(caller: &Caller, size_gb: i64) -> String {
    let body = json!({"name": "data", "type": "filesystem", "size_gb": size_gb, "region_id": "local"});
    let id = caller.post("/disks", body).await.id();
    let path = format!("/disks/{id}");
    caller.until("the disk", async |caller: Caller| caller.get(&path).await.body["status"] == "ready").await;
    id
}

/// Asks for a snapshot.
async fn asked(caller: &Caller, body: Value) -> String {
    let answer = caller.post("/disk_snapshots", body).await;
    assert_eq!((answer.status, &answer.body["status"]), (201, &json!("pending")), "{answer:?}");
    answer.id()
}

/// Waits until a snapshot has a status; the snapshot then.
async fn reaches(caller: &Caller, id: &str, status: &str) -> Value {
    let path = format!("/disk_snapshots/{id}");
    caller.until(status, async |caller: Caller| caller.get(&path).await.body["status"] == status).await;
    caller.get(&path).await.body
}

async fn ready(caller: &Caller, body: Value) -> String {
    let id = asked(caller, body).await;
    reaches(caller, &id, "ready").await;
    id
}

/// Waits until there is nothing at a path any more.
async fn gone(caller: &Caller, path: &str) {
    caller.until("its end", async |caller: Caller| caller.get(path).await.status == 404).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn disks_of_every_vm_and_of_none_are_copied() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let data = disk(caller, 12).await;
    let answer = caller.post("/disk_snapshots", json!({"disk_id": data})).await;
    let path = format!("/disk_snapshots/{}", answer.id());
    assert!(answer.header("location").is_some_and(|location| location.ends_with(&path)));
    let snapshot = reaches(caller, &answer.id(), "ready").await;
    for (field, value) in [
        ("name", json!("data")),
        ("kind", json!("data")),
        ("type", json!("filesystem")),
        ("disk_id", json!(data)),
        ("size_gb", json!(12)),
        ("bytes", json!(1 << 20)),
        ("region_id", json!("local")),
        ("image_id", Value::Null),
        ("message", Value::Null),
    ] {
        assert_eq!(snapshot[field], value, "{field}");
    }
    let vm = caller.running_vm("web").await;
    let root = root_of(&caller.get(&format!("/vms/{vm}")).await.body);
    platform.engine.set_copying(3);
    let of_root = ready(caller, json!({"root_disk_id": root, "name": "before"})).await;
    let of_root = caller.get(&format!("/disk_snapshots/{of_root}")).await.body;
    assert_eq!((&of_root["name"], &of_root["kind"]), (&json!("before"), &json!("root")));
    assert_eq!((&of_root["image_id"], &of_root["size_gb"]), (&json!("micro"), &json!(20)));
    for (verb, status) in [("suspend", "suspended"), ("stop", "stopped")] {
        caller.act(&format!("/vms/{vm}/{verb}")).await;
        caller.reaches(&vm, status).await;
        ready(caller, json!({"root_disk_id": root})).await;
        assert_eq!(caller.get(&format!("/vms/{vm}")).await.body["status"], status);
    }
    let list = async |query: &str| caller.get(&format!("/disk_snapshots?{query}")).await.body;
    assert_eq!(list("").await["pagination"]["total_items"], 4);
    assert_eq!(list("name=before").await["data"], json!([of_root]));
    assert_eq!(list(&format!("disk_id={root}&sort=created_at")).await["data"][0], of_root);
    assert_eq!(list(&format!("disk_id={data}")).await["pagination"]["total_items"], 1);
    assert_eq!(list("status=failed").await["data"], json!([]));
    caller.get("/disk_snapshots?status=gone").await.refused(400, "invalid_request");
    caller.get("/disk_snapshots?disk_id=x").await.refused(400, "invalid_request");
    let id = of_root["id"].as_str().expect("an id");
    let mut events = std::pin::pin!(client(caller).events(Some(0)).await.expect("a stream"));
    let mut told = Vec::new();
    while told.len() < 2 {
        let event = events.next().await.expect("more").expect("an event");
        if event.subject == id {
            told.push((event.kind, event.data["status"].clone()));
        }
    }
    let [created, made] = [("created", "pending"), ("status", "ready")];
    assert_eq!(told, [created, made].map(|(kind, status)| (format!("disk_snapshot.{kind}"), json!(status))));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_copied_is_refused() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let data = disk(caller, 10).await;
    let vm = caller.running_vm("web").await;
    let root = root_of(&caller.get(&format!("/vms/{vm}")).await.body);
    let refused = async |body: Value, code: &str, field: &str| {
        let answer = caller.post("/disk_snapshots", body).await;
        answer.refused(400, code);
        assert!(answer.names(field), "{answer:?}");
    };
    refused(json!({}), "invalid_request", "disk_id").await;
    refused(json!({"disk_id": data, "root_disk_id": root}), "invalid_request", "disk_id").await;
    refused(json!({"disk_id": root}), "invalid_request", "disk_id").await;
    refused(json!({"root_disk_id": data}), "invalid_request", "root_disk_id").await;
    refused(json!({"disk_id": data, "name": "Big"}), "invalid_request", "name").await;
    refused(json!({"disk_id": Uuid::now_v7()}), "disk_not_found", "disk_id").await;
    let elsewhere = caller.another_project("other").await;
    elsewhere.post("/disk_snapshots", json!({"disk_id": data})).await.refused(400, "disk_not_found");
    // One that is not made yet.
    platform.engine.refuse("make_disk", EngineError::Transient("slow".into()));
    let body = json!({"name": "late", "type": "block", "size_gb": 10, "region_id": "local"});
    let late = caller.post("/disks", body).await.id();
    refused(json!({"disk_id": late}), "invalid_request", "disk_id").await;
    let none = format!("/disk_snapshots/{}", Uuid::now_v7());
    caller.get(&none).await.refused(404, "snapshot_not_found");
    caller.delete(&none).await.refused(404, "snapshot_not_found");
    caller.get("/disk_snapshots/x").await.refused(400, "invalid_request");
    let snapshot = ready(caller, json!({"disk_id": data})).await;
    elsewhere.get(&format!("/disk_snapshots/{snapshot}")).await.refused(404, "snapshot_not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_outlives_its_disk_and_goes_alone() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let mut body = berth_testkit::vm("web");
    body["delete_root_disk"] = json!(true);
    let vm = caller.create_vm(body).await;
    let root = root_of(&caller.reaches(&vm, "running").await);
    let first = ready(caller, json!({"root_disk_id": root})).await;
    // One that was asked for is made before its disk goes.
    platform.engine.refuse("snapshot_disk", EngineError::Transient("slow".into()));
    let second = asked(caller, json!({"root_disk_id": root})).await;
    caller.delete(&format!("/vms/{vm}")).await;
    caller.gone(&vm).await;
    assert_eq!(caller.get(&format!("/root_disks/{root}")).await.body["status"], "deleting");
    platform.engine.allow("snapshot_disk");
    platform.advance(30);
    reaches(caller, &second, "ready").await;
    gone(caller, &format!("/root_disks/{root}")).await;
    assert_eq!(platform.engine.counts().1, 0);
    for id in [first, second] {
        let path = format!("/disk_snapshots/{id}");
        platform.engine.refuse("remove_snapshot", EngineError::Transient("slow".into()));
        let answer = caller.delete(&path).await;
        assert_eq!((answer.status, &answer.body), (202, &Value::Null));
        assert_eq!(caller.delete(&path).await.status, 202, "it is under way");
        assert_eq!(caller.get(&path).await.body["status"], "deleting");
        platform.engine.allow("remove_snapshot");
        platform.advance(30);
        gone(caller, &path).await;
    }
    assert_eq!(platform.engine.snapshots(), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_under_way_is_given_up() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let vm = caller.running_vm("web").await;
    let root = root_of(&caller.get(&format!("/vms/{vm}")).await.body);
    platform.engine.set_copying(u32::MAX);
    let id = asked(caller, json!({"root_disk_id": root})).await;
    caller.until("its copy", async |_| platform.engine.snapshots() == (0, 1)).await;
    let path = format!("/disk_snapshots/{id}");
    // What changes the disk waits for it.
    caller.ask(reqwest::Method::POST, &format!("/root_disks/{root}/resize"), json!({"size_gb": 30}), 202).await;
    let disk = caller.get(&format!("/root_disks/{root}")).await.body;
    assert_eq!(disk["change"], "growing");
    let next = asked(caller, json!({"root_disk_id": root})).await;
    let next = format!("/disk_snapshots/{next}");
    assert_eq!(caller.get(&next).await.body["size_gb"], 30, "it may have grown already");
    assert_eq!(caller.delete(&next).await.status, 202);
    assert_eq!(platform.engine.disk_gb(&root), Some(20));
    assert_eq!(caller.delete(&path).await.status, 202);
    gone(caller, &path).await;
    assert_eq!(platform.engine.snapshots(), (0, 0));
    let grown = async |_| platform.engine.disk_gb(&root) == Some(30);
    caller.until("its growth", grown).await;
    // A machine that dies takes with it what it was copying; its file is copied then.
    let id = asked(caller, json!({"root_disk_id": root})).await;
    caller.until("its copy", async |_| platform.engine.snapshots() == (0, 1)).await;
    platform.engine.happen(&vm, Machine::Absent);
    caller.reaches(&vm, "failed").await;
    assert_eq!(reaches(caller, &id, "ready").await["size_gb"], 30);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_is_copied_at_rest_stays_where_it_is() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let (data, vm) = (disk(caller, 10).await, caller.running_vm("web").await);
    caller.act(&format!("/vms/{vm}/stop")).await;
    caller.reaches(&vm, "stopped").await;
    platform.engine.hold("snapshot_disk");
    let id = asked(caller, json!({"disk_id": data})).await;
    caller.until("its copy", async |_| platform.engine.waiting() > 0).await;
    let attach = format!("/disks/{data}/attach");
    caller.post(&attach, json!({"vm_id": vm})).await.refused(409, "disk_in_use");
    let mut body = berth_testkit::vm("other");
    body["data_disks"] = json!({"attached_disks": [{"disk_id": data}]});
    caller.post("/vms", body).await.refused(409, "disk_in_use");
    platform.engine.let_go();
    reaches(caller, &id, "ready").await;
    assert_eq!(caller.post(&attach, json!({"vm_id": vm})).await.status, 200);
    platform.engine.hold("snapshot_disk");
    let id = asked(caller, json!({"disk_id": data})).await;
    caller.until("its copy", async |_| platform.engine.waiting() > 0).await;
    caller.act(&format!("/disks/{data}/detach")).await.refused(409, "disk_in_use");
    platform.engine.let_go();
    reaches(caller, &id, "ready").await;
    assert_eq!(caller.act(&format!("/disks/{data}/detach")).await.status, 200);
}

/// The body of a VM that begins with a snapshot.
fn vm_of(snapshot: &str, size_gb: i64) -> Value {
    let mut body = berth_testkit::vm("again");
    body["snapshot_id"] = json!(snapshot);
    body["root_disk"] = json!({"create_disk_request": {"name": "again", "size_gb": size_gb}});
    body
}

#[tokio::test(flavor = "multi_thread")]
async fn disks_and_vms_are_made_of_snapshots_which_may_go_then() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let vm = caller.running_vm("web").await;
    let root = root_of(&caller.get(&format!("/vms/{vm}")).await.body);
    let (data, of_root) = (disk(caller, 10).await, ready(caller, json!({"root_disk_id": root})).await);
    let of_data = ready(caller, json!({"disk_id": data})).await;
    let new =
        json!({"name": "more", "type": "filesystem", "size_gb": 12, "region_id": "local", "snapshot_id": of_data});
    let made = caller.post("/disks", new).await;
    assert_eq!((made.status, &made.body["snapshot_id"]), (201, &json!(of_data)));
    let path = format!("/disks/{}", made.id());
    caller.until("the disk", async |caller: Caller| caller.get(&path).await.body["status"] == "ready").await;
    let mut body = vm_of(&of_root, 20);
    let new = json!({"name": "beside", "type": "filesystem", "size_gb": 10, "snapshot_id": of_data});
    body["data_disks"] = json!({"create_disks": [new]});
    body["count"] = json!(2);
    let made = caller.post("/vms", body).await;
    assert_eq!(made.status, 201, "{made:?}");
    for again in made.body["data"].as_array().expect("VMs") {
        let again = again["id"].as_str().expect("an id");
        let again = caller.reaches(again, "running").await;
        let volume = caller.get(&format!("/root_disks/{}", root_of(&again))).await.body;
        assert_eq!((&volume["snapshot_id"], &volume["image_id"]), (&json!(of_root), &json!("micro")));
        assert_eq!(again["ssh"]["user"], caller.get(&format!("/vms/{vm}")).await.body["ssh"]["user"]);
    }
    for id in [of_root, of_data] {
        assert_eq!(caller.delete(&format!("/disk_snapshots/{id}")).await.status, 202);
        gone(caller, &format!("/disk_snapshots/{id}")).await;
        assert_eq!(caller.get(&path).await.body["status"], "ready");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_snapshot_cannot_become_is_refused() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let vm = caller.running_vm("web").await;
    let root = root_of(&caller.get(&format!("/vms/{vm}")).await.body);
    let data = disk(caller, 12).await;
    let of_root = ready(caller, json!({"root_disk_id": root})).await;
    let of_data = ready(caller, json!({"disk_id": data})).await;
    let new = |kind: &str, size_gb: i64, snapshot: &str| json!({"name": "more", "type": kind, "size_gb": size_gb, "region_id": "local", "snapshot_id": snapshot});
    let refused = async |path: &str, body: Value, field: &str| {
        let answer = caller.post(path, body).await;
        assert!(answer.status == 400 && answer.names(field), "{answer:?}");
    };
    refused("/disks", new("filesystem", 11, &of_data), "size_gb").await;
    refused("/disks", new("block", 12, &of_data), "type").await;
    refused("/disks", new("block", 20, &of_root), "snapshot_id").await;
    refused("/disks", new("block", 20, "x"), "snapshot_id").await;
    let unknown = Uuid::now_v7().to_string();
    caller.post("/disks", new("block", 12, &unknown)).await.refused(404, "snapshot_not_found");
    refused("/vms", vm_of(&of_data, 20), "snapshot_id").await;
    caller.post("/vms", vm_of(&unknown, 20)).await.refused(404, "snapshot_not_found");
    let mut both = vm_of(&of_root, 20);
    both["root_disk"]["create_disk_request"]["image_id"] = json!("micro");
    refused("/vms", both, "root_disk.create_disk_request.image_id").await;
    let mut body = vm_of(&of_root, 20);
    body["data_disks"] =
        json!({"create_disks": [{"name": "d", "type": "block", "size_gb": 12, "snapshot_id": of_data}]});
    refused("/vms", body, "data_disks.create_disks[0].type").await;
    let mut body = vm_of(&of_root, 20);
    body["root_disk"] = json!({"attach_disk_request": {"disk_id": root}});
    refused("/vms", body, "snapshot_id").await;
    // Only one that is ready is used, and one that is being used stays.
    platform.engine.refuse("snapshot_disk", EngineError::Transient("slow".into()));
    let late = asked(caller, json!({"disk_id": data})).await;
    caller.post("/disks", new("filesystem", 12, &late)).await.refused(409, "snapshot_not_ready");
    platform.engine.refuse("make_disk", EngineError::Transient("slow".into()));
    let made = caller.post("/disks", new("filesystem", 12, &of_data)).await.id();
    let snapshot = format!("/disk_snapshots/{of_data}");
    caller.delete(&snapshot).await.refused(409, "conflict");
    assert_eq!(caller.delete(&format!("/disks/{made}")).await.status, 204);
    assert_eq!(caller.delete(&snapshot).await.status, 202);
    // One that failed is made when its VM is started again.
    platform.engine.refuse("make_disk", EngineError::Permanent("broken".into()));
    let vm = caller.create_vm(vm_of(&of_root, 20)).await;
    caller.reaches(&vm, "failed").await;
    let snapshot = format!("/disk_snapshots/{of_root}");
    caller.delete(&snapshot).await.refused(409, "conflict");
    platform.engine.allow("make_disk");
    caller.act(&format!("/vms/{vm}/start")).await;
    caller.reaches(&vm, "running").await;
    assert_eq!(caller.delete(&snapshot).await.status, 202);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_is_told() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let data = disk(caller, 10).await;
    platform.engine.refuse("snapshot_disk", EngineError::Permanent("it could not be copied: broken".into()));
    let id = asked(caller, json!({"disk_id": data})).await;
    assert_eq!(reaches(caller, &id, "failed").await["message"], "it could not be copied: broken");
    platform.engine.allow("snapshot_disk");
    ready(caller, json!({"disk_id": data})).await;
    assert_eq!(caller.delete(&format!("/disk_snapshots/{id}")).await.status, 202);
    gone(caller, &format!("/disk_snapshots/{id}")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_takes_its_place_on_the_host_and_in_the_quota() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let data = disk(caller, 10).await;
    platform.engine.set_capacity(|capacity| capacity.disk_gb = 20);
    let first = ready(caller, json!({"disk_id": data})).await;
    let second = asked(caller, json!({"disk_id": data})).await;
    let failed = reaches(caller, &second, "failed").await;
    assert!(failed["message"].as_str().is_some_and(|text| text.starts_with("insufficient_capacity:")), "{failed}");
    let quota = caller.get("/quota").await.body;
    assert_eq!((&quota["disks"]["used"], &quota["disk_gb"]["used"]), (&json!(3), &json!(30)));
    for id in [first, second] {
        caller.delete(&format!("/disk_snapshots/{id}")).await;
        gone(caller, &format!("/disk_snapshots/{id}")).await;
    }
    ready(caller, json!({"disk_id": data})).await;
    let usage = platform.resource_usage().await;
    let kinds: Vec<_> = usage["data"].as_array().expect("a list").iter().map(|line| &line["resource_type"]).collect();
    assert_eq!(kinds.iter().filter(|kind| **kind == "disk_snapshot").count(), 2, "{usage}");
    // A project with snapshots stays.
    caller.delete(&format!("/disks/{data}")).await;
    gone(caller, &format!("/disks/{data}")).await;
    caller.delete("").await.refused(409, "conflict");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_is_being_copied_says_into_which_backup() {
    let platform = backup::platform().await;
    let caller = &platform.admin;
    let data = backup::disk(caller, 10).await;
    let vm = caller.running_vm("web").await;
    platform.engine.hold("snapshot_disk");
    let id = caller.post("/backups", json!({"disk_id": data})).await.id();
    let refused = caller.post(&format!("/disks/{data}/attach"), json!({"vm_id": vm})).await;
    refused.refused(409, "disk_in_use");
    let message = refused.body["message"].as_str().expect("a message");
    assert!(message.contains(&format!("into the backup {id}.")), "{message}");
    platform.engine.let_go();
    backup::settled(caller, &format!("/backups/{id}"), "ready").await;
    assert_eq!(caller.post(&format!("/disks/{data}/attach"), json!({"vm_id": vm})).await.status, 202);
}
