//! Hosts that are lost with VMs whose disks lie in a store: they are shut out of it, their VMs start elsewhere, and whoever comes
//! back ends what it had.

use berth_domain::host::shared_disk::Store;
use berth_domain::vm::plan::Machine;
use berth_host::EngineError;
use berth_server::config::{DiskStore, Fencing};
use berth_testkit::{JoinedHost, Platform, vm};
use serde_json::json;

use crate::drain::{MEMORY_MB, verb};
use crate::fleet::{host, is, join, leave};
use crate::host::told;
use crate::shared_disk::{reaches, store};

const HOSTS: &str = "/api/v1/admin/hosts";
/// Seconds after which a host that is lost is shut out.
pub const AFTER: i64 = 60;

/// How a lost host is shut out.
pub fn fencing() -> Fencing {
    let store = store("pool-a", &[]).store;
    Fencing { by: Store { user: "fence".into(), ..store }, after: AFTER }
}

/// A platform and another host that reach a store, with a VM that runs on that one: the own host has room by now.
pub async fn one_on_beta(fencing: Option<Fencing>) -> (Platform, JoinedHost, String) {
    let platform = Platform::start_with(|config| {
        config.disk_stores = vec![DiskStore { fencing, ..store("pool-a", &["local"]) }].into();
    })
    .await;
    let admin = &platform.admin;
    reaches(admin, &platform.app().fleet.own().to_string(), true).await;
    leave(&platform.engine, 0);
    let beta = join(&platform, "beta").await;
    beta.engine.share_stores(&platform.engine);
    reaches(admin, &beta.id, true).await;
    let id = admin.running_vm("web").await;
    assert_eq!(host(admin, &id).await, json!(beta.id));
    leave(&platform.engine, MEMORY_MB);
    (platform, beta, id)
}

/// A host answers no more, and is lost.
pub async fn lose(platform: &Platform, beta: &mut JoinedHost) {
    beta.close().await;
    let path = format!("{HOSTS}/{}", beta.id);
    platform.admin.until("trouble", async |admin| admin.get(&path).await.body["trouble"].is_string()).await;
    platform.advance(30);
    is(&platform.admin, beta, "lost").await;
}

pub async fn runs_here(platform: &Platform, id: &str) {
    let own = json!(platform.app().fleet.own());
    platform.admin.until("it goes on here", async |admin| host(&admin, id).await == own).await;
    platform.admin.reaches(id, "running").await;
    assert_eq!(platform.engine.machine(id), Some(Machine::Running));
}

/// Nothing was in two machines at a time.
fn is_whole(platform: &Platform, beta: &JoinedHost) {
    assert_eq!(platform.engine.violations(), [] as [String; 0]);
    assert_eq!(beta.engine.violations(), [] as [String; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_starts_elsewhere_once_its_lost_host_is_shut_out() {
    let (platform, mut beta, id) = one_on_beta(Some(fencing())).await;
    let admin = &platform.admin;
    leave(&platform.engine, 0);
    let off = admin.running_vm("off").await;
    verb(admin, &off, "stop", "stopped").await;
    leave(&platform.engine, MEMORY_MB);
    platform.engine.refuse("shut_out", EngineError::Transient("no monitor answers".into()));
    lose(&platform, &mut beta).await;
    // Before it is so nothing starts.
    platform.advance(AFTER - 30);
    reaches(admin, &beta.id, false).await;
    let shown = admin.get(&format!("{HOSTS}/{}", beta.id)).await.body["stores"][0]["trouble"].to_string();
    assert!(shown.contains("shut out"), "{shown}");
    assert_eq!((host(admin, &id).await, platform.engine.counts().2), (json!(beta.id), 0));
    platform.engine.allow("shut_out");
    runs_here(&platform, &id).await;
    assert_eq!(platform.engine.shut_outs(), 1);
    assert_eq!(told(admin, "vm.released").await.data["host_id"], json!(beta.id));
    verb(admin, &off, "start", "running").await;
    assert_eq!(platform.engine.machine(&off), Some(Machine::Running));
    // What it had there still stands, and is ended before the store takes the host again.
    assert_eq!(beta.engine.machine(&id), Some(Machine::Running));
    beta.open().await;
    admin.until("it is let in", async |_| platform.engine.shut_outs() == 0).await;
    assert!(beta.engine.has_ended(&id) && beta.engine.counts().0 == 0);
    reaches(admin, &beta.id, true).await;
    assert_eq!(platform.engine.machine(&id), Some(Machine::Running));
    is_whole(&platform, &beta);
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_begins_goes_on_with_what_was_begun() {
    let (platform, mut beta, id) = one_on_beta(Some(fencing())).await;
    let slow = || EngineError::Transient("slow".into());
    platform.engine.refuse("shut_out", slow());
    lose(&platform, &mut beta).await;
    platform.advance(AFTER);
    reaches(&platform.admin, &beta.id, false).await;
    let platform = platform.restart().await;
    platform.engine.allow("shut_out");
    runs_here(&platform, &id).await;
    beta.engine.refuse("power_off", slow());
    platform.engine.refuse("let_in", slow());
    beta.open().await;
    is(&platform.admin, &beta, "ready").await;
    let platform = platform.restart().await;
    assert_eq!(beta.engine.machine(&id), Some(Machine::Running));
    beta.engine.allow("power_off");
    platform.admin.until("its end", async |_| beta.engine.counts().0 == 0).await;
    assert_eq!(platform.engine.shut_outs(), 1);
    let platform = platform.restart().await;
    platform.engine.allow("let_in");
    platform.admin.until("it is let in", async |_| platform.engine.shut_outs() == 0).await;
    reaches(&platform.admin, &beta.id, true).await;
    assert_eq!(platform.engine.machine(&id), Some(Machine::Running));
    is_whole(&platform, &beta);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_no_other_host_takes_starts_on_its_own_once_that_is_back() {
    let (platform, mut beta, id) = one_on_beta(Some(fencing())).await;
    let admin = &platform.admin;
    leave(&platform.engine, 0);
    lose(&platform, &mut beta).await;
    platform.advance(AFTER);
    admin.until("it is shut out", async |_| platform.engine.shut_outs() == 1).await;
    let vm = admin.get(&format!("/vms/{id}")).await.body;
    assert_eq!((&vm["status"], &vm["host_id"]), (&json!("running"), &json!(beta.id)));
    let starts = beta.engine.counts().2;
    beta.open().await;
    // Its disks were taken from it, so that it begins anew.
    admin.until("it begins anew", async |_| beta.engine.counts().2 == starts + 1).await;
    admin.reaches(&id, "running").await;
    assert_eq!((host(admin, &id).await, platform.engine.shut_outs()), (json!(beta.id), 0));
    is_whole(&platform, &beta);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_comes_back_before_it_is_shut_out_keeps_what_it_has() {
    let (platform, mut beta, id) = one_on_beta(Some(fencing())).await;
    let admin = &platform.admin;
    let starts = beta.engine.counts().2;
    platform.engine.refuse("shut_out", EngineError::Transient("no monitor answers".into()));
    lose(&platform, &mut beta).await;
    platform.advance(AFTER);
    reaches(admin, &beta.id, false).await;
    beta.open().await;
    is(admin, &beta, "ready").await;
    reaches(admin, &beta.id, true).await;
    platform.engine.allow("shut_out");
    assert_eq!((host(admin, &id).await, beta.engine.counts().2), (json!(beta.id), starts));
    assert_eq!((beta.engine.machine(&id), platform.engine.shut_outs()), (Some(Machine::Running), 0));
    is_whole(&platform, &beta);
}

/// Whether the store refused it nobody was told: its machine may have lost its disks.
#[tokio::test(flavor = "multi_thread")]
async fn one_whose_host_was_shut_out_unnoticed_begins_anew() {
    let (platform, mut beta, id) = one_on_beta(Some(fencing())).await;
    let starts = beta.engine.counts().2;
    platform.engine.refuse("shut_out told", EngineError::Transient("the answer is lost".into()));
    lose(&platform, &mut beta).await;
    platform.advance(AFTER);
    platform.admin.until("it is shut out", async |_| platform.engine.shut_outs() == 1).await;
    // Nor is anybody told that it was lifted.
    platform.engine.refuse("let_in told", EngineError::Transient("the answer is lost".into()));
    beta.open().await;
    platform.admin.until("it is let in", async |_| platform.engine.shut_outs() == 0).await;
    assert_eq!(beta.engine.counts().2, starts);
    platform.engine.allow("let_in told");
    platform.admin.until("it begins anew", async |_| beta.engine.counts().2 == starts + 1).await;
    platform.admin.reaches(&id, "running").await;
    is_whole(&platform, &beta);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_vms_one_stays_where_another_host_has_room_for_one() {
    let (platform, mut beta, first) = one_on_beta(Some(fencing())).await;
    let admin = &platform.admin;
    leave(&platform.engine, 0);
    let second = admin.running_vm("second").await;
    leave(&platform.engine, beta.engine.spec(&first).expect("a machine").memory_mb);
    lose(&platform, &mut beta).await;
    platform.advance(AFTER);
    let unplaced = told(admin, "vm.unplaced").await;
    let (stays, goes) = if unplaced.subject == first { (first, second) } else { (second, first) };
    runs_here(&platform, &goes).await;
    let vm = admin.get(&format!("/vms/{stays}")).await.body;
    assert_eq!((&vm["status"], &vm["host_id"]), (&json!("running"), &json!(beta.id)));
    // Once there is room it goes, too.
    leave(&platform.engine, MEMORY_MB);
    platform.advance(30);
    runs_here(&platform, &stays).await;
    is_whole(&platform, &beta);
}

#[tokio::test(flavor = "multi_thread")]
async fn vms_of_a_network_go_on_elsewhere_together() {
    let (platform, mut beta, _) = one_on_beta(Some(fencing())).await;
    let admin = &platform.admin;
    leave(&platform.engine, 0);
    let network = admin.post("/networks", json!({"name": "lan", "cidr": "10.50.0.0/24"})).await;
    assert_eq!(network.status, 201, "{network:?}");
    let mut ids = Vec::new();
    for name in ["one", "two"] {
        let mut body = vm(name);
        body["network_ids"] = json!([network.id()]);
        let id = admin.create_vm(body).await;
        admin.reaches(&id, "running").await;
        ids.push(id);
    }
    leave(&platform.engine, MEMORY_MB);
    lose(&platform, &mut beta).await;
    platform.advance(AFTER);
    for id in &ids {
        runs_here(&platform, id).await;
    }
    is_whole(&platform, &beta);
}

/// Whoever asks is cut off rather than most of those that are asked.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_shut_out_where_most_are_silent() {
    let (platform, mut beta, id) = one_on_beta(Some(fencing())).await;
    let admin = &platform.admin;
    let mut gamma = join(&platform, "gamma").await;
    gamma.engine.share_stores(&platform.engine);
    reaches(admin, &gamma.id, true).await;
    gamma.close().await;
    lose(&platform, &mut beta).await;
    is(admin, &gamma, "lost").await;
    platform.advance(AFTER);
    let told = admin.get(&format!("/vms/{id}")).await.body["message"].to_string();
    assert!(told.contains("does not answer"), "{told}");
    assert_eq!((host(admin, &id).await, platform.engine.shut_outs()), (json!(beta.id), 0));
    // One that is back makes them the fewer.
    gamma.open().await;
    is(admin, &gamma, "ready").await;
    admin.until("it is shut out", async |_| platform.engine.shut_outs() == 1).await;
    admin.until("it goes on", async |admin| host(&admin, &id).await != json!(beta.id)).await;
    admin.reaches(&id, "running").await;
    is_whole(&platform, &beta);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_fence_an_administrator_says_that_a_host_is_off() {
    let (platform, mut beta, id) = one_on_beta(None).await;
    let admin = &platform.admin;
    lose(&platform, &mut beta).await;
    platform.advance(86_400);
    admin.until("it is told", async |admin| admin.get(&format!("/vms/{id}")).await.body["message"].is_string()).await;
    assert_eq!((host(admin, &id).await, platform.engine.counts().2), (json!(beta.id), 0));
    // Whoever says so has made sure that it is.
    beta.engine.restart_host();
    assert_eq!(admin.delete(&format!("{HOSTS}/{}?lost=true", beta.id)).await.status, 204);
    runs_here(&platform, &id).await;
    assert_eq!(platform.engine.shut_outs(), 0);
    is_whole(&platform, &beta);
}

#[tokio::test(flavor = "multi_thread")]
async fn vms_that_stop_or_go_do_so_without_their_host() {
    let (platform, mut beta, id) = one_on_beta(Some(fencing())).await;
    let admin = &platform.admin;
    leave(&platform.engine, 0);
    let other = admin.create_vm(vm("other")).await;
    admin.reaches(&other, "running").await;
    lose(&platform, &mut beta).await;
    assert_eq!(admin.act(&format!("/vms/{id}/stop")).await.status, 202);
    assert_eq!(admin.delete(&format!("/vms/{other}")).await.status, 202);
    platform.advance(AFTER);
    admin.reaches(&id, "stopped").await;
    admin.gone(&other).await;
    leave(&platform.engine, MEMORY_MB);
    verb(admin, &id, "start", "running").await;
    runs_here(&platform, &id).await;
    is_whole(&platform, &beta);
}
