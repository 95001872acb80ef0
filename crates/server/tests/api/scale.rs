//! Many at once: nothing is stuck, nothing is lost.

use berth_testkit::{Platform, vm};
use tokio::task::JoinSet;

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_creates_at_once() {
    let platform = Platform::start().await;
    platform.engine.set_delay(std::time::Duration::from_millis(5));
    // Room for 80 of the 100.
    platform.engine.set_capacity(|c| c.memory_mb = 80 * 512);
    let mut tasks = JoinSet::new();
    for number in 0..100 {
        let caller = platform.admin.clone();
        tasks.spawn(async move { caller.create_vm(vm(&format!("vm{number}"))).await });
    }
    let ids = tasks.join_all().await;
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
    let mut tasks = JoinSet::new();
    for number in 0..40 {
        let caller = platform.admin.clone();
        tasks.spawn(async move { caller.running_vm(&format!("vm{number}")).await });
    }
    tasks.join_all().await;
    let listed = platform.admin.get("/vms?limit=100").await.body;
    let addresses: std::collections::HashSet<_> =
        listed["data"].as_array().expect("a list").iter().map(|v| v["public_ip"].to_string()).collect();
    assert_eq!(addresses.len(), 40);
}
