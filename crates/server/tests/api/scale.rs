//! Many at once: nothing is stuck, nothing is lost.

use berth_testkit::{Platform, vm};
use futures::StreamExt;
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_creates_ten_at_once() {
    let platform = Platform::start().await;
    platform.engine.set_delay(std::time::Duration::from_millis(5));
    // Room for 80 of the 100.
    platform.engine.set_capacity(|c| c.memory_mb = 80 * 512);
    let create = async |number| platform.admin.create_vm(vm(&format!("vm{number}"))).await;
    let ids: Vec<_> = futures::stream::iter(0..100).map(create).buffer_unordered(10).collect().await;
    let mut ends = (0, 0);
    for id in &ids {
        let found = platform.admin.get(&format!("/vms/{id}/wait?status=running&timeout=60")).await.body;
        match (found["status"].as_str(), found["message"].as_str()) {
            (Some("running"), _) => ends.0 += 1,
            (Some("failed"), Some(message)) if message.starts_with("insufficient_capacity:") => ends.1 += 1,
            other => panic!("{id} is stuck or untrue: {other:?}"),
        }
    }
    assert_eq!(ends, (80, 20));
    for id in &ids {
        assert_eq!(platform.admin.delete(&format!("/vms/{id}")).await.status, 202);
    }
    for id in &ids {
        platform.admin.gone(id).await;
    }
    assert_eq!(platform.engine.counts().0, 0);
    assert_eq!(platform.admin.get("/quota").await.body["vms"]["used"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn addresses_are_never_shared() {
    let platform = Platform::start().await;
    let admin = &platform.admin;
    let run = async |number: usize| admin.running_vm(&format!("vm{number}")).await;
    futures::stream::iter(0..40).map(run).buffer_unordered(10).collect::<Vec<_>>().await;
    let listed = platform.admin.get("/vms?limit=100").await.body;
    let addresses: std::collections::HashSet<_> =
        listed["data"].as_array().expect("a list").iter().map(|v| v["public_ip"].to_string()).collect();
    assert_eq!(addresses.len(), 40);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_project_whose_disks_are_never_finished_leaves_workers_to_the_others() {
    let platform = Platform::start().await;
    platform.engine.set_stuck_disks(33);
    let (greedy, other) = (&platform.admin, platform.sign_up("other@example.com").await);
    let root = |gb: i64| json!({"create_disk_request": {"name": "root", "size_gb": gb, "image_id": "micro"}});
    for number in 0..2 * platform.config.vm.workers {
        let mut body = vm(&format!("vm{number}"));
        body["root_disk"] = root(33);
        greedy.create_vm(body).await;
        let disk = json!({"name": "d", "type": "block", "size_gb": 33, "region_id": "local"});
        assert_eq!(greedy.post("/disks", disk).await.status, 201);
    }
    let disk = json!({"name": "d", "type": "block", "size_gb": 10, "region_id": "local"});
    let disk = other.post("/disks", disk).await.id();
    other.running_vm("web").await;
    other
        .until("the other project's disk", |c| {
            let path = format!("/disks/{disk}");
            async move { c.get(&path).await.body["status"] == "ready" }
        })
        .await;
}
