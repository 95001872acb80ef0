//! Layers of templates that go to hosts where there is room for their sandboxes.

use std::time::Duration;

use berth_host::EngineError;
use berth_server::db::sql;
use berth_testkit::{Caller, JoinedHost, Platform, SimulatedSandboxes};
use serde_json::{Value, json};

use crate::fleet::{is, join};
use crate::sandbox_fleet::{host, sandbox};

const HOSTS: &str = "/api/v1/admin/hosts";

/// Leaves so many MiB of a host to sandboxes.
fn leave(engine: &SimulatedSandboxes, memory_mb: i64) {
    engine.set_capacity(|capacity| capacity.memory_mb = memory_mb);
}

/// Makes a template and waits until it is ready.
async fn template(admin: &Caller, name: &str, more: &Value) {
    let mut body =
        json!({"name": name, "dockerfile": "FROM scratch\nRUN x", "vcpu": 1, "memory_mb": 128, "disk_gb": 1});
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    let made = admin.post("/sandbox_templates", body).await;
    assert_eq!(made.status, 201, "{made:?}");
    ready(admin, name).await;
}

async fn ready(admin: &Caller, template: &str) {
    let path = format!("/sandbox_templates/{template}");
    admin.until("it is ready", async |admin| admin.get(&path).await.body["status"] == "ready").await;
}

/// A platform whose own host has room, and a host without any that has the template `there`.
async fn two() -> (Platform, JoinedHost) {
    let platform = Platform::start().await;
    ready(&platform.admin, "base").await;
    leave(&platform.sandboxes, 0);
    let beta = join(&platform, "beta").await;
    template(&platform.admin, "there", &json!({})).await;
    leave(&platform.sandboxes, 1 << 40);
    leave(&beta.sandboxes, 0);
    (platform, beta)
}

fn own(platform: &Platform) -> Value {
    json!(platform.app().fleet.own().to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_is_where_there_is_room_and_the_layers_of_its_template_come_there_once() {
    let (platform, beta) = two().await;
    let admin = &platform.admin;
    beta.sandboxes.write_below("of the template");
    let (here, there) = (platform.sandboxes.counts().1, beta.sandboxes.counts().1);
    let id = sandbox(admin).await;
    assert_eq!(
        (host(admin, &id).await, platform.sandboxes.read(&id)),
        (own(&platform), vec!["of the template".into()])
    );
    assert!(platform.sandboxes.spec(&id).is_some_and(|(_, from_memory)| !from_memory), "memories do not travel");
    assert_eq!((platform.sandboxes.brought(), platform.sandboxes.counts().1), (2, here + 2 + 1));
    let second = sandbox(admin).await;
    assert_eq!((host(admin, &second).await, platform.sandboxes.brought()), (own(&platform), 2));
    // It lives there as any other.
    platform.sandboxes.write(&id, "own");
    for (verb, phase) in [("pause", "Paused"), ("resume", "Ready")] {
        assert_eq!(admin.post(&format!("/sandboxes/{id}/{verb}"), json!({})).await.status, 202);
        admin.sandbox_reaches(&id, phase).await;
    }
    let forked = admin.post(&format!("/sandboxes/{id}/fork"), json!({"count": 1})).await.body["data"][0]["id"].clone();
    let forked = forked.as_str().expect("an id").to_owned();
    admin.sandbox_reaches(&forked, "Ready").await;
    assert_eq!(platform.sandboxes.read(&forked), ["of the template", "own"]);
    // Hosts that have the layers come first, however much room there is on others.
    let gamma = join(&platform, "gamma").await;
    leave(&gamma.sandboxes, 1 << 50);
    leave(&beta.sandboxes, 1 << 40);
    let third = sandbox(admin).await;
    assert_ne!(host(admin, &third).await, json!(gamma.id));
    assert_eq!(gamma.sandboxes.brought(), 0);
    // What the next service finds of it is somebody's.
    let platform = platform.crash_and_restart().await;
    let admin = &platform.admin;
    is(admin, &beta, "ready").await;
    sandbox(admin).await;
    assert_eq!(platform.sandboxes.brought(), 2);
    let all = admin.get("/sandboxes").await.body["data"].clone();
    for id in all.as_array().expect("sandboxes").iter().filter_map(|sandbox| sandbox["id"].as_str()) {
        assert_eq!(admin.delete(&format!("/sandboxes/{id}")).await.status, 202);
        admin.sandbox_reaches(id, "Deleted").await;
    }
    // The copies go with their template, and before them what lies on them.
    admin.until("their ends", async |_| platform.sandboxes.counts().1 == here + 2).await;
    admin.until("their ends", async |_| beta.sandboxes.counts().1 == there).await;
    assert_eq!(admin.delete("/sandbox_templates/there").await.status, 204);
    admin.until("their ends", async |_| platform.sandboxes.counts().1 == here).await;
    admin.until("their ends", async |_| beta.sandboxes.counts().1 == 0).await;
    admin.until("the ends of their rows", async |_| copies(&platform).await == 0).await;
    assert_eq!((platform.sandboxes.violations(), beta.sandboxes.violations()), (Vec::new(), Vec::new()));
}

/// How many rows of copies there are.
async fn copies(platform: &Platform) -> i64 {
    sql("SELECT COUNT(*) FROM sandbox_layer_copies").fetch_one(&platform.app().db).await.expect("a count")
}

#[tokio::test(flavor = "multi_thread")]
async fn layers_that_break_off_are_taken_up_by_the_next_service() {
    let (platform, beta) = two().await;
    beta.sandboxes.break_layers_off(Some(1000));
    let id = platform.admin.create_sandbox(json!({"template_id": "there"})).await;
    let path = format!("/sandboxes/{id}");
    let says = async |admin: Caller| admin.get(&path).await.body["message"].to_string();
    platform.admin.until("it waits", async |admin| says(admin).await.contains("bringing what it begins with")).await;
    // The time until it comes is not the sandbox's own.
    platform.advance(600);
    let platform = platform.crash_and_restart().await;
    is(&platform.admin, &beta, "ready").await;
    assert_eq!(platform.sandboxes.brought(), 0);
    platform.advance(600);
    beta.sandboxes.break_layers_off(None);
    platform.admin.sandbox_reaches(&id, "Ready").await;
    assert_eq!(platform.sandboxes.brought(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn layers_that_do_not_come_in_two_hours_are_given_up() {
    let (platform, beta) = two().await;
    let admin = &platform.admin;
    beta.sandboxes.break_layers_off(Some(1000));
    let id = admin.create_sandbox(json!({"template_id": "there"})).await;
    let path = format!("/sandboxes/{id}");
    let says = async |admin: Caller| admin.get(&path).await.body["message"].to_string();
    admin.until("it waits", async |admin| says(admin).await.contains("bringing what it begins with")).await;
    platform.advance(2 * 3600);
    let failed = admin.sandbox_reaches(&id, "Failed").await;
    assert!(failed["message"].as_str().is_some_and(|text| text.contains("within 7200 seconds")), "{failed}");
    // Each layer is given up by itself, and whoever waits for it then.
    let coming = "SELECT COUNT(*) FROM sandbox_layer_copies WHERE state = 'coming'";
    let coming = async || sql(coming).fetch_one::<i64>(&platform.app().db).await.expect("a count");
    admin.until("all are given up", async |_| coming().await == 0).await;
    beta.sandboxes.break_layers_off(None);
    sandbox(admin).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_has_the_layers_goes_on_without_the_one_that_made_them() {
    let (platform, mut beta) = two().await;
    let admin = &platform.admin;
    sandbox(admin).await;
    beta.close().await;
    platform.advance(30);
    is(admin, &beta, "lost").await;
    let id = sandbox(admin).await;
    assert_eq!((host(admin, &id).await, platform.sandboxes.brought()), (own(&platform), 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_does_not_take_the_layers_fails_who_waits_and_is_asked_anew_for_the_next() {
    let (platform, _beta) = two().await;
    let admin = &platform.admin;
    platform.sandboxes.refuse("expect_layer", EngineError::NoCapacity("no room".into()));
    let id = admin.create_sandbox(json!({"template_id": "there"})).await;
    let failed = admin.sandbox_reaches(&id, "Failed").await;
    assert_eq!(failed["message"], "insufficient_capacity: no room");
    platform.sandboxes.allow("expect_layer");
    let id = sandbox(admin).await;
    assert_eq!((host(admin, &id).await, platform.sandboxes.brought()), (own(&platform), 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_runs_in_a_memory_stays_where_that_is() {
    let (platform, beta) = two().await;
    let admin = &platform.admin;
    let wait = async |body: Value, phase: &str| {
        let id = admin.create_sandbox(body).await;
        admin.sandbox_reaches(&id, phase).await
    };
    leave(&platform.sandboxes, 0);
    leave(&beta.sandboxes, 1 << 40);
    template(admin, "serves", &json!({"start_command": "serve"})).await;
    let kept = sandbox(admin).await;
    let taken = admin.post(&format!("/sandboxes/{kept}/snapshots"), json!({"include_memory": true})).await.id();
    let path = format!("/snapshots/{taken}");
    admin.until("the snapshot", async |admin| admin.get(&path).await.body["status"] == "Ready").await;
    leave(&platform.sandboxes, 1 << 40);
    leave(&beta.sandboxes, 0);
    for body in [json!({"template_id": "serves"}), json!({"snapshot_id": taken})] {
        let failed = wait(body, "Failed").await;
        assert!(failed["message"].as_str().is_some_and(|text| text.contains("0 MiB of memory")), "{failed}");
    }
    assert_eq!(platform.sandboxes.brought(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn few_layers_come_at_once() {
    let (platform, beta) = two().await;
    let admin = &platform.admin;
    leave(&platform.sandboxes, 0);
    leave(&beta.sandboxes, 1 << 40);
    for name in ["second", "third"] {
        template(admin, name, &json!({})).await;
    }
    leave(&platform.sandboxes, 1 << 40);
    leave(&beta.sandboxes, 0);
    platform.sandboxes.set_delay(Duration::from_millis(200));
    let mut made = Vec::new();
    for name in ["there", "second", "third"] {
        made.push(admin.create_sandbox(json!({"template_id": name})).await);
    }
    for id in made {
        admin.sandbox_reaches(&id, "Ready").await;
    }
    assert_eq!(platform.sandboxes.brought(), 6);
    assert!(platform.sandboxes.brought_at_once() <= 2, "{}", platform.sandboxes.brought_at_once());
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_hold_no_host() {
    let platform = Platform::start().await;
    let admin = &platform.admin;
    ready(admin, "base").await;
    let beta = join(&platform, "beta").await;
    leave(&platform.sandboxes, 0);
    let id = admin.ready_sandbox().await;
    assert_eq!(host(admin, &id).await, json!(beta.id));
    assert!(beta.sandboxes.brought() > 0 && copies(&platform).await > 0);
    assert_eq!(admin.delete(&format!("/sandboxes/{id}")).await.status, 202);
    admin.sandbox_reaches(&id, "Deleted").await;
    let path = format!("{HOSTS}/{}", beta.id);
    let empty = json!({"machines": 0, "disks": 0, "images": 0, "layers": 0, "leaving": 0});
    admin.until("nothing is left", async |admin| admin.get(&path).await.body["holds"] == empty).await;
    assert!(beta.sandboxes.counts().1 > 0, "the copies are there");
    assert_eq!(admin.delete(&path).await.status, 204);
    // Without it there is no host with room.
    let failed = admin.create_sandbox(json!({})).await;
    admin.sandbox_reaches(&failed, "Failed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_on_a_host_that_is_removed_fails_and_holds_up_no_removal() {
    let platform = Platform::start().await;
    let admin = &platform.admin;
    template(admin, "mine", &json!({})).await;
    ready(admin, "mine").await;
    let mut beta = join(&platform, "beta").await;
    leave(&platform.sandboxes, 0);
    beta.sandboxes.break_layers_off(Some(1000));
    let id = admin.create_sandbox(json!({"template_id": "mine"})).await;
    let path = format!("/sandboxes/{id}");
    let waits = async |admin: Caller| admin.get(&path).await.body["message"].to_string().contains("bringing");
    admin.until("it waits", async |admin| waits(admin).await).await;
    beta.close().await;
    platform.advance(30);
    is(admin, &beta, "lost").await;
    assert_eq!(admin.delete(&format!("{HOSTS}/{}?lost=true", beta.id)).await.status, 204);
    admin.sandbox_reaches(&id, "Failed").await;
    assert_eq!(admin.delete(&path).await.status, 202);
    admin.sandbox_reaches(&id, "Deleted").await;
    assert_eq!(admin.delete("/sandbox_templates/mine").await.status, 204);
    let left = "SELECT COUNT(*) FROM sandbox_layers WHERE state = 'removing'";
    let left = async || sql(left).fetch_one::<i64>(&platform.app().db).await.expect("a count");
    admin
        .until("its layers go", async |admin| {
            admin.get("/sandbox_templates/mine").await.status == 404 && left().await == 0
        })
        .await;
}
