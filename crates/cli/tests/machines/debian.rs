//! `debian-12` with its own cloud-init.

use std::process::Command;

use berth_domain::Timestamp;
use berth_host::clock::Clock;
use berth_testkit::{Caller, Service, vm};
use reqwest::Method;
use serde_json::{Value, json};

use crate::BERTH;
use crate::crash::killed_at;
use crate::guest::{key, ready, says};

const CLOUD_CONFIG: &str = "#cloud-config
write_files:
  - path: /etc/from-cloud-config
    content: written
users:
  - default
  - name: ada
    shell: /bin/bash
bootcmd:
  - echo boot >>/root/order
runcmd:
  - [sh, -c, 'echo run >>/root/order']
timezone: Europe/Berlin
";

/// What came of it, in one login, because each costs an emulated processor a second.
const MADE: &str = "hostname; sudo id -u; cat /etc/from-cloud-config; echo; sudo cat /root/order
getent passwd ada | cut -d: -f7; readlink /etc/localtime
cloud-init status; systemctl is-system-running --wait; grep -c ' /mnt/data ext4 rw' /proc/mounts";

fn debian(name: &str, public: &str, user_data: &str) -> Value {
    let mut body = vm(name);
    body["vm_config_id"] = json!("small");
    body["ssh_keys"] = json!([public]);
    body["user_data"] = json!(user_data);
    body["root_disk"]["create_disk_request"]["image_id"] = json!("debian-12");
    body["data_disks"] = json!({"create_disks": [{"name": "data", "type": "filesystem", "size_gb": 10}]});
    body
}

/// A disk comes to the guest and leaves it, and the one that it booted with grows.
async fn disks_come_and_go(service: &Service, caller: &Caller, id: &str, vm: &Value) {
    let body = json!({"name": "late", "type": "block", "size_gb": 10, "region_id": "local"});
    let path = format!("/disks/{}", caller.post("/disks", body).await.id());
    let at_rest = async |path: &str| {
        let is_at_rest = async |caller: Caller| {
            let disk = caller.get(path).await.body;
            disk["change"].is_null() && disk["status"] == "ready"
        };
        caller.until("a disk at rest", is_at_rest).await;
        caller.get(path).await.body
    };
    let device = format!("/dev/disk/by-id/virtio-{}", at_rest(&path).await["serial"].as_str().expect("a serial"));
    assert_eq!(caller.post(&format!("{path}/attach"), json!({"vm_id": id})).await.status, 202);
    at_rest(&path).await;
    let appears = format!("until test -b {device}; do sleep 1; done; sudo blockdev --getsize64 {device}");
    assert_eq!(says(service, vm, &appears), (10_u64 << 30).to_string());
    assert_eq!(caller.act(&format!("{path}/detach")).await.status, 202);
    assert_eq!(at_rest(&path).await["is_attached"], false);
    says(service, vm, &format!("while test -e {device}; do sleep 1; done"));
    let data = format!("/disks/{}", vm["data_disks"][0]["id"].as_str().expect("an id"));
    assert_eq!(caller.post(&format!("{data}/resize"), json!({"size_gb": 12})).await.status, 202);
    at_rest(&data).await;
    let grown =
        "sudo resize2fs $(findmnt -no SOURCE /mnt/data) &>/dev/null; df --output=size -BG /mnt/data | tail -n 1";
    assert_eq!(says(service, vm, grown), "12G");
}

/// What the guest's agent does: other keys while it runs, and the right time when it goes on.
async fn its_agent_answers(service: &Service, caller: &Caller, id: &str, vm: &Value) {
    const BY_HAND: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOkvXqWhmrNwsKUVRjPMWzZ0pE7gNRQnxVbQkG4HmCrf by hand";
    let agent = "until systemctl -q is-active qemu-guest-agent; do sleep 1; done";
    says(service, vm, &format!("echo {BY_HAND} >>.ssh/authorized_keys; {agent}"));
    std::fs::remove_file(service.dir.path().join("key")).expect("the private key");
    let (_, public) = key(service);
    caller.ask(Method::PUT, &format!("/vms/{id}/ssh_keys"), json!({"ssh_keys": [public]}), 200).await;
    let is_applied = async |caller: Caller| caller.get(&format!("/vms/{id}")).await.body["ssh_keys_state"] == "applied";
    caller.until("other keys", is_applied).await;
    let keys = format!("{BY_HAND}\n{public}");
    // A clock that stands still while its machine is off is wrong afterwards; this one is more so.
    let wrong = "sudo systemctl stop systemd-timesyncd; sudo date -s @1000000000 >/dev/null";
    // The agent ends lines that have ended.
    assert_eq!(says(service, vm, &format!("grep . .ssh/authorized_keys; {wrong}")), keys);
    for (verb, status) in [("suspend", "suspended"), ("resume", "running")] {
        assert_eq!(caller.act(&format!("/vms/{id}/{verb}")).await.status, 202);
        caller.reaches(id, status).await;
    }
    let is_right = async |_: Caller| {
        let now = Clock::default().now().0 / Timestamp::SECOND;
        let seconds: i64 = says(service, vm, "date +%s").parse().expect("seconds");
        (now..now + 600).contains(&seconds)
    };
    caller.until("the right time", is_right).await;
}

/// A copy of a disk has what the guest had not written to it yet, and a service that dies before it begins leaves nothing
/// frozen.
async fn copies_have_what_programs_wrote(service: &mut Service, vm: &Value) {
    let data = vm["data_disks"][0]["id"].as_str().expect("an id");
    says(service, vm, "echo whole | sudo tee /mnt/data/unsynced");
    service.kill();
    let caller = killed_at(service, "disk.snapshot.frozen", async |caller| {
        caller.ask(Method::POST, "/disk_snapshots", json!({"disk_id": data}), 201).await;
    })
    .await;
    let copies = async |caller: &Caller| caller.get("/disk_snapshots").await.body["data"].clone();
    caller.until("the copy", async |caller: Caller| copies(&caller).await[0]["status"] == "ready").await;
    let froze = "echo thawed | sudo tee /root/thawed; sync; sudo journalctl -t qemu-ga | grep -c 'fsfreeze called'";
    assert_eq!(says(service, vm, froze), "thawed\n2");
    let copy = copies(&caller).await[0]["id"].as_str().expect("an id").to_owned();
    let file = service.dir.path().join("snapshots").join(format!("{copy}.qcow2"));
    let flat = file.with_extension("raw");
    let made = Command::new("qemu-img").args(["convert", "-O", "raw"]).args([&file, &flat]).status();
    assert!(made.expect("qemu-img").success());
    let found = Command::new("debugfs").args(["-R", "cat /unsynced"]).arg(&flat).output().expect("debugfs");
    assert_eq!(String::from_utf8_lossy(&found.stdout), "whole\n", "{found:?}");
    caller.delete(&format!("/disk_snapshots/{copy}")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cloud_init_does_what_user_data_says() {
    let mut service = Service::new(BERTH, &["micro", "debian-12"]);
    service.configure("stop_seconds = 240\nstopping_seconds = 300\n");
    // Of a program that is elsewhere each time that it runs, an emulated processor translates every run anew.
    service.tell_kernel("debian-12", "norandmaps");
    service.start();
    let caller = service.admin().await;
    let (_, public) = key(&service);
    let id = caller.create_vm(debian("config", &public, CLOUD_CONFIG)).await;
    let vm = ready(&caller, &id).await;
    assert_eq!(vm["ssh"]["user"], "debian");
    assert_eq!(
        says(&service, &vm, MADE),
        "config\n0\nwritten\nboot\nrun\n/bin/bash\n/usr/share/zoneinfo/Europe/Berlin\nstatus: done\nrunning\n1"
    );
    disks_come_and_go(&service, &caller, &id, &vm).await;
    its_agent_answers(&service, &caller, &id, &vm).await;
    copies_have_what_programs_wrote(&mut service, &vm).await;
    let caller = service.admin().await;
    // The power button ends it: a stop that took the switch would leave a dirty file system.
    says(&service, &vm, "echo unsynced | sudo tee /root/file");
    assert_eq!(caller.act(&format!("/vms/{id}/stop")).await.status, 202);
    caller.reaches(&id, "stopped").await;
    let host_keys = "md5sum /etc/ssh/*.pub /etc/machine-id | md5sum";
    assert_eq!(caller.act(&format!("/vms/{id}/start")).await.status, 202);
    caller.reaches(&id, "running").await;
    let identity = says(&service, &vm, host_keys);
    let vm = ready(&caller, &id).await;
    let look = format!("sudo cat /root/file /root/order; grep -c ' /mnt/data ext4 rw' /proc/mounts; {host_keys}");
    assert_eq!(says(&service, &vm, &look), format!("unsynced\nboot\nrun\nboot\n1\n{identity}"));
}
