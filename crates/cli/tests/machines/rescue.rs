//! A real VM that its owner repairs from a rescue system.

use berth_testkit::{Caller, Service};
use reqwest::Method;
use serde_json::{Value, json};

use crate::BERTH;
use crate::crash::{held, holds, killed_at, leaves_nothing, runs_again, with_machine};
use crate::guest::{ready, says, with_login};

// The points at which the service is killed, by what it was doing.
const RESCUE: &[&str] = &[
    "vm.power_off.after",
    "vm.ended.after",
    "vm.start.before",
    "vm.start.intent",
    "vm.rescue.cloned",
    "vm.start.done",
    "vm.start.after",
];
const RETURN: &[&str] =
    &["vm.power_off.before", "vm.power_off.after", "vm.ended.after", "vm.start.intent", "vm.start.done"];
const STOP: &[&str] = &["vm.power_off.after", "vm.stopped.before", "vm.stopped.after"];

async fn verb(caller: &Caller, id: &str, verb: &str, status: &str) -> Value {
    let answer = caller.act(&format!("/vms/{id}/{verb}")).await;
    assert_eq!(answer.status, 202, "{verb}: {answer:?}");
    caller.reaches(id, status).await
}

/// The name of a VM's disk in its guest.
async fn device(caller: &Caller, path: &str) -> String {
    format!("/dev/disk/by-id/virtio-{}", caller.get(path).await.body["serial"].as_str().expect("a serial"))
}

fn rescue_disk(service: &Service, id: &str) -> bool {
    service.dir.path().join("machines").join(id).join("rescue.qcow2").exists()
}

/// Goes into rescue, changes what is on the root disk from there, and comes back.
async fn repaired(service: &Service, caller: &Caller, own: &Value, identity: &str) {
    let id = own["id"].as_str().expect("an id");
    let root = own["root_disk"]["id"].as_str().expect("an id");
    let before = says(service, own, identity);
    verb(caller, id, "rescue", "running").await;
    let rescued = ready(caller, id).await;
    assert_eq!((&rescued["rescue"], &rescued["ssh"]["user"]), (&json!(true), &json!("root")));
    assert!(rescue_disk(service, id));
    let disk = device(caller, &format!("/root_disks/{root}")).await;
    assert_eq!(
        says(service, &rescued, &format!("hostname; grep -c $(readlink -f {disk}) /proc/mounts || true")),
        "web\n0"
    );
    assert_eq!(says(service, &rescued, &format!("mount {disk} /mnt && cat /mnt/home-of")), "its own system");
    let repair = "chroot /mnt sh -c 'echo repaired >/home-of; cat /etc/os-release' | grep -c NAME; echo lost >/root/file; umount /mnt";
    assert_ne!(says(service, &rescued, repair), "0");
    verb(caller, id, "restart", "running").await;
    let back = ready(caller, id).await;
    assert_eq!((&back["rescue"], &back["message"], &back["ssh"]), (&json!(false), &Value::Null, &own["ssh"]));
    assert!(!rescue_disk(service, id), "nothing of the rescue system is kept");
    assert_eq!(says(service, &back, "cat /home-of; test -e /root/file || echo nothing"), "repaired\nnothing");
    assert_eq!(says(service, &back, identity), before, "it is the machine that it was");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_is_repaired_with_its_disks_beside_it() {
    let mut service = Service::new(BERTH, &["micro"]);
    service.configure("stop_seconds = 20\n");
    service.start();
    let caller = service.admin().await;
    let mut body = with_login(&service);
    body["user_data"] = json!("#!/bin/sh\necho $(cat /proc/sys/kernel/random/boot_id) >>/root/boots\n");
    body["data_disks"] = json!({"create_disks": [{"name": "data", "type": "filesystem", "size_gb": 10}]});
    let id = caller.create_vm(body).await;
    let vm = ready(&caller, &id).await;
    says(&service, &vm, "echo its own system >/home-of; echo on data >/mnt/data/file; sync");
    repaired(&service, &caller, &vm, "md5sum /etc/dropbear/* /root/boots").await;

    // The data disks are there as well, and what comes, goes and grows meanwhile.
    verb(&caller, &id, "rescue", "running").await;
    let rescued = ready(&caller, &id).await;
    let data = device(&caller, &format!("/disks/{}", vm["data_disks"][0]["id"].as_str().expect("an id"))).await;
    assert_eq!(
        says(&service, &rescued, &format!("ls -A /mnt; mount {data} /mnt && cat /mnt/file; umount /mnt")),
        "on data"
    );
    let root = format!("/root_disks/{}", vm["root_disk"]["id"].as_str().expect("an id"));
    let disk = device(&caller, &root).await;
    let sectors = |gib: u64| {
        let wanted = (gib << 21).to_string();
        format!(
            "until [ $(cat /sys/class/block/$(basename $(readlink -f {disk}))/size) = {wanted} ]; do sleep 0.2; done"
        )
    };
    assert_eq!(caller.post(&format!("{root}/resize"), json!({"size_gb": 30})).await.status, 202);
    says(&service, &rescued, &sectors(30));
    let spare = json!({"name": "spare", "type": "block", "size_gb": 10, "region_id": "local"});
    let spare = format!("/disks/{}", caller.post("/disks", spare).await.id());
    caller.until("the disk", async |c: Caller| c.get(&spare).await.body["status"] == "ready").await;
    assert_eq!(caller.post(&format!("{spare}/attach"), json!({"vm_id": id})).await.status, 202);
    let came = device(&caller, &spare).await;
    says(&service, &rescued, &format!("until test -b {came}; do sleep 0.2; done"));

    // It stays what it is where the service dies, and a stop leads back.
    let process = service.machine(&id);
    service.kill();
    service.start();
    let caller = service.admin().await;
    let rescued = caller.get(&format!("/vms/{id}")).await.body;
    assert_eq!((&rescued["rescue"], service.machine(&id)), (&json!(true), process));
    assert_eq!(says(&service, &rescued, "hostname"), "web");
    verb(&caller, &id, "stop", "stopped").await;
    assert!(!rescue_disk(&service, &id));
    verb(&caller, &id, "start", "running").await;
    let back = ready(&caller, &id).await;
    let look = "cat /home-of; test $(df -k / | tail -n 1 | awk '{print $2}') -gt $((25 << 20)) && echo larger";
    assert_eq!(says(&service, &back, look), "repaired\nlarger");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rescue_goes_on() {
    let (mut service, id) = with_machine().await;
    let before = held(&service);
    for point in RESCUE {
        let caller = killed_at(&mut service, point, async |caller| {
            caller.ask(Method::POST, &format!("/vms/{id}/rescue"), Value::Null, 202).await;
        })
        .await;
        let vm = caller.reaches(&id, "running").await;
        assert!(vm["rescue"] == true && rescue_disk(&service, &id), "{point}: {vm}");
        verb(&caller, &id, "restart", "running").await;
        holds(&service, &before, point);
    }
    leaves_nothing(&service, &service.admin().await, &id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_of_a_rescue_goes_on() {
    let ends = RETURN.iter().map(|point| ("restart", "running", point));
    let (mut service, id) = with_machine().await;
    let before = held(&service);
    for (verb, status, point) in ends.chain(STOP.iter().map(|point| ("stop", "stopped", point))) {
        let caller = service.admin().await;
        assert_eq!(caller.act(&format!("/vms/{id}/rescue")).await.status, 202);
        assert_eq!(caller.reaches(&id, "running").await["rescue"], true);
        let caller = killed_at(&mut service, point, async |caller| {
            caller.ask(Method::POST, &format!("/vms/{id}/{verb}"), Value::Null, 202).await;
        })
        .await;
        let vm = caller.reaches(&id, status).await;
        assert!(vm["rescue"] == false && !rescue_disk(&service, &id), "{point}: {vm}");
        if status == "stopped" {
            runs_again(&caller, &id).await;
        }
        holds(&service, &before, point);
    }
    leaves_nothing(&service, &service.admin().await, &id).await;
}

/// Takes minutes: `script/soak` runs it.
mod soak {
    use berth_testkit::Service;
    use serde_json::json;

    use super::repaired;
    use crate::BERTH;
    use crate::guest::{key, ready, says};

    #[tokio::test(flavor = "multi_thread")]
    async fn a_debian_is_repaired_from_another_system() {
        let mut service = Service::new(BERTH, &["micro", "debian-12"]);
        service.configure("stop_seconds = 240\nstopping_seconds = 300\nrestarting_seconds = 300\n");
        service.start();
        let caller = service.admin().await;
        let (_, public) = key(&service);
        let mut body = berth_testkit::vm("web");
        body["vm_config_id"] = json!("small");
        body["ssh_keys"] = json!([public]);
        body["root_disk"]["create_disk_request"]["image_id"] = json!("debian-12");
        let id = caller.create_vm(body).await;
        let vm = ready(&caller, &id).await;
        says(&service, &vm, "echo its own system | sudo tee /home-of; sync");
        repaired(&service, &caller, &vm, "md5sum /etc/ssh/*.pub /etc/machine-id; ls /var/lib/cloud/instances").await;
    }
}
