//! Schedules of backups, by the service's clock.

use berth_domain::Timestamp;
use berth_host::EngineError;
use berth_server::db::sql;
use berth_testkit::{Caller, Platform};
use futures::StreamExt;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::backup::{disk, gone, platform, settled};
use crate::event::client;

/// Seconds of the shortest span.
const SPAN: i64 = 900;

async fn scheduled(caller: &Caller, body: Value) -> String {
    let answer = caller.post("/backup_schedules", body).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    answer.id()
}

/// The backups of a schedule that have a status, newest first.
async fn made(caller: &Caller, schedule: &str, status: &str) -> Vec<Value> {
    let list = caller.get(&format!("/backups?schedule_id={schedule}&status={status}")).await.body;
    list["data"].as_array().expect("a list").clone()
}

/// All that a schedule made, whatever became of it.
async fn all(caller: &Caller, schedule: &str) -> Vec<Value> {
    let list = caller.get(&format!("/backups?schedule_id={schedule}")).await.body;
    list["data"].as_array().expect("a list").clone()
}

/// Another schedule, of a disk of its own: once it made a backup, the worker has looked at what was due then.
async fn marker(caller: &Caller) -> String {
    let data = disk(caller, 10).await;
    scheduled(caller, json!({"name": "marker", "disk_id": data, "every": "15m", "keep": 9})).await
}

/// Waits until a schedule has made so many that have a status; their ids, newest first.
async fn has(caller: &Caller, schedule: &str, status: &str, count: usize) -> Vec<String> {
    let what = format!("{count} {status}");
    caller.until(&what, async |caller: Caller| made(&caller, schedule, status).await.len() == count).await;
    made(caller, schedule, status).await.iter().map(|one| one["id"].as_str().expect("an id").to_owned()).collect()
}

async fn times(caller: &Caller, path: &str) -> (Value, Value) {
    let schedule = caller.get(path).await.body;
    (schedule["last_at"].clone(), schedule["next_at"].clone())
}

fn seconds(time: &Value) -> i64 {
    Timestamp::parse(time.as_str().expect("a time")).expect("a time").seconds()
}

/// Waits until it was time for a schedule once more.
async fn passed(caller: &Caller, path: &str, before: &Value) {
    let is_over = async |caller: Caller| times(&caller, path).await.0 != *before;
    caller.until("its time", is_over).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn as_many_good_ones_are_kept_as_are_wanted() {
    let platform = platform().await;
    let caller = &platform.admin;
    let data = disk(caller, 10).await;
    let early = marker(caller).await;
    platform.advance(120);
    let body = json!({"name": "nightly", "disk_id": data, "every": "15m", "keep": 2});
    let answer = caller.post("/backup_schedules", body).await;
    let (id, path) = (answer.id(), format!("/backup_schedules/{}", answer.id()));
    assert!(answer.header("location").is_some_and(|location| location.ends_with(&path)), "{answer:?}");
    assert_eq!(seconds(&answer.body["next_at"]) - seconds(&answer.body["created_at"]), SPAN);
    let by_hand = caller.post("/backups", json!({"disk_id": data})).await.id();
    platform.advance(SPAN - 60);
    has(caller, &early, "ready", 1).await;
    assert_eq!(all(caller, &id).await, Vec::<Value>::new());
    assert_eq!(caller.delete(&format!("/backup_schedules/{early}")).await.status, 204);
    platform.advance(61);
    let first = has(caller, &id, "ready", 1).await;
    let backup = caller.get(&format!("/backups/{}", first[0])).await.body;
    assert_eq!((&backup["name"], &backup["schedule_id"]), (&json!("nightly"), &json!(id)));
    let log = caller.get(&format!("{}/audit_log?action=backup.create&subject={}", caller.org(), first[0])).await.body;
    assert_eq!(log["data"][0]["actor_kind"], "platform", "{log}");
    platform.advance(SPAN);
    let second = has(caller, &id, "ready", 2).await;
    // One that fails pushes no good one out.
    platform.engine.refuse("export", EngineError::Permanent("it is broken".into()));
    for failed in 1..=2 {
        platform.advance(SPAN);
        has(caller, &id, "failed", failed).await;
    }
    assert_eq!(has(caller, &id, "ready", 2).await, second);
    platform.engine.allow("export");
    platform.advance(SPAN);
    gone(caller, &format!("/backups/{}", first[0])).await;
    let left = has(caller, &id, "ready", 2).await;
    assert_eq!(left[1], second[0], "the oldest went");
    assert_eq!(has(caller, &id, "failed", 2).await.len(), 2);
    assert_eq!(caller.patch(&path, json!({"keep": 1})).await.status, 200);
    gone(caller, &format!("/backups/{}", left[1])).await;
    assert_eq!(has(caller, &id, "ready", 1).await, left[..1]);
    // What nobody's schedule made stays, and what a schedule made outlives it.
    settled(caller, &format!("/backups/{by_hand}"), "ready").await;
    assert_eq!(caller.delete(&path).await.status, 204);
    caller.get(&path).await.refused(404, "backup_schedule_not_found");
    caller.until("its pruning", async |caller: Caller| all(&caller, &id).await.len() == 2).await;
    let (late, before) = (marker(caller).await, all(caller, &id).await);
    platform.advance(10 * SPAN);
    has(caller, &late, "ready", 1).await;
    assert_eq!(all(caller, &id).await, before);
    assert_eq!(has(caller, &id, "ready", 1).await, left[..1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_missed_is_made_up_for_once() {
    let platform = platform().await;
    let data = disk(&platform.admin, 10).await;
    let id = scheduled(&platform.admin, json!({"name": "often", "disk_id": data, "every": "15m", "keep": 9})).await;
    let path = format!("/backup_schedules/{id}");
    let created = caller_time(&platform, &path).await;
    let platform = platform.crash_for(100 * SPAN + 60).await;
    let caller = &platform.admin;
    has(caller, &id, "ready", 1).await;
    let (last, next) = times(caller, &path).await;
    assert_eq!(seconds(&last) - created, SPAN, "the first that was missed");
    assert_eq!(seconds(&next) - created, 101 * SPAN, "the next lies ahead, and where it always did");
    platform.advance(SPAN);
    has(caller, &id, "ready", 2).await;
}

async fn caller_time(platform: &Platform, path: &str) -> i64 {
    seconds(&platform.admin.get(path).await.body["created_at"])
}

#[tokio::test(flavor = "multi_thread")]
async fn one_is_left_out_while_the_one_before_is_under_way() {
    let platform = platform().await;
    let caller = &platform.admin;
    let data = disk(caller, 10).await;
    let id = scheduled(caller, json!({"name": "often", "disk_id": data, "every": "15m", "keep": 9})).await;
    let path = format!("/backup_schedules/{id}");
    platform.engine.hold("export");
    platform.advance(SPAN + 1);
    has(caller, &id, "running", 1).await;
    let (last, _) = times(caller, &path).await;
    platform.advance(SPAN);
    passed(caller, &path, &last).await;
    let schedule = caller.get(&path).await.body;
    assert!(schedule["message"].as_str().is_some_and(|text| text.contains("under way")), "{schedule}");
    let record = audited(caller, &id).await;
    assert_eq!((&record["actor_kind"], &record["data"]["disk_id"]), (&json!("platform"), &json!(data)), "{record}");
    assert_eq!((&record["data"]["message"], &record["created_at"]), (&schedule["message"], &schedule["updated_at"]));
    platform.engine.let_go();
    has(caller, &id, "ready", 1).await;
    platform.advance(SPAN);
    has(caller, &id, "ready", 2).await;
    assert_eq!(caller.get(&path).await.body["message"], Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_rests_and_goes_on_from_now() {
    let platform = platform().await;
    let caller = &platform.admin;
    let data = disk(caller, 10).await;
    let body = json!({"name": "off", "disk_id": data, "every": "15m", "keep": 9, "enabled": false});
    let id = scheduled(caller, body).await;
    let path = format!("/backup_schedules/{id}");
    assert_eq!(times(caller, &path).await, (Value::Null, Value::Null));
    platform.advance(10 * SPAN);
    let on = caller.patch(&path, json!({"enabled": true, "name": "on"})).await.body;
    assert_eq!((&on["name"], seconds(&on["next_at"]) - seconds(&on["updated_at"])), (&json!("on"), SPAN));
    let hourly = caller.patch(&path, json!({"every": "1h"})).await.body;
    assert_eq!(seconds(&hourly["next_at"]) - seconds(&hourly["updated_at"]), 3600);
    let nightly = caller.patch(&path, json!({"every": "30 2 * * *"})).await.body;
    assert!(nightly["next_at"].as_str().is_some_and(|at| at.contains("T02:30:00")), "{nightly}");
    assert_eq!(caller.patch(&path, json!({"keep": 3})).await.body["next_at"], nightly["next_at"]);
    platform.advance(86_400);
    has(caller, &id, "ready", 1).await;
    assert_eq!(caller.patch(&path, json!({"enabled": false})).await.body["next_at"], Value::Null);
    let late = marker(caller).await;
    platform.advance(3 * 86_400);
    has(caller, &late, "ready", 1).await;
    assert_eq!(all(caller, &id).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_is_kept_with_the_disks_that_it_has_then() {
    let platform = platform().await;
    let caller = &platform.admin;
    let vm = caller.running_vm("web").await;
    let id = scheduled(caller, json!({"name": "web", "vm_id": vm, "every": "15m", "keep": 1})).await;
    let path = format!("/backup_schedules/{id}");
    assert_eq!(caller.get(&path).await.body["vm_id"], vm.as_str());
    platform.advance(SPAN + 1);
    has(caller, &id, "ready", 1).await;
    let data = disk(caller, 10).await;
    assert_eq!(caller.post(&format!("/disks/{data}/attach"), json!({"vm_id": vm})).await.status, 202);
    caller
        .until("the disk", async |c: Caller| c.get(&format!("/disks/{data}")).await.body["change"] == Value::Null)
        .await;
    platform.advance(SPAN);
    caller
        .until("one of each disk", async |caller: Caller| {
            let all = made(&caller, &id, "ready").await;
            all.len() == 2 && all.iter().any(|backup| backup["kind"] == "data")
        })
        .await;
    caller.delete(&format!("/vms/{vm}")).await;
    caller.gone(&vm).await;
    platform.advance(SPAN);
    caller.until("its end", async |c: Caller| c.get(&path).await.body["enabled"] == false).await;
    let schedule = caller.get(&path).await.body;
    assert!(schedule["message"].as_str().is_some_and(|text| text.contains("is gone")), "{schedule}");
    assert_eq!(schedule["next_at"], Value::Null);
    assert_eq!(has(caller, &id, "ready", 2).await.len(), 2);
    let told = updated(caller, &id).await;
    assert_eq!((&told["enabled"], &told["vm_id"]), (&json!(false), &json!(vm)), "{told}");
    let record = audited(caller, &id).await;
    assert_eq!((&record["actor_kind"], &record["data"]["enabled"]), (&json!("platform"), &json!(false)), "{record}");
    assert_eq!(schedule["updated_at"], record["created_at"]);
}

/// What the first event of a change of a schedule says of it.
async fn updated(caller: &Caller, id: &str) -> Value {
    let mut events = std::pin::pin!(client(caller).events(Some(0)).await.expect("a stream"));
    loop {
        let event = events.next().await.expect("more").expect("an event");
        if (event.kind.as_str(), event.subject.as_str()) == ("backup_schedule.updated", id) {
            return event.data;
        }
    }
}

/// The newest audit record of a change of a schedule.
async fn audited(caller: &Caller, id: &str) -> Value {
    let path = format!("{}/audit_log?action=backup_schedule.update&subject={id}", caller.org());
    caller.get(&path).await.body["data"][0].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_stays_within_the_quota() {
    let platform = platform().await;
    let caller = &platform.admin;
    let data = disk(caller, 10).await;
    let id = scheduled(caller, json!({"name": "often", "disk_id": data, "every": "15m", "keep": 9})).await;
    let path = format!("/backup_schedules/{id}");
    let org = caller.org().replace("/api/v1/", "/api/v1/admin/");
    assert_eq!(caller.put(&format!("{org}/quota"), json!({"disks": 2})).await.status, 200);
    platform.advance(SPAN + 1);
    has(caller, &id, "ready", 1).await;
    let (last, _) = times(caller, &path).await;
    platform.advance(SPAN);
    passed(caller, &path, &last).await;
    let schedule = caller.get(&path).await.body;
    assert!(schedule["message"].as_str().is_some_and(|text| text.contains("may have 2 disks")), "{schedule}");
    assert_eq!(has(caller, &id, "ready", 1).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_schedule_is_refused() {
    let platform = platform().await;
    let caller = &platform.admin;
    let data = disk(caller, 10).await;
    let good = json!({"name": "nightly", "disk_id": data, "every": "24h", "keep": 7});
    for (field, value) in [
        ("name", json!("Big")),
        ("every", json!("14m")),
        ("every", json!("* * * * *")),
        ("every", json!("0 0 30 2 *")),
        ("keep", json!(0)),
        ("keep", json!(1001)),
        ("enabled", json!(1)),
        ("disk_id", json!("x")),
        ("vm_id", json!(Uuid::now_v7())),
        ("evry", json!("24h")),
    ] {
        let mut body = good.clone();
        body[field] = value;
        let answer = caller.post("/backup_schedules", body).await;
        answer.refused(400, "invalid_request");
        let named = if field == "vm_id" { "disk_id" } else { field };
        assert!(answer.names(named), "{answer:?}");
    }
    let unknown = json!({"name": "nightly", "disk_id": Uuid::now_v7(), "every": "24h", "keep": 7});
    caller.post("/backup_schedules", unknown).await.refused(400, "disk_not_found");
    let vm = caller.running_vm("web").await;
    let root = caller.get(&format!("/vms/{vm}")).await.body["root_disk"]["id"].clone();
    for (field, id) in [("disk_id", root), ("root_disk_id", json!(data))] {
        let answer =
            caller.post("/backup_schedules", json!({"name": "other", field: id, "every": "24h", "keep": 7})).await;
        answer.refused(400, "invalid_request");
        let same = caller.post("/backups", json!({field: id})).await;
        assert_eq!((&answer.body["code"], &answer.body["details"]), (&same.body["code"], &same.body["details"]));
    }
    let unknown = json!({"name": "nightly", "vm_id": Uuid::now_v7(), "every": "24h", "keep": 7});
    caller.post("/backup_schedules", unknown).await.refused(404, "vm_not_found");
    let id = scheduled(caller, good.clone()).await;
    let path = format!("/backup_schedules/{id}");
    caller.patch(&path, json!({"every": "soon"})).await.refused(400, "invalid_request");
    caller.patch(&path, json!({"disk_id": data})).await.refused(400, "invalid_request");
    let elsewhere = caller.another_project("other").await;
    elsewhere.get(&path).await.refused(404, "backup_schedule_not_found");
    elsewhere.patch(&path, json!({"keep": 1})).await.refused(404, "backup_schedule_not_found");
    elsewhere.delete(&path).await.refused(404, "backup_schedule_not_found");
    elsewhere.post("/backup_schedules", good.clone()).await.refused(400, "disk_not_found");
    for _ in 1..100 {
        scheduled(caller, good.clone()).await;
    }
    caller.post("/backup_schedules", good).await.refused(409, "conflict");
    assert_eq!(caller.delete(&path).await.status, 204);
    caller.delete(&path).await.refused(404, "backup_schedule_not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_suspended_organization_has_stands_still() {
    let platform = platform().await;
    let ada = platform.sign_up("ada@example.com").await;
    let data = disk(&ada, 10).await;
    let id = scheduled(&ada, json!({"name": "often", "disk_id": data, "every": "15m", "keep": 1})).await;
    let org = ada.org().replace("/api/v1/", "/api/v1/admin/");
    let act = async |verb: &str| assert_eq!(platform.admin.act(&format!("{org}/{verb}")).await.status, 200, "{verb}");
    let count = async |text: &'static str| -> i64 {
        sql(text).bind(id.as_str()).fetch_one(&platform.app().db).await.expect("a count")
    };
    let figures = async || {
        let metrics = reqwest::get(format!("{}/metrics", platform.admin.base)).await.expect("an answer");
        metrics.text().await.expect("a body")
    };
    let last = format!("berth_backup_schedule_last_made_seconds{{schedule=\"{id}\"}} ");
    let found = figures().await;
    assert!(found.lines().any(|line| line == format!("{last}0")), "{found}");
    act("suspend").await;
    assert!(!figures().await.contains(&last));
    platform.advance(SPAN + 1);
    let said = "SELECT COUNT(*) FROM backup_schedules WHERE id = $1 AND message LIKE '%suspended%'";
    platform.admin.until("its time", async |_| count(said).await == 1).await;
    assert_eq!(count("SELECT COUNT(*) FROM backups WHERE schedule_id = $1").await, 0);
    act("unsuspend").await;
    platform.advance(SPAN);
    has(&ada, &id, "ready", 1).await;
    // Those who read metrics learn when it was ready.
    let metrics = figures().await;
    assert!(!metrics.contains(&format!("{last}0")), "{metrics}");
    for line in [
        "berth_backups{status=\"ready\"} 1".to_owned(),
        format!("berth_backup_schedule_last_made_seconds{{schedule=\"{id}\"}} "),
        "berth_backup_failures_total 0".to_owned(),
    ] {
        assert!(metrics.lines().any(|found| found.starts_with(&line)), "{line}: {metrics}");
    }
}
