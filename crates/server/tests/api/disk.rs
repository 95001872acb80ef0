//! Root disk volumes and data disks.

use berth_host::EngineError;
use berth_server::db::sql;
use berth_testkit::{Caller, Platform, vm};
use serde_json::{Value, json};

fn disk(name: &str) -> Value {
    json!({"name": name, "type": "filesystem", "size_gb": 10, "region_id": "local"})
}

/// Asks for a disk, and waits until it has this status.
async fn disk_reaches(caller: &Caller, body: Value, status: &str) -> Value {
    let answer = caller.post("/disks", body).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    let path = format!("/disks/{}", answer.id());
    caller
        .until(status, |c| {
            let path = path.clone();
            async move { c.get(&path).await.body["status"] == status }
        })
        .await;
    caller.get(&path).await.body
}

async fn ready_disk(caller: &Caller, name: &str) -> String {
    disk_reaches(caller, disk(name), "ready").await["id"].as_str().expect("an id").to_owned()
}

/// Why a disk could not be made.
async fn failed_disk(caller: &Caller, body: Value) -> String {
    disk_reaches(caller, body, "failed").await["message"].as_str().expect("a message").to_owned()
}

fn attaching(name: &str, disks: &[&str]) -> Value {
    let mut body = vm(name);
    body["data_disks"] = json!({"attached_disks": disks.iter().map(|d| json!({"disk_id": d})).collect::<Vec<_>>()});
    body
}

#[tokio::test(flavor = "multi_thread")]
async fn a_root_disk_volume_is_complete() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let id = caller.running_vm("web").await;
    let volume = caller.get("/root_disks").await.body["data"][0].clone();
    let path: Vec<_> = caller.project.split('/').collect();
    assert_eq!((&volume["org_id"], &volume["project_id"]), (&json!(path[4]), &json!(path[6])));
    for (field, value) in [
        ("name", json!("root")),
        ("region", json!("local")),
        ("size_gb", json!(20)),
        ("image_id", json!("micro")),
        ("plan_id", json!("on-demand")),
        ("status", json!("ready")),
        ("is_attached", json!(true)),
        ("vm_id", json!(id)),
    ] {
        assert_eq!(volume[field], value, "{field}");
    }
    let one = caller.get(&format!("/root_disks/{}", volume["id"].as_str().expect("an id"))).await;
    assert_eq!((one.status, &one.body), (200, &volume));
    caller.get(&format!("/root_disks/{}", uuid::Uuid::now_v7())).await.refused(404, "volume_not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_root_disk_volume_is_deleted_only_while_unattached() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let vm = caller.running_vm("web").await;
    let id = caller.get("/root_disks").await.body["data"][0]["id"].as_str().expect("an id").to_owned();
    caller.delete(&format!("/root_disks/{id}")).await.refused(409, "disk_in_use");
    platform.engine.refuse("discard", EngineError::Transient("slow".into()));
    caller.delete(&format!("/vms/{vm}")).await;
    caller.delete(&format!("/root_disks/{id}")).await.refused(409, "disk_in_use");
    platform.engine.allow("discard");
    platform.advance(30);
    caller.gone(&vm).await;
    platform.engine.refuse("remove_disk", EngineError::Transient("slow".into()));
    let answer = caller.delete(&format!("/root_disks/{id}")).await;
    assert_eq!((answer.status, &answer.body), (202, &Value::Null));
    assert_eq!(caller.get(&format!("/root_disks/{id}")).await.body["status"], "deleting");
    assert_eq!(caller.delete(&format!("/root_disks/{id}")).await.status, 202);
    platform.engine.allow("remove_disk");
    platform.advance(30);
    let path = format!("/root_disks/{id}");
    caller
        .until("its end", |c| {
            let path = path.clone();
            async move { c.get(&path).await.status == 404 }
        })
        .await;
    caller.delete(&path).await.refused(404, "volume_not_found");
    assert_eq!(platform.engine.counts().1, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_is_held_from_the_answer_of_a_creation_on() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let data = ready_disk(caller, "data").await;
    platform.engine.refuse("make_disk", EngineError::Transient("slow".into()));
    let first = caller.create_vm(attaching("a", &[&data])).await;
    caller.post("/vms", attaching("b", &[&data])).await.refused(409, "disk_in_use");
    caller.delete(&format!("/disks/{data}")).await.refused(409, "disk_in_use");
    let root = caller.get(&format!("/vms/{first}")).await.body["root_disk"]["id"].clone();
    let mut body = vm("b");
    body["root_disk"] = json!({"attach_disk_request": {"disk_id": root}});
    caller.post("/vms", body).await.refused(409, "disk_in_use");
    caller.delete(&format!("/vms/{first}")).await;
    caller.gone(&first).await;
    platform.engine.allow("make_disk");
    let second = caller.create_vm(attaching("b", &[&data])).await;
    caller.reaches(&second, "running").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn disks_that_do_not_fit_a_request() {
    let platform = Platform::start_with(|config| {
        let mut other = config.catalog.regions[0].clone();
        other.id = "other".into();
        config.catalog.regions.push(other);
    })
    .await;
    let caller = &platform.admin;
    let data = ready_disk(caller, "data").await;
    // A data disk as root, a root disk as data, the same disk twice, a disk elsewhere.
    let mut body = vm("web");
    body["root_disk"] = json!({"attach_disk_request": {"disk_id": data}});
    caller.post("/vms", body).await.refused(400, "invalid_request");
    let id = caller.running_vm("web").await;
    caller.delete(&format!("/vms/{id}")).await;
    caller.gone(&id).await;
    let root = caller.get("/root_disks").await.body["data"][0]["id"].as_str().expect("an id").to_owned();
    caller.post("/vms", attaching("web", &[&root])).await.refused(400, "invalid_request");
    caller.post("/vms", attaching("web", &[&data, &data])).await.refused(400, "invalid_request");
    let mut elsewhere = attaching("web", &[&data]);
    elsewhere["region_id"] = json!("other");
    caller.post("/vms", elsewhere).await.refused(400, "invalid_request");
    // What a request has wrong is told before who has the disk.
    let near = caller.create_vm(attaching("near", &[&data])).await;
    let mut far = vm("far");
    far["region_id"] = json!("other");
    let far = caller.create_vm(far).await;
    let attach = async |vm: &str| caller.post(&format!("/disks/{data}/attach"), json!({"vm_id": vm})).await;
    let refused = attach(&far).await;
    refused.refused(400, "invalid_request");
    assert!(refused.names("vm_id"), "{refused:?}");
    attach(&caller.running_vm("other").await).await.refused(409, "disk_in_use");
    assert_eq!(attach(&near).await.status, 200, "it has it");
    // A volume that is not ready.
    platform.engine.refuse("make_disk", EngineError::Transient("slow".into()));
    let slow = caller.post("/disks", disk("slow")).await.id();
    caller.post("/vms", attaching("web", &[&slow])).await.refused(400, "invalid_request");
    platform.engine.refuse("make_disk", EngineError::Permanent("broken".into()));
    platform.advance(10);
    let path = format!("/disks/{slow}");
    caller
        .until("its failure", |c| {
            let path = path.clone();
            async move { c.get(&path).await.body["status"] == "failed" }
        })
        .await;
    caller.post("/vms", attaching("web", &[&slow])).await.refused(400, "invalid_request");
    assert_eq!(caller.delete(&path).await.status, 204);
}

#[tokio::test(flavor = "multi_thread")]
async fn four_attached_and_four_created() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let mut disks = Vec::new();
    for number in 0..5 {
        disks.push(ready_disk(caller, &format!("d{number}")).await);
    }
    let all: Vec<_> = disks.iter().map(String::as_str).collect();
    let answer = caller.post("/vms", attaching("web", &all)).await;
    answer.refused(400, "invalid_request");
    assert!(answer.names("data_disks.attached_disks"));
    let mut body = attaching("web", &all[..4]);
    body["data_disks"]["create_disks"] =
        (0..4).map(|n| json!({"name": format!("n{n}"), "type": "block", "size_gb": 10})).collect();
    let id = caller.create_vm(body).await;
    let vm = caller.reaches(&id, "running").await;
    assert_eq!(vm["data_disks"].as_array().map(Vec::len), Some(8));
    assert_eq!(platform.engine.spec(&id).expect("a machine").data_disks.len(), 8);
}

#[tokio::test(flavor = "multi_thread")]
async fn data_disks_have_the_rules_of_data_disks() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    for (field, bad) in [
        ("size_gb", json!(9)),
        ("size_gb", json!(2049)),
        ("type", json!("ext4")),
        ("name", json!("A")),
        ("region_id", Value::Null),
    ] {
        let mut body = disk("d");
        body[field] = bad;
        let answer = caller.post("/disks", body).await;
        answer.refused(400, "invalid_request");
        assert!(answer.names(field), "{answer:?}");
    }
    let mut body = disk("d");
    body["region_id"] = json!("mars");
    caller.post("/disks", body).await.refused(404, "region_not_found");
    caller.get("/disks/x").await.refused(400, "invalid_request");
    caller.get(&format!("/disks/{}", uuid::Uuid::now_v7())).await.refused(404, "volume_not_found");
    let id = ready_disk(caller, "d").await;
    assert_eq!(caller.delete(&format!("/disks/{id}")).await.status, 204);
}

#[tokio::test(flavor = "multi_thread")]
async fn attaching_and_detaching_is_done_at_once_while_a_machine_is_off() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let data = ready_disk(caller, "data").await;
    let vm = caller.running_vm("web").await;
    let attach = json!({"vm_id": vm});
    caller.act(&format!("/vms/{vm}/stop")).await;
    caller.reaches(&vm, "stopped").await;
    let answer = caller.post(&format!("/disks/{data}/attach"), attach.clone()).await;
    assert_eq!((answer.status, &answer.body["vm_id"]), (200, &json!(vm)));
    // Attaching it again where it is changes nothing; elsewhere it is in use.
    assert_eq!(caller.post(&format!("/disks/{data}/attach"), attach).await.status, 200);
    let other = caller.running_vm("other").await;
    caller.act(&format!("/vms/{other}/stop")).await;
    caller.reaches(&other, "stopped").await;
    let elsewhere = json!({"vm_id": other});
    caller.post(&format!("/disks/{data}/attach"), elsewhere).await.refused(409, "disk_in_use");
    caller.act(&format!("/vms/{vm}/start")).await;
    caller.reaches(&vm, "running").await;
    assert_eq!(platform.engine.spec(&vm).expect("a machine").data_disks.len(), 1);
    caller.act(&format!("/vms/{vm}/stop")).await;
    caller.reaches(&vm, "stopped").await;
    let answer = caller.act(&format!("/disks/{data}/detach")).await;
    assert_eq!((answer.status, &answer.body["is_attached"]), (200, &json!(false)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_the_host_cannot_hold_fails_alone() {
    let platform = Platform::start().await;
    platform.engine.set_capacity(|capacity| capacity.disk_gb = 40);
    let caller = &platform.admin;
    let message =
        failed_disk(caller, json!({"name": "large", "type": "block", "size_gb": 1000, "region_id": "local"})).await;
    assert!(message.starts_with("insufficient_capacity: this region has 40 GiB of disk"), "{message}");
    // What others start is not held up by it, and what they have starts whatever is said of the disk by now.
    let id = caller.running_vm("web").await;
    ready_disk(caller, "small").await;
    platform.engine.set_capacity(|capacity| capacity.disk_gb = 10);
    caller.act(&format!("/vms/{id}/stop")).await;
    caller.reaches(&id, "stopped").await;
    caller.act(&format!("/vms/{id}/start")).await;
    caller.reaches(&id, "running").await;
    platform.engine.set_capacity(|capacity| (capacity.disk_gb, capacity.disk_free) = (1000, false));
    assert_eq!(failed_disk(caller, disk("another")).await, "insufficient_capacity: the host's disk is almost full");
    caller.act(&format!("/vms/{id}/stop")).await;
    caller.reaches(&id, "stopped").await;
    caller.act(&format!("/vms/{id}/start")).await;
    caller.reaches(&id, "running").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn quota_is_what_the_rows_say() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    ready_disk(caller, "data").await;
    caller.running_vm("web").await;
    let quota = caller.get("/quota").await.body;
    assert_eq!(quota["vms"], json!({"used": 1, "limit": null}));
    assert_eq!((&quota["vcpu"]["used"], &quota["memory_mb"]["used"]), (&json!(1), &json!(512)));
    assert_eq!((&quota["disks"]["used"], &quota["disk_gb"]["used"]), (&json!(2), &json!(30)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_outlives_its_image() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let first = caller.running_vm("first").await;
    let volume = caller.get(&format!("/vms/{first}")).await.body["root_disk"]["id"].clone();
    caller.delete(&format!("/vms/{first}")).await;
    caller.gone(&first).await;
    platform.engine.lose_image("micro");
    caller
        .until("the image's failure", |c| async move { c.get("/api/v1/images/micro").await.body["status"] == "failed" })
        .await;
    let mut body = vm("second");
    body["root_disk"] = json!({"attach_disk_request": {"disk_id": volume}});
    let second = caller.create_vm(body).await;
    let running = caller.reaches(&second, "running").await;
    assert_eq!((&running["image_id"], &running["ssh"]["user"]), (&json!("micro"), &json!("root")), "{running}");
}

#[tokio::test(flavor = "multi_thread")]
async fn disks_of_one_name_are_mounted_side_by_side() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let disk = |kind: &str| json!({"name": "data", "type": kind, "size_gb": 10});
    let mut body = vm("web");
    let disks = [disk("filesystem"), disk("block"), disk("filesystem")];
    body["data_disks"] = json!({"create_disks": disks});
    let id = caller.create_vm(body).await;
    let running = caller.reaches(&id, "running").await;
    let disks = running["data_disks"].as_array().expect("a list");
    let places: Vec<_> = disks.iter().map(|disk| disk["mount_path"].clone()).collect();
    assert_eq!(json!(places), json!(["/mnt/data", null, "/mnt/data-2"]));
    let spec = platform.engine.spec(&id).expect("a machine");
    let mounts: Vec<_> = spec.data_disks.iter().map(|disk| disk.mount.as_deref()).collect();
    assert_eq!(mounts, [Some("/mnt/data"), None, Some("/mnt/data-2")]);
}

/// What was told of a disk, oldest first: its status and the VM that has it.
async fn told(platform: &Platform, disk: &str) -> Vec<(String, Value)> {
    let data = "SELECT data FROM events WHERE subject = $1 AND kind = 'disk.status' ORDER BY seq";
    let rows: Vec<String> = sql(data).bind(disk).fetch_all(&platform.app().db).await.expect("events");
    let read = |text: &String| serde_json::from_str::<Value>(text).expect("JSON");
    rows.iter().map(read).map(|e| (e["status"].as_str().unwrap_or_default().to_owned(), e["vm_id"].clone())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_vm_does_to_its_disks_is_told() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let data = ready_disk(caller, "data").await;
    let id = caller.create_vm(attaching("web", &[&data])).await;
    caller.reaches(&id, "running").await;
    assert_eq!(told(&platform, &data).await.last(), Some(&("ready".into(), json!(id))));
    caller.delete(&format!("/vms/{id}")).await;
    caller.gone(&id).await;
    assert_eq!(told(&platform, &data).await.last(), Some(&("ready".into(), Value::Null)));
    // A creation that fails takes the disks it did not make along.
    platform.engine.refuse("make_disk", EngineError::Transient("slow".into()));
    let failing = caller.create_vm(vm("late")).await;
    let root = caller.get(&format!("/vms/{failing}")).await.body["root_disk"]["id"].as_str().expect("an id").to_owned();
    caller
        .until("its failure", |c| {
            platform.advance(601);
            let path = format!("/vms/{failing}/wait?status=failed&timeout=1");
            async move { c.get(&path).await.body["status"] == "failed" }
        })
        .await;
    assert_eq!(told(&platform, &root).await.last(), Some(&("failed".into(), json!(failing))));
}

/// Asks a disk to grow, and waits until nothing is under way for it.
async fn grown(platform: &Platform, path: &str, size_gb: i64) -> Value {
    let caller = &platform.admin;
    let answer = caller.post(&format!("{path}/resize"), json!({"size_gb": size_gb})).await;
    assert_eq!(
        (answer.status, &answer.body["size_gb"], &answer.body["change"]),
        (202, &json!(size_gb), &json!("growing"))
    );
    let at_rest = async |caller: Caller| caller.get(path).await.body["change"].is_null();
    caller.until("its growth", at_rest).await;
    caller.get(path).await.body
}

#[tokio::test(flavor = "multi_thread")]
async fn disks_grow_alone_and_with_a_vm_that_runs_or_not() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let data = ready_disk(caller, "data").await;
    let path = format!("/disks/{data}");
    let disk = grown(&platform, &path, 11).await;
    assert_eq!((&disk["size_gb"], &disk["message"], &disk["status"]), (&json!(11), &Value::Null, &json!("ready")));
    assert_eq!(platform.engine.disk_gb(&data), Some(11));
    let vm = caller.create_vm(attaching("web", &[&data])).await;
    let running = caller.reaches(&vm, "running").await;
    let root = running["root_disk"]["id"].as_str().expect("an id").to_owned();
    let root_path = format!("/root_disks/{root}");
    // A machine is asked with its generation: that of a later start is refused by what knows of a later one.
    for (path, id, size_gb) in [(&path, &data, 20), (&root_path, &root, 40)] {
        grown(&platform, path, size_gb).await;
        assert_eq!(platform.engine.disk_gb(id), Some(size_gb));
    }
    caller.act(&format!("/vms/{vm}/stop")).await;
    caller.reaches(&vm, "stopped").await;
    grown(&platform, &path, 21).await;
    assert_eq!(grown(&platform, &root_path, 2048).await["size_gb"], 2048);
    assert_eq!((platform.engine.disk_gb(&data), platform.engine.disk_gb(&root)), (Some(21), Some(2048)));
    assert_eq!(caller.get("/quota").await.body["disk_gb"]["used"], 2069);
    caller.act(&format!("/vms/{vm}/start")).await;
    let running = caller.reaches(&vm, "running").await;
    assert_eq!((&running["root_disk"]["size_gb"], &running["data_disks"][0]["size_gb"]), (&json!(2048), &json!(21)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_never_shrinks_and_grows_within_its_bounds() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let data = ready_disk(caller, "data").await;
    caller.running_vm("web").await;
    let root = caller.get("/root_disks").await.body["data"][0]["id"].as_str().expect("an id").to_owned();
    for (path, sizes) in [(format!("/disks/{data}"), [9, 10, 2049]), (format!("/root_disks/{root}"), [19, 20, 2049])] {
        for size_gb in sizes {
            let answer = caller.post(&format!("{path}/resize"), json!({"size_gb": size_gb})).await;
            answer.refused(400, "invalid_request");
            assert!(answer.names("size_gb"), "{answer:?}");
        }
    }
    // Each kind has routes of its own.
    caller.post(&format!("/disks/{root}/resize"), json!({"size_gb": 30})).await.refused(404, "volume_not_found");
    caller.post(&format!("/root_disks/{data}/resize"), json!({"size_gb": 30})).await.refused(404, "volume_not_found");
    platform.engine.refuse("make_disk", EngineError::Transient("slow".into()));
    let slow = caller.post("/disks", disk("slow")).await.id();
    caller.post(&format!("/disks/{slow}/resize"), json!({"size_gb": 30})).await.refused(400, "invalid_status");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_growth_that_the_host_or_the_disk_cannot_take_is_given_back() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let data = ready_disk(caller, "data").await;
    let path = format!("/disks/{data}");
    platform.engine.set_capacity(|capacity| capacity.disk_gb = 40);
    let disk = grown(&platform, &path, 41).await;
    let message = disk["message"].as_str().expect("a message");
    assert!(message.starts_with("insufficient_capacity: this region has 40 GiB of disk, and 41 GiB"), "{message}");
    assert_eq!((&disk["size_gb"], &disk["status"]), (&json!(10), &json!("ready")));
    assert_eq!(grown(&platform, &path, 40).await["message"], Value::Null);
    platform.engine.set_capacity(|capacity| capacity.disk_gb = 1000);
    platform.engine.refuse("grow_disk", EngineError::Permanent("it is stuck".into()));
    let disk = grown(&platform, &path, 50).await;
    assert_eq!((&disk["size_gb"], &disk["message"]), (&json!(40), &json!("it is stuck")));
    assert_eq!(caller.get("/quota").await.body["disk_gb"]["used"], 40);
    platform.engine.refuse("grow_disk", EngineError::Transient("not now".into()));
    caller.post(&format!("{path}/resize"), json!({"size_gb": 50})).await;
    // A larger one may be asked for meanwhile.
    assert_eq!(caller.post(&format!("{path}/resize"), json!({"size_gb": 60})).await.status, 202);
    platform.engine.allow("grow_disk");
    platform.advance(30);
    let at_rest = async |caller: Caller| caller.get(&path).await.body["change"].is_null();
    caller.until("its growth", at_rest).await;
    assert_eq!(platform.engine.disk_gb(&data), Some(60));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_disk_takes_and_costs_grows_with_it() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let org: Vec<_> = caller.project.split('/').collect();
    let limits = format!("/api/v1/admin/orgs/{}/quota", org[4]);
    caller.ask(reqwest::Method::PUT, &limits, json!({"disk_gb": 30}), 200).await;
    let data = ready_disk(caller, "data").await;
    let path = format!("/disks/{data}");
    caller.post(&format!("{path}/resize"), json!({"size_gb": 31})).await.refused(403, "quota_exceeded");
    platform.advance(3600);
    grown(&platform, &path, 30).await;
    platform.advance(3600);
    let used = platform.resource_usage().await;
    let row = used["data"].as_array().expect("a list").iter().find(|row| row["resource_id"] == data.as_str());
    let hours = row.expect("a row")["quantity"].as_f64().expect("a number");
    assert!((hours - 40.0).abs() < 0.1, "{used}");
}

/// Waits until nothing is under way for a disk.
async fn at_rest(caller: &Caller, disk: &str) -> Value {
    let path = format!("/disks/{disk}");
    let is_at_rest = async |caller: Caller| caller.get(&path).await.body["change"].is_null();
    caller.until("its rest", is_at_rest).await;
    caller.get(&path).await.body
}

/// Attaches a disk to a VM that runs, and waits until it is there.
async fn attached(caller: &Caller, disk: &str, vm: &str) -> Value {
    let answer = caller.post(&format!("/disks/{disk}/attach"), json!({"vm_id": vm})).await;
    assert_eq!((answer.status, &answer.body["change"]), (202, &json!("attaching")), "{answer:?}");
    at_rest(caller, disk).await
}

#[tokio::test(flavor = "multi_thread")]
async fn disks_come_to_a_machine_that_runs_and_leave_it() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let data = ready_disk(caller, "data").await;
    let vm = caller.running_vm("web").await;
    let disk = attached(caller, &data, &vm).await;
    assert_eq!((&disk["vm_id"], &disk["message"]), (&json!(vm), &Value::Null));
    let has = || platform.engine.spec(&vm).expect("a machine").data_disks.len();
    assert_eq!((has(), platform.engine.counts().2), (1, 1), "by the machine that ran");
    // Again where it is: nothing changes.
    let again = caller.post(&format!("/disks/{data}/attach"), json!({"vm_id": vm})).await;
    assert_eq!((again.status, &again.body["change"]), (200, &Value::Null));
    let answer = caller.act(&format!("/disks/{data}/detach")).await;
    assert_eq!((answer.status, &answer.body["change"], &answer.body["vm_id"]), (202, &json!("detaching"), &json!(vm)));
    let disk = at_rest(caller, &data).await;
    assert_eq!((&disk["is_attached"], has()), (&json!(false), 0));
    assert_eq!(caller.act(&format!("/disks/{data}/detach")).await.status, 200);
    // One that comes to a VM is started with from then on, and goes with it when that is deleted.
    attached(caller, &data, &vm).await;
    caller.act(&format!("/vms/{vm}/restart")).await;
    caller.until("another start", async |_: Caller| platform.engine.counts().2 == 2).await;
    caller.reaches(&vm, "running").await;
    assert_eq!(has(), 1);
    assert_eq!(caller.act(&format!("/disks/{data}/detach")).await.status, 202);
    caller.delete(&format!("/vms/{vm}")).await;
    caller.gone(&vm).await;
    let disk = at_rest(caller, &data).await;
    assert_eq!((&disk["is_attached"], &disk["status"]), (&json!(false), &json!("ready")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_that_holds_on_to_its_disk_keeps_it() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let data = ready_disk(caller, "data").await;
    let vm = caller.create_vm(attaching("web", &[&data])).await;
    caller.reaches(&vm, "running").await;
    platform.engine.set_holds_on(true);
    assert_eq!(caller.act(&format!("/disks/{data}/detach")).await.status, 202);
    // Asked for again, it goes on; elsewhere it is in use.
    assert_eq!(caller.act(&format!("/disks/{data}/detach")).await.status, 202);
    caller.post(&format!("/disks/{data}/attach"), json!({"vm_id": vm})).await.refused(409, "disk_in_use");
    platform.advance(21);
    let disk = at_rest(caller, &data).await;
    assert_eq!(disk["vm_id"], json!(vm));
    assert!(disk["message"].as_str().is_some_and(|text| text.contains("did not let go")), "{disk}");
    platform.engine.set_holds_on(false);
    caller.act(&format!("/disks/{data}/detach")).await;
    let disk = at_rest(caller, &data).await;
    assert_eq!((&disk["vm_id"], &disk["message"]), (&Value::Null, &Value::Null));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_cannot_come_is_released_and_one_that_was_called_back_leaves() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let data = ready_disk(caller, "data").await;
    let vm = caller.running_vm("web").await;
    platform.engine.refuse("attach_disk", EngineError::Permanent("there is no place".into()));
    let disk = attached(caller, &data, &vm).await;
    assert_eq!((&disk["vm_id"], &disk["message"]), (&Value::Null, &json!("there is no place")));
    platform.engine.refuse("attach_disk", EngineError::Transient("not now".into()));
    caller.post(&format!("/disks/{data}/attach"), json!({"vm_id": vm})).await;
    assert_eq!(caller.act(&format!("/disks/{data}/detach")).await.status, 202);
    platform.engine.allow("attach_disk");
    platform.advance(30);
    assert_eq!(at_rest(caller, &data).await["vm_id"], Value::Null);
    assert_eq!(platform.engine.spec(&vm).expect("a machine").data_disks.len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_has_eight_data_disks_and_one_of_an_older_version_takes_none_while_it_runs() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let vm = caller.running_vm("web").await;
    for number in 0..8 {
        let disk = ready_disk(caller, &format!("d{number}")).await;
        attached(caller, &disk, &vm).await;
    }
    let ninth = ready_disk(caller, "ninth").await;
    caller.post(&format!("/disks/{ninth}/attach"), json!({"vm_id": vm})).await.refused(409, "conflict");
    let older = caller.create_vm(attaching("older", &[&ninth])).await;
    caller.reaches(&older, "running").await;
    let mut tx = platform.app().db.begin().await.expect("a transaction");
    let places = sql("UPDATE vms SET disk_places = 0 WHERE id = $1").bind(older.as_str());
    places.execute(&mut tx).await.expect("a change");
    tx.commit().await.expect("a change");
    let another = ready_disk(caller, "another").await;
    let refused = caller.post(&format!("/disks/{another}/attach"), json!({"vm_id": older})).await;
    refused.refused(409, "not_supported");
    assert!(refused.body["message"].as_str().is_some_and(|text| text.contains("Restart it")), "{refused:?}");
    caller.act(&format!("/disks/{ninth}/detach")).await.refused(409, "not_supported");
    caller.act(&format!("/vms/{older}/restart")).await;
    caller.until("its restart", async |_: Caller| platform.engine.counts().2 == 3).await;
    caller.reaches(&older, "running").await;
    attached(caller, &another, &older).await;
    // On its way it takes none.
    platform.engine.set_deaf(true);
    caller.act(&format!("/vms/{older}/stop")).await;
    caller.act(&format!("/disks/{ninth}/detach")).await.refused(400, "invalid_status");
}
