//! A VM that is given another size.

use berth_testkit::Service;
use serde_json::json;

use crate::BERTH;
use crate::guest::{ready, says, with_login};

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_has_the_size_that_its_vm_was_given() {
    let mut service = Service::new(BERTH, &["micro"]);
    service.configure("stop_seconds = 20\n");
    service.start();
    let caller = service.admin().await;
    let id = caller.create_vm(with_login(&service)).await;
    let of_guest = "awk '/MemTotal/ {print int($2 / 1024 / 256)}' /proc/meminfo; grep -c ^processor /proc/cpuinfo";
    assert_eq!(says(&service, &ready(&caller, &id).await, of_guest), "1\n1", "of 512 MiB some is the kernel's");
    for (size, has) in [("small", "3\n1"), ("tiny", "1\n1")] {
        caller.act(&format!("/vms/{id}/stop")).await;
        caller.reaches(&id, "stopped").await;
        assert_eq!(caller.post(&format!("/vms/{id}/resize"), json!({"vm_config_id": size})).await.status, 202);
        caller.act(&format!("/vms/{id}/start")).await;
        caller.reaches(&id, "running").await;
        assert_eq!(says(&service, &ready(&caller, &id).await, of_guest), has, "{size}");
    }
}
