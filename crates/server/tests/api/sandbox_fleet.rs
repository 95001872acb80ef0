//! Sandboxes on several hosts: where they are put, what is asked of which host, and hosts that come and go.

use berth_host::sandbox::Kept;
use berth_server::config::Config;
use berth_server::db::sql;
use berth_testkit::{Caller, JoinedHost, Platform, agent, eventually};
use serde_json::{Value, json};

use crate::fleet::{is, join};
use crate::host::told;

const HOSTS: &str = "/api/v1/admin/hosts";

/// Leaves so many MiB of the service's own host to sandboxes.
fn leave(platform: &Platform, memory_mb: i64) {
    platform.sandboxes.set_capacity(|capacity| capacity.memory_mb = memory_mb);
}

fn wish(name: &str, dockerfile: &str) -> Value {
    json!({"name": name, "dockerfile": dockerfile, "vcpu": 1, "memory_mb": 128, "disk_gb": 1})
}

/// Makes a template and waits until it is ready.
async fn template(admin: &Caller, body: Value) {
    let path = format!("/sandbox_templates/{}", body["name"].as_str().expect("a name"));
    let made = admin.post("/sandbox_templates", body).await;
    assert_eq!(made.status, 201, "{made:?}");
    admin.until("it is ready", async |admin| admin.get(&path).await.body["status"] == "ready").await;
}

/// A platform whose own host has no room for machines of sandboxes, and the host that has, with the template `there`.
pub async fn two() -> (Platform, JoinedHost) {
    two_with(|_| {}).await
}

/// The same with another configuration.
pub async fn two_with(change: impl FnOnce(&mut Config)) -> (Platform, JoinedHost) {
    // A project builds two at the same time.
    let with_builders = |config: &mut Config| {
        config.sandbox.builders = 8;
        change(config);
    };
    let platform = Platform::start_with(with_builders).await;
    leave(&platform, 0);
    let beta = join(&platform, "beta").await;
    template(&platform.admin, wish("there", "FROM scratch\nRUN x")).await;
    (platform, beta)
}

/// A sandbox of the template `there` that is ready.
pub async fn sandbox(admin: &Caller) -> String {
    let id = admin.create_sandbox(json!({"template_id": "there"})).await;
    admin.sandbox_reaches(&id, "Ready").await;
    id
}

/// The host of a sandbox.
pub async fn host(admin: &Caller, id: &str) -> Value {
    admin.get(&format!("/sandboxes/{id}")).await.body["host_id"].clone()
}

pub async fn act(admin: &Caller, id: &str, verb: &str, phase: &str) -> Value {
    let acted = admin.post(&format!("/sandboxes/{id}/{verb}"), json!({})).await;
    assert_eq!(acted.status, 202, "{acted:?}");
    admin.sandbox_reaches(id, phase).await
}

/// A snapshot of a sandbox that is ready.
pub async fn snapshot(admin: &Caller, id: &str) -> String {
    let snapshot = admin.post(&format!("/sandboxes/{id}/snapshots"), json!({})).await.id();
    let path = format!("/snapshots/{snapshot}");
    admin.until("the snapshot", async |admin| admin.get(&path).await.body["status"] == "Ready").await;
    snapshot
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_lives_on_the_host_that_has_its_template() {
    let (platform, beta) = two().await;
    let admin = &platform.admin;
    let id = sandbox(admin).await;
    assert_eq!(host(admin, &id).await, json!(beta.id));
    assert!(beta.sandboxes.spec(&id).is_some() && platform.sandboxes.spec(&id).is_none());
    assert!(
        beta.sandboxes.spec(&id).is_some_and(|(_, from_memory)| from_memory),
        "it begins with the template's memory"
    );
    // What is asked of it, its own host is asked.
    let folder = tempfile::tempdir().expect("a folder");
    beta.sandboxes.set_agent(&agent::play(folder.path()));
    let command = json!({"cmd": "true"});
    let answer = admin.post(&format!("/sandbox/{id}/commands"), command.clone()).await;
    assert_eq!((answer.status, &answer.body), (200, &command), "{answer:?}");
    beta.sandboxes.write(&id, "kept");
    act(admin, &id, "pause", "Paused").await;
    act(admin, &id, "resume", "Ready").await;
    assert_eq!(beta.sandboxes.read(&id), ["kept"]);
    let taken = snapshot(admin, &id).await;
    beta.sandboxes.write(&id, "later");
    // From now on the own host has far more room, and what a sandbox begins with is there still.
    leave(&platform, 1 << 40);
    let forked = admin.post(&format!("/sandboxes/{id}/fork"), json!({"count": 2})).await;
    assert_eq!(forked.status, 201, "{forked:?}");
    let forks: Vec<_> = forked.body["data"].as_array().expect("forks").iter().map(|fork| fork["id"].clone()).collect();
    let made = admin.create_sandbox(json!({"snapshot_id": taken})).await;
    let mut all = vec![(made, vec!["kept"])];
    all.extend(forks.iter().map(|fork| (fork.as_str().expect("an id").to_owned(), vec!["kept", "later"])));
    for (id, written) in &all {
        admin.sandbox_reaches(id, "Ready").await;
        assert_eq!(
            (host(admin, id).await, beta.sandboxes.read(id)),
            (json!(beta.id), written.iter().map(ToString::to_string).collect())
        );
    }
    let restored = admin.post(&format!("/sandboxes/{id}/restore"), json!({"snapshot_id": taken})).await;
    assert_eq!(restored.status, 202);
    admin.sandbox_reaches(&id, "Ready").await;
    assert_eq!(beta.sandboxes.read(&id), ["kept"]);
    // And there it ends, with what belongs to it.
    all.push((id, Vec::new()));
    for (id, _) in &all {
        assert_eq!(admin.delete(&format!("/sandboxes/{id}")).await.status, 202);
        admin.sandbox_reaches(id, "Deleted").await;
    }
    assert_eq!(admin.delete(&format!("/snapshots/{taken}")).await.status, 202);
    assert_eq!(admin.delete("/sandbox_templates/there").await.status, 204);
    admin.until("an end", async |_| beta.sandboxes.counts().1 == 0 && beta.sandboxes.counts().2 == 0).await;
    assert_eq!(beta.sandboxes.counts().0, 0);
    assert_eq!(beta.sandboxes.violations(), Vec::<String>::new());
    let path = format!("{HOSTS}/{}", beta.id);
    let empty = json!({"machines": 0, "disks": 0, "images": 0, "layers": 0, "leaving": 0});
    admin.until("nothing is left", async |admin| admin.get(&path).await.body["holds"] == empty).await;
    assert_eq!(admin.delete(&path).await.status, 204);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_built_on_a_template_is_built_where_that_is() {
    let (platform, beta) = two().await;
    let admin = &platform.admin;
    leave(&platform, 1 << 40);
    template(admin, wish("above", "FROM there\nRUN x")).await;
    assert_eq!((platform.sandboxes.builds(), beta.sandboxes.builds()), (0, 2));
    template(admin, wish("here", "FROM base\nRUN x")).await;
    assert_eq!((platform.sandboxes.builds(), beta.sandboxes.builds()), (1, 2));
    // Nothing can be built of two that are on different hosts.
    let both = wish("both", "FROM base AS one\nFROM there\nCOPY --from=one /a /b");
    assert_eq!(admin.post("/sandbox_templates", both).await.status, 201);
    let path = "/sandbox_templates/both";
    admin.until("it fails", async |admin| admin.get(path).await.body["status"] == "failed").await;
    let message = admin.get(path).await.body["message"].clone();
    assert!(message.as_str().is_some_and(|text| text.contains("different hosts")), "{message}");
    assert_eq!((platform.sandboxes.violations(), beta.sandboxes.violations()), (Vec::new(), Vec::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_sent_for_a_build_is_there_while_it_is_built() {
    let (platform, beta) = two().await;
    let admin = &platform.admin;
    let sent = admin.send(admin.request(reqwest::Method::POST, "/sandbox_uploads").body(vec![7_u8; 1024])).await;
    assert_eq!(sent.status, 201, "{sent:?}");
    beta.sandboxes.set_builds_last(true);
    let mut body = wish("with", "FROM scratch\nCOPY a b");
    body["context_id"] = json!(sent.id());
    let made = admin.post("/sandbox_templates", body.clone()).await;
    assert_eq!(made.status, 201, "{made:?}");
    admin.until("the files are there", async |_| beta.sandboxes.uploads() == 1).await;
    assert_eq!(beta.sandboxes.uploaded(), [vec![7_u8; 1024]]);
    assert_eq!(platform.sandboxes.uploads(), 1, "they are where they were received, too");
    // Another build that has them keeps them there.
    body["name"] = json!("also");
    assert_eq!(admin.post("/sandbox_templates", body).await.status, 201);
    admin.until("another build", async |_| beta.sandboxes.builds() == 3).await;
    assert_eq!(admin.delete("/sandbox_templates/with").await.status, 204);
    let rows = async || {
        let rows = sql("SELECT COUNT(*) FROM sandbox_templates WHERE name = 'with' AND deleted_at IS NULL");
        rows.fetch_one::<i64>(&platform.app().db).await.expect("a number")
    };
    admin.until("the end of the build", async |_| rows().await == 0).await;
    assert_eq!(beta.sandboxes.uploads(), 1, "the other one is not done");
    assert_eq!(admin.delete("/sandbox_templates/also").await.status, 204);
    admin.until("they are gone", async |_| beta.sandboxes.uploads() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_takes_a_sandbox_to_the_host_of_the_snapshot() {
    let (platform, beta) = two().await;
    let admin = &platform.admin;
    let there = sandbox(admin).await;
    beta.sandboxes.write(&there, "there");
    let taken = snapshot(admin, &there).await;
    leave(&platform, 1 << 40);
    let id = admin.ready_sandbox().await;
    assert!(platform.sandboxes.spec(&id).is_some());
    platform.sandboxes.write(&id, "here");
    let restore = async || {
        let path = format!("/sandboxes/{id}/restore");
        assert_eq!(admin.post(&path, json!({"snapshot_id": taken})).await.status, 202);
    };
    // A host that has no room for it gets nothing of it, and it keeps what it has.
    let room = |memory_mb| beta.sandboxes.set_capacity(|capacity| capacity.memory_mb = memory_mb);
    room(0);
    restore().await;
    let kept = admin.sandbox_reaches(&id, "Paused").await;
    assert!(kept["message"].as_str().is_some_and(|text| text.starts_with("insufficient_capacity")), "{kept}");
    assert_eq!(kept["disk_gb"], 10, "its own disk");
    act(admin, &id, "resume", "Ready").await;
    assert_eq!(
        (host(admin, &id).await == json!(beta.id), platform.sandboxes.read(&id)),
        (false, vec!["here".to_owned()])
    );
    room(1 << 40);
    restore().await;
    admin.sandbox_reaches(&id, "Ready").await;
    assert_eq!((host(admin, &id).await, beta.sandboxes.read(&id)), (json!(beta.id), vec!["there".to_owned()]));
    assert!(platform.sandboxes.spec(&id).is_none());
    act(admin, &id, "pause", "Paused").await;
    act(admin, &id, "resume", "Ready").await;
    // A network joins machines of one host.
    let network = admin.post("/networks", json!({"name": "lan"})).await.id();
    let mut joined = Vec::new();
    for _ in 0..2 {
        let id = admin.create_sandbox(json!({"network_ids": [network]})).await;
        admin.sandbox_reaches(&id, "Ready").await;
        joined.push(id);
    }
    assert_eq!(
        admin.post(&format!("/sandboxes/{}/restore", joined[0]), json!({"snapshot_id": taken})).await.status,
        202
    );
    let failed = admin.sandbox_reaches(&joined[0], "Paused").await;
    assert!(failed["message"].as_str().is_some_and(|text| text.contains("different hosts")), "{failed}");
    let apart = admin.create_sandbox(json!({"snapshot_id": taken, "network_ids": [network]})).await;
    let failed = admin.sandbox_reaches(&apart, "Failed").await;
    assert!(failed["message"].as_str().is_some_and(|text| text.contains("different hosts")), "{failed}");
    // The layers of a template come to the others.
    let beside = admin.create_sandbox(json!({"template_id": "there", "network_ids": [network]})).await;
    admin.sandbox_reaches(&beside, "Ready").await;
    assert_eq!(host(admin, &beside).await, json!(platform.app().fleet.own().to_string()));
}

#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_of_a_host_that_is_lost_say_so_and_go_on_once_it_is_back() {
    let (platform, mut beta) = two().await;
    let admin = &platform.admin;
    let id = sandbox(admin).await;
    let path = format!("/sandboxes/{id}");
    beta.close().await;
    platform.advance(30);
    is(admin, &beta, "lost").await;
    let shown = admin.get(&path).await.body;
    assert!(shown["message"].as_str().is_some_and(|text| text.contains("does not answer")), "{shown}");
    assert_eq!(shown["phase"], "Ready", "nobody knows better");
    let asked = admin.get(&format!("/sandbox/{id}/files/stat?path=a")).await;
    assert!(asked.body["message"].as_str().is_some_and(|text| text.contains("does not answer")), "{asked:?}");
    asked.refused(503, "service_unavailable");
    // What is asked of it waits, however long that takes, and whatever else there is goes on.
    assert_eq!(admin.post(&format!("{path}/pause"), json!({})).await.status, 202);
    leave(&platform, 1 << 40);
    admin.ready_sandbox().await;
    platform.advance(600);
    let late = platform.app().clock.now().0;
    let question = format!("SELECT work_at FROM sandboxes WHERE id = '{id}' AND work_at > {late}");
    let tries = async || sql(question.clone()).fetch_all::<i64>(&platform.app().db).await.expect("rows").len();
    admin.until("another try", async |_| tries().await == 1).await;
    assert_eq!(admin.get(&path).await.body["phase"], "Pausing");
    beta.open().await;
    is(admin, &beta, "ready").await;
    let paused = admin.sandbox_reaches(&id, "Paused").await;
    assert_eq!(paused["message"], Value::Null, "its memory was kept");
    act(admin, &id, "resume", "Ready").await;
    assert!(beta.sandboxes.spec(&id).is_some_and(|(_, from_memory)| from_memory));
}

#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_of_a_host_that_is_removed_end() {
    let (platform, beta) = two().await;
    let admin = &platform.admin;
    let (runs, paused) = (sandbox(admin).await, sandbox(admin).await);
    act(admin, &paused, "pause", "Paused").await;
    let path = format!("{HOSTS}/{}", beta.id);
    let refused = admin.delete(&path).await;
    assert!(refused.body["message"].as_str().is_some_and(|text| text.contains("layers")), "{refused:?}");
    refused.refused(409, "conflict");
    drop(beta);
    assert_eq!(admin.delete(&format!("{path}?lost=true")).await.status, 204);
    let failed = admin.sandbox_reaches(&runs, "Failed").await;
    assert!(failed["message"].as_str().is_some_and(|text| text.contains("will not come back")), "{failed}");
    assert_eq!(admin.post(&format!("/sandboxes/{paused}/resume"), json!({})).await.status, 202);
    admin.sandbox_reaches(&paused, "Failed").await;
    let new = admin.create_sandbox(json!({"template_id": "there"})).await;
    admin.sandbox_reaches(&new, "Failed").await;
    for id in [&runs, &paused, &new] {
        assert_eq!(admin.delete(&format!("/sandboxes/{id}")).await.status, 202);
        admin.sandbox_reaches(id, "Deleted").await;
    }
    assert_eq!(admin.delete("/sandbox_templates/there").await.status, 204);
    // Once nothing of it has a row, nobody stands for it any more.
    admin.until("its end", async |_| platform.app().fleet.all().len() == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_service_finds_sandboxes_where_they_are_and_ends_what_is_nobodys() {
    let (platform, mut beta) = two().await;
    let id = sandbox(&platform.admin).await;
    let starts = beta.sandboxes.counts().3;
    beta.sandboxes.leave(Kept::Layer("01900000-0000-7000-8000-000000000001".parse().expect("an id")));
    let layers = beta.sandboxes.counts().1;
    let platform = platform.crash_and_restart().await;
    let admin = &platform.admin;
    is(admin, &beta, "ready").await;
    admin.until("what is nobody's goes", async |_| beta.sandboxes.counts().1 == layers - 1).await;
    assert_eq!(admin.sandbox_reaches(&id, "Ready").await["message"], Value::Null);
    assert_eq!((beta.sandboxes.counts().0, beta.sandboxes.counts().3), (1, starts), "it is the same machine");
    // One that dies is started again there, and those of a boot that is over are, too.
    beta.sandboxes.kill(&id);
    admin.until("another start", async |_| beta.sandboxes.counts().3 == starts + 1).await;
    admin.sandbox_reaches(&id, "Ready").await;
    beta.close().await;
    beta.sandboxes.restart_host();
    beta.open().await;
    admin.until("another start", async |_| beta.sandboxes.counts().3 == starts + 2).await;
    let ready = admin.sandbox_reaches(&id, "Ready").await;
    assert!(ready["message"].as_str().is_some_and(|text| text.contains("the host was restarted")), "{ready}");
    eventually("one machine", 30, || (beta.sandboxes.counts().0 == 1).then_some(()));
    assert_eq!(platform.sandboxes.spec(&id).map(|_| ()), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cordoned_host_takes_no_sandbox_and_one_without_a_guest_builds_nothing() {
    let (platform, beta) = two().await;
    let admin = &platform.admin;
    let old = sandbox(admin).await;
    act(admin, &old, "pause", "Paused").await;
    let path = format!("{HOSTS}/{}", beta.id);
    assert_eq!(admin.act(&format!("{path}/cordon")).await.status, 202);
    let new = admin.create_sandbox(json!({"template_id": "there"})).await;
    let failed = admin.sandbox_reaches(&new, "Failed").await;
    let message = failed["message"].as_str().expect("a sentence");
    assert!(message.starts_with("insufficient_capacity: no host takes new machines now"), "{message}");
    act(admin, &old, "resume", "Ready").await;
    leave(&platform, 1 << 40);
    template(admin, wish("here", "FROM scratch\nRUN x")).await;
    assert_eq!((platform.sandboxes.builds(), beta.sandboxes.builds()), (1, 1));
    assert_eq!(admin.act(&format!("{path}/uncordon")).await.status, 202);
    leave(&platform, 0);
    // It can be brought from nowhere.
    platform.sandboxes.set_guest(None);
    beta.sandboxes.set_guest(None);
    assert_eq!(admin.post("/sandbox_templates", wish("nowhere", "FROM scratch\nRUN x")).await.status, 201);
    let nowhere = "/sandbox_templates/nowhere";
    admin.until("it fails", async |admin| admin.get(nowhere).await.body["status"] == "failed").await;
    assert_eq!(beta.sandboxes.builds(), 1);
    // The service's own host has room and no guest, and is passed over for one that has.
    leave(&platform, 1 << 40);
    beta.sandboxes.set_guest(Some("1"));
    template(admin, wish("there-too", "FROM scratch\nRUN x")).await;
    assert_eq!((platform.sandboxes.builds(), beta.sandboxes.builds()), (1, 2));
    let message = admin.get(nowhere).await.body["message"].clone();
    assert!(message.as_str().is_some_and(|text| text.contains("script/quickstart")), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_warm_machine_waits_where_its_memory_is() {
    let platform = Platform::start().await;
    leave(&platform, 0);
    let beta = join(&platform, "beta").await;
    beta.sandboxes.set_most_warm(2);
    // How many it keeps, a host says when it is there.
    let platform = platform.crash_and_restart().await;
    let admin = &platform.admin;
    admin.until("both are there", async |_| platform.app().fleet.all().len() == 2).await;
    template(admin, wish("there", "FROM scratch\nRUN x")).await;
    admin.until("two wait", async |_| beta.sandboxes.counts().0 == 2).await;
    let starts = beta.sandboxes.counts().3;
    let made = "SELECT id FROM machines WHERE owner_kind = 'warm' AND ready = 1";
    let ready = async || sql(made).fetch_all::<String>(&platform.app().db).await.expect("rows").len();
    admin.until("somebody may have them", async |_| ready().await == 2).await;
    let id = sandbox(admin).await;
    assert_eq!(host(admin, &id).await, json!(beta.id));
    assert_eq!(beta.sandboxes.counts().3, starts, "one that waited is its own");
    let placed = told(admin, "sandbox.placed").await;
    assert_eq!((placed.subject, &placed.data["host_id"]), (id, &json!(beta.id)));
    // With the service those end that nobody owns.
    let platform = platform.restart().await;
    platform.admin.until("they end", async |_| beta.sandboxes.counts().0 == 1).await;
}
