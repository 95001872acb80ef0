//! Disks that several hosts reach: VMs whose disks lie in a store, which host acts on them, and what they cannot do.

use berth_domain::host::shared_disk::{Key, Store};
use berth_domain::vm::plan::Machine;
use berth_host::EngineError;
use berth_server::config::{Config, DiskStore};
use berth_testkit::{Caller, JoinedHost, Platform, vm};
use serde_json::{Value, json};

use crate::backup;
use crate::drain::{MEMORY_MB, drain, verb};
use crate::fleet::{disk, host, is, join, leave, ready};
use crate::host::told;

const HOSTS: &str = "/api/v1/admin/hosts";
const KEY: &str = "AQAAAAAAAAAAABAAAAECAwQFBgcICQoLDA0ODw==";

/// New disks of the region `local` lie in a store.
pub fn in_store(config: &mut Config) {
    config.disk_stores = vec![store("pool-a", &["local"])].into();
}

/// A store in which new disks of these regions lie.
pub fn store(name: &str, regions: &[&str]) -> DiskStore {
    let key = Key::try_from(KEY.to_owned()).expect("a key");
    let monitors = vec!["10.0.0.1:3300".to_owned()];
    let store = Store { name: name.into(), monitors, pool: "rbd".into(), user: "berth".into(), key };
    DiskStore { regions: regions.iter().map(|region| (*region).to_owned()).collect(), store, fencing: None }
}

/// A platform whose host reaches a store.
async fn platform() -> Platform {
    let platform = Platform::start_with(in_store).await;
    reaches(&platform.admin, &platform.app().fleet.own().to_string(), true).await;
    platform
}

/// The same, whose own host has no room, and another host that has, and reaches the store, too.
async fn two() -> (Platform, JoinedHost) {
    let platform = platform().await;
    leave(&platform.engine, 0);
    let beta = join(&platform, "beta").await;
    beta.engine.share_stores(&platform.engine);
    reaches(&platform.admin, &beta.id, true).await;
    (platform, beta)
}

/// Waits until it is known of a host whether it reaches the store.
pub async fn reaches(admin: &Caller, host: &str, reached: bool) -> Value {
    let path = format!("{HOSTS}/{host}");
    let is_known = async |admin: Caller| admin.get(&path).await.body["stores"][0]["reached"] == reached;
    admin.until("the store", is_known).await;
    admin.get(&path).await.body["stores"].clone()
}

/// A VM that runs, with a data disk: their ids, and the root disk's.
pub async fn running(admin: &Caller, name: &str) -> (String, String, String) {
    let mut body = vm(name);
    body["data_disks"] = json!({"create_disks": [{"name": "data", "type": "filesystem", "size_gb": 10}]});
    let id = admin.create_vm(body).await;
    let vm = admin.reaches(&id, "running").await;
    let id_of = |disk: &Value| disk["id"].as_str().expect("a disk").to_owned();
    (id, id_of(&vm["root_disk"]), id_of(&vm["data_disks"][0]))
}

/// Has a VM go with both of its disks.
async fn remove(admin: &Caller, (id, root, data): (&str, &str, &str)) {
    assert_eq!(admin.delete(&format!("/vms/{id}")).await.status, 202);
    admin.gone(id).await;
    assert_eq!(admin.delete(&format!("/root_disks/{root}")).await.status, 202);
    assert_eq!(admin.delete(&format!("/disks/{data}")).await.status, 204);
    backup::gone(admin, &format!("/root_disks/{root}")).await;
    backup::gone(admin, &format!("/disks/{data}")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_lives_on_disks_of_a_store_and_takes_no_disk_of_its_host() {
    let platform = platform().await;
    let admin = &platform.admin;
    platform.engine.set_capacity(|capacity| (capacity.disk_gb, capacity.disk_free) = (0, false));
    let (id, root, data) = running(admin, "web").await;
    let shown = admin.get(&format!("/vms/{id}")).await.body;
    for store in [
        &shown["root_disk"]["store"],
        &shown["data_disks"][0]["store"],
        &admin.get(&format!("/root_disks/{root}")).await.body["store"],
        &admin.get(&format!("/disks/{data}")).await.body["store"],
    ] {
        assert_eq!(store, "pool-a");
    }
    assert_eq!((platform.engine.shared_disks(), platform.engine.counts().1), (2, 0));
    let spec = platform.engine.spec(&id).expect("a machine");
    assert_eq!(spec.store.map(|store| store.key.reveal().to_owned()).as_deref(), Some(KEY));
    let own = platform.app().fleet.own();
    assert_eq!(admin.get(&format!("{HOSTS}/{own}")).await.body["holds"]["disks"], 0);
    for (word, status) in [("restart", "running"), ("stop", "stopped"), ("start", "running")] {
        verb(admin, &id, word, status).await;
    }
    remove(admin, (&id, &root, &data)).await;
    assert_eq!((platform.engine.removals(&root), platform.engine.removals(&data)), (1, 1));
    assert_eq!(platform.engine.shared_disks(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn data_disks_come_go_and_grow_while_no_machine_has_them() {
    let platform = platform().await;
    let admin = &platform.admin;
    let (id, root, data) = running(admin, "web").await;
    let other = disk(admin, "other").await;
    let has = |disk: &str| {
        let spec = platform.engine.spec(&id).expect("a machine");
        spec.data_disks.iter().any(|has| has.id.to_string() == disk)
    };
    assert_eq!(admin.post(&format!("/disks/{other}/attach"), json!({"vm_id": id})).await.status, 202);
    admin.until("it came", async |_| has(&other)).await;
    // One that a machine has does not grow, and one that it has not does.
    for path in [format!("/root_disks/{root}/resize"), format!("/disks/{data}/resize")] {
        admin.post(&path, json!({"size_gb": 30})).await.refused(409, "not_supported");
    }
    admin
        .until("it is attached", async |admin| admin.get(&format!("/disks/{other}")).await.body["change"].is_null())
        .await;
    assert_eq!(admin.act(&format!("/disks/{other}/detach")).await.status, 202);
    admin.until("it went", async |admin| admin.get(&format!("/disks/{other}")).await.body["vm_id"].is_null()).await;
    assert!(!has(&other));
    assert_eq!(admin.post(&format!("/disks/{other}/resize"), json!({"size_gb": 20})).await.status, 202);
    admin.until("20 GiB", async |_| platform.engine.shared_disk_gb(&other) == Some(20)).await;
    verb(admin, &id, "stop", "stopped").await;
    assert_eq!(admin.post(&format!("/root_disks/{root}/resize"), json!({"size_gb": 30})).await.status, 202);
    admin.until("30 GiB", async |_| platform.engine.shared_disk_gb(&root) == Some(30)).await;
    verb(admin, &id, "start", "running").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_goes_to_another_host_by_a_restart_and_nothing_is_copied() {
    let (platform, beta) = two().await;
    let admin = &platform.admin;
    let (id, root, data) = running(admin, "runs").await;
    let (off, ..) = running(admin, "off").await;
    verb(admin, &off, "stop", "stopped").await;
    assert_eq!(host(admin, &id).await, json!(beta.id));
    leave(&platform.engine, MEMORY_MB);
    drain(admin, &beta, "").await;
    // What is off goes; what runs is told why it does not.
    admin.until("it left", async |admin| host(&admin, &off).await != json!(beta.id)).await;
    let unplaced = told(admin, "vm.unplaced").await;
    let why = unplaced.data["reason"].as_str().expect("a reason").to_owned();
    assert!(unplaced.subject == id && why.contains("lie in a store"), "{why}");
    drain(admin, &beta, "?restart=true").await;
    platform.advance(130);
    admin.until("it left", async |admin| host(&admin, &id).await != json!(beta.id)).await;
    admin.reaches(&id, "running").await;
    verb(admin, &off, "start", "running").await;
    for engine in [&platform.engine, &beta.engine] {
        assert_eq!((engine.exports(), engine.removals(&root), engine.removals(&data)), (0, 0, 0));
    }
    assert!(platform.engine.spec(&id).is_some() && beta.engine.spec(&id).is_none());
    assert_eq!((beta.engine.clones(&root).len(), platform.engine.clones(&root).len()), (1, 0));
    // Nothing is left there, and so the host may go.
    let path = format!("{HOSTS}/{}", beta.id);
    admin.until("nothing is left", async |admin| admin.get(&path).await.body["holds"]["machines"] == 0).await;
    assert_eq!(admin.delete(&path).await.status, 204);
    remove(admin, (&id, &root, &data)).await;
    assert_eq!((platform.engine.removals(&root), beta.engine.removals(&root)), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn another_host_acts_on_a_disk_that_is_nobodys_where_its_own_is_lost() {
    let (platform, mut beta) = two().await;
    let admin = &platform.admin;
    let (id, root, data) = running(admin, "web").await;
    assert_eq!(admin.delete(&format!("/vms/{id}")).await.status, 202);
    admin.gone(&id).await;
    beta.close().await;
    platform.advance(60);
    is(admin, &beta, "lost").await;
    assert_eq!(admin.delete(&format!("/root_disks/{root}")).await.status, 202);
    admin.until("it is removed", async |_| platform.engine.removals(&root) == 1).await;
    // One that stays is had by a VM of another host.
    leave(&platform.engine, MEMORY_MB);
    let mut body = vm("next");
    body["data_disks"] = json!({"attached_disks": [{"disk_id": data}]});
    let next = admin.create_vm(body).await;
    admin.reaches(&next, "running").await;
    let spec = platform.engine.spec(&next).expect("a machine");
    assert_eq!(spec.data_disks[0].id.to_string(), data);
    assert_eq!((platform.engine.exports(), beta.engine.removals(&data)), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_does_not_reach_the_store_takes_no_vm_of_it_and_says_why() {
    let (platform, mut beta) = two().await;
    let admin = &platform.admin;
    // It is asked again once it is back.
    beta.engine.refuse("reach_store", EngineError::Permanent("no monitor answers".into()));
    beta.close().await;
    beta.open().await;
    let stores = reaches(admin, &beta.id, false).await;
    assert_eq!(stores, json!([{"name": "pool-a", "reached": false, "trouble": "no monitor answers"}]));
    let refused = admin.create_vm(vm("refused")).await;
    admin.reaches(&refused, "failed").await;
    let unplaced = told(admin, "vm.unplaced").await.data["hosts"].to_string();
    assert!(unplaced.contains("host beta: it does not reach the store pool-a: no monitor answers"), "{unplaced}");
    leave(&platform.engine, MEMORY_MB);
    let here = admin.running_vm("here").await;
    assert_eq!(host(admin, &here).await, json!(platform.app().fleet.own().to_string()));
    beta.engine.allow("reach_store");
    beta.close().await;
    beta.open().await;
    let stores = reaches(admin, &beta.id, true).await;
    assert_eq!(stores, json!([{"name": "pool-a", "reached": true, "trouble": null}]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_keeps_its_disks_until_its_host_says_that_its_machine_has_ended() {
    let platform = platform().await;
    let admin = &platform.admin;
    let mut body = vm("web");
    body["restart_policy"] = json!("never");
    body["data_disks"] = json!({"create_disks": [{"name": "data", "type": "block", "size_gb": 10}]});
    let id = admin.create_vm(body).await;
    let data = admin.reaches(&id, "running").await["data_disks"][0]["id"].as_str().expect("a disk").to_owned();
    let engine = &platform.engine;
    engine.refuse("power_off", EngineError::Transient("it is away".into()));
    engine.hold("power_off");
    engine.happen(&id, Machine::Panicked);
    admin.until("it is asked", async |_| engine.waiting() > 0).await;
    engine.let_go();
    admin.until("it answered", async |_| engine.waiting() == 0).await;
    engine.hold("power_off");
    platform.advance(60);
    // It has not failed as long as nobody knows whether it writes, and lets go of nothing.
    admin.until("it is asked again", async |_| engine.waiting() > 0).await;
    assert_eq!(admin.get(&format!("/vms/{id}")).await.body["status"], "running");
    assert_eq!(admin.act(&format!("/disks/{data}/detach")).await.status, 202);
    assert_eq!(admin.get(&format!("/disks/{data}")).await.body["vm_id"], json!(id));
    engine.allow("power_off");
    engine.let_go();
    platform.advance(60);
    admin.reaches(&id, "failed").await;
    admin.until("it went", async |admin| admin.get(&format!("/disks/{data}")).await.body["vm_id"].is_null()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_dies_half_way_leaves_one_disk_and_one_machine() {
    let mut platform = platform().await;
    platform.engine.hold("make_shared_disk");
    let admin = platform.admin.clone();
    let id = admin.create_vm(vm("web")).await;
    let engine = platform.engine.clone();
    admin.until("it is being made", async |_| engine.waiting() > 0).await;
    platform = platform.crash_and_restart().await;
    engine.let_go();
    platform.admin.reaches(&id, "running").await;
    assert_eq!((engine.shared_disks(), engine.counts().0), (1, 1));
    engine.hold("remove_shared_disk");
    let admin = platform.admin.clone();
    let root = admin.get(&format!("/vms/{id}")).await.body["root_disk"]["id"].as_str().expect("a disk").to_owned();
    assert_eq!(admin.delete(&format!("/vms/{id}")).await.status, 202);
    admin.gone(&id).await;
    assert_eq!(admin.delete(&format!("/root_disks/{root}")).await.status, 202);
    admin.until("it is being removed", async |_| engine.waiting() > 0).await;
    platform = platform.crash_and_restart().await;
    engine.let_go();
    backup::gone(&platform.admin, &format!("/root_disks/{root}")).await;
    assert_eq!((engine.shared_disks(), engine.counts().0), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_store_does_not_have_is_refused_with_what_to_do_instead() {
    let platform = platform().await;
    let admin = &platform.admin;
    let (id, root, data) = running(admin, "web").await;
    let refused = [
        (format!("/vms/{id}/suspend"), Value::Null, "Stop it instead"),
        (format!("/vms/{id}/reinstall"), json!({"image_id": "micro"}), "Create another VM"),
        (format!("/vms/{id}/rescue"), Value::Null, "Look at its console"),
        (format!("/root_disks/{root}/resize"), json!({"size_gb": 30}), "Stop the VM first"),
        (format!("/disks/{data}/resize"), json!({"size_gb": 30}), "Stop the VM first"),
    ];
    for (path, body, instead) in refused {
        let answer = if body.is_null() { admin.act(&path).await } else { admin.post(&path, body).await };
        is_refused(&path, &answer, instead);
    }
    assert_eq!(admin.get(&format!("/vms/{id}")).await.body["status"], "running");
}

/// Refuses what a store does not have, and says what to do instead.
#[track_caller]
pub fn is_refused(path: &str, answer: &berth_testkit::Answer, instead: &str) {
    answer.refused(409, "not_supported");
    let message = answer.body["message"].as_str().expect("a sentence");
    assert!(message.contains("the store pool-a") && message.contains(instead), "{path}: {message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_there_before_the_store_stays_on_its_host_and_mixes_with_nothing() {
    let mut platform = backup::platform().await;
    let admin = platform.admin.clone();
    let (id, _, data) = running(&admin, "old").await;
    let loose = disk(&admin, "loose").await;
    in_store(&mut platform.config);
    platform = platform.restart().await;
    let admin = &platform.admin;
    reaches(admin, &platform.app().fleet.own().to_string(), true).await;
    // It goes on as it did.
    for (word, status) in [("suspend", "suspended"), ("resume", "running"), ("restart", "running")] {
        verb(admin, &id, word, status).await;
    }
    assert_eq!(store_of(admin, &data).await, Value::Null);
    // Disks of either kind come to VMs of theirs alone.
    let shared = disk(admin, "shared").await;
    let (new, ..) = running(admin, "new").await;
    let body = json!({"name": "here", "type": "block", "size_gb": 10, "region_id": "local", "on_host": true});
    let here = admin.post("/disks", body).await.id();
    ready(admin, &format!("/disks/{here}")).await;
    assert_eq!((store_of(admin, &here).await, store_of(admin, &shared).await), (Value::Null, json!("pool-a")));
    for (disk, vm, instead) in [
        (&shared, &id, "created with on_host"),
        (&loose, &new, "created without on_host"),
        (&here, &new, "created without on_host"),
    ] {
        let path = format!("/disks/{disk}/attach");
        is_refused(&path, &admin.post(&path, json!({"vm_id": vm})).await, instead);
    }
    let mut body = vm("mixed");
    body["data_disks"] = json!({"attached_disks": [{"disk_id": loose}]});
    is_refused("/vms", &admin.post("/vms", body).await, "one place");
    for (disk, vm) in [(&loose, &id), (&here, &id), (&shared, &new)] {
        assert_eq!(admin.post(&format!("/disks/{disk}/attach"), json!({"vm_id": vm})).await.status, 202);
        admin.until("it came", async |admin| admin.get(&format!("/disks/{disk}")).await.body["change"].is_null()).await;
        assert_eq!(admin.get(&format!("/disks/{disk}")).await.body["vm_id"], json!(vm));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_made_of_a_snapshot_a_backup_or_a_file_lies_on_a_host() {
    let mut platform = backup::platform().await;
    let admin = platform.admin.clone();
    let (id, root, data) = running(&admin, "old").await;
    let snapshot = admin.post("/disk_snapshots", json!({"disk_id": data})).await.id();
    let of_root = admin.post("/disk_snapshots", json!({"root_disk_id": root})).await.id();
    for snapshot in [&snapshot, &of_root] {
        ready(&admin, &format!("/disk_snapshots/{snapshot}")).await;
    }
    let kept = backup::ready(&admin, json!({"disk_id": data})).await;
    in_store(&mut platform.config);
    platform = platform.restart().await;
    let admin = &platform.admin;
    reaches(admin, &platform.app().fleet.own().to_string(), true).await;
    let kept = format!("/backups/{}/restore", kept["id"].as_str().expect("an id"));
    let restored = admin.post(&kept, json!({"name": "restored"})).await;
    assert_eq!(restored.status, 201, "{restored:?}");
    let restored = restored.body["disk_id"].as_str().map_or_else(|| restored.id(), str::to_owned);
    let mut body = json!({"name": "copied", "type": "filesystem", "size_gb": 10, "region_id": "local"});
    body["snapshot_id"] = json!(snapshot);
    let copied = admin.post("/disks", body).await.id();
    let path = "/disks/import?name=sent&size_gb=10&region_id=local";
    let request = admin.request(reqwest::Method::POST, path).header("content-type", "application/octet-stream");
    let sent = admin.send(request.body(vec![0; 512])).await.id();
    for disk in [&restored, &copied, &sent] {
        ready(admin, &format!("/disks/{disk}")).await;
        assert_eq!(store_of(admin, disk).await, Value::Null);
        assert!(platform.engine.disk_gb(disk).is_some());
        assert_eq!(admin.post(&format!("/disks/{disk}/attach"), json!({"vm_id": id})).await.status, 202);
    }
    // A VM has all that is new where its copy is.
    let mut of_snapshot = vm("root");
    of_snapshot["root_disk"]["create_disk_request"].as_object_mut().expect("a disk").remove("image_id");
    of_snapshot["snapshot_id"] = json!(of_root);
    of_snapshot["data_disks"] = json!({"create_disks": [{"name": "empty", "type": "block", "size_gb": 10}]});
    let mut with_copy = vm("data");
    let copy = json!({"name": "copy", "type": "filesystem", "size_gb": 10, "snapshot_id": snapshot});
    with_copy["data_disks"] = json!({"create_disks": [copy]});
    for body in [of_snapshot, with_copy] {
        let vm = admin.create_vm(body).await;
        let shown = admin.reaches(&vm, "running").await;
        let stores = (&shown["root_disk"]["store"], &shown["data_disks"][0]["store"]);
        assert_eq!(stores, (&Value::Null, &Value::Null), "{shown}");
    }
    assert_eq!(platform.engine.shared_disks(), 0);
    // One whose root disk is in the store has no copy beside it.
    let (new, root, _) = running(admin, "new").await;
    assert_eq!(admin.delete(&format!("/vms/{new}")).await.status, 202);
    admin.gone(&new).await;
    let mut body = vm("again");
    body["root_disk"] = json!({"attach_disk_request": {"disk_id": root}});
    body["data_disks"] =
        json!({"create_disks": [{"name": "copy", "type": "filesystem", "size_gb": 10, "snapshot_id": snapshot}]});
    is_refused("/vms", &admin.post("/vms", body).await, "one place");
}

async fn store_of(admin: &Caller, disk: &str) -> Value {
    admin.get(&format!("/disks/{disk}")).await.body["store"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_learns_of_the_stores_of_its_regions_and_of_disks_there() {
    let mut platform = Platform::start_with(|config| {
        let mut moon = config.catalog.regions[0].clone();
        moon.id = "moon".into();
        config.catalog.regions.push(moon);
        config.disk_stores = vec![store("pool-a", &["local"]), store("pool-b", &["moon"])].into();
    })
    .await;
    let own = platform.app().fleet.own().to_string();
    let (beta, gamma) = (join_in(&platform, "beta", "local").await, join_in(&platform, "gamma", "moon").await);
    let named = async |admin: &Caller, host: &str| {
        let stores = admin.get(&format!("{HOSTS}/{host}")).await.body["stores"].clone();
        let stores = stores.as_array().expect("a list").iter();
        stores.map(|store| store["name"].as_str().expect("a name").to_owned()).collect::<Vec<_>>()
    };
    for (host, names) in [(&own, vec!["pool-a", "pool-b"]), (&beta.id, vec!["pool-a"]), (&gamma.id, vec!["pool-b"])] {
        platform.admin.until("what it was asked", async |admin| named(&admin, host).await == names).await;
    }
    assert_eq!(
        (beta.engine.told_stores(), gamma.engine.told_stores()),
        (vec!["pool-a".to_owned()], vec!["pool-b".to_owned()])
    );
    // A store that takes no new disks is that of the regions of those that it has.
    let made = disk(&platform.admin, "made").await;
    platform.config.disk_stores = vec![store("pool-a", &[]), store("pool-b", &["local"])].into();
    platform = platform.restart().await;
    for (host, names) in [(&beta.id, vec!["pool-a", "pool-b"]), (&gamma.id, vec![])] {
        platform.admin.until("what it was asked", async |admin| named(&admin, host).await == names).await;
    }
    assert_eq!(platform.admin.delete(&format!("/disks/{made}")).await.status, 204);
    backup::gone(&platform.admin, &format!("/disks/{made}")).await;
    assert_eq!(gamma.engine.told_stores(), ["pool-b"]);
}

/// A host of a region that has joined.
async fn join_in(platform: &Platform, name: &str, region: &str) -> JoinedHost {
    let made = platform.admin.post(HOSTS, json!({"name": name, "region_id": region})).await;
    let token = made.body["token"].as_str().expect("a token");
    let host = JoinedHost::join(&platform.admin.anonymous(), token).await.expect("it joins");
    host.engine.share_stores(&platform.engine);
    is(&platform.admin, &host, "ready").await;
    host
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_waits_until_hosts_were_asked_whether_they_reach_its_store() {
    let mut platform = Platform::start().await;
    in_store(&mut platform.config);
    platform.engine.hold("reach_store");
    platform = platform.restart().await;
    let admin = &platform.admin;
    let id = admin.create_vm(vm("early")).await;
    admin.until("the question", async |_| platform.engine.waiting() > 0).await;
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    let status = admin.get(&format!("/vms/{id}")).await.body["status"].clone();
    assert!(status == "pending" || status == "provisioning", "{status}");
    platform.engine.let_go();
    admin.reaches(&id, "running").await;
    assert_eq!(admin.get(&format!("/vms/{id}")).await.body["root_disk"]["store"], "pool-a");
}
