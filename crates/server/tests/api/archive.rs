//! Sandboxes that are paused and snapshots which outlive their host, since the store of backups has all of them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use berth_domain::sandbox::durable::Place;
use berth_host::EngineError;
use berth_server::config::Config;
use berth_server::db::sql;
use berth_testkit::{Caller, JoinedHost, Platform};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::durable::{comes, copied, doubted, is_from_memory, lose, pause, snapshot};
use crate::fleet::is;
use crate::sandbox_fleet::{act, host, sandbox, two_with};

fn with_backups(config: &mut Config) {
    config.backups.folder = config.data_dir.join("backups");
    config.sandbox.durable_in = Place::Backups;
}

/// A platform that keeps such things with backups, whose own host has room by now, and a host that has the template `there`.
async fn two() -> (Platform, JoinedHost) {
    let (platform, beta) = two_with(with_backups).await;
    platform.sandboxes.set_capacity(|capacity| capacity.memory_mb = 1 << 40);
    (platform, beta)
}

/// The service's place in the store, whether it is there yet or not.
fn place(platform: &Platform) -> PathBuf {
    let databases = std::fs::read_dir(&platform.config.backups.folder).into_iter().flatten().flatten();
    databases.map(|folder| folder.path().join("sandboxes")).next().unwrap_or_default()
}

/// The names of what lies there.
fn stored(platform: &Platform) -> BTreeSet<String> {
    let entries = std::fs::read_dir(place(platform)).into_iter().flatten().flatten();
    let entries = entries.filter(|entry| entry.path().is_dir());
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Those of memories.
fn memories(platform: &Platform) -> Vec<String> {
    stored(platform).into_iter().filter(|name| name.starts_with("memory-")).collect()
}

/// How many layers a host other than their own has.
async fn copies(platform: &Platform) -> i64 {
    sql("SELECT COUNT(*) FROM sandbox_layer_copies").fetch_one(&platform.app().db).await.expect("a count")
}

async fn deleted(admin: &Caller, id: &str) {
    assert_eq!(admin.delete(&format!("/sandboxes/{id}")).await.status, 202);
    admin.sandbox_reaches(id, "Deleted").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_the_store_goes_on_elsewhere_once_its_host_is_lost_and_leaves_the_store_with_its_end() {
    let (platform, mut beta) = two().await;
    let admin = &platform.admin;
    let (id, early) = (sandbox(admin).await, sandbox(admin).await);
    beta.sandboxes.write(&early, "early");
    let taken = snapshot(admin, &early, true).await;
    let of_others = stored(&platform);
    beta.sandboxes.write(&id, "kept");
    pause(admin, &id).await;
    let path = format!("/sandboxes/{id}");
    copied(admin, &path).await;
    assert_eq!((host(admin, &id).await, copies(&platform).await), (json!(beta.id), 0), "no other host has anything");
    // A template's layers are there once, and each of the two has a memory and what was written to it.
    assert_eq!((memories(&platform).len(), stored(&platform).difference(&of_others).count()), (2, 2));
    lose(&platform, &mut beta).await;
    comes(&platform, &id).await;
    let resumed = act(admin, &id, "resume", "Ready").await;
    assert_eq!(
        (&resumed["durable"], &resumed["copied_at"], &resumed["message"]),
        (&json!(false), &Value::Null, &Value::Null)
    );
    assert!(is_from_memory(&platform, &id));
    assert_eq!(platform.sandboxes.read(&id), ["kept"]);
    let at_home = async || {
        let query =
            "SELECT COUNT(*) FROM sandbox_snapshots k JOIN sandbox_layers l ON l.id = k.layer_id WHERE l.host_id = $1";
        let own = platform.app().fleet.own().to_string();
        sql(query).bind(own).fetch_one::<i64>(&platform.app().db).await.expect("a count") == 1
    };
    admin.until("the snapshot is at home here", async |_| at_home().await).await;
    let made = admin.create_sandbox(json!({"snapshot_id": taken})).await;
    admin.sandbox_reaches(&made, "Ready").await;
    assert_eq!((platform.sandboxes.read(&made), is_from_memory(&platform, &made)), (vec!["early".to_owned()], true));
    // Their former host is back, and has copies.
    beta.open().await;
    is(admin, &beta, "ready").await;
    assert!(beta.sandboxes.spec(&id).is_none(), "nothing of it runs where it was");
    pause(admin, &id).await;
    copied(admin, &path).await;
    for id in [&id, &early, &made] {
        deleted(admin, id).await;
    }
    assert_eq!(admin.delete(&format!("/snapshots/{taken}")).await.status, 202);
    admin.until("no memories", async |_| memories(&platform).is_empty()).await;
    assert_eq!(admin.delete("/sandbox_templates/there").await.status, 204);
    let of_the_platform =
        async || stored(&platform).iter().all(|name| name.starts_with("layer-")) && copies(&platform).await == 0;
    admin.until("the ends of layers", async |_| of_the_platform().await).await;
    admin.until("an empty store", async |_| stored(&platform).is_empty()).await;
    assert_eq!((platform.sandboxes.violations(), beta.sandboxes.violations()), (Vec::new(), Vec::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_host_alone_keeps_such_things_with_backups() {
    let platform = Platform::start_with(with_backups).await;
    let admin = &platform.admin;
    let id = admin.create_sandbox(json!({"template_id": "base"})).await;
    admin.sandbox_reaches(&id, "Ready").await;
    let taken = snapshot(admin, &id, true).await;
    pause(admin, &id).await;
    copied(admin, &format!("/sandboxes/{id}")).await;
    assert_eq!(memories(&platform).len(), 2);
    let metrics =
        reqwest::get(format!("{}/metrics", admin.base)).await.expect("an answer").text().await.expect("a body");
    for line in ["berth_sandboxes_durable{copied=\"true\"} 1", "berth_snapshots_durable{copied=\"true\"} 1"] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    // Whoever resumes it writes to another layer: the one before stays what it was.
    act(admin, &id, "resume", "Ready").await;
    assert!(is_from_memory(&platform, &id));
    pause(admin, &id).await;
    copied(admin, &format!("/sandboxes/{id}")).await;
    deleted(admin, &id).await;
    assert_eq!(admin.delete(&format!("/snapshots/{taken}")).await.status, 202);
    admin.until("no memories", async |_| memories(&platform).is_empty()).await;
}

/// How many memories the store has whole, as far as rows know.
async fn whole(platform: &Platform) -> i64 {
    let query = "SELECT COUNT(*) FROM sandbox_memories WHERE archive_store IS NOT NULL AND archive_doubted = 0";
    sql(query).fetch_one(&platform.app().db).await.expect("a count")
}

/// Has the store have something else of a sandbox's memory than was sent there: that is noticed once its host is lost, and sent again
/// once that is back.
async fn is_noticed(spoil: impl FnOnce(&Path, &[u8])) {
    let (platform, mut beta) = two().await;
    let admin = &platform.admin;
    let id = sandbox(admin).await;
    let path = format!("/sandboxes/{id}");
    beta.sandboxes.write(&id, "kept");
    pause(admin, &id).await;
    copied(admin, &path).await;
    let part = place(&platform).join(&memories(&platform)[0]).join("000001");
    let kept = std::fs::read(&part).expect("a part");
    spoil(&part, &kept);
    lose(&platform, &mut beta).await;
    admin.until("it is noticed", async |_| whole(&platform).await == 0).await;
    doubted(admin, &path).await;
    assert_eq!(host(admin, &id).await, json!(beta.id), "it stays where its memory is");
    beta.open().await;
    is(admin, &beta, "ready").await;
    copied(admin, &path).await;
    assert_eq!(std::fs::read(&part).expect("a part"), kept);
    // The host that got none of it was asked a moment ago.
    lose(&platform, &mut beta).await;
    platform.advance(3600);
    comes(&platform, &id).await;
    act(admin, &id, "resume", "Ready").await;
    assert!(is_from_memory(&platform, &id));
    assert_eq!(platform.sandboxes.read(&id), ["kept"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_that_is_missing_in_the_store_comes_there_again_with_the_host() {
    is_noticed(|part, _| std::fs::remove_file(part).expect("a part")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_that_is_changed_in_the_store_comes_there_again_with_the_host() {
    is_noticed(|part, kept| {
        let mut changed = kept.to_vec();
        changed[7] ^= 1;
        std::fs::write(part, changed).expect("a part");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_that_is_shorter_in_the_store_comes_there_again_with_the_host() {
    is_noticed(|part, kept| std::fs::write(part, &kept[1..]).expect("a part")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_search_of_the_store_notices_what_is_gone_while_its_host_has_it() {
    let platform = Platform::start_with(with_backups).await;
    let id = platform.admin.create_sandbox(json!({"template_id": "base"})).await;
    platform.admin.sandbox_reaches(&id, "Ready").await;
    pause(&platform.admin, &id).await;
    copied(&platform.admin, &format!("/sandboxes/{id}")).await;
    let before = stored(&platform);
    for name in &before {
        std::fs::remove_dir_all(place(&platform).join(name)).expect("a folder");
    }
    let platform = platform.crash_for(60).await;
    platform.admin.until("all of it", async |_| stored(&platform) == before && whole(&platform).await == 1).await;
    copied(&platform.admin, &format!("/sandboxes/{id}")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_starts_on_another_machine_gets_back_what_the_store_has() {
    let mut platform = Platform::start_with(with_backups).await;
    let admin = &platform.admin;
    let [id, other] = [
        admin.create_sandbox(json!({"template_id": "base"})).await,
        admin.create_sandbox(json!({"template_id": "base"})).await,
    ];
    for (id, written) in [(&id, "kept"), (&other, "of the snapshot")] {
        admin.sandbox_reaches(id, "Ready").await;
        platform.sandboxes.write(id, written);
    }
    let taken = snapshot(admin, &other, true).await;
    pause(admin, &id).await;
    copied(admin, &format!("/sandboxes/{id}")).await;
    deleted(admin, &other).await;
    // The database is all that there is of the former machine.
    platform.sandboxes = Arc::default();
    platform.sandboxes.refuse("expect_memory", EngineError::NoCapacity("its disk is full".into()));
    let platform = platform.crash_and_restart().await;
    let admin = &platform.admin;
    assert_eq!(admin.act(&format!("/sandboxes/{id}/resume")).await.status, 202);
    let waits = async |admin: Caller| {
        let message = admin.get(&format!("/sandboxes/{id}")).await.body["message"].to_string();
        message.contains("comes back to its host")
    };
    admin.until("it waits", waits).await;
    // Longer than a resumption may take.
    platform.advance(600);
    platform.sandboxes.allow("expect_memory");
    let resumed = admin.sandbox_reaches(&id, "Ready").await;
    assert_eq!(resumed["message"], Value::Null);
    let made = admin.create_sandbox(json!({"snapshot_id": taken})).await;
    admin.sandbox_reaches(&made, "Ready").await;
    for (id, written) in [(&id, "kept"), (&made, "of the snapshot")] {
        assert_eq!((platform.sandboxes.read(id), is_from_memory(&platform, id)), (vec![written.to_owned()], true));
    }
    assert_eq!(platform.sandboxes.violations(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_away_is_waited_for_and_nothing_is_written_into_its_place() {
    let platform = Platform::start_with(with_backups).await;
    let admin = &platform.admin;
    let ids = [
        admin.create_sandbox(json!({"template_id": "base"})).await,
        admin.create_sandbox(json!({"template_id": "base"})).await,
    ];
    for id in &ids {
        admin.sandbox_reaches(id, "Ready").await;
    }
    let [path, other] = ids.clone().map(|id| format!("/sandboxes/{id}"));
    let taken = format!("/snapshots/{}", snapshot(admin, &ids[0], true).await);
    // Its memory does not come before the store is away.
    platform.sandboxes.refuse("memory_file", EngineError::Transient("not now".into()));
    pause(admin, &ids[0]).await;
    let (folder, away) = (platform.config.backups.folder.clone(), platform.config.data_dir.join("away"));
    // As a share is away that is not mounted.
    std::fs::rename(&folder, &away).expect("a move");
    platform.sandboxes.allow("memory_file");
    platform.advance(120);
    assert_eq!(admin.delete(&taken).await.status, 202);
    admin.until("its end", async |admin| admin.get(&taken).await.status == 404).await;
    // What was tried of it is tried again later.
    let now = platform.app().clock.now();
    let waits = async || {
        let waiting = "SELECT COUNT(*) FROM sandbox_memories WHERE state = 'removing' AND work_at > $1";
        sql(waiting).bind(now).fetch_one::<i64>(&platform.app().db).await.expect("a count") == 1
    };
    admin.until("its memory waits", async |_| waits().await).await;
    // By now that is known.
    let refused = admin.post(&format!("{other}/pause"), json!({"durable": true})).await;
    refused.refused(409, "not_supported");
    assert_eq!(admin.get(&path).await.body["copied_at"], Value::Null);
    let is_empty = std::fs::read_dir(&folder).map_or(true, |mut entries| entries.next().is_none());
    assert!(is_empty, "nothing is written where it is not");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::rename(&away, &folder).expect("a move");
    platform.advance(120);
    copied(admin, &path).await;
    // The snapshot's memory went, and its sandbox's came.
    platform.advance(60);
    admin.until("one memory", async |_| memories(&platform).len() == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_store_gets_all_of_it_anew() {
    let mut platform = Platform::start_with(with_backups).await;
    let id = platform.admin.create_sandbox(json!({"template_id": "base"})).await;
    platform.admin.sandbox_reaches(&id, "Ready").await;
    let path = format!("/sandboxes/{id}");
    pause(&platform.admin, &id).await;
    copied(&platform.admin, &path).await;
    let before = stored(&platform);
    platform.config.backups.folder = platform.config.data_dir.join("others");
    let platform = platform.crash_and_restart().await;
    platform.admin.until("all of it", async |_| stored(&platform) == before).await;
    copied(&platform.admin, &path).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_row_names_goes_from_the_store_after_its_days() {
    let platform = Platform::start_with(with_backups).await;
    let admin = &platform.admin;
    let id = admin.create_sandbox(json!({"template_id": "base"})).await;
    admin.sandbox_reaches(&id, "Ready").await;
    let taken = snapshot(admin, &id, false).await;
    let before = stored(&platform);
    // As an older copy of the database does not know it.
    let stray = place(&platform).join(format!("layer-{}", Uuid::now_v7()));
    std::fs::create_dir(&stray).expect("a folder");
    std::fs::write(stray.join("000001"), "part").expect("a part");
    let noted = place(&platform).join("unnamed.json");
    let platform = platform.crash_for(1).await;
    platform.admin.until("it is noted", async |_| noted.exists()).await;
    let days = platform.config.lost.days;
    let platform = platform.crash_for(86_400 * days + 1).await;
    platform.admin.until("it is gone", async |_| !stray.exists()).await;
    assert_eq!(stored(&platform), before);
    assert_eq!(platform.admin.get(&format!("/snapshots/{taken}")).await.status, 200);
}
