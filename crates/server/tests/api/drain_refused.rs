//! VMs whose host is drained, and that cannot leave it, or whose disks cannot follow: they stay, or say why, and nothing of
//! another one's is taken.

use berth_testkit::Caller;
use futures::StreamExt;
use serde_json::json;

use crate::drain::{drain, has_left, on_beta, verb};
use crate::event::client;
use crate::fleet::{host, leave, two};
use crate::host::told;

/// What a VM of these tests has.
const VM_MEMORY_MB: i64 = 512;

/// The statuses that a VM had until it was in this one.
async fn statuses(admin: &Caller, id: &str, last: &str) -> Vec<String> {
    let mut events = std::pin::pin!(client(admin).events(Some(0)).await.expect("a stream"));
    let mut all = Vec::new();
    while all.last().is_none_or(|status| status != last) {
        let event = events.next().await.expect("more").expect("an event");
        if event.kind == "vm.status" && event.subject == id {
            all.push(event.data["status"].as_str().expect("a status").to_owned());
        }
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_finds_its_place_taken_goes_on_where_it_was() {
    let (platform, beta) = two().await;
    let admin = &platform.admin;
    let all = [on_beta(admin, &beta, "one").await.0, on_beta(admin, &beta, "two").await.0];
    leave(&platform.engine, VM_MEMORY_MB);
    beta.engine.hold("export");
    drain(admin, &beta, "?restart=true").await;
    let stays = told(admin, "vm.unplaced").await.subject;
    let goes = all.iter().find(|id| **id != stays).expect("another one");
    has_left(admin, &beta, goes).await;
    beta.engine.let_go();
    for id in &all {
        admin.reaches(id, "running").await;
    }
    assert_eq!(host(admin, &stays).await, json!(beta.id));
    for id in &all {
        verb(admin, id, "stop", "stopped").await;
        let all = statuses(admin, id, "stopped").await;
        assert!(!all.contains(&"failed".to_owned()), "{all:?}");
    }
}
