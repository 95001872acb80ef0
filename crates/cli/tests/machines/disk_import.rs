//! Files that become disks of real machines, and SIGKILL at every step of that.

use berth_domain::vm::brought_disk::BroughtStep;
use berth_testkit::{Caller, Service, eventually};
use reqwest::Method;
use serde_json::{Value, json};

use crate::backup::{deleted, id_of, settled};
use crate::crash::{killed_at, service as impatient};
use crate::guest::{ready, says, with_login};
use crate::shell::signed_in;

/// Where the service is killed before anybody owns the file.
const RECEIVED: &[&str] = &["disk_import.claimed", "disk_import.received"];
/// And while the disk is made of it.
const MADE: &[&str] = &[
    "brought_disk.place.before",
    "brought_disk.place.after",
    "brought_disk.make.before",
    "disk.of_file.unpacked",
    "brought_disk.make.done",
    "brought_disk.make.after",
    "brought_disk.end.before",
    "brought_disk.end.swept",
    "brought_disk.end.after",
];
/// Where its file is gone.
const FAILED: &[&str] = &["brought_disk.fail.before", "brought_disk.fail.after"];
const PATH: &str = "/disks/import?name=data&size_gb=10&region_id=local";
const BYTES: usize = 1 << 20;

#[test]
fn every_step_of_an_import_has_points_at_which_the_service_is_killed() {
    let killed = [MADE, FAILED].concat();
    for step in BroughtStep::ALL {
        for moment in ["before", "after"] {
            let point = format!("brought_disk.{step}.{moment}");
            assert!(killed.contains(&point.as_str()), "no test kills the service at {point}");
        }
    }
}

/// Runs the command line; what it wrote.
fn berth(service: &Service, arguments: &[&str]) -> String {
    let output = service.berth(arguments).output().expect("an end");
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn another_vm_reads_what_was_exported_and_sent_back() {
    let service = signed_in(&["micro"]);
    let caller = service.admin().await;
    let login = with_login(&service);
    let mut body = login.clone();
    body["data_disks"] = json!({"create_disks": [{"name": "files", "type": "filesystem", "size_gb": 10}]});
    let first = caller.create_vm(body).await;
    let vm = ready(&caller, &first).await;
    says(&service, &vm, "echo once >/mnt/files/what; sync");
    berth(&service, &["vm", "stop", &first, "--wait"]);
    let file = service.dir.path().join("files.qcow2");
    let file = file.to_str().expect("a path");
    berth(&service, &["disk", "export", "files", file]);
    deleted(&caller, &format!("/vms/{first}")).await;
    berth(&service, &["disk", "delete", "files", "--wait"]);
    // Neither its name nor its size is typed: both are the file's.
    let made = berth(&service, &["disk", "import", file, "--kind", "filesystem", "--json"]);
    let made: Value = serde_json::from_str(&made).expect("JSON");
    let told = (&made["name"], &made["size_gb"], &made["status"]);
    assert_eq!(told, (&json!("files"), &json!(10), &json!("ready")), "{made}");
    let mut body = login;
    body["name"] = json!("again");
    let second = caller.create_vm(body).await;
    let vm = ready(&caller, &second).await;
    berth(&service, &["disk", "attach", "files", "again", "--wait"]);
    let serial = made["serial"].as_str().expect("a serial");
    let read = format!("mount /dev/disk/by-id/virtio-{serial} /mnt && cat /mnt/what && umount /mnt");
    let has_it = || says(&service, &vm, &format!("test -b /dev/disk/by-id/virtio-{serial} && echo yes || echo no"));
    eventually("the disk", 60, || (has_it() == "yes").then_some(()));
    assert_eq!(says(&service, &vm, &read), "once");
    assert!(service.files("staging").is_empty(), "{:?}", service.files("staging"));
}

/// Sends a raw disk, and may be left without an answer.
async fn send(caller: &Caller) {
    let request = caller.request(Method::POST, PATH).body(b"a disk, ".repeat(BYTES / 8));
    assert!(request.send().await.map_or(true, |answer| answer.status() == 201));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_goes_on_after_a_kill() {
    let mut service = impatient();
    for point in MADE {
        let caller = killed_at(&mut service, point, send).await;
        let id = id_of(&caller.get("/disks").await.body["data"][0]);
        let path = format!("/disks/{id}");
        settled(&caller, &path, "ready").await;
        eventually("an empty folder", 120, || service.files("staging").is_empty().then_some(()));
        let disk = std::fs::File::open(service.dir.path().join("disks").join(format!("{id}.raw"))).expect("a disk");
        let mut found = vec![0; BYTES];
        std::os::unix::fs::FileExt::read_exact_at(&disk, &mut found, 0).expect("what was sent");
        assert!(found.chunks(8).all(|piece| piece == b"a disk, "), "{point}");
        assert_eq!((disk.metadata().expect("a file").len(), service.files("disks").len()), (10 << 30, 1), "{point}");
        deleted(&caller, &path).await;
        eventually("an empty host", 120, || service.files("disks").is_empty().then_some(()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_whose_file_is_gone_fails_after_a_kill() {
    for point in FAILED {
        let mut service = impatient();
        service.set("BERTH_FAULT", "brought_disk.place.before=kill");
        service.start();
        send(&service.admin().await).await;
        service.died_at("brought_disk.place.before");
        for file in service.files("staging") {
            std::fs::remove_file(service.dir.path().join("staging").join(file)).expect("a file");
        }
        service.start_and_die_at(point);
        service.start();
        let caller = service.admin().await;
        let path = format!("/disks/{}", id_of(&caller.get("/disks").await.body["data"][0]));
        let failed = settled(&caller, &path, "failed").await;
        assert!(failed["message"].as_str().is_some_and(|why| why.contains("the file is gone")), "{point}: {failed}");
        deleted(&caller, &path).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_stays_of_a_file_that_nobody_owned_yet() {
    for point in RECEIVED {
        let mut service = impatient();
        let caller = killed_at(&mut service, point, send).await;
        assert_eq!(caller.get("/disks").await.body["data"], json!([]), "{point}");
        assert_eq!(caller.get("/quota").await.body["disk_gb"]["used"], 0, "{point}");
        assert!(service.files("staging").is_empty(), "{point}: {:?}", service.files("staging"));
    }
}
