//! A real VM that is suspended goes on where it was.

use berth_testkit::{Caller, Service};
use serde_json::{Value, json};

use crate::BERTH;
use crate::guest::{ready, says, with_login};

async fn verb(caller: &Caller, id: &str, verb: &str, status: &str) -> Value {
    let answer = caller.act(&format!("/vms/{id}/{verb}")).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    caller.reaches(id, status).await
}

/// Hands two disks to a VM that runs and takes the first away; what the guest calls the other one, on which something is
/// written.
async fn with_a_disk_in_the_second_place(service: &Service, caller: &Caller, id: &str, vm: &Value) -> String {
    let mut disks = Vec::new();
    for name in ["first", "second"] {
        let body = json!({"name": name, "type": "block", "size_gb": 10, "region_id": "local"});
        let disk = caller.post("/disks", body).await.id();
        let is_ready = async |caller: Caller| caller.get(&format!("/disks/{disk}")).await.body["status"] == "ready";
        caller.until("the disk", |caller| is_ready(caller.clone())).await;
        assert_eq!(caller.post(&format!("/disks/{disk}/attach"), json!({"vm_id": id})).await.status, 202);
        disks.push(disk);
    }
    let device = |id: &str| {
        let serial = &id.replace('-', "")[12..];
        format!(
            "for d in /sys/block/vd*; do [ \"$(cat $d/serial)\" = {serial} ] && echo /dev/${{d##*/}} && exit; done; exit 1"
        )
    };
    let mut found = Vec::new();
    for disk in &disks {
        let look = format!("for i in $(seq 100); do ({}) && exit; sleep 0.2; done; exit 1", device(disk));
        found.push(says(service, vm, &look));
    }
    assert_eq!(caller.act(&format!("/disks/{}/detach", disks[0])).await.status, 202);
    let is_free = async |caller: Caller| caller.get(&format!("/disks/{}", disks[0])).await.body["vm_id"].is_null();
    caller.until("a free disk", |caller| is_free(caller.clone())).await;
    let last = found.swap_remove(1);
    says(service, vm, &format!("printf written | dd of={last} conv=fsync 2>/dev/null"));
    last
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_goes_on_where_it_was_suspended() {
    let mut service = Service::started(BERTH, &["micro"]);
    let caller = service.admin().await;
    let id = caller.create_vm(with_login(&service)).await;
    let vm = ready(&caller, &id).await;
    let begun = "setsid sh -c 'n=0; while true; do n=$((n+1)); echo $n >/tmp/count; sleep 0.1; done' </dev/null >/dev/null 2>&1 &";
    says(&service, &vm, &format!("echo kept >/root/file; {begun}"));
    let boot = says(&service, &vm, "cat /proc/sys/kernel/random/boot_id");
    let disk = with_a_disk_in_the_second_place(&service, &caller, &id, &vm).await;

    let suspended = verb(&caller, &id, "suspend", "suspended").await;
    assert!(suspended["ssh"].is_null() && suspended["message"].is_null(), "{suspended}");
    assert!(service.machine(&id).is_none(), "no process");
    let memory = service.dir.path().join("machines").join(&id).join("suspended");
    assert!(memory.is_file());
    // Whatever else would change its machine waits.
    caller.act(&format!("/vms/{id}/restart")).await.refused(400, "invalid_status");
    service.kill();
    service.start();
    let caller = service.admin().await;
    assert_eq!(caller.get(&format!("/vms/{id}")).await.body["status"], "suspended");

    let running = verb(&caller, &id, "resume", "running").await;
    assert!(running["message"].is_null() && running["guest_ready"] == true, "{running}");
    assert!(!memory.exists(), "it fits nothing any more");
    let vm = caller.get(&format!("/vms/{id}")).await.body;
    assert_eq!(says(&service, &vm, "cat /proc/sys/kernel/random/boot_id"), boot, "the same boot");
    says(&service, &vm, "n=$(cat /tmp/count); until [ \"$(cat /tmp/count)\" -gt \"$n\" ]; do sleep 0.1; done");
    assert_eq!(says(&service, &vm, "sync; cat /root/file"), "kept");
    let reads = format!(
        "dd if={disk} bs=7 count=1 iflag=direct 2>/dev/null || dd if={disk} bs=512 count=1 2>/dev/null | head -c 7"
    );
    assert_eq!(says(&service, &vm, &reads), "written");

    // Once more, and this time its memory gets lost.
    verb(&caller, &id, "suspend", "suspended").await;
    std::fs::write(&memory, "nothing that QEMU knows").expect("a file");
    let running = verb(&caller, &id, "start", "running").await;
    let message = running["message"].as_str().expect("a message");
    assert!(message.contains("booted instead of going on"), "{message}");
    let vm = ready(&caller, &id).await;
    assert_ne!(says(&service, &vm, "cat /proc/sys/kernel/random/boot_id"), boot);
    assert_eq!(says(&service, &vm, "cat /root/file"), "kept");

    verb(&caller, &id, "suspend", "suspended").await;
    verb(&caller, &id, "stop", "stopped").await;
    assert!(!memory.exists());
    let running = verb(&caller, &id, "start", "running").await;
    assert!(running["message"].is_null(), "{running}");
}
