//! A guest from its creation to its end: login, disks, ports, power button.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::time::Duration;

use berth_testkit::{Service, eventually, vm};
use serde_json::json;

use crate::BERTH;
use crate::guest::{key, ready, says, ssh};

/// The first line that a port says.
fn line_from(host: &str, port: u16) -> Option<String> {
    let stream = TcpStream::connect((host, port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).ok()?;
    Some(line)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_is_what_was_asked_for() {
    let service = Service::started(BERTH, &["micro"]);
    let caller = service.admin().await;
    let (_, public) = key(&service);
    let mut body = vm("web");
    body["ssh_keys"] = json!([public]);
    body["exposed_ports"] = json!([{"port": 8000, "protocol": "tcp"}]);
    body["user_data"] = json!("#!/bin/sh\necho \"it's done\" >/root/user-data\n");
    body["root_disk"]["create_disk_request"]["size_gb"] = json!(30);
    body["data_disks"] = json!({"create_disks": [
        {"name": "data", "type": "filesystem", "size_gb": 10},
        {"name": "raw", "type": "block", "size_gb": 11},
        {"name": "data", "type": "filesystem", "size_gb": 10},
    ]});
    let id = caller.create_vm(body).await;
    caller.reaches(&id, "running").await;
    let vm = ready(&caller, &id).await;
    assert_eq!(says(&service, &vm, "hostname"), "web");
    assert_eq!(says(&service, &vm, "cat /root/user-data"), "it's done");
    assert_eq!(says(&service, &vm, "nproc"), "1");
    let root: u64 = says(&service, &vm, "df -k / | tail -n 1 | awk '{print $2}'").parse().expect("a size");
    assert!((28 << 20..30 << 20).contains(&root), "{root}");
    assert_eq!(says(&service, &vm, "grep -c ' /mnt/data ext4 rw' /proc/mounts"), "1");
    assert_eq!(vm["data_disks"][2]["mount_path"], "/mnt/data-2");
    assert_eq!(says(&service, &vm, "grep -c ' /mnt/data-2 ext4 rw' /proc/mounts"), "1");
    let raw = vm["data_disks"][1]["id"].as_str().expect("an id").replace('-', "");
    let by_id = format!("blockdev --getsize64 /dev/disk/by-id/virtio-{}", &raw[12..]);
    assert_eq!(says(&service, &vm, &by_id), (11_u64 << 30).to_string());
    says(&service, &vm, "echo kept >/mnt/data/file && echo kept >/root/file && sync");

    // A port that was asked for at creation, and one that comes while it runs.
    let serve = |port: u16| {
        format!("setsid sh -c 'while true; do echo port {port} | nc -l -p {port}; done' </dev/null >/dev/null 2>&1 &")
    };
    let host = vm["public_ip"].as_str().expect("an address").to_owned();
    let answers =
        |port: u16| eventually("the port", 120, || line_from(&host, port).filter(|l| *l == format!("port {port}\n")));
    says(&service, &vm, &serve(8000));
    answers(8000);
    let ports = json!({"exposed_ports": [{"port": 9000, "protocol": "tcp"}]});
    assert_eq!(caller.patch(&format!("/vms/{id}"), ports).await.status, 200);
    says(&service, &vm, &serve(9000));
    answers(9000);
    eventually("the closed port", 120, || TcpStream::connect((host.as_str(), 8000)).is_err().then_some(()));

    // A restart keeps the disks, mounts them again, and is the same machine.
    let identity = says(&service, &vm, "cat /etc/machine-id /etc/dropbear/*_host_key | md5sum");
    assert_eq!(caller.act(&format!("/vms/{id}/restart")).await.status, 202);
    caller.reaches(&id, "running").await;
    let vm = ready(&caller, &id).await;
    assert_eq!(says(&service, &vm, "cat /mnt/data/file /root/file"), "kept\nkept");
    assert_eq!(says(&service, &vm, "cat /etc/machine-id /etc/dropbear/*_host_key | md5sum"), identity);

    // A guest that powers itself off is stopped, and says so.
    ssh(&service, &vm, "poweroff");
    let off = caller.reaches(&id, "stopped").await;
    assert_eq!(off["message"], "the guest powered itself off");
    assert!(service.machine(&id).is_none());
    let console = caller.get(&format!("/vms/{id}/console")).await.body;
    assert!(console.as_str().is_some_and(|text| text.contains("Power down")), "{console}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_power_button_lets_a_guest_end_its_work() {
    let service = Service::started(BERTH, &["micro"]);
    let caller = service.admin().await;
    let (_, public) = key(&service);
    let mut body = vm("web");
    body["ssh_keys"] = json!([public]);
    let id = caller.create_vm(body).await;
    let vm = ready(&caller, &id).await;
    // Not written to the disk yet: a clean end writes it.
    says(&service, &vm, "echo unsynced >/root/file");
    assert_eq!(caller.act(&format!("/vms/{id}/stop")).await.status, 202);
    caller.reaches(&id, "stopped").await;
    caller.act(&format!("/vms/{id}/start")).await;
    let vm = ready(&caller, &id).await;
    assert_eq!(says(&service, &vm, "cat /root/file"), "unsynced");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_takes_other_keys_at_its_next_boot() {
    const BY_HAND: &str = "AAAAC3NzaC1lZDI1NTE5AAAAIOkvXqWhmrNwsKUVRjPMWzZ0pE7gNRQnxVbQkG4HmCrf";
    let service = Service::started(BERTH, &["micro"]);
    let caller = service.admin().await;
    let (file, first) = key(&service);
    let mut body = vm("web");
    body["ssh_keys"] = json!([first]);
    let id = caller.create_vm(body).await;
    let guest = ready(&caller, &id).await;
    says(&service, &guest, &format!("echo ssh-ed25519 {BY_HAND} by hand >>/root/.ssh/authorized_keys"));
    std::fs::remove_file(&file).expect("the private key");
    let (_, second) = key(&service);
    let keys = json!({"ssh_keys": [second]});
    caller.ask(reqwest::Method::PUT, &format!("/vms/{id}/ssh_keys"), keys, 200).await;
    assert_eq!(caller.act(&format!("/vms/{id}/restart")).await.status, 202);
    let guest = caller.reaches(&id, "running").await;
    // Whoever logs in has the second key now.
    let kept = says(&service, &guest, "cut -d' ' -f2 /root/.ssh/authorized_keys");
    let second = second.split(' ').nth(1).expect("a blob");
    assert_eq!(kept.lines().collect::<Vec<_>>(), [BY_HAND, second]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_that_boots_hears_the_power_button_once_it_listens() {
    let mut service = Service::new(BERTH, &["micro"]);
    // It is never switched off.
    service.configure("stop_seconds = 86400\nstopping_seconds = 86400\n");
    service.start();
    let caller = service.admin().await;
    let id = caller.running_vm("web").await;
    assert_eq!(caller.act(&format!("/vms/{id}/stop")).await.status, 202);
    caller.reaches(&id, "stopped").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_another_program_has_is_told_and_the_others_work() {
    let service = Service::started(BERTH, &["micro"]);
    let caller = service.admin().await;
    let id = caller.running_vm("web").await;
    let path = format!("/vms/{id}");
    let host = caller.get(&path).await.body["public_ip"].as_str().expect("an address").to_owned();
    let other = std::net::TcpListener::bind((host.as_str(), 8080)).expect("a port");
    let ports = json!({"exposed_ports": [{"port": 8080, "protocol": "tcp"}, {"port": 9090, "protocol": "tcp"}]});
    let told = |vm: &serde_json::Value| vm["message"].as_str().is_some_and(|text| text.contains("8080/tcp"));
    assert_eq!(caller.patch(&path, ports).await.status, 200);
    caller
        .until("the word", |c| {
            let path = path.clone();
            async move { told(&c.get(&path).await.body) }
        })
        .await;
    eventually("the other port", 120, || TcpStream::connect((host.as_str(), 9090)).ok());
    // A restart meets it, too, and comes up all the same.
    assert_eq!(caller.act(&format!("{path}/restart")).await.status, 202);
    assert!(told(&caller.reaches(&id, "running").await));
    drop(other);
    assert_eq!(caller.act(&format!("{path}/restart")).await.status, 202);
    assert!(!told(&caller.reaches(&id, "running").await));
    eventually("the port", 120, || TcpStream::connect((host.as_str(), 8080)).ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_root_disk_can_boot_another_machine() {
    let service = Service::started(BERTH, &["micro"]);
    let caller = service.admin().await;
    let (_, public) = key(&service);
    let mut body = vm("first");
    body["ssh_keys"] = json!([public]);
    let first = caller.create_vm(body).await;
    let vm = ready(&caller, &first).await;
    let identity = says(&service, &vm, "echo kept >/root/file; cat /etc/machine-id");
    caller.act(&format!("/vms/{first}/stop")).await;
    caller.reaches(&first, "stopped").await;
    caller.delete(&format!("/vms/{first}")).await;
    caller.gone(&first).await;
    let mut body = berth_testkit::vm("second");
    body["ssh_keys"] = json!([public]);
    body["root_disk"] = json!({"attach_disk_request": {"disk_id": vm["root_disk"]["id"]}});
    let second = caller.create_vm(body).await;
    let vm = ready(&caller, &second).await;
    assert_eq!(says(&service, &vm, "cat /root/file; hostname"), "kept\nsecond");
    assert_ne!(says(&service, &vm, "cat /etc/machine-id"), identity);
}

#[tokio::test(flavor = "multi_thread")]
async fn several_machines_at_once() {
    let mut service = Service::with_still_guests(BERTH, &["micro"]);
    service.start();
    let caller = service.admin().await;
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..6 {
        let caller = caller.clone();
        tasks.spawn(async move { caller.running_vm(&format!("vm{number}")).await });
    }
    let ids = tasks.join_all().await;
    for id in &ids {
        assert!(service.machine(id).is_some());
        caller.delete(&format!("/vms/{id}")).await;
    }
    for id in &ids {
        caller.gone(id).await;
    }
    assert!(service.files("machines").is_empty());
}
