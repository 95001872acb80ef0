//! What the host has, VMs and sandboxes have together.

use berth_testkit::{Platform, vm};
use serde_json::{Value, json};

/// MiB of the host, of a VM, and of a sandbox.
const HOST: i64 = 1024;
const EACH: i64 = 512;

fn message(failed: &Value) -> &str {
    failed["message"].as_str().expect("a sentence")
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_is_promised_once_to_vms_and_sandboxes() {
    // A MiB is promised once to VMs and four times to sandboxes, which is the default.
    let platform = Platform::start().await;
    platform.engine.set_capacity(|capacity| capacity.memory_mb = HOST);
    platform.sandboxes.set_capacity(|capacity| capacity.memory_mb = HOST);
    let caller = &platform.admin;
    caller.running_vm("a").await;
    let mut sandboxes = Vec::new();
    for _ in 0..4 {
        sandboxes.push(caller.ready_sandbox().await);
    }
    let fifth = caller.create_sandbox(json!({})).await;
    let failed = caller.sandbox_reaches(&fifth, "Failed").await;
    // What is left of the host beside the VM, four times.
    let offered = 4 * (HOST - EACH);
    assert!(message(&failed).contains(&format!("this host offers {offered} MiB of memory to sandboxes")), "{failed}");
    let second = caller.create_vm(vm("b")).await;
    let failed = caller.reaches(&second, "failed").await;
    assert!(message(&failed).contains("this region has 512 MiB of memory, and 1024 MiB would be needed"), "{failed}");
    // What sandboxes give back, a VM may have.
    for id in sandboxes {
        assert_eq!(caller.delete(&format!("/sandboxes/{id}")).await.status, 202);
        let path = format!("/sandboxes/{id}");
        caller.until("its end", async |caller| caller.get(&path).await.status == 404).await;
    }
    caller.act(&format!("/vms/{second}/start")).await;
    caller.reaches(&second, "running").await;
}
