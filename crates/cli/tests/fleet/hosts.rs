//! Machines that are cut off from each other, both ways and one way, or stand still: afterwards everything is as it should be
//! within a minute, every VM is in the process that it had, no machine ever runs twice, and nothing that was acknowledged is
//! taken back or there twice.

use std::time::Instant;

use reqwest::Method;
use rustix::process::Signal;
use serde_json::json;

use crate::site::{DATABASE, GAMMA, GUESTS, REPLICAS, Site};
use crate::{CLIENT, block_on, has};

/// Seconds until a VM is asked again to leave a host, whose way broke off.
const AGAIN: u64 = 120;
/// Megabits a second by which a VM takes half a minute to leave.
const NARROW: u32 = 40;
/// Of a hundred packets to a host, those that are lost.
const LOST: u8 = 15;
/// By how many seconds clocks of replicas are before and behind that of everything else.
const APART: i64 = 100;

#[test]
fn whichever_machine_is_cut_off_everything_is_as_it_should_be_afterwards() {
    if !has(&["/usr/sbin/nft", "/usr/bin/nsenter", "/usr/bin/cc"]) {
        return;
    }
    block_on(async {
        let mut site = Site::new().await;
        site.is_right().await;
        the_joined_host_is_cut_off(&mut site).await;
        the_active_replica_is_cut_off(&mut site).await;
        the_active_replica_hears_no_database(&mut site).await;
        the_active_replica_hears_nothing_of_a_host(&mut site).await;
        the_database_is_cut_off(&mut site).await;
        the_joined_host_stands_still(&mut site).await;
        many_packets_are_lost(&mut site).await;
        a_host_is_cut_off_while_its_vm_leaves(&mut site).await;
        site.clients.stop();
        let (looks, most) = site.watch.looks();
        println!("{looks} looks saw up to {most} machines, none of them twice");
        assert_eq!(most, 3);
        site.clients.are_served(site.caller()).await;
    });
}

/// One replica is ahead, the other behind, and the joined host in between: who signed in stays signed in, certificates hold, and
/// machines are started and stopped whichever replica is active.
#[test]
fn clocks_that_are_apart_keep_nobody_from_anything() {
    if !has(&["/usr/sbin/nft", "/usr/bin/nsenter", "/usr/bin/cc"]) {
        return;
    }
    block_on(async {
        let mut site = Site::with_clocks([APART, -APART, 0]).await;
        site.is_right().await;
        for active in [0, 1] {
            assert_eq!(site.active().await, active);
            let before = site.time(&format!("before-{active}")).await;
            assert_eq!(site.replicas[active].stop(), Some(0), "{}", site.replicas[active].log());
            site.writes_go_on(Instant::now()).await;
            let after = site.time(&format!("after-{active}")).await;
            assert_eq!(before < after, active == 1, "the first is ahead of the second");
            site.replicas[active].start();
            site.is_right().await;
            restarts(&mut site, 2).await;
        }
        site.clients.stop();
        site.clients.are_served(site.caller()).await;
    });
}

/// Has a VM be restarted by its owner.
async fn restarts(site: &mut Site, index: usize) {
    let path = site.path(&site.vms[index].id);
    site.does(&format!("{path}/stop"), 202).await;
    is_stopped(site, index).await;
    starts(site, index).await;
}

/// Waits until a VM is off.
async fn is_stopped(site: &Site, index: usize) {
    let path = site.path(&site.vms[index].id);
    site.within(GUESTS, "its end", async |site| site.get(&path).await["status"] == "stopped").await;
}

/// Has a VM that is off be started by its owner.
async fn starts(site: &mut Site, index: usize) {
    let path = site.path(&site.vms[index].id);
    site.does(&format!("{path}/start"), 202).await;
    site.within(GUESTS, "its guest", async |site| site.get(&path).await["guest_ready"] == true).await;
    site.starts_anew(index);
}

/// Prints for how long nothing was acknowledged since then.
fn tell(site: &Site, what: &str, since: Instant) {
    println!("{:5.1} s without a write, {what}", site.clients.longest_silence(since).as_secs_f64());
}

/// What its VM's owner asks meanwhile is done as soon as the host is back.
async fn the_joined_host_is_cut_off(site: &mut Site) {
    let began = Instant::now();
    site.lan.cut(GAMMA);
    let id = site.vms[2].id.clone();
    let path = site.path(&id);
    site.does(&format!("{path}/stop"), 202).await;
    site.is(GAMMA, "lost").await;
    let says = async |site: &Site| {
        let vm = site.get(&path).await;
        vm["message"].as_str().is_some_and(|message| message.contains("host"))
    };
    site.until("that its host is lost", says).await;
    assert_eq!(site.process(GAMMA, &id), Some(site.vms[2].process), "it runs on");
    site.writes_go_on(Instant::now()).await;
    site.lan.join(GAMMA);
    is_stopped(site, 2).await;
    assert_eq!(site.process(GAMMA, &id), None);
    starts(site, 2).await;
    tell(site, "the joined host is cut off", began);
    site.is_right().await;
}

/// It hears what it is asked for, and its answer does not arrive; nor does any other. The other one has its turn, and makes once what
/// a client asks both of them for.
async fn the_active_replica_is_cut_off(site: &mut Site) {
    let (began, active) = (Instant::now(), site.active().await);
    let (body, key) = (json!({"name": "asked-of-both"}), "asked-of-both");
    let projects = format!("{}/projects", site.caller().org());
    site.of_replicas[active].silences(CLIENT, true);
    let unheard = site.asks_one(active, &projects, &body, key).await;
    assert_eq!(unheard, None);
    site.lan.cut(REPLICAS[active]);
    let (status, made) = site.asks(Method::POST, &projects, Some(&body), Some(key)).await;
    assert_eq!(status, 201, "{made}");
    site.ends(active);
    site.writes_go_on(Instant::now()).await;
    site.of_replicas[active].silences(CLIENT, false);
    site.lan.join(REPLICAS[active]);
    site.replicas[active].start();
    assert_ne!(site.active().await, active);
    let again = site.asks(Method::POST, &projects, Some(&body), Some(key)).await;
    assert_eq!(again.1["id"], made["id"]);
    tell(site, "the active replica is cut off", began);
    site.is_right().await;
}

/// It still reaches every host, and what it says reaches the database.
async fn the_active_replica_hears_no_database(site: &mut Site) {
    let (began, active) = (Instant::now(), site.active().await);
    site.database.silences(REPLICAS[active], true);
    site.ends(active);
    site.writes_go_on(Instant::now()).await;
    site.database.silences(REPLICAS[active], false);
    site.replicas[active].start();
    assert_ne!(site.active().await, active);
    tell(site, "the active replica hears nothing of the database", began);
    site.is_right().await;
}

async fn the_active_replica_hears_nothing_of_a_host(site: &mut Site) {
    let (began, active) = (Instant::now(), site.active().await);
    site.on_gamma.silences(REPLICAS[active], true);
    site.is(GAMMA, "lost").await;
    site.on_gamma.silences(REPLICAS[active], false);
    tell(site, "the active replica hears nothing of the joined host", began);
    site.is_right().await;
    assert_eq!(site.active().await, active);
}

async fn the_database_is_cut_off(site: &mut Site) {
    let (began, active) = (Instant::now(), site.active().await);
    site.lan.cut(DATABASE);
    site.ends(active);
    site.lan.join(DATABASE);
    site.replicas[active].start();
    site.writes_go_on(Instant::now()).await;
    tell(site, "the database is cut off until nobody is active", began);
    site.is_right().await;
}

async fn the_joined_host_stands_still(site: &mut Site) {
    let began = Instant::now();
    site.signals(Signal::STOP);
    site.is(GAMMA, "lost").await;
    site.signals(Signal::CONT);
    tell(site, "the joined host's program stands still", began);
    site.is_right().await;
}

/// Its VM is stopped and started all the same.
async fn many_packets_are_lost(site: &mut Site) {
    let began = Instant::now();
    site.on_gamma.loses(LOST);
    restarts(site, 2).await;
    site.on_gamma.loses(0);
    tell(site, "many packets to the joined host are lost", began);
    site.is_right().await;
}

/// The VM goes on where it was, and leaves once its host is back; what was in its memory comes along.
async fn a_host_is_cut_off_while_its_vm_leaves(site: &mut Site) {
    let id = site.vms[2].id.clone();
    let path = site.path(&id);
    let boot = site.says(&id, "cat /proc/sys/kernel/random/boot_id").await;
    let host = site.host(GAMMA).await["id"].as_str().expect("an id").to_owned();
    site.on_gamma.narrows(Some(NARROW));
    site.does(&format!("/api/v1/admin/hosts/{host}/drain"), 202).await;
    let message = async |site: &Site| site.get(&path).await["message"].as_str().unwrap_or_default().to_owned();
    site.until("that it leaves", async |site| message(site).await.contains("another host")).await;
    site.lan.cut(GAMMA);
    site.is(GAMMA, "lost").await;
    assert_eq!(site.get(&path).await["host_id"], json!(host), "its way broke off");
    site.lan.join(GAMMA);
    site.on_gamma.narrows(None);
    let is_elsewhere = async |site: &Site| site.get(&path).await["host_id"] != json!(host);
    site.within(AGAIN + GUESTS, "its other host", is_elsewhere).await;
    site.until("it runs there", async |site| site.get(&path).await["status"] == "running").await;
    assert_eq!(site.says(&id, "cat /proc/sys/kernel/random/boot_id").await, boot, "the same boot");
    site.does(&format!("/api/v1/admin/hosts/{host}/uncordon"), 202).await;
    site.moved(2, GAMMA).await;
    site.is_right().await;
}
