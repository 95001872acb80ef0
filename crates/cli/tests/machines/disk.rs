//! Disks of real machines that change while these run.

use berth_testkit::{Caller, Service, eventually};
use serde_json::{Value, json};

use crate::BERTH;
use crate::guest::{ready, says, with_login};

/// A running `micro` that can be logged in to, with a raw data disk and one with a file system.
async fn with_disks(service: &Service, caller: &Caller) -> (String, Value) {
    let mut body = with_login(service);
    let disk = |name: &str, kind: &str| json!({"name": name, "type": kind, "size_gb": 10});
    body["data_disks"] = json!({"create_disks": [disk("raw", "block"), disk("files", "filesystem")]});
    let id = caller.create_vm(body).await;
    let vm = ready(caller, &id).await;
    (id, vm)
}

fn service() -> Service {
    let service = Service::new(BERTH, &["micro"]);
    service.configure("stop_seconds = 20\n");
    service
}

/// Has a disk grow, and waits until it did.
async fn grow(caller: &Caller, path: &str, size_gb: i64) {
    let answer = caller.post(&format!("{path}/resize"), json!({"size_gb": size_gb})).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    let at_rest = async |caller: Caller| caller.get(path).await.body["change"].is_null();
    caller.until("its growth", at_rest).await;
    let disk = caller.get(path).await.body;
    assert_eq!((&disk["size_gb"], &disk["message"]), (&json!(size_gb), &Value::Null));
}

fn id_of(disk: &Value) -> &str {
    disk["id"].as_str().expect("an id")
}

/// How many GiB a disk of a guest has, once it has so many.
fn has_gib(service: &Service, vm: &Value, disk: &str, gib: u64) {
    let sectors = (gib << 21).to_string();
    let command = format!("cat /sys/class/block/$(basename $(readlink -f {disk}))/size");
    eventually("the new size", 60, || (says(service, vm, &command) == sectors).then_some(()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_sees_its_disks_grow_and_its_file_systems_grow_with_the_next_boot() {
    let mut service = service();
    service.start();
    let caller = service.admin().await;
    let (id, vm) = with_disks(&service, &caller).await;
    let (raw, files) = (&vm["data_disks"][0], &vm["data_disks"][1]);
    let raw_path = format!("/disks/{}", id_of(raw));
    let serial = caller.get(&raw_path).await.body["serial"].as_str().expect("a serial").to_owned();
    let device = format!("/dev/disk/by-id/virtio-{serial}");
    has_gib(&service, &vm, &device, 10);
    let process = service.machine(&id);
    grow(&caller, &raw_path, 100).await;
    has_gib(&service, &vm, &device, 100);
    // More than a machine may write that was started with disks as small as these.
    let far = "dd if=/etc/hostname of=DISK bs=1M seek=99000 count=1 conv=notrunc,fsync 2>&1 && sync";
    says(&service, &vm, &far.replace("DISK", &device));
    let root_path = format!("/root_disks/{}", id_of(&vm["root_disk"]));
    grow(&caller, &root_path, 25).await;
    has_gib(&service, &vm, "/dev/vda", 25);
    grow(&caller, &format!("/disks/{}", id_of(files)), 12).await;
    assert_eq!(service.machine(&id), process, "it is the same machine");
    caller.act(&format!("/vms/{id}/restart")).await;
    eventually("another machine", 120, || service.machine(&id).filter(|pid| Some(*pid) != process));
    let vm = ready(&caller, &id).await;
    let gib = |path: &str| {
        let kib = says(&service, &vm, &format!("df -k {path} | tail -n 1 | awk '{{print $2}}'"));
        kib.parse::<u64>().expect("a number") >> 20
    };
    assert_eq!((gib("/"), gib("/mnt/files")), (24, 11), "all but what the file systems take themselves");
    assert_eq!(says(&service, &vm, &format!("dd if={device} bs=1M skip=99000 count=1 2>/dev/null | head -c 3")), "web");
    // While it is off they grow, too, and it starts with what they became.
    caller.act(&format!("/vms/{id}/stop")).await;
    caller.reaches(&id, "stopped").await;
    grow(&caller, &root_path, 30).await;
    grow(&caller, &raw_path, 101).await;
    caller.act(&format!("/vms/{id}/start")).await;
    let vm = ready(&caller, &id).await;
    has_gib(&service, &vm, "/dev/vda", 30);
    has_gib(&service, &vm, &device, 101);
}

/// Has nothing be under way for a disk any more; the disk then.
async fn at_rest(caller: &Caller, path: &str) -> Value {
    let is_at_rest = async |caller: Caller| caller.get(path).await.body["change"].is_null();
    caller.until("its rest", is_at_rest).await;
    caller.get(path).await.body
}

#[tokio::test(flavor = "multi_thread")]
async fn disks_come_to_a_guest_that_runs_and_leave_it_with_what_was_written() {
    let mut service = service();
    service.start();
    let caller = service.admin().await;
    let (id, vm) = with_disks(&service, &caller).await;
    let process = service.machine(&id);
    let body = json!({"name": "late", "type": "filesystem", "size_gb": 10, "region_id": "local"});
    let path = format!("/disks/{}", caller.post("/disks", body).await.id());
    caller.until("the disk", async |caller: Caller| caller.get(&path).await.body["status"] == "ready").await;
    let serial = caller.get(&path).await.body["serial"].as_str().expect("a serial").to_owned();
    let device = format!("/dev/disk/by-id/virtio-{serial}");
    let is_there = |there: bool| {
        let test = format!("test -b {device} && echo yes || echo no");
        let wanted = if there { "yes" } else { "no" };
        eventually("the disk", 60, || (says(&service, &vm, &test) == wanted).then_some(()));
    };
    for text in ["first", "second"] {
        let answer = caller.post(&format!("{path}/attach"), json!({"vm_id": id})).await;
        assert_eq!(answer.status, 202, "{answer:?}");
        let disk = at_rest(&caller, &path).await;
        assert_eq!((&disk["vm_id"], &disk["message"]), (&json!(id), &Value::Null));
        is_there(true);
        let use_it = format!("mount {device} /mnt && cat /mnt/said; echo {text} >/mnt/said && umount /mnt");
        assert_eq!(says(&service, &vm, &use_it), if text == "first" { "" } else { "first" });
        // It grows as one does that was there from the start on.
        let gib = if text == "first" { 11 } else { 12 };
        grow(&caller, &path, gib).await;
        has_gib(&service, &vm, &device, u64::try_from(gib).expect("a size"));
        assert_eq!(caller.act(&format!("{path}/detach")).await.status, 202);
        let disk = at_rest(&caller, &path).await;
        assert_eq!((&disk["is_attached"], &disk["message"]), (&json!(false), &Value::Null));
        is_there(false);
    }
    assert_eq!(service.machine(&id), process, "it is the same machine");
    // One that the VM was created with leaves as well, and QEMU has it open no more: another VM has it.
    let raw = format!("/disks/{}", id_of(&vm["data_disks"][0]));
    assert_eq!(caller.act(&format!("{raw}/detach")).await.status, 202);
    assert_eq!(at_rest(&caller, &raw).await["is_attached"], false);
    let mut other = berth_testkit::vm("other");
    other["data_disks"] = json!({"attached_disks": [{"disk_id": id_of(&vm["data_disks"][0])}]});
    let other = caller.create_vm(other).await;
    caller.reaches(&other, "running").await;
    // What came while it ran is there after the next start, mounted.
    caller.post(&format!("{path}/attach"), json!({"vm_id": id})).await;
    at_rest(&caller, &path).await;
    caller.act(&format!("/vms/{id}/restart")).await;
    eventually("another machine", 120, || service.machine(&id).filter(|pid| Some(*pid) != process));
    let vm = ready(&caller, &id).await;
    assert_eq!(says(&service, &vm, "cat /mnt/late/said"), "second");
}
