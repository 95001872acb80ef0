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
