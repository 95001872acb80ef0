//! Images of the platform that go to hosts which lack them.

use berth_testkit::{JoinedHost, Platform};
use serde_json::json;

const HOSTS: &str = "/api/v1/admin/hosts";

/// A host that has joined: hosts that come have everything looked at.
async fn join(platform: &Platform, name: &str) -> JoinedHost {
    let made = platform.admin.post(HOSTS, json!({"name": name, "region_id": "local"})).await;
    let token = made.body["token"].as_str().unwrap_or_else(|| panic!("{made:?}"));
    JoinedHost::join(&platform.admin.anonymous(), token).await.expect("it joins")
}

async fn has(platform: &Platform, beta: &JoinedHost, image: &str, version: &str) {
    platform.admin.until(image, async |_| beta.engine.version(image).as_deref() == Some(version)).await;
}

/// How often travels ended so.
async fn ended(platform: &Platform, outcome: &str) -> u64 {
    let metrics = reqwest::get(format!("{}/metrics", platform.admin.base)).await.expect("an answer");
    let metrics = metrics.text().await.expect("a body");
    let line = format!("berth_image_travels_total{{outcome=\"{outcome}\"}} ");
    let count = metrics.lines().find_map(|text| text.strip_prefix(&line));
    count.unwrap_or_else(|| panic!("{metrics}")).parse().expect("a number")
}

#[tokio::test(flavor = "multi_thread")]
async fn every_host_gets_the_latest_edition_of_each_image() {
    let platform = Platform::start().await;
    platform.engine.set_image("fresh", "1", 5);
    let first = join(&platform, "beta").await;
    has(&platform, &first, "fresh", "1").await;
    assert_eq!((first.engine.version("micro").as_deref(), first.engine.arriving()), (Some("1"), 0));
    // One that is built anew takes the place of others; a full host is left alone.
    first.engine.set_capacity(|capacity| capacity.room_bytes = 0);
    platform.engine.set_image("fresh", "2", 6);
    let second = join(&platform, "gamma").await;
    has(&platform, &second, "fresh", "2").await;
    platform.admin.until("a refusal", async |_| ended(&platform, "refused").await == 1).await;
    assert_eq!(first.engine.version("fresh").as_deref(), Some("1"));
    // What a host that was taken over says that it has is nobody else's.
    second.engine.set_image("made-there", "1", 7);
    second.engine.set_image("fresh", "3", 8);
    let third = join(&platform, "delta").await;
    has(&platform, &third, "fresh", "2").await;
    // One each to the first, the second and the third.
    platform.admin.until("arrivals", async |_| ended(&platform, "arrived").await == 3).await;
    assert_eq!(ended(&platform, "refused").await, 1, "the full host is asked once for each edition");
    assert_eq!((platform.engine.version("fresh").as_deref(), platform.engine.version("made-there")), (Some("2"), None));
    assert_eq!(third.engine.version("made-there"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_was_removed_does_not_come_back() {
    let platform = Platform::start().await;
    platform.engine.set_image("fresh", "1", 5);
    let first = join(&platform, "beta").await;
    has(&platform, &first, "fresh", "1").await;
    let path = "/api/v1/images/fresh";
    platform.admin.until("its row", async |admin| admin.get(path).await.body["status"] == "ready").await;
    assert_eq!(platform.admin.delete(path).await.status, 204);
    platform.admin.until("an end", async |_| platform.engine.version("fresh").is_none()).await;
    platform.engine.set_image("other", "1", 5);
    let second = join(&platform, "gamma").await;
    has(&platform, &second, "other", "1").await;
    has(&platform, &first, "other", "1").await;
    assert_eq!((platform.engine.version("fresh"), second.engine.version("fresh")), (None, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_breaks_off_is_begun_anew_by_the_next_service() {
    let platform = Platform::start().await;
    platform.engine.set_image("fresh", "1", 5);
    platform.engine.break_files_off(Some(100_000));
    let first = join(&platform, "beta").await;
    platform.admin.until("it breaks off", async |_| ended(&platform, "broken_off").await == 1).await;
    assert_eq!(first.engine.version("fresh"), None);
    platform.engine.break_files_off(None);
    let platform = platform.crash_and_restart().await;
    has(&platform, &first, "fresh", "1").await;
}
