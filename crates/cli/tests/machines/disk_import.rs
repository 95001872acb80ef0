//! Files that become disks of real machines, and SIGKILL at every step of that.

use berth_domain::vm::disk_import::ImportStep;
use berth_testkit::{Caller, Service, eventually};
use reqwest::Method;
use serde_json::{Value, json};

use crate::backup::{deleted, id_of, settled};
use crate::crash::{killed_at, service as impatient};
use crate::guest::{ready, says, with_login};
use crate::shell::signed_in;

/// Where the service is killed before anybody owns the file.
const RECEIVED: &str = "disk_import.received";
/// And while the disk is made of it.
const MADE: &[&str] = &[
    "disk_import.place.before",
    "disk_import.place.after",
    "disk_import.make.before",
    "disk.of_file.unpacked",
    "disk_import.make.done",
    "disk_import.make.after",
    "disk_import.end.before",
    "disk_import.end.swept",
    "disk_import.end.after",
];
const PATH: &str = "/disks/import?name=data&size_gb=10&region_id=local";
const BYTES: usize = 1 << 20;

#[test]
fn every_step_of_an_import_has_points_at_which_the_service_is_killed() {
    for step in ImportStep::ALL {
        for moment in ["before", "after"] {
            let point = format!("disk_import.{step}.{moment}");
            assert!(MADE.contains(&point.as_str()), "no test kills the service at {point}");
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
        eventually("an empty folder", 10, || service.files("staging").is_empty().then_some(()));
        let disk = std::fs::File::open(service.dir.path().join("disks").join(format!("{id}.raw"))).expect("a disk");
        let mut found = vec![0; BYTES];
        std::os::unix::fs::FileExt::read_exact_at(&disk, &mut found, 0).expect("what was sent");
        assert!(found.chunks(8).all(|piece| piece == b"a disk, "), "{point}");
        assert_eq!((disk.metadata().expect("a file").len(), service.files("disks").len()), (10 << 30, 1), "{point}");
        deleted(&caller, &path).await;
        eventually("an empty host", 30, || service.files("disks").is_empty().then_some(()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_stays_of_a_file_that_nobody_owned_yet() {
    let mut service = impatient();
    let caller = killed_at(&mut service, RECEIVED, send).await;
    assert_eq!(caller.get("/disks").await.body["data"], json!([]));
    assert!(service.files("staging").is_empty(), "{:?}", service.files("staging"));
}
