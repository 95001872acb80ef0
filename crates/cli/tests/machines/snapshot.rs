//! What is made of snapshots of real disks has what these had, whatever became of them since.

use std::fs::File;
use std::os::unix::fs::FileExt;

use berth_testkit::{Caller, Service};
use reqwest::Method;
use serde_json::{Value, json};

use crate::BERTH;
use crate::crash::{killed_at, service as impatient};
use crate::guest::{ready, says, with_login};

/// Of the root disk of a VM that is made of a snapshot, and of a data disk.
const ROOT: &[&str] = &["vm.make_disk.before", "disk.of_snapshot.based", "disk.make.done", "vm.make_disk.after"];
const DATA: &[&str] = &["disk.make.before", "disk.of_snapshot.unpacked", "disk.make.done", "disk.make.after"];

fn id_of(thing: &Value) -> String {
    thing["id"].as_str().expect("an id").to_owned()
}

/// Takes a snapshot, and waits until it is ready.
async fn taken(caller: &Caller, body: Value) -> String {
    let id = caller.post("/disk_snapshots", body).await.id();
    let path = format!("/disk_snapshots/{id}");
    caller.until("the copy", async |caller: Caller| caller.get(&path).await.body["status"] == "ready").await;
    id
}

/// Deletes a thing, and waits until it is gone.
async fn deleted(caller: &Caller, path: &str) {
    let answer = caller.delete(path).await;
    assert!(matches!(answer.status, 202 | 204), "{answer:?}");
    caller.until("its end", async |caller: Caller| caller.get(path).await.status == 404).await;
}

/// Has a VM begin with a snapshot of a root disk.
fn begin_with(mut body: Value, snapshot: &str) -> Value {
    body["snapshot_id"] = json!(snapshot);
    body["root_disk"] = json!({"create_disk_request": {"name": "again", "size_gb": 20}});
    body["delete_root_disk"] = json!(true);
    body
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_is_made_of_what_another_was_while_it_ran() {
    let mut service = Service::new(BERTH, &["micro"]);
    service.start();
    let caller = service.admin().await;
    let login = with_login(&service);
    let mut body = login.clone();
    body["delete_root_disk"] = json!(true);
    body["data_disks"] = json!({"create_disks": [{"name": "files", "type": "filesystem", "size_gb": 10}]});
    let first = caller.create_vm(body).await;
    let vm = ready(&caller, &first).await;
    let data = id_of(&vm["data_disks"][0]);
    let write = |vm: &Value, what: &str| says(&service, vm, &format!("echo {what} | tee /what >/mnt/files/what; sync"));
    write(&vm, "before");
    let of_root = taken(&caller, json!({"root_disk_id": id_of(&vm["root_disk"])})).await;
    let of_data = taken(&caller, json!({"disk_id": data})).await;
    write(&vm, "after");
    deleted(&caller, &format!("/vms/{first}")).await;
    deleted(&caller, &format!("/disks/{data}")).await;
    let new = json!({"name": "files", "type": "filesystem", "size_gb": 12, "snapshot_id": of_data});
    let mut body = begin_with(login.clone(), &of_root);
    body["name"] = json!("again");
    body["data_disks"] = json!({"create_disks": [new]});
    let second = caller.create_vm(body).await;
    let vm = ready(&caller, &second).await;
    deleted(&caller, &format!("/disk_snapshots/{of_root}")).await;
    deleted(&caller, &format!("/disk_snapshots/{of_data}")).await;
    assert!(service.files("snapshots").is_empty());
    assert_eq!(says(&service, &vm, "cat /what /mnt/files/what; hostname"), "before\nbefore\nagain");
    // Of a VM that began with a snapshot snapshots are taken as well, and no chain of files grows for ever.
    let mut root = id_of(&vm["root_disk"]);
    let mut below = Vec::new();
    let mut last = second;
    for _ in 0..4 {
        let snapshot = taken(&caller, json!({"root_disk_id": root})).await;
        deleted(&caller, &format!("/vms/{last}")).await;
        last = caller.create_vm(begin_with(login.clone(), &snapshot)).await;
        root = id_of(&caller.reaches(&last, "running").await["root_disk"]);
        below.push(service.dir.path().join("bases").join(&snapshot).join("below").exists());
        deleted(&caller, &format!("/disk_snapshots/{snapshot}")).await;
    }
    assert_eq!(below, [true, true, false, true]);
    let vm = ready(&caller, &last).await;
    assert_eq!(says(&service, &vm, "cat /what"), "before");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_root_disk_of_a_snapshot_is_made_on() {
    let mut service = impatient();
    service.start();
    for point in ROOT {
        let caller = service.admin().await;
        let first = caller.create_vm(berth_testkit::vm("web")).await;
        let vm = caller.reaches(&first, "running").await;
        let snapshot = taken(&caller, json!({"root_disk_id": id_of(&vm["root_disk"])})).await;
        let body = begin_with(berth_testkit::vm("again"), &snapshot);
        let caller = killed_at(&mut service, point, async |caller| {
            caller.ask(Method::POST, "/vms", body, 201).await;
        })
        .await;
        let again = id_of(&caller.get("/vms?name=again").await.body["data"][0]);
        caller.reaches(&again, "running").await;
        for path in [format!("/vms/{again}"), format!("/disk_snapshots/{snapshot}"), format!("/vms/{first}")] {
            deleted(&caller, &path).await;
        }
        deleted(&caller, &format!("/root_disks/{}", id_of(&vm["root_disk"]))).await;
        for folder in ["machines", "disks", "snapshots"] {
            assert!(service.files(folder).is_empty(), "{point}: {folder} has {:?}", service.files(folder));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_data_disk_of_a_snapshot_is_made_on() {
    const PLACE: u64 = 5 << 30;
    let mut service = impatient();
    service.start();
    for point in DATA {
        let caller = service.admin().await;
        let disk = json!({"name": "data", "type": "block", "size_gb": 10, "region_id": "local"});
        let first = caller.post("/disks", disk).await.id();
        let path = format!("/disks/{first}");
        caller.until("the disk", async |caller: Caller| caller.get(&path).await.body["status"] == "ready").await;
        let file = |id: &str| service.dir.path().join("disks").join(format!("{id}.raw"));
        let whole = File::options().write(true).open(file(&first)).expect("a disk");
        whole.write_all_at(b"before", PLACE).expect("a write");
        let snapshot = taken(&caller, json!({"disk_id": first})).await;
        whole.write_all_at(b"after!", PLACE).expect("a write");
        let known = file(&first).parent().expect("a folder").to_owned();
        let body =
            json!({"name": "more", "type": "block", "size_gb": 12, "region_id": "local", "snapshot_id": snapshot});
        let caller = killed_at(&mut service, point, async |caller| {
            caller.ask(Method::POST, "/disks", body, 201).await;
        })
        .await;
        let made = id_of(&caller.get("/disks?name=more").await.body["data"][0]);
        let path = format!("/disks/{made}");
        caller.until("the disk", async |caller: Caller| caller.get(&path).await.body["status"] == "ready").await;
        deleted(&caller, &format!("/disk_snapshots/{snapshot}")).await;
        let (copy, mut found) = (File::open(known.join(format!("{made}.raw"))).expect("a disk"), [0; 6]);
        copy.read_exact_at(&mut found, PLACE).expect("what was there");
        assert_eq!((&found, copy.metadata().expect("its size").len()), (b"before", 12 << 30), "{point}");
        for id in [first, made] {
            deleted(&caller, &format!("/disks/{id}")).await;
        }
        assert!(service.files("disks").is_empty() && service.files("snapshots").is_empty(), "{point}");
    }
}
