//! Sandboxes that are paused and snapshots which outlive their host, since a second one has all of them.

use berth_testkit::{Caller, JoinedHost, Platform};
use serde_json::{Value, json};

use crate::drain::drain;
use crate::fleet::{is, join};
use crate::host::told_again;
use crate::sandbox_fleet::{act, host, sandbox, two};

const HOSTS: &str = "/api/v1/admin/hosts";

/// A platform whose own host has room by now, and a host that has the template `there` with its memory.
async fn room_here() -> (Platform, JoinedHost) {
    let (platform, beta) = two().await;
    platform.sandboxes.set_capacity(|capacity| capacity.memory_mb = 1 << 40);
    (platform, beta)
}

/// Pauses a sandbox that is to outlive its host.
pub async fn pause(admin: &Caller, id: &str) -> Value {
    let paused = admin.post(&format!("/sandboxes/{id}/pause"), json!({"durable": true})).await;
    assert_eq!((paused.status, &paused.body["durable"]), (202, &json!(true)), "{paused:?}");
    admin.sandbox_reaches(id, "Paused").await
}

/// Waits until there is a second copy of something.
pub async fn copied(admin: &Caller, path: &str) {
    admin.until("a second copy", async |admin| admin.get(path).await.body["copied_at"].is_string()).await;
}

/// Waits until nobody says any more that there is a second copy of something.
pub async fn doubted(admin: &Caller, path: &str) {
    admin.until("doubt", async |admin| admin.get(path).await.body["copied_at"].is_null()).await;
}

/// Has a host be lost.
pub async fn lose(platform: &Platform, beta: &mut JoinedHost) {
    beta.close().await;
    platform.advance(30);
    is(&platform.admin, beta, "lost").await;
}

async fn drain_own(admin: &Caller, own: &str) {
    assert_eq!(admin.act(&format!("{own}/drain")).await.status, 202);
}

/// Waits until a sandbox is on the service's own host.
pub async fn comes(platform: &Platform, id: &str) {
    let own = json!(platform.app().fleet.own().to_string());
    platform.admin.until("it is at home here", async |admin| host(&admin, id).await == own).await;
}

/// Whether a sandbox began with a memory on the service's own host.
pub fn is_from_memory(platform: &Platform, id: &str) -> bool {
    platform.sandboxes.spec(id).expect("a machine").1
}

/// A snapshot that is to outlive its host, once a second one has all of it.
pub async fn snapshot(admin: &Caller, id: &str, memory: bool) -> String {
    let body = json!({"include_memory": memory, "durable": true});
    let taken = admin.post(&format!("/sandboxes/{id}/snapshots"), body).await;
    assert_eq!((taken.status, &taken.body["durable"], &taken.body["copied_at"]), (201, &json!(true), &Value::Null));
    copied(admin, &format!("/snapshots/{}", taken.id())).await;
    taken.id()
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_paused_goes_on_elsewhere_from_its_memory_once_its_host_is_lost() {
    let (platform, mut beta) = room_here().await;
    let admin = &platform.admin;
    let (id, runs) = (sandbox(admin).await, sandbox(admin).await);
    let path = format!("/sandboxes/{id}");
    beta.sandboxes.write(&id, "kept");
    assert!(pause(admin, &id).await["durable"] == true);
    copied(admin, &path).await;
    assert_eq!(host(admin, &id).await, json!(beta.id), "it stays where it is while that is there");
    lose(&platform, &mut beta).await;
    comes(&platform, &id).await;
    let placed = told_again(admin, "sandbox.placed", 3).await;
    assert_eq!((placed.subject.as_str(), &placed.data["reason"]), (&*id, &json!("its host is lost")));
    let resumed = act(admin, &id, "resume", "Ready").await;
    assert_eq!((&resumed["durable"], &resumed["copied_at"]), (&json!(false), &Value::Null));
    assert!(is_from_memory(&platform, &id));
    assert_eq!(platform.sandboxes.read(&id), ["kept"]);
    // What ran may go on there, and starts nowhere else.
    assert_eq!(host(admin, &runs).await, json!(beta.id));
    platform.sandboxes.write(&id, "later");
    beta.open().await;
    is(admin, &beta, "ready").await;
    assert!(beta.sandboxes.spec(&id).is_none(), "nothing of it runs where it was");
    act(admin, &id, "pause", "Paused").await;
    act(admin, &id, "resume", "Ready").await;
    assert_eq!(platform.sandboxes.read(&id), ["kept", "later"]);
    for id in [&id, &runs] {
        assert_eq!(admin.delete(&format!("/sandboxes/{id}")).await.status, 202);
        admin.sandbox_reaches(id, "Deleted").await;
    }
    assert_eq!((platform.sandboxes.violations(), beta.sandboxes.violations()), (Vec::new(), Vec::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_resumed_while_its_host_dies_goes_on_elsewhere_from_its_memory() {
    let (platform, mut beta) = room_here().await;
    let admin = &platform.admin;
    let id = sandbox(admin).await;
    let path = format!("/sandboxes/{id}");
    beta.sandboxes.write(&id, "kept");
    pause(admin, &id).await;
    copied(admin, &path).await;
    beta.close().await;
    assert_eq!(admin.act(&format!("{path}/resume")).await.status, 202);
    // Longer than a resumption may take: that begins anew where it goes.
    platform.advance(90);
    let ready = admin.sandbox_reaches(&id, "Ready").await;
    assert_eq!((&ready["message"], &ready["host_id"]), (&Value::Null, &json!(platform.app().fleet.own().to_string())));
    assert!(is_from_memory(&platform, &id));
    assert_eq!(platform.sandboxes.read(&id), ["kept"]);
    beta.open().await;
    is(admin, &beta, "ready").await;
    assert!(beta.sandboxes.spec(&id).is_none(), "nothing of it runs where it was");
    assert_eq!((platform.sandboxes.violations(), beta.sandboxes.violations()), (Vec::new(), Vec::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_are_made_of_a_snapshot_whose_host_is_lost() {
    let (platform, mut beta) = room_here().await;
    let admin = &platform.admin;
    let id = sandbox(admin).await;
    beta.sandboxes.write(&id, "early");
    let taken = snapshot(admin, &id, true).await;
    beta.sandboxes.write(&id, "late");
    let disk = snapshot(admin, &id, false).await;
    lose(&platform, &mut beta).await;
    let at_home = async |taken: &str| {
        let query = "SELECT COUNT(*) FROM sandbox_snapshots k JOIN sandbox_layers l ON l.id = k.layer_id \
                     WHERE k.id = $1 AND l.host_id = $2";
        let own = platform.app().fleet.own().to_string();
        let found = berth_server::db::sql(query).bind(taken.to_owned()).bind(own);
        found.fetch_one::<i64>(&platform.app().db).await.expect("a count") == 1
    };
    for (taken, is_whole, read) in [(&taken, true, vec!["early"]), (&disk, false, vec!["early", "late"])] {
        admin.until("it is at home here", async |_| at_home(taken).await).await;
        let made = admin.create_sandbox(json!({"snapshot_id": taken})).await;
        admin.sandbox_reaches(&made, "Ready").await;
        comes(&platform, &made).await;
        assert_eq!(
            (platform.sandboxes.read(&made), platform.sandboxes.spec(&made).is_some()),
            (read.iter().map(ToString::to_string).collect(), true)
        );
        if is_whole {
            assert!(is_from_memory(&platform, &made));
        }
    }
    // The sandbox that ran is told to be on a host that is away, and goes on once that is back.
    assert_eq!(host(admin, &id).await, json!(beta.id));
    beta.open().await;
    is(admin, &beta, "ready").await;
    act(admin, &id, "pause", "Paused").await;
    act(admin, &id, "resume", "Ready").await;
    assert_eq!(beta.sandboxes.read(&id), ["early", "late"]);
    assert_eq!((platform.sandboxes.violations(), beta.sandboxes.violations()), (Vec::new(), Vec::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn another_host_gets_a_copy_where_that_of_the_first_is_not_to_be_relied_on() {
    let (platform, beta) = room_here().await;
    let admin = &platform.admin;
    let own = format!("{HOSTS}/{}", platform.app().fleet.own());
    let mut gamma = join(&platform, "gamma").await;
    let id = sandbox(admin).await;
    let path = format!("/sandboxes/{id}");
    beta.sandboxes.write(&id, "kept");
    assert_eq!(admin.act(&format!("{own}/cordon")).await.status, 202);
    pause(admin, &id).await;
    copied(admin, &path).await;
    assert!(gamma.sandboxes.counts().2 == 1, "its memory is on gamma");
    // A host that is lost has nothing, as far as anybody knows.
    gamma.close().await;
    platform.advance(30);
    is(admin, &gamma, "lost").await;
    doubted(admin, &path).await;
    assert_eq!(admin.act(&format!("{own}/uncordon")).await.status, 202);
    platform.advance(15);
    copied(admin, &path).await;
    // What a snapshot takes of it lies on another top: a second host has all of it since later.
    let before = admin.get(&path).await.body["copied_at"].clone();
    let taken = admin.post(&format!("{path}/snapshots"), json!({})).await.id();
    let taken = format!("/snapshots/{taken}");
    admin.until("the snapshot", async |admin| admin.get(&taken).await.body["status"] == "Ready").await;
    let again = async |admin: Caller| {
        Some(admin.get(&path).await.body["copied_at"].clone()).filter(|at| at.is_string() && *at != before)
    };
    admin.until("another copy", async |admin| again(admin).await.is_some()).await;
    // One that ends it has it at once.
    let paused = admin.post(&format!("{path}/pause"), json!({"durable": false})).await;
    assert_eq!((paused.status, &paused.body["durable"], &paused.body["copied_at"]), (202, &json!(false), &Value::Null));
    act(admin, &id, "resume", "Ready").await;
    assert_eq!(beta.sandboxes.read(&id), ["kept"]);
    assert_eq!((platform.sandboxes.violations(), beta.sandboxes.violations()), (Vec::new(), Vec::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_cannot_load_the_memory_keeps_no_other_one_from_being_asked() {
    let (platform, beta) = room_here().await;
    let admin = &platform.admin;
    platform.sandboxes.set_loads_memory(false);
    let id = sandbox(admin).await;
    let path = format!("/sandboxes/{id}");
    pause(admin, &id).await;
    // The layers come, and the memory does not: there is no third host.
    let tried = async || {
        let there = "SELECT COUNT(*) FROM sandbox_memories WHERE other_host_id IS NOT NULL";
        berth_server::db::sql(there).fetch_one::<i64>(&platform.app().db).await.expect("a count") > 0
    };
    admin.until("a try", async |_| tried().await).await;
    assert_eq!(admin.get(&path).await.body["copied_at"], Value::Null);
    let gamma = join(&platform, "gamma").await;
    copied(admin, &path).await;
    assert_eq!((gamma.sandboxes.counts().2, host(admin, &id).await), (1, json!(beta.id)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_is_drained_gives_up_what_it_has_for_others_and_what_is_its_own() {
    let (platform, beta) = room_here().await;
    let admin = &platform.admin;
    let own = format!("{HOSTS}/{}", platform.app().fleet.own());
    let id = sandbox(admin).await;
    let path = format!("/sandboxes/{id}");
    beta.sandboxes.write(&id, "kept");
    pause(admin, &id).await;
    copied(admin, &path).await;
    // The host of the copy keeps what it has where it takes nothing new, until it is drained: there is no third one.
    let before = admin.get(&path).await.body["copied_at"].clone();
    assert_eq!(admin.act(&format!("{own}/cordon")).await.status, 202);
    // One that is paused now is looked at later than that, as its sealed disk shows.
    let other = sandbox(admin).await;
    pause(admin, &other).await;
    let is_sealed = async || {
        let sealed = "SELECT COUNT(*) FROM sandboxes s JOIN sandbox_layers l ON l.id = s.layer_id \
                      WHERE s.id = $1 AND l.state = 'making'";
        let sealed = berth_server::db::sql(sealed).bind(other.clone());
        sealed.fetch_one::<i64>(&platform.app().db).await.expect("a count") == 1
    };
    admin.until("a look", async |_| is_sealed().await).await;
    assert_eq!(admin.get(&path).await.body["copied_at"], before);
    drain_own(admin, &own).await;
    doubted(admin, &path).await;
    assert_eq!(admin.act(&format!("{own}/uncordon")).await.status, 202);
    copied(admin, &path).await;
    // Its home is drained: it is at home where the copy was, and that is no second host.
    drain(admin, &beta, "").await;
    comes(&platform, &id).await;
    doubted(admin, &path).await;
    assert_eq!(admin.get(&path).await.body["durable"], true);
    act(admin, &id, "resume", "Ready").await;
    assert!(is_from_memory(&platform, &id));
    assert_eq!(platform.sandboxes.read(&id), ["kept"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_durable_on_one_host_and_who_resumes_is_not_waited_for() {
    let platform = Platform::start().await;
    let admin = &platform.admin;
    let id = admin.create_sandbox(json!({"template_id": "base"})).await;
    admin.sandbox_reaches(&id, "Ready").await;
    let path = format!("/sandboxes/{id}");
    for verb in ["pause", "snapshots"] {
        let refused = admin.post(&format!("{path}/{verb}"), json!({"durable": true})).await;
        refused.refused(409, "not_supported");
        assert!(refused.body.to_string().contains("durable_in"), "{refused:?}");
        let wrong = admin.post(&format!("{path}/{verb}"), json!({"durable": "yes"})).await;
        wrong.refused(400, "invalid_request");
    }
    assert_eq!(admin.get(&path).await.body["phase"], "Ready");
    drop(platform);
    let (platform, beta) = room_here().await;
    let admin = &platform.admin;
    let id = sandbox(admin).await;
    let path = format!("/sandboxes/{id}");
    beta.sandboxes.write(&id, "one");
    beta.sandboxes.break_layers_off(Some(1000));
    pause(admin, &id).await;
    let wished = async || {
        let wished = "SELECT COUNT(*) FROM sandbox_layer_copies WHERE state = 'coming'";
        berth_server::db::sql(wished).fetch_one::<i64>(&platform.app().db).await.expect("a count")
    };
    admin.until("copies are wished", async |_| wished().await > 0).await;
    act(admin, &id, "resume", "Ready").await;
    assert_eq!(admin.get(&path).await.body["durable"], false);
    beta.sandboxes.write(&id, "two");
    beta.sandboxes.break_layers_off(None);
    pause(admin, &id).await;
    // Whichever service comes next goes on with it.
    let platform = platform.crash_and_restart().await;
    let admin = &platform.admin;
    is(admin, &beta, "ready").await;
    copied(admin, &path).await;
    act(admin, &id, "resume", "Ready").await;
    assert_eq!(beta.sandboxes.read(&id), ["one", "two"]);
}

/// How many layers a sandbox's disk lies on, its top among them.
async fn depth(platform: &Platform, id: &str) -> i64 {
    let chain = "WITH RECURSIVE chain (id, parent_id) AS (SELECT l.id, l.parent_id FROM sandbox_layers l \
                 JOIN sandboxes s ON s.layer_id = l.id WHERE s.id = $1 UNION ALL SELECT l.id, l.parent_id FROM sandbox_layers l \
                 JOIN chain c ON l.id = c.parent_id) SELECT COUNT(*) FROM chain";
    berth_server::db::sql(chain).bind(id.to_owned()).fetch_one(&platform.app().db).await.expect("a count")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_on_too_many_layers_is_not_durable() {
    let (platform, beta) = room_here().await;
    let (admin, most) = (&platform.admin, i64::try_from(berth_domain::sandbox::durable::DEEPEST).expect("a number"));
    let id = sandbox(admin).await;
    let path = format!("/sandboxes/{id}");
    while depth(&platform, &id).await < most {
        let taken = admin.post(&format!("{path}/snapshots"), json!({})).await.id();
        let taken = format!("/snapshots/{taken}");
        admin.until("the snapshot", async |admin| admin.get(&taken).await.body["status"] == "Ready").await;
    }
    // The last one that may be: its top is the last layer.
    let taken = snapshot(admin, &id, false).await;
    assert_eq!(depth(&platform, &id).await, most + 1);
    for verb in ["pause", "snapshots"] {
        admin.post(&format!("{path}/{verb}"), json!({"durable": true})).await.refused(409, "not_supported");
    }
    assert_eq!(admin.get(&format!("/snapshots/{taken}")).await.body["durable"], true);
    act(admin, &id, "pause", "Paused").await;
    assert_eq!(host(admin, &id).await, json!(beta.id));
}
