//! What sandboxes boot, as it goes to hosts that lack it.

use berth_testkit::{JoinedHost, Platform};
use serde_json::json;

const HOSTS: &str = "/api/v1/admin/hosts";

/// A host that has joined, whose sandboxes boot version 1: hosts that come have everything looked at.
async fn join(platform: &Platform, name: &str) -> JoinedHost {
    let made = platform.admin.post(HOSTS, json!({"name": name, "region_id": "local"})).await;
    let token = made.body["token"].as_str().unwrap_or_else(|| panic!("{made:?}"));
    JoinedHost::join(&platform.admin.anonymous(), token).await.expect("it joins")
}

async fn has(platform: &Platform, host: &JoinedHost, version: &str) {
    let has = async |_| host.sandboxes.guest_version().as_deref() == Some(version);
    platform.admin.until("the guest", has).await;
}

/// How often travels ended so.
async fn ended(platform: &Platform, outcome: &str) -> u64 {
    let metrics = reqwest::get(format!("{}/metrics", platform.admin.base)).await.expect("an answer");
    let metrics = metrics.text().await.expect("a body");
    let line = format!("berth_guest_travels_total{{outcome=\"{outcome}\"}} ");
    let count = metrics.lines().find_map(|text| text.strip_prefix(&line));
    count.unwrap_or_else(|| panic!("{metrics}")).parse().expect("a number")
}

#[tokio::test(flavor = "multi_thread")]
async fn every_host_has_the_guest_of_the_services_own() {
    let platform = Platform::start().await;
    platform.sandboxes.set_guest(Some("2"));
    let first = join(&platform, "beta").await;
    has(&platform, &first, "2").await;
    assert!(!first.sandboxes.awaits_guest());
    // One that is built anew takes the place of others; a full host is left alone.
    first.sandboxes.set_capacity(|capacity| capacity.disk_bytes = 0);
    platform.sandboxes.set_guest(Some("3"));
    let second = join(&platform, "gamma").await;
    has(&platform, &second, "3").await;
    platform.admin.until("a refusal", async |_| ended(&platform, "refused").await == 1).await;
    assert_eq!(first.sandboxes.guest_version().as_deref(), Some("2"));
    // What a host that was taken over has its sandboxes boot is nobody else's, and does not stay.
    second.sandboxes.set_guest(Some("made-there"));
    let third = join(&platform, "delta").await;
    has(&platform, &third, "3").await;
    has(&platform, &second, "3").await;
    // One to the first, two to the second and one to the third.
    platform.admin.until("arrivals", async |_| ended(&platform, "arrived").await == 4).await;
    assert_eq!(ended(&platform, "refused").await, 1, "the full host is asked once for each guest");
    assert_eq!(platform.sandboxes.guest_version().as_deref(), Some("3"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_without_a_guest_takes_machines_once_it_came() {
    let platform = Platform::start().await;
    platform.sandboxes.set_guest(None);
    platform.sandboxes.set_capacity(|capacity| capacity.memory_mb = 0);
    let beta = join(&platform, "beta").await;
    crate::fleet::is(&platform.admin, &beta, "ready").await;
    beta.sandboxes.set_guest(None);
    let admin = &platform.admin;
    let build = async |name: &str, status: &str| {
        let body =
            json!({"name": name, "dockerfile": "FROM scratch\nRUN x", "vcpu": 1, "memory_mb": 128, "disk_gb": 1});
        assert_eq!(admin.post("/sandbox_templates", body).await.status, 201);
        let path = format!("/sandbox_templates/{name}");
        admin.until(status, async |admin| admin.get(&path).await.body["status"] == status).await;
    };
    build("early", "failed").await;
    assert_eq!(beta.sandboxes.builds(), 0);
    platform.sandboxes.set_guest(Some("2"));
    let gamma = join(&platform, "gamma").await;
    crate::fleet::is(admin, &gamma, "ready").await;
    has(&platform, &beta, "2").await;
    has(&platform, &gamma, "2").await;
    build("late", "ready").await;
    assert_eq!(beta.sandboxes.builds() + gamma.sandboxes.builds(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_breaks_off_is_begun_anew_by_the_next_service() {
    let platform = Platform::start().await;
    platform.sandboxes.set_guest(Some("2"));
    platform.sandboxes.break_guest_off(Some(10));
    let first = join(&platform, "beta").await;
    platform.admin.until("it breaks off", async |_| ended(&platform, "broken_off").await == 1).await;
    assert_eq!(first.sandboxes.guest_version().as_deref(), Some("1"));
    platform.sandboxes.break_guest_off(None);
    let platform = platform.crash_and_restart().await;
    has(&platform, &first, "2").await;
}
