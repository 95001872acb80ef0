//! Machines that are started before anybody owns them: rows like all others, which creations adopt and others displace.

use berth_server::db::sql;
use berth_server::services::sandbox::engine::EngineError;
use berth_testkit::{Platform, vm};
use serde_json::json;

/// Machines that somebody may have.
const READY: &str = "SELECT id FROM machines WHERE owner_kind = 'warm' AND ready = 1 AND reserved = 1 ORDER BY id";
/// Machines that nobody owns, had or not.
const ALL: &str = "SELECT id FROM machines WHERE owner_kind = 'warm'";

async fn texts(platform: &Platform, what: &'static str) -> Vec<String> {
    sql(what).fetch_all(&platform.app().db).await.expect("rows")
}

async fn machine_of(platform: &Platform, sandbox: &str) -> String {
    let machine = sql("SELECT id FROM machines WHERE owner_kind = 'sandbox' AND owner_id = $1").bind(sandbox);
    machine.fetch_one(&platform.app().db).await.expect("a machine")
}

/// A platform that keeps two, both of which are ready, beside one sandbox.
async fn with_two() -> (Platform, String) {
    let platform = Platform::start().await;
    platform.sandboxes.set_most_warm(2);
    let platform = platform.restart().await;
    let first = platform.admin.ready_sandbox().await;
    platform.admin.until("two warm machines", async |_| texts(&platform, READY).await.len() == 2).await;
    (platform, first)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_creation_adopts_one_and_nothing_is_started_for_it() {
    let (platform, first) = Box::pin(with_two()).await;
    let (warm, starts) = (texts(&platform, READY).await, platform.sandboxes.counts().3);
    let second = platform.admin.ready_sandbox().await;
    let machine = machine_of(&platform, &second).await;
    assert_eq!((&machine, machine == second), (&warm[0], false), "the oldest, under its own id");
    assert!(!warm.contains(&machine_of(&platform, &first).await));
    let (spec, from_memory) = platform.sandboxes.spec(&second).expect("a machine");
    assert_eq!((spec.guest, from_memory, platform.sandboxes.counts().3), (second.clone(), true, starts));
    platform.admin.until("another one", async |_| texts(&platform, READY).await.len() == 2).await;
    // What a dead service had made, the next one has.
    let left = texts(&platform, READY).await;
    let platform = platform.crash_and_restart().await;
    let third = platform.admin.ready_sandbox().await;
    assert_eq!(machine_of(&platform, &third).await, left[0]);
    for id in [first, second, third] {
        assert_eq!(platform.admin.delete(&format!("/sandboxes/{id}")).await.status, 202);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn they_give_way_to_whoever_needs_what_they_hold() {
    let (platform, _first) = Box::pin(with_two()).await;
    // 512 MiB of sandboxes are a fourth of that; with those that nobody owns, three times as much.
    platform.engine.set_capacity(|capacity| capacity.memory_mb = 700);
    platform.sandboxes.set_capacity(|capacity| capacity.memory_mb = 700);
    let id = platform.admin.create_vm(vm("a")).await;
    platform.admin.reaches(&id, "running").await;
    platform.admin.until("their end", async |_| texts(&platform, ALL).await.is_empty()).await;
    let layers =
        "SELECT id FROM sandbox_layers WHERE id NOT IN (SELECT layer_id FROM sandboxes WHERE layer_id IS NOT NULL)";
    platform.admin.until("the end of their disks", async |_| texts(&platform, layers).await.len() == 2).await;
    assert_eq!(platform.sandboxes.counts().0, 1, "the sandbox goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_cannot_be_made_leaves_nothing() {
    let platform = Platform::start().await;
    platform.sandboxes.set_most_warm(1);
    platform.sandboxes.refuse("warm_up", EngineError::Transient("its agent says nothing".into()));
    let platform = platform.restart().await;
    platform.admin.ready_sandbox().await;
    let tried = "SELECT id FROM sandbox_layers";
    platform
        .admin
        .until("its end", async |_| texts(&platform, ALL).await.is_empty() && texts(&platform, tried).await.len() == 3)
        .await;
    let made = platform.admin.create_sandbox(json!({})).await;
    platform.admin.sandbox_reaches(&made, "Ready").await;
}
