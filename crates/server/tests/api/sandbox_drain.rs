//! Hosts that are drained: which sandboxes leave them, with what, and what their templates and snapshots lie on.

use berth_testkit::{Caller, JoinedHost, Platform};
use serde_json::{Value, json};

use crate::drain::drain;
use crate::fleet::{is, join};
use crate::host::told;
use crate::sandbox_fleet::{act, host, sandbox, snapshot, two};

const HOSTS: &str = "/api/v1/admin/hosts";

/// A platform whose own host has room by now, and a host that has the template `there` with its memory.
async fn room_here() -> (Platform, JoinedHost) {
    let (platform, beta) = two().await;
    platform.sandboxes.set_capacity(|capacity| capacity.memory_mb = 1 << 40);
    (platform, beta)
}

/// Waits until a sandbox is on the service's own host.
async fn comes(platform: &Platform, id: &str) {
    let own = json!(platform.app().fleet.own().to_string());
    platform.admin.until("it left", async |admin| host(&admin, id).await == own).await;
}

/// Waits until a host has nothing any more.
async fn is_empty(admin: &Caller, beta: &JoinedHost) {
    let path = format!("{HOSTS}/{}", beta.id);
    let empty = json!({"machines": 0, "disks": 0, "images": 0, "layers": 0, "leaving": 0});
    admin.until("nothing is left", async |admin| admin.get(&path).await.body["holds"] == empty).await;
}

/// Whether a sandbox began with a memory where it runs.
fn is_from_memory(platform: &Platform, id: &str) -> bool {
    platform.sandboxes.spec(id).expect("a machine").1
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_paused_leaves_with_its_memory_and_who_runs_stays() {
    let (platform, beta) = room_here().await;
    let admin = &platform.admin;
    let (id, runs) = (sandbox(admin).await, sandbox(admin).await);
    beta.sandboxes.write(&id, "kept");
    act(admin, &id, "pause", "Paused").await;
    assert_eq!(drain(admin, &beta, "").await["drain"], "off");
    comes(&platform, &id).await;
    let paused = admin.get(&format!("/sandboxes/{id}")).await.body;
    assert_eq!((&paused["phase"], &paused["message"]), (&json!("Paused"), &Value::Null));
    assert!(told(admin, "sandbox.placed").await.data["reason"].is_string());
    act(admin, &id, "resume", "Ready").await;
    assert!(is_from_memory(&platform, &id));
    assert_eq!(platform.sandboxes.read(&id), ["kept"]);
    // The template left, too: where its home is, its sandboxes begin with its memory.
    admin.until("its memory", async |_| beta.sandboxes.counts().2 == 0).await;
    let made = sandbox(admin).await;
    comes(&platform, &made).await;
    assert!(is_from_memory(&platform, &made));
    assert_eq!(host(admin, &runs).await, json!(beta.id));
    // It runs on what stayed as copies, and leaves once it is paused.
    beta.sandboxes.write(&runs, "later");
    act(admin, &runs, "pause", "Paused").await;
    comes(&platform, &runs).await;
    act(admin, &runs, "resume", "Ready").await;
    assert_eq!(platform.sandboxes.read(&runs), ["later"]);
    is_empty(admin, &beta).await;
    for id in [id, made, runs] {
        assert_eq!(admin.delete(&format!("/sandboxes/{id}")).await.status, 202);
        admin.sandbox_reaches(&id, "Deleted").await;
    }
    assert_eq!(admin.delete("/sandbox_templates/there").await.status, 204);
    admin.until("the ends of copies", async |_| beta.sandboxes.counts().1 == 0).await;
    assert_eq!((platform.sandboxes.violations(), beta.sandboxes.violations()), (Vec::new(), Vec::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_runs_goes_over_and_goes_on_where_all_leaves_and_the_host_is_removed() {
    let (platform, beta) = room_here().await;
    let admin = &platform.admin;
    let id = sandbox(admin).await;
    beta.sandboxes.write(&id, "early");
    let body = json!({"include_memory": true});
    let taken = admin.post(&format!("/sandboxes/{id}/snapshots"), body).await.id();
    let path = format!("/snapshots/{taken}");
    admin.until("the snapshot", async |admin| admin.get(&path).await.body["status"] == "Ready").await;
    beta.sandboxes.write(&id, "late");
    drain(admin, &beta, "?restart=true").await;
    comes(&platform, &id).await;
    let ready = admin.sandbox_reaches(&id, "Ready").await;
    assert_eq!(ready["message"], Value::Null, "{ready}");
    assert!(is_from_memory(&platform, &id));
    assert_eq!(platform.sandboxes.read(&id), ["early", "late"]);
    is_empty(admin, &beta).await;
    // What was there of a memory goes once the row says where that is.
    admin.until("no memory is left", async |_| beta.sandboxes.counts().2 == 0).await;
    assert_eq!(admin.delete(&format!("{HOSTS}/{}", beta.id)).await.status, 204);
    // All of it is here now.
    let made = admin.create_sandbox(json!({"snapshot_id": taken})).await;
    admin.sandbox_reaches(&made, "Ready").await;
    assert!(is_from_memory(&platform, &made));
    assert_eq!(platform.sandboxes.read(&made), ["early"]);
    assert_eq!(admin.post(&format!("/sandboxes/{id}/restore"), json!({"snapshot_id": taken})).await.status, 202);
    admin.sandbox_reaches(&id, "Ready").await;
    assert_eq!(platform.sandboxes.read(&id), ["early"]);
    let platform = platform.crash_and_restart().await;
    let admin = &platform.admin;
    for verb in [("pause", "Paused"), ("resume", "Ready")] {
        act(admin, &id, verb.0, verb.1).await;
    }
    assert_eq!(platform.sandboxes.violations(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_wanted_meanwhile_has_it_all_where_it_is_and_leaves_later() {
    let (platform, beta) = room_here().await;
    let admin = &platform.admin;
    let id = sandbox(admin).await;
    beta.sandboxes.write(&id, "one");
    act(admin, &id, "pause", "Paused").await;
    beta.sandboxes.break_layers_off(Some(1000));
    drain(admin, &beta, "").await;
    let asked = async |platform: &Platform| {
        let coming = "SELECT COUNT(*) FROM sandboxes WHERE to_host_id IS NOT NULL";
        berth_server::db::sql(coming).fetch_one::<i64>(&platform.app().db).await.expect("a count")
    };
    admin.until("it is to leave", async |_| asked(&platform).await == 1).await;
    // Its disk is frozen by then, or will be; either way a snapshot is of all that was written.
    let early = snapshot(admin, &id).await;
    act(admin, &id, "resume", "Ready").await;
    assert_eq!(asked(&platform).await, 0);
    assert!(beta.sandboxes.spec(&id).is_some_and(|(_, from_memory)| from_memory), "its memory is still its own");
    beta.sandboxes.write(&id, "two");
    assert_eq!((host(admin, &id).await, beta.sandboxes.read(&id)), (json!(beta.id), vec!["one".into(), "two".into()]));
    act(admin, &id, "pause", "Paused").await;
    let platform = platform.crash_and_restart().await;
    let admin = &platform.admin;
    is(admin, &beta, "draining").await;
    beta.sandboxes.break_layers_off(None);
    // What was asked lately is asked again after a while.
    platform.advance(200);
    comes(&platform, &id).await;
    act(admin, &id, "resume", "Ready").await;
    assert!(is_from_memory(&platform, &id));
    assert_eq!(platform.sandboxes.read(&id), ["one", "two"]);
    is_empty(admin, &beta).await;
    let made = admin.create_sandbox(json!({"snapshot_id": early})).await;
    admin.sandbox_reaches(&made, "Ready").await;
    assert_eq!(platform.sandboxes.read(&made), ["one"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_memory_that_no_other_host_loads_stays_with_its_sandbox_unless_that_may_restart() {
    let (platform, beta) = room_here().await;
    let admin = &platform.admin;
    let id = sandbox(admin).await;
    beta.sandboxes.write(&id, "kept");
    act(admin, &id, "pause", "Paused").await;
    platform.sandboxes.set_loads_memory(false);
    drain(admin, &beta, "").await;
    let event = told(admin, "sandbox.unplaced").await;
    assert!(event.data["reason"].as_str().is_some_and(|text| text.contains("processor")), "{event:?}");
    assert_eq!(host(admin, &id).await, json!(beta.id));
    drain(admin, &beta, "?restart=true").await;
    platform.advance(200);
    comes(&platform, &id).await;
    platform.sandboxes.set_loads_memory(true);
    let ready = act(admin, &id, "resume", "Ready").await;
    assert!(ready["message"].as_str().is_some_and(|text| text.contains("starts from its disk")), "{ready}");
    assert!(!is_from_memory(&platform, &id));
    assert_eq!(platform.sandboxes.read(&id), ["kept"]);
    admin.until("no memory is left", async |_| beta.sandboxes.counts().2 == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_finds_no_place_stays_and_runs_on() {
    let (platform, beta) = two().await;
    let admin = &platform.admin;
    let id = sandbox(admin).await;
    drain(admin, &beta, "?restart=true").await;
    told(admin, "sandbox.unplaced").await;
    let ready = admin.get(&format!("/sandboxes/{id}")).await.body;
    assert_eq!((&ready["phase"], &ready["host_id"]), (&json!("Ready"), &json!(beta.id)));
    // There is room while it is paused, and none any more when it would go over: it runs again where it is.
    platform.sandboxes.set_capacity(|capacity| capacity.memory_mb = 1 << 40);
    beta.sandboxes.break_layers_off(Some(1000));
    platform.advance(200);
    let paused = admin.sandbox_reaches(&id, "Paused").await;
    assert_eq!(paused["message"], "going to another host");
    platform.sandboxes.set_capacity(|capacity| capacity.memory_mb = 0);
    beta.sandboxes.break_layers_off(None);
    let ready = admin.sandbox_reaches(&id, "Ready").await;
    assert_eq!(ready["host_id"], json!(beta.id));
    // Who is paused by its owner meanwhile stays paused.
    platform.sandboxes.set_capacity(|capacity| capacity.memory_mb = 1 << 40);
    let path = format!("/sandboxes/{id}");
    beta.sandboxes.break_layers_off(Some(1000));
    platform.advance(4000);
    admin.until("it goes", async |admin| admin.get(&path).await.body["phase"] != "Ready").await;
    assert_eq!(admin.post(&format!("{path}/pause"), json!({})).await.status, 202);
    beta.sandboxes.break_layers_off(None);
    comes(&platform, &id).await;
    let paused = admin.get(&path).await.body;
    assert_eq!((&paused["phase"], &paused["message"]), (&json!("Paused"), &Value::Null));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_uncordoned_keeps_what_has_not_left() {
    let (platform, beta) = room_here().await;
    let admin = &platform.admin;
    let id = sandbox(admin).await;
    act(admin, &id, "pause", "Paused").await;
    beta.sandboxes.break_layers_off(Some(1000));
    drain(admin, &beta, "").await;
    let moving = "SELECT COUNT(*) FROM sandboxes WHERE to_host_id IS NOT NULL";
    let moving = async || berth_server::db::sql(moving).fetch_one::<i64>(&platform.app().db).await.expect("a count");
    admin.until("it is to leave", async |_| moving().await == 1).await;
    assert_eq!(admin.act(&format!("{HOSTS}/{}/uncordon", beta.id)).await.status, 202);
    beta.sandboxes.break_layers_off(None);
    admin.until("it stays", async |_| moving().await == 0).await;
    act(admin, &id, "resume", "Ready").await;
    assert_eq!(host(admin, &id).await, json!(beta.id));
    let gamma = join(&platform, "gamma").await;
    assert_eq!(admin.delete(&format!("{HOSTS}/{}", gamma.id)).await.status, 204);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_memory_that_a_snapshot_shares_with_a_sandbox_comes_to_both() {
    let (platform, beta) = room_here().await;
    let admin = &platform.admin;
    let id = sandbox(admin).await;
    beta.sandboxes.write(&id, "early");
    act(admin, &id, "pause", "Paused").await;
    // Taken of one that is paused, it has the memory of the pause.
    let body = json!({"include_memory": true});
    let taken = admin.post(&format!("/sandboxes/{id}/snapshots"), body).await.id();
    let path = format!("/snapshots/{taken}");
    admin.until("the snapshot", async |admin| admin.get(&path).await.body["status"] == "Ready").await;
    act(admin, &id, "resume", "Ready").await;
    drain(admin, &beta, "?restart=true").await;
    comes(&platform, &id).await;
    admin.sandbox_reaches(&id, "Ready").await;
    is_empty(admin, &beta).await;
    let made = admin.create_sandbox(json!({"snapshot_id": taken})).await;
    admin.sandbox_reaches(&made, "Ready").await;
    assert!(is_from_memory(&platform, &made));
    assert_eq!(platform.sandboxes.read(&made), ["early"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_goes_to_a_host_that_takes_nothing_and_who_was_on_the_way_runs_on() {
    let (platform, beta) = room_here().await;
    let admin = &platform.admin;
    let id = sandbox(admin).await;
    let own = format!("{HOSTS}/{}", platform.app().fleet.own());
    assert_eq!(admin.act(&format!("{own}/cordon")).await.status, 202);
    drain(admin, &beta, "?restart=true").await;
    told(admin, "sandbox.unplaced").await;
    assert_eq!(platform.sandboxes.brought(), 0);
    assert_eq!(admin.act(&format!("{own}/uncordon")).await.status, 202);
    for (what, ends) in [("cordon", true), ("too long", false)] {
        beta.sandboxes.break_layers_off(Some(1000));
        platform.advance(4000);
        let path = format!("/sandboxes/{id}");
        admin.until(what, async |admin| admin.get(&path).await.body["phase"] == "Paused").await;
        if ends {
            assert_eq!(admin.act(&format!("{own}/cordon")).await.status, 202);
        } else {
            platform.advance(1800);
        }
        let ready = admin.sandbox_reaches(&id, "Ready").await;
        assert_eq!(ready["host_id"], json!(beta.id), "{what}");
        assert_eq!(admin.act(&format!("{own}/uncordon")).await.status, 202);
    }
}
