//! A real VM whose root disk is made anew.

use berth_testkit::{Caller, Service};
use reqwest::Method;
use serde_json::{Value, json};

use crate::BERTH;
use crate::crash::{held, holds, killed_at, leaves_nothing, with_machine};
use crate::guest::{ready, says, with_login};

/// The points at which the service is killed.
const POINTS: &[&str] = &[
    "vm.power_off.after",
    "vm.ended.before",
    "vm.ended.after",
    "vm.make_disk.before",
    "disk.make.done",
    "vm.make_disk.after",
    "vm.start.intent",
    "vm.start.done",
];

/// Reinstalls a VM, and waits until its new guest is there.
async fn reinstalled(caller: &Caller, id: &str, image: &str) -> Value {
    let answer = caller.post(&format!("/vms/{id}/reinstall"), json!({"image_id": image})).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    caller.reaches(id, "running").await;
    ready(caller, id).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_begins_anew_with_the_data_disks_that_it_had() {
    let mut service = Service::new(BERTH, &["micro"]);
    service.configure("stop_seconds = 20\n");
    service.start();
    let caller = service.admin().await;
    let mut body = with_login(&service);
    body["user_data"] = json!("#!/bin/sh\necho began >>/root/began\n");
    body["data_disks"] = json!({"create_disks": [{"name": "data", "type": "filesystem", "size_gb": 10}]});
    let id = caller.create_vm(body).await;
    let first = ready(&caller, &id).await;
    says(&service, &first, "echo old >/root/file; echo kept >/mnt/data/file; sync");
    let identity = "md5sum /etc/dropbear/*";
    let old = says(&service, &first, identity);

    let second = reinstalled(&caller, &id, "micro").await;
    let changed = |vm: &Value, field: &str| vm[field] != first[field];
    for field in ["ssh", "public_ip", "exposed_ports", "root_disk", "data_disks", "image_id"] {
        assert!(!changed(&second, field), "{field}: {second}");
    }
    let look = "cat /root/began /mnt/data/file; test -e /root/file || echo gone";
    assert_eq!(says(&service, &second, look), "began\nkept\ngone");
    assert_ne!(says(&service, &second, identity), old, "it is another guest");

    assert_eq!(service.files("disks").len(), 3, "one root disk with its note, and one data disk");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reinstallation_goes_on() {
    let (mut service, id) = with_machine().await;
    let had = held(&service);
    for point in POINTS {
        let before = service.machine(&id);
        let caller = killed_at(&mut service, point, async |caller| {
            caller.ask(Method::POST, &format!("/vms/{id}/reinstall"), json!({"image_id": "micro"}), 202).await;
        })
        .await;
        let vm = caller.reaches(&id, "running").await;
        assert!(vm["message"].is_null() && service.machine(&id) != before, "{point}: {vm}");
        let path = format!("/root_disks/{}", vm["root_disk"]["id"].as_str().expect("an id"));
        assert_eq!(caller.get(&path).await.body["status"], "ready", "{point}");
        holds(&service, &had, point);
    }
    leaves_nothing(&service, &service.admin().await, &id).await;
}

/// Takes minutes: `script/soak` runs it.
mod soak {
    use berth_testkit::Service;
    use serde_json::json;

    use super::reinstalled;
    use crate::BERTH;
    use crate::guest::{ready, says, with_login};

    #[tokio::test(flavor = "multi_thread")]
    async fn a_guest_begins_anew_with_another_image() {
        let mut service = Service::new(BERTH, &["micro", "debian-12"]);
        service.configure("stop_seconds = 240\nstopping_seconds = 300\nrestarting_seconds = 300\n");
        service.start();
        let caller = service.admin().await;
        let mut body = with_login(&service);
        body["vm_config_id"] = json!("small");
        body["user_data"] = json!("#!/bin/sh\necho began >>/root/began\n");
        body["data_disks"] = json!({"create_disks": [{"name": "data", "type": "filesystem", "size_gb": 10}]});
        let id = caller.create_vm(body).await;
        says(&service, &ready(&caller, &id).await, "echo kept >/mnt/data/file; sync");
        let vm = reinstalled(&caller, &id, "debian-12").await;
        assert_eq!((&vm["image_id"], &vm["ssh"]["user"]), (&json!("debian-12"), &json!("debian")));
        let look = "sudo cat /root/began /mnt/data/file; cloud-init status";
        assert_eq!(says(&service, &vm, look), "began\nkept\nstatus: done");
    }
}
