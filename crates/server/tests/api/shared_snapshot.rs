//! Snapshots of disks that lie in a store, and what is made of them: disks and VMs there, backups and images by copies on a host.

use berth_host::EngineError;
use berth_server::config::DiskStores;
use berth_testkit::{Caller, Platform, vm};
use serde_json::{Value, json};

use crate::backup::{self, gone, settled};
use crate::drain::{MEMORY_MB, verb};
use crate::fleet::{disk, host, join, leave, ready};
use crate::project_image;
use crate::shared_disk::{in_store, is_refused, reaches, running, store};

const HOSTS: &str = "/api/v1/admin/hosts";

/// A platform that keeps backups, and whose host reaches a store.
async fn platform() -> Platform {
    let platform = Platform::start_with(|config| {
        config.backups.folder = config.data_dir.join("backups");
        config.identity.access_token_seconds = 30 * 86_400;
        in_store(config);
    })
    .await;
    reaches(&platform.admin, &own(&platform), true).await;
    platform
}

fn own(platform: &Platform) -> String {
    platform.app().fleet.own().to_string()
}

/// A snapshot that is asked for.
pub async fn asked(admin: &Caller, body: Value) -> String {
    let answer = admin.post("/disk_snapshots", body).await;
    assert_eq!((answer.status, &answer.body["store"]), (201, &json!("pool-a")), "{answer:?}");
    answer.id()
}

/// A snapshot that is ready.
pub async fn made(admin: &Caller, body: Value) -> String {
    let id = asked(admin, body).await;
    ready(admin, &format!("/disk_snapshots/{id}")).await;
    id
}

pub async fn delete(admin: &Caller, snapshot: &str) {
    let path = format!("/disk_snapshots/{snapshot}");
    assert_eq!(admin.delete(&path).await.status, 202);
    gone(admin, &path).await;
}

/// A data disk that is to be made of a snapshot.
fn data_of(snapshot: &str) -> Value {
    json!({"name": "copy", "type": "filesystem", "size_gb": 12, "snapshot_id": snapshot})
}

/// A VM whose root disk is to be made of a snapshot, with another one that is empty.
fn vm_of(snapshot: &str) -> Value {
    let mut body = vm("again");
    body["root_disk"]["create_disk_request"].as_object_mut().expect("a disk").remove("image_id");
    body["snapshot_id"] = json!(snapshot);
    body["data_disks"] = json!({"create_disks": [{"name": "empty", "type": "block", "size_gb": 10}]});
    body
}

/// Where the two disks of a VM lie.
fn stores(vm: &Value) -> (&Value, &Value) {
    (&vm["root_disk"]["store"], &vm["data_disks"][0]["store"])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_stays_in_the_store_and_takes_nothing_of_a_host() {
    let platform = platform().await;
    let admin = &platform.admin;
    platform.engine.set_capacity(|capacity| (capacity.disk_gb, capacity.disk_free) = (0, false));
    let (id, root, data) = running(admin, "web").await;
    let loose = disk(admin, "loose").await;
    let mut all = Vec::new();
    for body in [json!({"root_disk_id": root}), json!({"disk_id": data}), json!({"disk_id": loose})] {
        all.push(made(admin, body).await);
    }
    verb(admin, &id, "stop", "stopped").await;
    all.push(made(admin, json!({"root_disk_id": root})).await);
    let shown = admin.get(&format!("/disk_snapshots/{}", all[0])).await.body;
    assert_eq!((&shown["store"], &shown["bytes"], &shown["size_gb"]), (&json!("pool-a"), &json!(1 << 20), &json!(20)));
    assert_eq!((platform.engine.shared_snapshots(), platform.engine.snapshots()), (4, (0, 0)));
    let shown = admin.get(&format!("{HOSTS}/{}", own(&platform))).await.body;
    assert_eq!(shown["holds"]["disks"], 0);
    let quota = admin.get("/quota").await.body;
    assert_eq!((&quota["disks"]["used"], &quota["disk_gb"]["used"]), (&json!(7), &json!(40 + 60)));
    // They outlive their disks.
    assert_eq!(admin.delete(&format!("/disks/{loose}")).await.status, 204);
    gone(admin, &format!("/disks/{loose}")).await;
    assert_eq!(platform.engine.shared_snapshots(), 4);
    for snapshot in &all {
        delete(admin, snapshot).await;
    }
    assert_eq!(platform.engine.shared_snapshots(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_made_of_a_snapshot_lies_where_that_does() {
    let mut platform = backup::platform().await;
    let admin = platform.admin.clone();
    let there = disk(&admin, "there").await;
    let local = admin.post("/disk_snapshots", json!({"disk_id": there})).await;
    assert_eq!(local.body["store"], Value::Null);
    let local = local.id();
    ready(&admin, &format!("/disk_snapshots/{local}")).await;
    in_store(&mut platform.config);
    platform = platform.restart().await;
    let admin = platform.admin.clone();
    reaches(&admin, &own(&platform), true).await;
    let (_, root, data) = running(&admin, "web").await;
    let (of_root, of_data) =
        (made(&admin, json!({"root_disk_id": root})).await, made(&admin, json!({"disk_id": data})).await);
    // New disks of the region lie on hosts from now on.
    platform.config.disk_stores = vec![store("pool-a", &[])].into();
    platform = platform.restart().await;
    let admin = &platform.admin;
    reaches(admin, &own(&platform), true).await;
    let mut body = data_of(&of_data);
    body["region_id"] = json!("local");
    let copied = admin.post("/disks", body.clone()).await;
    assert_eq!((copied.status, &copied.body["store"]), (201, &json!("pool-a")), "{copied:?}");
    ready(admin, &format!("/disks/{}", copied.id())).await;
    assert_eq!(platform.engine.shared_disk_gb(&copied.id()), Some(12));
    body["on_host"] = json!(true);
    let refused = admin.post("/disks", body).await;
    refused.refused(400, "invalid_request");
    assert!(refused.names("on_host"), "{refused:?}");
    let body = json!({"name": "more", "type": "block", "size_gb": 10, "region_id": "local", "snapshot_id": local, "on_host": true});
    let more = admin.post("/disks", body).await;
    assert_eq!((more.status, &more.body["store"]), (201, &Value::Null), "{more:?}");
    // All disks of a VM lie where the first lies that is made of one.
    let mut of_image = vm("data");
    of_image["data_disks"] = json!({"create_disks": [data_of(&of_data)]});
    for body in [vm_of(&of_root), of_image] {
        let made = admin.create_vm(body).await;
        let shown = admin.reaches(&made, "running").await;
        assert_eq!(stores(&shown), (&json!("pool-a"), &json!("pool-a")), "{shown}");
    }
    let mut mixed = vm_of(&of_root);
    mixed["data_disks"] =
        json!({"create_disks": [{"name": "copy", "type": "block", "size_gb": 10, "snapshot_id": local}]});
    is_refused("/vms", &admin.post("/vms", mixed).await, "made of a snapshot that lies there");
    let mut mixed = vm_of(&of_root);
    mixed["data_disks"] = json!({"attached_disks": [{"disk_id": there}]});
    is_refused("/vms", &admin.post("/vms", mixed).await, "one place");
    // What was made of them stays when they go.
    for snapshot in [&of_root, &of_data] {
        delete(admin, snapshot).await;
    }
    assert_eq!(admin.get(&format!("/disks/{}", copied.id())).await.body["status"], "ready");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_of_a_snapshot_is_put_onto_any_host_that_reaches_its_store() {
    let platform = platform().await;
    let admin = &platform.admin;
    let (id, root, _) = running(admin, "web").await;
    let snapshot = made(admin, json!({"root_disk_id": root})).await;
    assert_eq!(host(admin, &id).await, json!(own(&platform)));
    leave(&platform.engine, 0);
    let beta = join(&platform, "beta").await;
    beta.engine.share_stores(&platform.engine);
    reaches(admin, &beta.id, true).await;
    let again = admin.create_vm(vm_of(&snapshot)).await;
    let shown = admin.reaches(&again, "running").await;
    assert_eq!((&shown["host_id"], stores(&shown)), (&json!(beta.id), (&json!("pool-a"), &json!("pool-a"))));
}

#[tokio::test(flavor = "multi_thread")]
async fn backups_and_images_are_made_of_copies_on_the_host_that_copies() {
    let platform = platform().await;
    let admin = &platform.admin;
    leave(&platform.engine, 0);
    let beta = join(&platform, "beta").await;
    beta.engine.share_stores(&platform.engine);
    reaches(admin, &beta.id, true).await;
    let (id, root, _) = running(admin, "web").await;
    let made = admin.post("/backups", json!({"vm_id": id})).await;
    assert_eq!(made.status, 201, "{made:?}");
    for backup in made.body["data"].as_array().expect("backups") {
        settled(admin, &format!("/backups/{}", backup["id"].as_str().expect("an id")), "ready").await;
    }
    assert_eq!((beta.engine.exports(), platform.engine.exports()), (2, 0));
    // Of a disk that no VM has another host may copy.
    let loose = disk(admin, "loose").await;
    let backup = backup::ready(admin, json!({"disk_id": loose})).await;
    let image = project_image::asked(admin, &root).await;
    project_image::reaches(admin, &image, "ready").await;
    for engine in [&platform.engine, &beta.engine] {
        admin.until("the copies' end", async |_| engine.snapshots() == (0, 0)).await;
    }
    assert_eq!(platform.engine.shared_snapshots(), 0);
    let schedule = json!({"name": "nightly", "vm_id": id, "every": "15m", "keep": 2});
    assert_eq!(admin.post("/backup_schedules", schedule).await.status, 201);
    // What is restored lies on a host.
    let path = format!("/backups/{}/restore", backup["id"].as_str().expect("an id"));
    let restored = admin.post(&path, json!({})).await;
    assert_eq!(restored.status, 201, "{restored:?}");
    let restored = settled(admin, &format!("/disks/{}", restored.id()), "ready").await;
    assert_eq!(restored["store"], Value::Null);
    leave(&platform.engine, MEMORY_MB);
    leave(&beta.engine, MEMORY_MB);
    let mut body = vm("golden");
    body["root_disk"]["create_disk_request"]["image_id"] = json!(image);
    let golden = admin.create_vm(body).await;
    assert_eq!(admin.reaches(&golden, "running").await["root_disk"]["store"], "pool-a");
    assert_eq!(host(admin, &golden).await, json!(beta.id), "the image lies there");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_takes_room_of_the_host_that_copies() {
    let platform = platform().await;
    let admin = &platform.admin;
    let loose = disk(admin, "loose").await;
    platform.engine.set_capacity(|capacity| capacity.disk_gb = 9);
    let failed = admin.post("/backups", json!({"disk_id": loose})).await.id();
    let failed = settled(admin, &format!("/backups/{failed}"), "failed").await;
    assert!(failed["message"].as_str().is_some_and(|text| text.starts_with("insufficient_capacity:")), "{failed}");
    platform.engine.set_capacity(|capacity| capacity.disk_gb = 10);
    backup::ready(admin, json!({"disk_id": loose})).await;
    admin.until("the copy's end", async |_| platform.engine.snapshots() == (0, 0)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_file_is_made_of_what_lies_in_a_store() {
    let platform = platform().await;
    let admin = &platform.admin;
    let (_, root, data) = running(admin, "web").await;
    let (of_root, of_data) =
        (made(admin, json!({"root_disk_id": root})).await, made(admin, json!({"disk_id": data})).await);
    for path in [format!("/root_disks/{root}/export"), format!("/disks/{data}/export")] {
        is_refused(&path, &admin.get(&path).await, "Make a backup of it, restore that, and export");
    }
    for snapshot in [of_root, of_data] {
        let path = format!("/disk_snapshots/{snapshot}/export");
        is_refused(&path, &admin.get(&path).await, "Make a disk or a VM of it, and a backup of that");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_under_way_is_given_up() {
    let platform = platform().await;
    let admin = &platform.admin;
    let (id, root, _) = running(admin, "web").await;
    let loose = disk(admin, "loose").await;
    for body in [json!({"root_disk_id": root}), json!({"disk_id": loose})] {
        platform.engine.hold("snapshot_shared_disk");
        let snapshot = asked(admin, body).await;
        admin.until("it is made", async |_| platform.engine.waiting() > 0).await;
        assert_eq!(admin.delete(&format!("/disk_snapshots/{snapshot}")).await.status, 202);
        platform.engine.let_go();
        gone(admin, &format!("/disk_snapshots/{snapshot}")).await;
    }
    // A copy, which may take hours, ends at once.
    for body in [json!({"root_disk_id": root}), json!({"disk_id": loose})] {
        platform.engine.hold("copy_shared_disk");
        let copied = admin.post("/backups", body).await.id();
        admin.until("it is copied", async |_| platform.engine.waiting() > 0).await;
        assert_eq!(admin.delete(&format!("/backups/{copied}")).await.status, 202);
        gone(admin, &format!("/backups/{copied}")).await;
        admin.until("it is dropped", async |_| platform.engine.waiting() == 0).await;
        platform.engine.let_go();
    }
    // Nor does it keep a VM from what else is wished of it, but for what has to do with the disk.
    platform.engine.hold("copy_shared_disk");
    let copied = admin.post("/backups", json!({"disk_id": loose})).await.id();
    admin.until("it is copied", async |_| platform.engine.waiting() > 0).await;
    admin.post(&format!("/disks/{loose}/attach"), json!({"vm_id": id})).await.refused(409, "disk_in_use");
    platform.engine.let_go();
    settled(admin, &format!("/backups/{copied}"), "ready").await;
    platform.engine.hold("copy_shared_disk");
    let copied = admin.post("/backups", json!({"root_disk_id": root})).await.id();
    admin.until("it is copied", async |_| platform.engine.waiting() > 0).await;
    verb(admin, &id, "stop", "stopped").await;
    platform.engine.let_go();
    settled(admin, &format!("/backups/{copied}"), "ready").await;
    admin.until("the copy's end", async |_| platform.engine.snapshots() == (0, 0)).await;
    assert_eq!(platform.engine.shared_snapshots(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_dies_half_way_goes_on() {
    let mut platform = platform().await;
    let engine = platform.engine.clone();
    let admin = platform.admin.clone();
    let (_, root, _) = running(&admin, "web").await;
    let loose = disk(&admin, "loose").await;
    let mut all = Vec::new();
    for body in [json!({"root_disk_id": root}), json!({"disk_id": loose})] {
        engine.hold("snapshot_shared_disk");
        let snapshot = asked(&platform.admin, body.clone()).await;
        platform.admin.until("it is made", async |_| engine.waiting() > 0).await;
        platform = platform.crash_and_restart().await;
        engine.let_go();
        ready(&platform.admin, &format!("/disk_snapshots/{snapshot}")).await;
        all.push(snapshot);
        engine.hold("copy_shared_disk");
        let backup = platform.admin.post("/backups", body).await.id();
        platform.admin.until("it is copied", async |_| engine.waiting() > 0).await;
        platform = platform.crash_and_restart().await;
        engine.let_go();
        settled(&platform.admin, &format!("/backups/{backup}"), "ready").await;
        platform.admin.until("the copy's end", async |_| engine.snapshots() == (0, 0)).await;
    }
    assert_eq!(engine.shared_snapshots(), 2);
    engine.hold("restore_shared_disk");
    let again = platform.admin.create_vm(vm_of(&all[0])).await;
    platform.admin.until("its disk is made", async |_| engine.waiting() > 0).await;
    platform = platform.crash_and_restart().await;
    engine.let_go();
    platform.admin.reaches(&again, "running").await;
    for snapshot in all {
        engine.hold("remove_shared_snapshot");
        let path = format!("/disk_snapshots/{snapshot}");
        assert_eq!(platform.admin.delete(&path).await.status, 202);
        platform.admin.until("it is removed", async |_| engine.waiting() > 0).await;
        platform = platform.crash_and_restart().await;
        engine.let_go();
        gone(&platform.admin, &path).await;
    }
    assert_eq!(engine.shared_snapshots(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_is_told_and_leaves_nothing() {
    let platform = platform().await;
    let admin = &platform.admin;
    let loose = disk(admin, "loose").await;
    let broken = || EngineError::Permanent("the pool is full".into());
    platform.engine.refuse("snapshot_shared_disk", broken());
    let snapshot = asked(admin, json!({"disk_id": loose})).await;
    let failed = settled(admin, &format!("/disk_snapshots/{snapshot}"), "failed").await;
    assert_eq!(failed["message"], "the pool is full");
    delete(admin, &snapshot).await;
    platform.engine.allow("snapshot_shared_disk");
    platform.engine.refuse("copy_shared_disk", broken());
    let backup = admin.post("/backups", json!({"disk_id": loose})).await.id();
    assert_eq!(settled(admin, &format!("/backups/{backup}"), "failed").await["message"], "the pool is full");
    platform.engine.allow("copy_shared_disk");
    backup::ready(admin, json!({"disk_id": loose})).await;
    let snapshot = made(admin, json!({"disk_id": loose})).await;
    platform.engine.refuse("restore_shared_disk", broken());
    let mut body = json!({"name": "copy", "type": "block", "size_gb": 10, "snapshot_id": snapshot});
    body["region_id"] = json!("local");
    let copied = admin.post("/disks", body).await.id();
    assert_eq!(settled(admin, &format!("/disks/{copied}"), "failed").await["message"], "the pool is full");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_lies_in_a_store_that_is_not_configured_waits() {
    let mut platform = platform().await;
    let loose = disk(&platform.admin, "loose").await;
    let snapshot = made(&platform.admin, json!({"disk_id": loose})).await;
    assert_eq!(platform.admin.delete(&format!("/disks/{loose}")).await.status, 204);
    gone(&platform.admin, &format!("/disks/{loose}")).await;
    // A store that takes no new disks is that of the regions of snapshots that it has.
    platform.config.disk_stores = vec![store("pool-a", &[])].into();
    platform = platform.restart().await;
    reaches(&platform.admin, &own(&platform), true).await;
    platform.config.disk_stores = DiskStores::default();
    platform = platform.restart().await;
    let path = format!("/disk_snapshots/{snapshot}");
    assert_eq!(platform.admin.get(&path).await.body["status"], "ready");
    assert_eq!(platform.admin.delete(&path).await.status, 202);
    assert_eq!(platform.admin.get(&path).await.body["status"], "deleting");
    in_store(&mut platform.config);
    platform = platform.restart().await;
    platform.advance(30);
    gone(&platform.admin, &path).await;
    assert_eq!(platform.engine.shared_snapshots(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_does_not_answer_is_told_of_and_keeps_a_vm_from_nothing_else() {
    let platform = platform().await;
    let admin = &platform.admin;
    let (id, root, _) = running(admin, "web").await;
    platform.engine.refuse("snapshot_shared_disk", EngineError::Transient("the store does not answer".into()));
    let path = format!("/disk_snapshots/{}", asked(admin, json!({"root_disk_id": root})).await);
    let shown = async |admin: &Caller| admin.get(&path).await.body;
    admin.until("why", async |admin| shown(&admin).await["message"] == "the store does not answer").await;
    assert_eq!(shown(admin).await["status"], "pending");
    let other = disk(admin, "other").await;
    assert_eq!(admin.post(&format!("/disks/{other}/attach"), json!({"vm_id": id})).await.status, 202);
    let change = async |admin: Caller| admin.get(&format!("/disks/{other}")).await.body["change"].clone();
    admin.until("it is attached", async |admin| change(admin).await.is_null()).await;
    platform.engine.allow("snapshot_shared_disk");
    platform.advance(10);
    ready(admin, &path).await;
    assert_eq!(shown(admin).await["message"], Value::Null);
    // One without room does not wait for it.
    platform.engine.refuse("snapshot_shared_disk", EngineError::NoCapacity("the disk store is full".into()));
    let full = asked(admin, json!({"root_disk_id": root})).await;
    let failed = settled(admin, &format!("/disk_snapshots/{full}"), "failed").await;
    assert!(failed["message"].as_str().is_some_and(|why| why.contains("the disk store is full")), "{failed}");
}
