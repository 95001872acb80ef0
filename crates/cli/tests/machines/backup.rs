//! Backups of real disks, restored and read back, and SIGKILL at every step of them.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;

use berth_domain::vm::backup::BackupStep;
use berth_domain::vm::backup_schedule::ScheduleStep;
use berth_domain::vm::brought_disk::BroughtStep;
use berth_testkit::{Caller, Service, eventually};
use reqwest::Method;
use serde_json::{Value, json};

use crate::BERTH;
use crate::crash::{killed_at, service as impatient};
use crate::guest::{ready, says, with_login};

/// Where the second part of a disk's file begins to matter: a part has 16 MiB, and so much of a disk was written.
const WRITTEN: usize = 20 << 20;
const PLACE: u64 = 5 << 30;

const STORED: &[&str] = &[
    "backup.store.before",
    "backup.store.begun",
    "disk.export.noted",
    "backup.store.exported",
    "backup.store.part",
    "backup.store.part:2",
    "backup.store.sent",
    "backup.store.read_back",
    "backup.store.after",
    "backup.let_go.before",
    "backup.let_go.after",
];
/// Of one for which the host has no room.
const FAILED: &[&str] = &["backup.fail.before", "backup.fail.after", "backup.let_go.before", "backup.let_go.after"];
const REMOVED: &[&str] =
    &["backup.clear.before", "backup.clear.done", "backup.clear.after", "backup.end.before", "backup.end.after"];
const RESTORED: &[&str] = &[
    "brought_disk.place.before",
    "brought_disk.place.after",
    "brought_disk.make.before",
    "brought_disk.make.part",
    "brought_disk.make.part:2",
    "brought_disk.make.fetched",
    "disk.of_file.unpacked",
    "brought_disk.make.done",
    "brought_disk.make.after",
    "brought_disk.end.before",
    "brought_disk.end.swept",
    "brought_disk.end.after",
];
const SCHEDULED: &[&str] = &["backup_schedule.run.before", "backup_schedule.run.after"];
const PRUNED: &[&str] = &["backup_schedule.prune.before", "backup_schedule.prune.after"];

#[test]
fn every_step_of_a_backup_has_points_at_which_the_service_is_killed() {
    let killed: Vec<_> = [STORED, FAILED, REMOVED, RESTORED, SCHEDULED, PRUNED].concat();
    let steps = BackupStep::ALL.iter().map(|step| format!("backup.{step}"));
    // A disk that cannot be made any more fails the same wherever it comes from: the tests of files kill that.
    let restored = BroughtStep::ALL.iter().filter(|step| **step != BroughtStep::Fail);
    let steps = steps.chain(restored.map(|step| format!("brought_disk.{step}")));
    for step in steps.chain(ScheduleStep::ALL.iter().map(|step| format!("backup_schedule.{step}"))) {
        for moment in ["before", "after"] {
            let point = format!("{step}.{moment}");
            assert!(killed.contains(&point.as_str()), "no test kills the service at {point}");
        }
    }
}

pub fn id_of(thing: &Value) -> String {
    thing["id"].as_str().expect("an id").to_owned()
}

/// Adds a folder for backups to a service that was not started yet.
fn keeping(service: Service) -> Service {
    service.configure(&format!("[backups]\nfolder = \"{}\"\n", store(&service).display()));
    service
}

fn store(service: &Service) -> PathBuf {
    service.dir.path().join("kept")
}

/// The folders of backups that the store has.
fn stored(service: &Service) -> Vec<PathBuf> {
    let databases = std::fs::read_dir(store(service)).into_iter().flatten().flatten();
    databases
        .flat_map(|of| std::fs::read_dir(of.path()).into_iter().flatten().flatten())
        .map(|of| of.path())
        .filter(|path| path.is_dir())
        .collect()
}

/// Waits until what is at a path has a status; how it is then.
pub async fn settled(caller: &Caller, path: &str, status: &str) -> Value {
    let is = async |caller: Caller| caller.get(path).await.body["status"] == status;
    caller.until(&format!("{path} {status}"), is).await;
    caller.get(path).await.body
}

/// Deletes a thing, and waits until it is gone.
pub async fn deleted(caller: &Caller, path: &str) {
    let answer = caller.delete(path).await;
    assert!(matches!(answer.status, 202 | 204), "{answer:?}");
    caller.until("its end", async |caller: Caller| caller.get(path).await.status == 404).await;
}

/// A data disk on which something was written that no program makes smaller.
pub async fn written(service: &Service, caller: &Caller) -> String {
    let body = json!({"name": "data", "type": "block", "size_gb": 10, "region_id": "local"});
    let id = caller.post("/disks", body).await.id();
    settled(caller, &format!("/disks/{id}"), "ready").await;
    let mut random = vec![0; WRITTEN];
    std::io::Read::read_exact(&mut File::open("/dev/urandom").expect("chance"), &mut random).expect("chance");
    let disk = File::options().write(true).open(raw(service, &id)).expect("a disk");
    disk.write_all_at(&random, 0).expect("a write");
    disk.write_all_at(b"before", PLACE).expect("a write");
    id
}

fn raw(service: &Service, id: &str) -> PathBuf {
    service.dir.path().join("disks").join(format!("{id}.raw"))
}

/// Asserts that two disks have the same where something was written.
pub fn alike(service: &Service, one: &str, other: &str, point: &str) {
    let read = |id: &str, at: u64, bytes: usize| {
        let mut found = vec![0; bytes];
        File::open(raw(service, id)).expect("a disk").read_exact_at(&mut found, at).expect("what was there");
        found
    };
    assert_eq!(read(other, PLACE, 6), b"before", "{point}");
    assert!(read(one, 0, WRITTEN) == read(other, 0, WRITTEN), "{point}");
}

/// Deletes backups and disks, and asserts that neither the store nor the host has anything of them any more.
async fn nothing_is_left(service: &Service, caller: &Caller, point: &str) {
    for noun in ["backups", "disks"] {
        for one in caller.get(&format!("/{noun}")).await.body["data"].as_array().expect("a list") {
            deleted(caller, &format!("/{noun}/{}", id_of(one))).await;
        }
    }
    eventually("an empty host", 120, || {
        ["disks", "snapshots", "staging"].iter().all(|folder| service.files(folder).is_empty()).then_some(())
    });
    assert_eq!(stored(service), Vec::<PathBuf>::new(), "{point}");
    let half = service.files("exports").into_iter().filter(|name| name.contains(".half")).count();
    assert_eq!(half, 0, "{point}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_reads_what_another_wrote_before_its_backup() {
    let mut service = keeping(Service::new(BERTH, &["micro"]));
    service.start();
    let caller = service.admin().await;
    let login = with_login(&service);
    let mut body = login.clone();
    body["delete_root_disk"] = json!(true);
    body["data_disks"] = json!({"create_disks": [{"name": "files", "type": "filesystem", "size_gb": 10}]});
    let first = caller.create_vm(body).await;
    let vm = ready(&caller, &first).await;
    let write = |what: &str| says(&service, &vm, &format!("echo {what} | tee /what >/mnt/files/what; sync"));
    write("before");
    let made = caller.post("/backups", json!({"vm_id": first})).await.body["data"].as_array().expect("a list").clone();
    // What is written from here on may be in the copies; what is written once they are made is not.
    for backup in &made {
        settled(&caller, &format!("/backups/{}", id_of(backup)), "ready").await;
    }
    write("after");
    assert!(service.files("snapshots").is_empty(), "{:?}", service.files("snapshots"));
    deleted(&caller, &format!("/vms/{first}")).await;
    deleted(&caller, &format!("/disks/{}", id_of(&vm["data_disks"][0]))).await;
    let mut disks = Vec::new();
    for (backup, noun) in made.iter().zip(["root_disks", "disks"]) {
        let id = caller.post(&format!("/backups/{}/restore", id_of(backup)), json!({})).await.id();
        settled(&caller, &format!("/{noun}/{id}"), "ready").await;
        disks.push(id);
    }
    let mut body = login;
    body["name"] = json!("again");
    body["root_disk"] = json!({"attach_disk_request": {"disk_id": disks[0]}});
    body["data_disks"] = json!({"attached_disks": [{"disk_id": disks[1]}]});
    let second = caller.create_vm(body).await;
    let vm = ready(&caller, &second).await;
    assert_eq!(says(&service, &vm, "cat /what /mnt/files/what; hostname"), "before\nbefore\nagain");
    assert!(service.files("staging").is_empty(), "{:?}", service.files("staging"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_goes_on_and_so_does_its_restoring() {
    let mut service = keeping(impatient());
    service.start();
    for point in STORED {
        let caller = service.admin().await;
        let disk = written(&service, &caller).await;
        let caller = killed_at(&mut service, point, async |caller| {
            caller.ask(Method::POST, "/backups", json!({"disk_id": disk}), 201).await;
        })
        .await;
        let id = id_of(&caller.get("/backups").await.body["data"][0]);
        settled(&caller, &format!("/backups/{id}"), "ready").await;
        assert_eq!(stored(&service).len(), 1, "{point}");
        eventually("the copy's end", 120, || service.files("snapshots").is_empty().then_some(()));
        let again = caller.post(&format!("/backups/{id}/restore"), json!({})).await.id();
        settled(&caller, &format!("/disks/{again}"), "ready").await;
        alike(&service, &disk, &again, point);
        nothing_is_left(&service, &caller, point).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restoring_goes_on() {
    let mut service = keeping(impatient());
    service.start();
    for point in RESTORED {
        let caller = service.admin().await;
        let disk = written(&service, &caller).await;
        let id = caller.post("/backups", json!({"disk_id": disk})).await.id();
        settled(&caller, &format!("/backups/{id}"), "ready").await;
        let caller = killed_at(&mut service, point, async |caller| {
            caller.ask(Method::POST, &format!("/backups/{id}/restore"), json!({"name": "again"}), 201).await;
        })
        .await;
        let again = id_of(&caller.get("/disks?name=again").await.body["data"][0]);
        settled(&caller, &format!("/disks/{again}"), "ready").await;
        alike(&service, &disk, &again, point);
        nothing_is_left(&service, &caller, point).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_root_disk_is_restored_on() {
    let mut service = keeping(impatient());
    service.start();
    for point in ["disk.of_snapshot.based", "brought_disk.make.done"] {
        let caller = service.admin().await;
        let vm = caller.running_vm("web").await;
        let root = id_of(&caller.get(&format!("/vms/{vm}")).await.body["root_disk"]);
        let id = caller.post("/backups", json!({"root_disk_id": root})).await.id();
        settled(&caller, &format!("/backups/{id}"), "ready").await;
        let caller = killed_at(&mut service, point, async |caller| {
            caller.ask(Method::POST, &format!("/backups/{id}/restore"), json!({"name": "again"}), 201).await;
        })
        .await;
        let again = id_of(&caller.get("/root_disks?name=again").await.body["data"][0]);
        settled(&caller, &format!("/root_disks/{again}"), "ready").await;
        deleted(&caller, &format!("/vms/{vm}")).await;
        for disk in [root, again] {
            deleted(&caller, &format!("/root_disks/{disk}")).await;
        }
        nothing_is_left(&service, &caller, point).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_without_room_fails() {
    for point in FAILED {
        let mut service = keeping(impatient());
        service.start();
        let disk = written(&service, &service.admin().await).await;
        service.kill();
        let config = service.dir.path().join("berth.toml");
        let ample = std::fs::read_to_string(&config).expect("a file");
        let scarce = ample.replacen("[vm]\n", "[vm]\ndisk_overcommit = 0.001\n", 1);
        assert_ne!(scarce, ample);
        std::fs::write(&config, scarce).expect("a file");
        let caller = killed_at(&mut service, point, async |caller| {
            caller.ask(Method::POST, "/backups", json!({"disk_id": disk}), 201).await;
        })
        .await;
        let id = id_of(&caller.get("/backups").await.body["data"][0]);
        let failed = settled(&caller, &format!("/backups/{id}"), "failed").await;
        assert!(failed["message"].as_str().is_some_and(|why| why.contains("insufficient_capacity")), "{failed}");
        nothing_is_left(&service, &caller, point).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_that_goes_is_gone() {
    let mut service = keeping(impatient());
    service.start();
    let disk = written(&service, &service.admin().await).await;
    for point in REMOVED {
        let id = service.admin().await.post("/backups", json!({"disk_id": disk})).await.id();
        let path = format!("/backups/{id}");
        settled(&service.admin().await, &path, "ready").await;
        let caller = killed_at(&mut service, point, async |caller| {
            caller.ask(Method::DELETE, &path, Value::Null, 202).await;
        })
        .await;
        let empty = async |caller: Caller| caller.get("/backups").await.body["data"] == json!([]);
        caller.until("its end", empty).await;
        assert_eq!(stored(&service), Vec::<PathBuf>::new(), "{point}");
    }
    nothing_is_left(&service, &service.admin().await, "the end").await;
}

/// Has it be time for every schedule.
fn make_due(service: &Service) {
    let program = "import sqlite3,sys; c=sqlite3.connect(sys.argv[1], timeout=60); \
                   c.execute('UPDATE backup_schedules SET next_at = 1, work_at = 1'); c.commit()";
    let database = service.dir.path().join("berth.db");
    let done = Command::new("python3").args(["-c", program]).arg(database).status().expect("python3");
    assert!(done.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_goes_on() {
    let mut service = keeping(impatient());
    service.start();
    for point in SCHEDULED.iter().chain(PRUNED) {
        let caller = service.admin().await;
        let disk = written(&service, &caller).await;
        let body = json!({"name": "nightly", "disk_id": disk, "every": "24h", "keep": 1});
        let id = caller.post("/backup_schedules", body).await.id();
        let path = format!("/backups?schedule_id={id}&status=ready");
        let has_one = async |caller: &Caller| {
            let one = async |caller: Caller| caller.get(&path).await.body["pagination"]["total_items"] == 1;
            caller.until("one backup", one).await;
            id_of(&caller.get(&path).await.body["data"][0])
        };
        let mut before = String::new();
        if PRUNED.contains(point) {
            service.kill();
            make_due(&service);
            service.start();
            before = has_one(&service.admin().await).await;
        }
        service.kill();
        make_due(&service);
        service.start_and_die_at(point);
        service.start();
        let caller = service.admin().await;
        let is_other = async |caller: Caller| {
            let all = caller.get("/backups").await.body["data"].clone();
            let all = all.as_array().expect("a list");
            all.len() == 1 && all[0]["status"] == "ready" && all[0]["id"] != before.as_str()
        };
        caller.until("one backup, and that a new one", is_other).await;
        assert_eq!(stored(&service).len(), 1, "{point}");
        deleted(&caller, &format!("/backup_schedules/{id}")).await;
        nothing_is_left(&service, &caller, point).await;
    }
}
