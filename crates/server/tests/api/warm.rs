//! Machines that are started before anybody owns them: rows like all others, which creations adopt and others displace.

use std::sync::Arc;

use berth_host::EngineError;
use berth_server::app::{App, Engines};
use berth_server::config::Config;
use berth_server::db::sql;
use berth_testkit::{Platform, SimulatedEngine, vm};
use futures::StreamExt;
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

/// The memories that templates have.
const MEMORIES: &str = "SELECT memory_id FROM sandbox_templates WHERE memory_id IS NOT NULL";

/// Templates that are ready.
const BUILT: &str = "SELECT id FROM sandbox_templates WHERE status = 'ready'";

/// A platform that keeps two, both of which are ready, beside one sandbox.
async fn with_two() -> (Platform, String) {
    Box::pin(with_two_of(|_| {})).await
}

/// The same with another configuration.
async fn with_two_of(change: impl FnOnce(&mut Config)) -> (Platform, String) {
    let platform = Platform::start_with(change).await;
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
async fn whoever_creates_one_before_the_template_is_ready_has_asked_for_its_memory() {
    let platform = Platform::start().await;
    platform.admin.until("the template's memory", async |_| !texts(&platform, MEMORIES).await.is_empty()).await;
    platform.admin.until("the template", async |_| texts(&platform, BUILT).await.len() == 1).await;
    platform.sandboxes.set_most_warm(2);
    let platform = platform.restart().await;
    // As a service leaves it that ends between the two.
    let building = "UPDATE sandbox_templates SET status = 'building', work_at = NULL";
    let mut tx = platform.app().db.begin().await.expect("a transaction");
    sql(building).execute(&mut tx).await.expect("a template");
    tx.commit().await.expect("committed");
    platform.admin.create_sandbox(json!({})).await;
    platform.admin.until("two warm machines", async |_| texts(&platform, READY).await.len() == 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_an_older_copy_takes_for_warm_is_ended() {
    let (platform, _first) = Box::pin(with_two()).await;
    let warm = texts(&platform, READY).await.remove(0);
    // A sandbox had it, and its machine was started again since.
    platform.sandboxes.take_warm(&warm, 2);
    let platform = platform.crash_and_restart().await;
    platform.admin.until("its end", async |_| !texts(&platform, ALL).await.contains(&warm)).await;
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
async fn a_cordoned_host_keeps_none_and_makes_none() {
    let (platform, _first) = Box::pin(with_two()).await;
    let (caller, warm) = (&platform.admin, texts(&platform, READY).await);
    let second = caller.ready_sandbox().await;
    assert_eq!(machine_of(&platform, &second).await, warm[0]);
    let mut events = std::pin::pin!(crate::event::client(caller).events(Some(0)).await.expect("a stream"));
    let placed = loop {
        let event = events.next().await.expect("more").expect("an event");
        if event.kind == "sandbox.placed" && event.subject == second {
            break event;
        }
    };
    let hosts = caller.get("/api/v1/admin/hosts").await.body;
    let host = hosts["data"][0]["id"].as_str().expect("an id");
    let told = json!({"host_id": host, "reason": "a machine that waited for an owner is there"});
    assert_eq!(placed.data, told);
    let starts = async || {
        caller.until("their end", async |_| texts(&platform, ALL).await.is_empty()).await;
        platform.sandboxes.counts().3
    };
    assert_eq!(caller.act(&format!("/api/v1/admin/hosts/{host}/cordon")).await.status, 202);
    let before = starts().await;
    let third = caller.create_sandbox(json!({})).await;
    caller.sandbox_reaches(&third, "Failed").await;
    assert_eq!(starts().await, before, "none was made meanwhile");
    assert_eq!(caller.act(&format!("/api/v1/admin/hosts/{host}/uncordon")).await.status, 202);
    caller.ready_sandbox().await;
}

/// Has the sandboxes' part of the host offer so much that one more sandbox fits only in the place of warm machines.
fn crowd(platform: &Platform) {
    // Four times that are 1400 MiB, of which three machines of 512 MiB would need more.
    platform.sandboxes.set_capacity(|capacity| capacity.memory_mb = 350);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_died_is_given_to_nobody() {
    let (mut platform, _first) = Box::pin(with_two()).await;
    let (before, memories) = (texts(&platform, READY).await, texts(&platform, MEMORIES).await);
    platform.sandboxes.kill(&before[0]);
    platform
        .admin
        .until("another one", async |_| {
            let ready = texts(&platform, READY).await;
            ready.len() == 2 && !ready.contains(&before[0])
        })
        .await;
    let before = texts(&platform, READY).await;
    platform.crash();
    for id in &before {
        platform.sandboxes.kill(id);
    }
    let platform = platform.restart().await;
    let next = platform.admin.ready_sandbox().await;
    assert!(!before.contains(&machine_of(&platform, &next).await));
    assert!(platform.sandboxes.spec(&next).is_some_and(|(_, from_memory)| from_memory));
    assert_eq!(texts(&platform, MEMORIES).await, memories);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_dies_when_it_is_given_out_costs_its_template_nothing() {
    let (platform, _first) = Box::pin(with_two()).await;
    let (warm, memories) = (texts(&platform, READY).await, texts(&platform, MEMORIES).await);
    platform.sandboxes.refuse("start", EngineError::Transient("the host is slow".into()));
    let id = platform.admin.create_sandbox(json!({})).await;
    assert_eq!(machine_of(&platform, &id).await, warm[0]);
    platform.sandboxes.kill(&warm[0]);
    platform.sandboxes.allow("start");
    platform.admin.sandbox_reaches(&id, "Ready").await;
    assert!(platform.sandboxes.spec(&id).is_some_and(|(_, from_memory)| !from_memory), "its memory ran with its disk");
    assert_eq!(texts(&platform, MEMORIES).await, memories);
    assert!(texts(&platform, READY).await.contains(&warm[1]));
}

#[tokio::test(flavor = "multi_thread")]
async fn they_stay_where_there_is_no_room_without_them_either() {
    let (platform, first) = Box::pin(with_two_of(|config| config.sandbox.max_sandboxes = 1)).await;
    let caller = &platform.admin;
    caller.act(&format!("/sandboxes/{first}/pause")).await;
    caller.sandbox_reaches(&first, "Paused").await;
    caller.ready_sandbox().await;
    caller.until("two warm machines", async |_| texts(&platform, READY).await.len() == 2).await;
    let warm = texts(&platform, READY).await;
    crowd(&platform);
    caller.act(&format!("/sandboxes/{first}/resume")).await;
    caller
        .until("its refusal", async |caller| {
            let shown = caller.get(&format!("/sandboxes/{first}")).await.body;
            shown["message"].as_str().is_some_and(|told| told.contains("this host runs at most 1 sandboxes"))
        })
        .await;
    assert_eq!(texts(&platform, READY).await, warm);
}

#[tokio::test(flavor = "multi_thread")]
async fn they_give_way_to_the_boot_of_a_template() {
    let (platform, first) = Box::pin(with_two()).await;
    let (caller, warm) = (&platform.admin, texts(&platform, READY).await);
    let taken = caller.post(&format!("/sandboxes/{first}/snapshots"), json!({})).await.id();
    caller
        .until("the snapshot", async |caller| {
            caller.get(&format!("/snapshots/{taken}")).await.body["status"] == "Ready"
        })
        .await;
    crowd(&platform);
    let made = json!({"name": "own", "from_snapshot": taken, "start_command": "true"});
    let path = format!("/sandbox_templates/{}", caller.post("/sandbox_templates", made).await.id());
    caller.until("the template", async |caller| caller.get(&path).await.body["status"] == "ready").await;
    caller
        .until("their end", async |_| {
            let there = texts(&platform, ALL).await;
            warm.iter().all(|id| !there.contains(id))
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_lost_its_database_leaves_them_to_the_next_one() {
    let (mut platform, _first) = Box::pin(with_two()).await;
    let warm = texts(&platform, READY).await;
    let copy = tempfile::tempdir().expect("a folder");
    std::fs::copy(platform.config.data_dir.join("identity"), copy.path().join("identity")).expect("a copy");
    let config = Config { data_dir: copy.path().to_owned(), take_over: true, ..platform.config.clone() };
    let vm: Arc<SimulatedEngine> = Arc::default();
    let engines = Engines { vm, sandbox: platform.sandboxes.clone(), network: platform.networks.clone() };
    let other = App::start_with(&config, engines).await.expect("the service starts");
    platform.app().taken_over.cancelled().await;
    platform.stop().await;
    let ready: Vec<String> = sql(READY).fetch_all(&other.db).await.expect("rows");
    assert_eq!(ready, warm);
    assert_eq!(platform.sandboxes.counts().0, 3, "they run on");
    other.stop().await;
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
