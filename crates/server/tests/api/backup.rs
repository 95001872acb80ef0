//! Backups of disks, in a folder.

use std::path::PathBuf;

use berth_host::EngineError;
use berth_server::db::sql;
use berth_testkit::{Caller, Platform};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use uuid::Uuid;

/// A platform that keeps backups, and whose tokens outlive what a test waits for.
pub async fn platform() -> Platform {
    Platform::start_with(|config| {
        config.backups.folder = config.data_dir.join("backups");
        config.identity.access_token_seconds = 30 * 86_400;
    })
    .await
}

/// A data disk that is ready.
pub async fn disk(caller: &Caller, size_gb: i64) -> String {
    let body = json!({"name": "data", "type": "filesystem", "size_gb": size_gb, "region_id": "local"});
    let id = caller.post("/disks", body).await.id();
    settled(caller, &format!("/disks/{id}"), "ready").await;
    id
}

/// Waits until what is at a path has a status; how it is then.
pub async fn settled(caller: &Caller, path: &str, status: &str) -> Value {
    caller
        .until(&format!("{path} {status}"), async |caller: Caller| caller.get(path).await.body["status"] == status)
        .await;
    caller.get(path).await.body
}

/// Waits until there is nothing at a path any more.
pub async fn gone(caller: &Caller, path: &str) {
    caller.until("its end", async |caller: Caller| caller.get(path).await.status == 404).await;
}

/// A backup that was asked for.
async fn asked(caller: &Caller, body: Value) -> String {
    let answer = caller.post("/backups", body).await;
    assert_eq!((answer.status, &answer.body["status"]), (201, &json!("pending")), "{answer:?}");
    answer.id()
}

/// A backup that is ready.
pub async fn ready(caller: &Caller, body: Value) -> Value {
    let id = asked(caller, body).await;
    settled(caller, &format!("/backups/{id}"), "ready").await
}

fn id_of(thing: &Value) -> &str {
    thing["id"].as_str().expect("an id")
}

fn root_of(vm: &Value) -> String {
    id_of(&vm["root_disk"]).to_owned()
}

/// The folders of backups that the store has.
fn stored(platform: &Platform) -> Vec<PathBuf> {
    let databases = std::fs::read_dir(platform.config.data_dir.join("backups")).into_iter().flatten().flatten();
    databases
        .flat_map(|folder| std::fs::read_dir(folder.path()).into_iter().flatten().flatten())
        .map(|e| e.path())
        .filter(|path| path.is_dir())
        .collect()
}

/// What the store has of the only backup: its only part.
fn part(platform: &Platform) -> PathBuf {
    let folders = stored(platform);
    assert_eq!(folders.len(), 1, "{folders:?}");
    folders[0].join("000001")
}

/// Nothing is left of what a backup was made from.
async fn let_go(platform: &Platform) {
    platform.admin.until("the copy's end", async |_| platform.engine.snapshots() == (0, 0)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn disks_are_kept_outside_of_the_host() {
    let platform = platform().await;
    let caller = &platform.admin;
    let data = disk(caller, 12).await;
    let answer = caller.post("/backups", json!({"disk_id": data, "name": "before"})).await;
    let path = format!("/backups/{}", answer.id());
    assert!(answer.header("location").is_some_and(|location| location.ends_with(&path)), "{answer:?}");
    assert_eq!((&answer.body["size_bytes"], &answer.body["digest"]), (&Value::Null, &Value::Null));
    let backup = settled(caller, &path, "ready").await;
    let bytes = std::fs::read(part(&platform)).expect("a part");
    let sha256: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    for (field, value) in [
        ("name", json!("before")),
        ("kind", json!("data")),
        ("type", json!("filesystem")),
        ("disk_id", json!(data)),
        ("size_gb", json!(12)),
        ("size_bytes", json!(bytes.len())),
        ("digest", json!(format!("sha256:{sha256}"))),
        ("region_id", json!("local")),
        ("image_id", Value::Null),
        ("schedule_id", Value::Null),
        ("message", Value::Null),
    ] {
        assert_eq!(backup[field], value, "{field}");
    }
    let about = std::fs::read(stored(&platform)[0].join("backup.json")).expect("what it is");
    let about: Value = serde_json::from_slice(&about).expect("JSON");
    assert_eq!((&about["sha256"], &about["parts"]), (&json!(sha256), &json!(1)));
    let_go(&platform).await;
    // What it was made from is nobody's to see.
    assert_eq!(caller.get("/disk_snapshots").await.body["pagination"]["total_items"], 0);
    let log = caller.get(&format!("{}/audit_log?action=backup.create", caller.org())).await.body;
    assert_eq!(log["data"][0]["subject"], backup["id"], "{log}");
    assert_eq!(caller.get("/backups?name=before&status=ready").await.body["data"], json!([backup]));
    assert_eq!(caller.get(&format!("/backups?disk_id={}", Uuid::now_v7())).await.body["data"], json!([]));
    caller.get("/backups?schedule_id=x").await.refused(400, "invalid_request");
    assert_eq!(caller.delete(&path).await.status, 202);
    gone(caller, &path).await;
    assert_eq!(stored(&platform), Vec::<PathBuf>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn each_disk_of_a_vm_that_runs_gets_a_backup() {
    let platform = platform().await;
    let caller = &platform.admin;
    let mut body = berth_testkit::vm("web");
    body["data_disks"] = json!({"create_disks": [{"name": "data", "type": "block", "size_gb": 10}]});
    let vm = caller.create_vm(body).await;
    caller.reaches(&vm, "running").await;
    platform.engine.set_copying(3);
    let answer = caller.post("/backups", json!({"vm_id": vm})).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    let made = answer.body["data"].as_array().expect("a list").clone();
    assert_eq!(made.iter().map(|backup| backup["kind"].clone()).collect::<Vec<_>>(), ["root", "data"]);
    for backup in &made {
        settled(caller, &format!("/backups/{}", id_of(backup)), "ready").await;
    }
    assert_eq!(stored(&platform).len(), 2);
    assert_eq!(caller.get(&format!("/vms/{vm}")).await.body["status"], "running");
    let_go(&platform).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_kept_is_refused() {
    let platform = platform().await;
    let caller = &platform.admin;
    let data = disk(caller, 10).await;
    let vm = caller.running_vm("web").await;
    let root = root_of(&caller.get(&format!("/vms/{vm}")).await.body);
    let refused = async |body: Value, code: &str, field: &str| {
        let answer = caller.post("/backups", body).await;
        answer.refused(400, code);
        assert!(answer.names(field), "{answer:?}");
    };
    refused(json!({}), "invalid_request", "disk_id").await;
    refused(json!({"disk_id": data, "vm_id": vm}), "invalid_request", "disk_id").await;
    refused(json!({"disk_id": root}), "invalid_request", "disk_id").await;
    refused(json!({"root_disk_id": data}), "invalid_request", "root_disk_id").await;
    refused(json!({"disk_id": data, "name": "Big"}), "invalid_request", "name").await;
    refused(json!({"disk_id": Uuid::now_v7()}), "disk_not_found", "disk_id").await;
    caller.post("/backups", json!({"vm_id": Uuid::now_v7()})).await.refused(404, "vm_not_found");
    let elsewhere = caller.another_project("other").await;
    elsewhere.post("/backups", json!({"disk_id": data})).await.refused(400, "disk_not_found");
    elsewhere.post("/backups", json!({"vm_id": vm})).await.refused(404, "vm_not_found");
    let none = format!("/backups/{}", Uuid::now_v7());
    caller.get(&none).await.refused(404, "backup_not_found");
    caller.delete(&none).await.refused(404, "backup_not_found");
    caller.post(&format!("{none}/restore"), json!({})).await.refused(404, "backup_not_found");
    let backup = ready(caller, json!({"disk_id": data})).await;
    let path = format!("/backups/{}", id_of(&backup));
    elsewhere.get(&path).await.refused(404, "backup_not_found");
    elsewhere.post(&format!("{path}/restore"), json!({})).await.refused(404, "backup_not_found");
    caller.post(&format!("{path}/restore"), json!({"name": "Big"})).await.refused(400, "invalid_request");
    // One that is not made yet.
    platform.engine.refuse("make_disk", EngineError::Transient("slow".into()));
    let body = json!({"name": "late", "type": "block", "size_gb": 10, "region_id": "local"});
    let late = caller.post("/disks", body).await.id();
    refused(json!({"disk_id": late}), "invalid_request", "disk_id").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_platform_without_a_place_says_what_to_type() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let data = disk(caller, 10).await;
    let answer = caller.post("/backups", json!({"disk_id": data})).await;
    answer.refused(409, "not_supported");
    assert!(answer.body["message"].as_str().is_some_and(|text| text.contains("[backups]")), "{answer:?}");
    let schedule = json!({"name": "nightly", "disk_id": data, "every": "24h", "keep": 7});
    caller.post("/backup_schedules", schedule).await.refused(409, "not_supported");
    // What the request has wrong comes first.
    platform.engine.refuse("make_disk", EngineError::Transient("slow".into()));
    let body = json!({"name": "late", "type": "block", "size_gb": 10, "region_id": "local"});
    let late = caller.post("/disks", body).await.id();
    caller.post("/backups", json!({"disk_id": late})).await.refused(400, "invalid_request");
    assert_eq!(caller.get("/backups").await.body["data"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_is_restored_as_it_was_when_its_own_is_gone() {
    let platform = platform().await;
    let caller = &platform.admin;
    let data = disk(caller, 12).await;
    let backup = ready(caller, json!({"disk_id": data})).await;
    let kept = std::fs::read(part(&platform)).expect("a part");
    assert_eq!(caller.delete(&format!("/disks/{data}")).await.status, 204);
    gone(caller, &format!("/disks/{data}")).await;
    let restore = format!("/backups/{}/restore", id_of(&backup));
    let answer = caller.post(&restore, json!({"name": "back"})).await;
    assert_eq!((answer.status, &answer.body["name"]), (201, &json!("back")), "{answer:?}");
    let path = format!("/disks/{}", answer.id());
    assert!(answer.header("location").is_some_and(|location| location.ends_with(&path)), "{answer:?}");
    let disk = settled(caller, &path, "ready").await;
    for (field, value) in [("type", json!("filesystem")), ("size_gb", json!(12)), ("backup_id", backup["id"].clone())] {
        assert_eq!(disk[field], value, "{field}");
    }
    assert_eq!(platform.engine.brought(id_of(&disk)), Some((kept, None)));
    let log = caller.get(&format!("{}/audit_log?action=backup.restore", caller.org())).await.body;
    let record = &log["data"][0];
    assert_eq!((&record["subject"], &record["data"]["disk_id"]), (&backup["id"], &disk["id"]), "{log}");
    caller.until("its sweep", async |_| platform.engine.staged().is_empty()).await;
    // It is a disk like any other, and called as the backup where nothing else is said.
    let again = caller.post(&restore, json!({})).await;
    assert_eq!(again.body["name"], "data");
    settled(caller, &format!("/disks/{}", again.id()), "ready").await;
    let vm = caller.running_vm("web").await;
    assert_eq!(caller.post(&format!("{path}/attach"), json!({"vm_id": vm})).await.status, 202);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_boots_a_root_disk_that_was_restored() {
    let platform = platform().await;
    let caller = &platform.admin;
    let vm = caller.running_vm("web").await;
    let root = root_of(&caller.get(&format!("/vms/{vm}")).await.body);
    let backup = ready(caller, json!({"root_disk_id": root, "name": "system"})).await;
    assert_eq!((&backup["kind"], &backup["image_id"]), (&json!("root"), &json!("micro")));
    let answer = caller.post(&format!("/backups/{}/restore", id_of(&backup)), json!({})).await;
    let path = format!("/root_disks/{}", answer.id());
    assert!(answer.header("location").is_some_and(|location| location.ends_with(&path)), "{answer:?}");
    let mut body = berth_testkit::vm("again");
    body["root_disk"] = json!({"attach_disk_request": {"disk_id": answer.id()}});
    settled(caller, &path, "ready").await;
    let again = caller.create_vm(body).await;
    let again = caller.reaches(&again, "running").await;
    assert_eq!((root_of(&again), &again["image_id"]), (answer.id(), &json!("micro")));
    assert_eq!(platform.engine.brought(&answer.id()).and_then(|(_, image)| image), Some("micro".into()));
    // An image with which something may have to boot stays.
    for vm in [&vm, id_of(&again)] {
        caller.delete(&format!("/vms/{vm}")).await;
        caller.gone(vm).await;
    }
    for disk in [&root, &answer.id()] {
        assert_eq!(caller.delete(&format!("/root_disks/{disk}")).await.status, 202);
        gone(caller, &format!("/root_disks/{disk}")).await;
    }
    caller.delete("/api/v1/images/micro").await.refused(409, "image_in_use");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_came_back_otherwise_becomes_no_disk() {
    let platform = platform().await;
    let caller = &platform.admin;
    let data = disk(caller, 10).await;
    let backup = ready(caller, json!({"disk_id": data})).await;
    let (restore, file) = (format!("/backups/{}/restore", id_of(&backup)), part(&platform));
    let whole = std::fs::read(&file).expect("a part");
    let mut other = whole.clone();
    other[1000] ^= 1;
    let longer = [&whole[..], b"more"].concat();
    for (bytes, said) in [(Some(&other), "hashes to"), (Some(&longer), "longer"), (None, "part of it is not there")] {
        match bytes {
            Some(bytes) => std::fs::write(&file, bytes).expect("a part"),
            None => std::fs::remove_file(&file).expect("a part"),
        }
        let id = caller.post(&restore, json!({})).await.id();
        let failed = settled(caller, &format!("/disks/{id}"), "failed").await;
        assert!(failed["message"].as_str().is_some_and(|text| text.contains(said)), "{failed}");
        assert_eq!(platform.engine.brought(&id), None);
        assert_eq!(caller.delete(&format!("/disks/{id}")).await.status, 204);
        gone(caller, &format!("/disks/{id}")).await;
    }
    std::fs::write(&file, whole).expect("a part");
    let id = caller.post(&restore, json!({})).await.id();
    settled(caller, &format!("/disks/{id}"), "ready").await;
    platform.engine.refuse("bring_disk", EngineError::Permanent("it is no disk".into()));
    let id = caller.post(&restore, json!({})).await.id();
    assert_eq!(settled(caller, &format!("/disks/{id}"), "failed").await["message"], "it is no disk");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_not_ready_is_not_restored_and_one_that_is_being_restored_stays() {
    let platform = platform().await;
    let caller = &platform.admin;
    let data = disk(caller, 10).await;
    platform.engine.hold("export");
    let late = asked(caller, json!({"disk_id": data})).await;
    let path = format!("/backups/{late}");
    settled(caller, &path, "running").await;
    caller.post(&format!("{path}/restore"), json!({})).await.refused(409, "backup_not_ready");
    platform.engine.let_go();
    settled(caller, &path, "ready").await;
    platform.engine.hold("bring_disk");
    let id = caller.post(&format!("{path}/restore"), json!({})).await.id();
    let disk = format!("/disks/{id}");
    caller.until("its fetching", async |_| platform.engine.waiting() > 0).await;
    caller.delete(&path).await.refused(409, "conflict");
    // A disk that nobody wants any more is given up.
    assert_eq!(caller.delete(&disk).await.status, 204);
    gone(caller, &disk).await;
    platform.engine.let_go();
    assert!(platform.engine.staged().is_empty());
    assert_eq!(caller.delete(&path).await.status, 202);
    gone(caller, &path).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_is_ready_needs_its_backup_no_more() {
    let platform = platform().await;
    let caller = &platform.admin;
    let backup = ready(caller, json!({"disk_id": disk(caller, 10).await})).await;
    let path = format!("/backups/{}", id_of(&backup));
    let id = caller.post(&format!("{path}/restore"), json!({})).await.id();
    settled(caller, &format!("/disks/{id}"), "ready").await;
    let ended = async || -> Vec<String> {
        let text = "SELECT id FROM brought_disks WHERE id = $1 AND deleted_at IS NOT NULL";
        sql(text).bind(id.as_str()).fetch_all(&platform.app().db).await.expect("rows")
    };
    caller.until("its end", async |_| !ended().await.is_empty()).await;
    // As it is until its worker has swept what was fetched.
    let mut tx = platform.app().db.begin().await.expect("a transaction");
    let unswept = sql("UPDATE brought_disks SET deleted_at = NULL WHERE id = $1").bind(id.as_str());
    unswept.execute(&mut tx).await.expect("a change");
    tx.commit().await.expect("a change");
    assert_eq!(caller.delete(&path).await.status, 202);
    gone(caller, &path).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_that_is_under_way_is_given_up() {
    for call in ["snapshot_disk", "export", "exported"] {
        let platform = platform().await;
        let caller = &platform.admin;
        let data = disk(caller, 10).await;
        platform.engine.hold(call);
        let id = asked(caller, json!({"disk_id": data})).await;
        let path = format!("/backups/{id}");
        caller.until(call, async |_| platform.engine.waiting() > 0).await;
        assert_eq!(caller.delete(&path).await.status, 202);
        // It is given up while its disk is copied, too, and may be gone by now.
        let again = caller.delete(&path).await.status;
        assert!(matches!(again, 202 | 404), "{call}: {again}");
        platform.engine.let_go();
        gone(caller, &path).await;
        let_go(&platform).await;
        assert_eq!(stored(&platform), Vec::<PathBuf>::new(), "{call}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_dies_begins_anew_and_leaves_nothing() {
    for call in ["snapshot_disk", "export", "exported"] {
        let platform = platform().await;
        let data = disk(&platform.admin, 10).await;
        platform.engine.hold(call);
        let id = asked(&platform.admin, json!({"disk_id": data})).await;
        platform.admin.until(call, async |_| platform.engine.waiting() > 0).await;
        let engine = platform.engine.clone();
        let platform = platform.crash_and_restart().await;
        engine.let_go();
        let backup = settled(&platform.admin, &format!("/backups/{id}"), "ready").await;
        assert_eq!(backup["size_bytes"], std::fs::metadata(part(&platform)).expect("a part").len(), "{call}");
        let_go(&platform).await;
    }
    // So does who restores.
    let platform = platform().await;
    let data = disk(&platform.admin, 10).await;
    let backup = ready(&platform.admin, json!({"disk_id": data})).await;
    platform.engine.hold("bring_disk");
    let id = platform.admin.post(&format!("/backups/{}/restore", id_of(&backup)), json!({})).await.id();
    platform.admin.until("its fetching", async |_| platform.engine.waiting() > 0).await;
    let engine = platform.engine.clone();
    let platform = platform.crash_and_restart().await;
    engine.let_go();
    settled(&platform.admin, &format!("/disks/{id}"), "ready").await;
    platform.admin.until("its sweep", async |_| platform.engine.staged().is_empty()).await;
}

/// Where the database is another copy, a backup may be gone that a disk is to be made of.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_whose_backup_is_gone_fails_and_leaves_nothing() {
    let platform = platform().await;
    let data = disk(&platform.admin, 10).await;
    let backup = ready(&platform.admin, json!({"disk_id": data})).await;
    let_go(&platform).await;
    platform.engine.hold("bring_disk");
    let id = platform.admin.post(&format!("/backups/{}/restore", id_of(&backup)), json!({})).await.id();
    let path = format!("/disks/{id}");
    platform.admin.until("its making", async |_| platform.engine.waiting() > 0).await;
    let mut tx = platform.app().db.begin().await.expect("a transaction");
    let lost = "UPDATE backups SET status = 'deleted', deleted_at = 1, work_at = NULL";
    sql(lost).execute(&mut tx).await.expect("a change");
    tx.commit().await.expect("a change");
    let platform = platform.crash_and_restart().await;
    let caller = &platform.admin;
    assert_eq!(settled(caller, &path, "failed").await["message"], "the backup is not there any more");
    platform.engine.let_go();
    caller.until("its sweep", async |_| platform.engine.staged().is_empty()).await;
    assert_eq!(caller.delete(&path).await.status, 204);
    gone(caller, &path).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_away_is_waited_for() {
    let platform = platform().await;
    let caller = &platform.admin;
    let data = disk(caller, 10).await;
    let first = ready(caller, json!({"disk_id": data})).await;
    let database = stored(&platform)[0].parent().expect("a folder").to_owned();
    let aside = database.with_extension("aside");
    std::fs::rename(&database, &aside).expect("a folder");
    std::fs::write(&database, "in the way").expect("a file");
    let id = asked(caller, json!({"disk_id": data})).await;
    let path = format!("/backups/{id}");
    let away = async |caller: Caller| {
        let message = caller.get(&path).await.body["message"].clone();
        message.as_str().is_some_and(|text| text.contains("cannot be used at the moment"))
    };
    caller.until("its message", away).await;
    std::fs::remove_file(&database).expect("a file");
    std::fs::rename(&aside, &database).expect("a folder");
    platform.advance(60);
    settled(caller, &path, "ready").await;
    assert_eq!(caller.get(&format!("/backups/{}", id_of(&first))).await.body["status"], "ready");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_stays_away_leaves_no_copy_on_the_host() {
    let platform = platform().await;
    let caller = &platform.admin;
    let data = disk(caller, 10).await;
    ready(caller, json!({"disk_id": data})).await;
    let database = stored(&platform)[0].parent().expect("a folder").to_owned();
    std::fs::rename(&database, database.with_extension("aside")).expect("a folder");
    std::fs::write(&database, "in the way").expect("a file");
    let [failed, unwanted] =
        [asked(caller, json!({"disk_id": data})).await, asked(caller, json!({"disk_id": data})).await];
    for id in [&failed, &unwanted] {
        settled(caller, &format!("/backups/{id}"), "running").await;
    }
    assert_eq!(caller.delete(&format!("/backups/{unwanted}")).await.status, 202);
    platform.advance(20 * 3600 + 1);
    settled(caller, &format!("/backups/{failed}"), "failed").await;
    let_go(&platform).await;
    assert_eq!(caller.get(&format!("/backups/{unwanted}")).await.body["status"], "deleting");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_is_told_and_leaves_nothing() {
    let platform = platform().await;
    let caller = &platform.admin;
    let data = disk(caller, 10).await;
    for call in ["snapshot_disk", "export", "exported"] {
        platform.engine.refuse(call, EngineError::Permanent("it is broken".into()));
        let id = asked(caller, json!({"disk_id": data})).await;
        let failed = settled(caller, &format!("/backups/{id}"), "failed").await;
        assert_eq!(failed["message"], "it is broken", "{call}");
        platform.engine.allow(call);
        let_go(&platform).await;
        caller.until("an empty store", async |_| stored(&platform).is_empty()).await;
    }
    assert_eq!(caller.get("/quota").await.body["disks"]["used"], 1, "one that failed counts as nothing");
    // What takes too long is not waited for.
    platform.engine.refuse("export", EngineError::Transient("slow".into()));
    let id = asked(caller, json!({"disk_id": data})).await;
    let path = format!("/backups/{id}");
    settled(caller, &path, "running").await;
    platform.advance(19 * 3600);
    assert_eq!(caller.get(&path).await.body["status"], "running");
    platform.advance(3601);
    let failed = settled(caller, &path, "failed").await;
    assert!(failed["message"].as_str().is_some_and(|text| text.contains("20 hours")), "{failed}");
    let_go(&platform).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_counts_by_what_is_stored_and_keeps_its_project() {
    let platform = platform().await;
    let caller = &platform.admin;
    let data = disk(caller, 50).await;
    platform.engine.hold("export");
    let id = asked(caller, json!({"disk_id": data})).await;
    let path = format!("/backups/{id}");
    settled(caller, &path, "running").await;
    let used = async || {
        let quota = caller.get("/quota").await.body;
        (quota["disks"]["used"].clone(), quota["disk_gb"]["used"].clone())
    };
    assert_eq!(used().await, (json!(2), json!(100)), "what it may come to");
    platform.engine.let_go();
    settled(caller, &path, "ready").await;
    assert_eq!(used().await, (json!(2), json!(51)));
    let usage = platform.resource_usage().await;
    let lines = usage["data"].as_array().expect("a list");
    assert!(
        lines.iter().any(|line| line["resource_type"] == "backup" && line["resource_id"] == id.as_str()),
        "{usage}"
    );
    assert!(lines.iter().all(|line| line["resource_type"] != "disk_snapshot"), "{usage}");
    // A project with backups stays, also when its disks are gone.
    caller.delete(&format!("/disks/{data}")).await;
    gone(caller, &format!("/disks/{data}")).await;
    caller.delete("").await.refused(409, "conflict");
    caller.delete(&path).await;
    gone(caller, &path).await;
    let org = caller.org().replace("/api/v1/", "/api/v1/admin/");
    let limits = json!({"disk_gb": 59});
    assert_eq!(caller.put(&format!("{org}/quota"), limits).await.status, 200);
    let small = disk(caller, 30).await;
    caller.post("/backups", json!({"disk_id": small})).await.refused(403, "quota_exceeded");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_request_makes_one() {
    let platform = platform().await;
    let caller = &platform.admin;
    let data = disk(caller, 10).await;
    let send = async |path: &str| {
        let request = caller.request(reqwest::Method::POST, path).header("Idempotency-Key", "once");
        let body = if path == "/backups" { json!({"disk_id": data}) } else { json!({}) };
        caller.send(request.json(&body)).await
    };
    let (first, second) = (send("/backups").await, send("/backups").await);
    assert_eq!((first.id(), first.status, second.status), (second.id(), 201, 201));
    settled(caller, &format!("/backups/{}", first.id()), "ready").await;
    let restore = format!("/backups/{}/restore", first.id());
    let (first, second) = (send(&restore).await, send(&restore).await);
    assert_eq!((first.id(), first.status, second.status), (second.id(), 201, 201));
    assert_eq!(caller.get("/disks").await.body["pagination"]["total_items"], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_row_names_goes_from_the_store_after_days() {
    let platform = platform().await;
    let data = disk(&platform.admin, 10).await;
    let backup = ready(&platform.admin, json!({"disk_id": data})).await;
    let kept = stored(&platform)[0].clone();
    let lost = kept.with_file_name(Uuid::now_v7().to_string());
    std::fs::create_dir(&lost).expect("a folder");
    std::fs::write(lost.join("000001"), "nobody's").expect("a file");
    // An older copy of the database may not know it: the days count from when it was first seen.
    let noted = kept.with_file_name("unnamed.json");
    let mut platform = platform.crash_for(100 * 86_400).await;
    let name = lost.file_name().and_then(|name| name.to_str()).expect("an id").to_owned();
    let is_noted = async |_: Caller| std::fs::read_to_string(&noted).is_ok_and(|text| text.contains(&name));
    platform.admin.until("its note", is_noted).await;
    platform = platform.crash_for(13 * 86_400).await;
    settled(&platform.admin, &format!("/backups/{}", id_of(&backup)), "ready").await;
    assert!(lost.exists() && kept.exists());
    let platform = platform.crash_for(2 * 86_400).await;
    platform.admin.until("the sweep", async |_| !lost.exists()).await;
    assert!(kept.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_without_room_on_the_host_fails_and_leaves_nothing() {
    let platform = platform().await;
    let caller = &platform.admin;
    let data = disk(caller, 10).await;
    let backup = ready(caller, json!({"disk_id": data})).await;
    let restore = format!("/backups/{}/restore", id_of(&backup));
    let needed = 2 * backup["size_bytes"].as_i64().expect("bytes");
    platform.engine.set_capacity(|capacity| capacity.room_bytes = needed - 1);
    let id = caller.post(&restore, json!({})).await.id();
    let failed = settled(caller, &format!("/disks/{id}"), "failed").await;
    assert!(failed["message"].as_str().is_some_and(|text| text.contains("no room")), "{failed}");
    assert!(platform.engine.staged().is_empty());
    platform.engine.set_capacity(|capacity| capacity.room_bytes = needed);
    let id = caller.post(&restore, json!({})).await.id();
    settled(caller, &format!("/disks/{id}"), "ready").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_takes_too_long_is_given_up() {
    let platform = platform().await;
    let caller = &platform.admin;
    let data = disk(caller, 10).await;
    let backup = ready(caller, json!({"disk_id": data})).await;
    platform.engine.hold("bring_disk");
    let id = caller.post(&format!("/backups/{}/restore", id_of(&backup)), json!({})).await.id();
    let path = format!("/disks/{id}");
    caller.until("its making", async |_| platform.engine.waiting() > 0).await;
    platform.advance(19 * 3600);
    assert_eq!(caller.get(&path).await.body["status"], "provisioning");
    platform.advance(3601);
    let failed = settled(caller, &path, "failed").await;
    assert!(failed["message"].as_str().is_some_and(|text| text.contains("20 hours")), "{failed}");
    caller.until("its sweep", async |_| platform.engine.staged().is_empty()).await;
    platform.engine.let_go();
}

/// A pipe that nobody writes to answers as a server of files that hangs does.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_hangs_holds_nothing_up() {
    let platform = platform().await;
    let caller = &platform.admin;
    let data = disk(caller, 10).await;
    ready(caller, json!({"disk_id": data})).await;
    let_go(&platform).await;
    let database = stored(&platform)[0].parent().expect("a folder").to_owned();
    platform.engine.hold("export");
    let id = asked(caller, json!({"disk_id": data})).await;
    caller.until("its export", async |_| platform.engine.waiting() > 0).await;
    let (folder, pipe) = (database.join(&id), platform.config.data_dir.join("pipe"));
    std::fs::create_dir_all(&folder).expect("a folder");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
    std::fs::hard_link(&pipe, folder.join("backup.json")).expect("a link");
    let platform = platform.crash_and_restart().await;
    let path = format!("/backups/{id}");
    platform.engine.let_go();
    settled(&platform.admin, &path, "running").await;
    platform.advance(20 * 3600 + 1);
    let failed = settled(&platform.admin, &path, "failed").await;
    assert!(failed["message"].as_str().is_some_and(|text| text.contains("20 hours")), "{failed}");
    let_go(&platform).await;
    drop(std::fs::File::options().read(true).write(true).open(&pipe).expect("a pipe"));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_was_finished_is_found_by_an_older_copy_of_the_database() {
    let platform = platform().await;
    let data = disk(&platform.admin, 10).await;
    let backup = ready(&platform.admin, json!({"disk_id": data})).await;
    let_go(&platform).await;
    let older = "UPDATE backups SET status = 'running', size_bytes = NULL, sha256 = NULL, parts = NULL, work_at = 1";
    let mut tx = platform.app().db.begin().await.expect("a transaction");
    sql(older).execute(&mut tx).await.expect("a change");
    tx.commit().await.expect("a change");
    let platform = platform.crash_and_restart().await;
    let found = settled(&platform.admin, &format!("/backups/{}", id_of(&backup)), "ready").await;
    assert_eq!((&found["digest"], &found["size_bytes"]), (&backup["digest"], &backup["size_bytes"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_goes_does_not_wait_for_what_is_stored() {
    let platform = Platform::start_with(|config| {
        config.backups.folder = config.data_dir.join("backups");
        config.backups.at_once = 1;
    })
    .await;
    let caller = &platform.admin;
    let data = disk(caller, 10).await;
    let first = ready(caller, json!({"disk_id": data})).await;
    platform.engine.hold("export");
    let [slow, next] = [asked(caller, json!({"disk_id": data})).await, asked(caller, json!({"disk_id": data})).await];
    caller.until("its export", async |_| platform.engine.waiting() > 0).await;
    let path = format!("/backups/{}", id_of(&first));
    assert_eq!(caller.delete(&path).await.status, 202);
    gone(caller, &path).await;
    assert_eq!(platform.engine.waiting(), 1, "one at a time");
    platform.engine.let_go();
    settled(caller, &format!("/backups/{slow}"), "ready").await;
    platform.advance(5);
    settled(caller, &format!("/backups/{next}"), "ready").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_share_that_is_not_mounted_is_not_told_as_damaged() {
    let platform = platform().await;
    let data = disk(&platform.admin, 10).await;
    let backup = ready(&platform.admin, json!({"disk_id": data})).await;
    let (place, aside) = (platform.config.data_dir.join("backups"), platform.config.data_dir.join("aside"));
    std::fs::rename(&place, &aside).expect("a folder");
    std::fs::create_dir(&place).expect("a folder");
    let platform = platform.crash_and_restart().await;
    let restore = format!("/backups/{}/restore", id_of(&backup));
    let refused = async |caller: Caller| caller.post("/backups", json!({"disk_id": data})).await.status == 409;
    platform.admin.until("a look at the store", refused).await;
    let answer = platform.admin.post(&restore, json!({})).await;
    answer.refused(409, "not_supported");
    assert!(answer.body["message"].as_str().is_some_and(|text| text.contains("mounts it")), "{answer:?}");
    std::fs::remove_dir_all(&place).expect("a folder");
    std::fs::rename(&aside, &place).expect("a folder");
    let platform = platform.crash_and_restart().await;
    let id = platform.admin.post(&restore, json!({})).await.id();
    settled(&platform.admin, &format!("/disks/{id}"), "ready").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_of_another_store_waits_or_is_forgotten() {
    let mut platform = platform().await;
    let data = disk(&platform.admin, 10).await;
    let [first, second] = [
        ready(&platform.admin, json!({"disk_id": data})).await,
        ready(&platform.admin, json!({"disk_id": data})).await,
    ];
    let [first, second] = [first, second].map(|backup| format!("/backups/{}", id_of(&backup)));
    let_go(&platform).await;
    let first_place = std::mem::replace(&mut platform.config.backups.folder, platform.config.data_dir.join("other"));
    let mut platform = platform.crash_and_restart().await;
    let caller = &platform.admin;
    for path in [&first, &second] {
        assert_eq!(caller.delete(path).await.status, 202);
    }
    let told = async |caller: Caller| {
        let message = caller.get(&first).await.body["message"].clone();
        message.as_str().is_some_and(|text| text.contains("another store"))
    };
    caller.until("its message", told).await;
    assert_eq!(caller.delete(&format!("{first}?forget=yes")).await.status, 400);
    assert_eq!(caller.delete(&format!("{first}?forget=true")).await.status, 202);
    gone(caller, &first).await;
    assert_eq!(caller.get(&second).await.body["status"], "deleting");
    platform.config.backups.folder = first_place;
    let platform = platform.crash_and_restart().await;
    gone(&platform.admin, &second).await;
    assert_eq!(stored(&platform).len(), 1, "what was forgotten is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_an_administrator_has_a_backup_forgotten() {
    let platform = platform().await;
    let data = disk(&platform.admin, 10).await;
    let backup = ready(&platform.admin, json!({"disk_id": data})).await;
    let made = platform.admin.post("/api_keys", json!({"name": "ci", "scopes": ["vm"]})).await;
    let key = platform.admin.with_token(made.body["key"].as_str().expect("a key"));
    let path = format!("/backups/{}", id_of(&backup));
    assert_eq!(key.delete(&format!("{path}?forget=true")).await.status, 403);
    assert_eq!(key.delete(&path).await.status, 202);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_store_has_is_not_sent_again() {
    let platform = platform().await;
    let caller = &platform.admin;
    let data = disk(caller, 10).await;
    ready(caller, json!({"disk_id": data})).await;
    let database = stored(&platform)[0].parent().expect("a folder").to_owned();
    platform.engine.hold("export");
    let id = asked(caller, json!({"disk_id": data})).await;
    caller.until("the file", async |_| platform.engine.waiting() > 0).await;
    // While this is in the way, nobody can say that all of it is there.
    let folder = database.join(&id);
    let (in_the_way, part) = (folder.join("backup.json"), folder.join("000001"));
    std::fs::create_dir_all(in_the_way.join("something")).expect("a folder");
    platform.engine.let_go();
    let path = format!("/backups/{id}");
    let away = async |caller: Caller| {
        let message = caller.get(&path).await.body["message"].clone();
        message.as_str().is_some_and(|text| text.contains("cannot be used at the moment"))
    };
    caller.until("its message", away).await;
    let is_file = || std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(&part).expect("a part"));
    let before = is_file();
    std::fs::write(folder.join("000002"), "of an earlier try, which was longer").expect("a file");
    std::fs::remove_dir_all(&in_the_way).expect("a folder");
    platform.advance(60);
    settled(caller, &path, "ready").await;
    assert_eq!(is_file(), before, "it is the same file");
    assert!(!folder.join("000002").exists());
}
