//! Disks that are made of files which are sent, over a simulated engine.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use berth_domain::vm::brought_disk::{LONGEST, ROOM_PAUSE};
use berth_host::EngineError;
use berth_testkit::{Answer, Caller, Platform};
use futures::stream;
use reqwest::Method;
use reqwest::header::HeaderValue;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::backup::{gone, settled};
use crate::slow::Slow;

const MOST: usize = 1 << 20;
const PATH: &str = "/disks/import?name=data&size_gb=10&region_id=local";

/// A platform that takes files of one MiB.
async fn platform() -> Platform {
    Platform::start_with(|config| {
        config.vm.import_mb = 1;
        config.identity.access_token_seconds = 2_000_000;
    })
    .await
}

async fn send(caller: &Caller, path: &str, headers: &[(&str, &str)], body: impl Into<reqwest::Body>) -> Answer {
    let request = caller.request(Method::POST, path).body(body);
    caller.send(headers.iter().fold(request, |request, (name, value)| request.header(*name, *value))).await
}

fn digest(content: &[u8]) -> String {
    format!("sha-256=:{}:", STANDARD.encode(Sha256::digest(content)))
}

/// Asserts that nothing is left of what was sent, and that nobody pays for it.
async fn nothing_stays(platform: &Platform) {
    assert_eq!(platform.engine.staged(), Vec::<String>::new());
    assert_eq!(platform.admin.get("/disks").await.body["pagination"]["total_items"], 0);
    assert_eq!(platform.admin.get("/quota").await.body["disk_gb"]["used"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_has_what_was_sent() {
    let platform = platform().await;
    let caller = &platform.admin;
    let content = b"a disk".repeat(MOST / 6);
    let path = format!("{PATH}&type=filesystem");
    let answer = send(caller, &path, &[("Content-Digest", &digest(&content))], content.clone()).await;
    assert_eq!((answer.status, &answer.body["status"]), (201, &json!("pending")), "{answer:?}");
    let id = answer.id();
    assert!(answer.header("location").is_some_and(|at| at.ends_with(&format!("/disks/{id}"))), "{answer:?}");
    let disk = settled(caller, &format!("/disks/{id}"), "ready").await;
    for (field, value) in [
        ("name", json!("data")),
        ("type", json!("filesystem")),
        ("size_gb", json!(10)),
        ("region_id", json!("local")),
        ("snapshot_id", Value::Null),
        ("backup_id", Value::Null),
        ("message", Value::Null),
    ] {
        assert_eq!(disk[field], value, "{field}");
    }
    assert_eq!(platform.engine.brought(&id), Some((content.clone(), None)));
    caller.until("an empty folder", |_| async { platform.engine.staged().is_empty() }).await;
    let log = caller.get(&format!("{}/audit_log?action=disk.import", caller.org())).await.body;
    let sha256: String = Sha256::digest(&content).iter().map(|byte| format!("{byte:02x}")).collect();
    let record = &log["data"][0];
    assert_eq!((&record["subject"], &record["data"]["bytes"]), (&json!(id), &json!(content.len())), "{log}");
    assert_eq!(record["data"]["sha256"], sha256, "{log}");
    // It is a disk as any other from then on.
    assert_eq!(caller.post(&format!("/disks/{id}/resize"), json!({"size_gb": 11})).await.status, 202);
    caller.until("its growth", async |c: Caller| c.get(&format!("/disks/{id}")).await.body["change"].is_null()).await;
    assert_eq!(caller.delete(&format!("/disks/{id}")).await.status, 204);
    gone(caller, &format!("/disks/{id}")).await;
    nothing_stays(&platform).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_refused_and_nothing_stays() {
    let platform = platform().await;
    let caller = &platform.admin;
    let answer =
        send(caller, "/disks/import?size_gb=9&type=raw&nmae=x", &[("Content-Digest", "md5=:AA==:")], "x").await;
    answer.refused(400, "invalid_request");
    for field in ["name", "size_gb", "region_id", "type", "Content-Digest", "nmae"] {
        assert!(answer.names(field), "{field}: {answer:?}");
    }
    let nowhere = "/disks/import?name=data&size_gb=10&region_id=nowhere";
    send(caller, nowhere, &[], "x").await.refused(404, "region_not_found");
    let other = send(caller, PATH, &[("Content-Digest", &digest(b"another"))], "x").await;
    other.refused(400, "invalid_request");
    assert!(other.names("Content-Digest"), "{other:?}");
    send(caller, PATH, &[], "").await.refused(400, "invalid_request");
    nothing_stays(&platform).await;
    caller.get("/disks/import").await.refused(405, "method_not_allowed");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_line_of_digests_is_overlooked() {
    let platform = platform().await;
    let caller = &platform.admin;
    let (right, wrong) = (digest(b"x"), digest(b"y"));
    let send = async |lines: &[&[u8]]| {
        let request = caller.request(Method::POST, PATH).body("x");
        let value = |line: &[u8]| HeaderValue::from_bytes(line).expect("a value");
        caller.send(lines.iter().fold(request, |request, line| request.header("Content-Digest", value(line)))).await
    };
    let malformed = b"sha-256=:\xe9:".as_slice();
    for second in [wrong.as_bytes(), malformed, b"md5=:\xe9:"] {
        let answer = send(&[right.as_bytes(), second]).await;
        answer.refused(400, "invalid_request");
        assert!(answer.names("Content-Digest"), "{answer:?}");
    }
    send(&[malformed]).await.refused(400, "invalid_request");
    assert_eq!(send(&[b"md5=:AA==:", right.as_bytes()]).await.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_kind_of_a_body_is_judged_before_its_length_and_that_before_what_is_asked() {
    let platform = platform().await;
    let caller = &platform.admin;
    let json = [("Content-Type", "application/json")];
    send(caller, "/disks/import", &json, vec![0; MOST + 1]).await.refused(415, "unsupported_media_type");
    let octets = [("Content-Type", "application/octet-stream")];
    send(caller, "/disks/import", &octets, vec![0; MOST + 1]).await.refused(413, "payload_too_large");
    send(caller, "/disks/import", &octets, vec![0; MOST]).await.refused(400, "invalid_request");
    assert_eq!(send(caller, PATH, &octets, vec![0; MOST]).await.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_bounded_whether_its_length_is_told_or_not() {
    let platform = platform().await;
    let caller = &platform.admin;
    send(caller, PATH, &[], vec![0; MOST + 1]).await.refused(413, "payload_too_large");
    let pieces = |count: usize| {
        let piece = vec![0_u8; MOST / 4];
        reqwest::Body::wrap_stream(stream::iter((0..count).map(move |_| Ok::<_, std::io::Error>(piece.clone()))))
    };
    send(caller, PATH, &[], pieces(5)).await.refused(413, "payload_too_large");
    nothing_stays(&platform).await;
    for body in [vec![0; MOST].into(), pieces(4)] {
        assert_eq!(send(caller, PATH, &[], body).await.status, 201);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_is_asked_before_the_file_comes_and_again_once_it_is_there() {
    let platform = platform().await;
    let caller = &platform.admin;
    let org = caller.org().rsplit('/').next().expect("an id");
    let limits = format!("/api/v1/admin/orgs/{org}/quota");
    let bound = async |gb: Value| assert_eq!(caller.put(&limits, json!({"disk_gb": gb})).await.status, 200);
    bound(json!(9)).await;
    // The service does not ask for the body, which never comes.
    let request = caller.request(Method::POST, PATH).header("content-length", "1000");
    let never = reqwest::Body::wrap_stream(stream::pending::<std::io::Result<Vec<u8>>>());
    caller.send(request.body(never)).await.refused(403, "quota_exceeded");
    bound(json!(10)).await;
    let mut slow = Slow::begin(caller, "POST", PATH, "").await;
    slow.send("half").await;
    caller.until("the file", |_| async { platform.engine.staged().len() == 1 }).await;
    bound(json!(9)).await;
    slow.end().await.refused(403, "quota_exceeded");
    nothing_stays(&platform).await;
    bound(json!(10)).await;
    assert_eq!(send(caller, PATH, &[], "all of it").await.status, 201);
    send(caller, PATH, &[], "more").await.refused(403, "quota_exceeded");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_without_room_takes_nothing() {
    let platform = platform().await;
    let caller = &platform.admin;
    platform.engine.set_capacity(|capacity| capacity.room_bytes = 100);
    send(caller, PATH, &[], vec![0; 100]).await.refused(507, "no_space");
    nothing_stays(&platform).await;
    assert_eq!(send(caller, PATH, &[], vec![0; 99]).await.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_project_sends_few_at_a_time_and_who_leaves_leaves_nothing() {
    let platform = platform().await;
    let caller = &platform.admin;
    // What was received before is read again, and counts as well.
    let key = [("Idempotency-Key", "k")];
    let first = send(caller, PATH, &key, "all of it").await.id();
    settled(caller, &format!("/disks/{first}"), "ready").await;
    caller.until("an empty folder", |_| async { platform.engine.staged().is_empty() }).await;
    let mut two = Vec::new();
    for _ in 0..2 {
        let mut slow = Slow::begin(caller, "POST", PATH, "").await;
        slow.send("half").await;
        two.push(slow);
    }
    caller.until("two files", |_| async { platform.engine.staged().len() == 2 }).await;
    send(caller, PATH, &key, "all of it").await.refused(429, "too_many");
    let refused = send(caller, PATH, &[], "x").await;
    refused.refused(429, "too_many");
    assert!(refused.header("retry-after").is_some(), "{refused:?}");
    drop(two);
    caller.until("an empty folder", |_| async { platform.engine.staged().is_empty() }).await;
    // A request that was left gives back its place last.
    caller.until("a place", async |caller| send(&caller, PATH, &key, "all of it").await.status != 429).await;
    assert_eq!(send(caller, PATH, &key, "all of it").await.id(), first);
    assert_eq!(send(caller, PATH, &[], "x").await.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_sent_again_is_one_disk() {
    let platform = platform().await;
    let caller = &platform.admin;
    let key = [("Idempotency-Key", "k")];
    let first = send(caller, PATH, &key, "a disk").await;
    let again = send(caller, PATH, &key, "a disk").await;
    assert_eq!((first.status, again.status), (201, 201), "{again:?}");
    assert_eq!((again.header("idempotent-replayed"), &again.body), (Some("true"), &first.body));
    send(caller, PATH, &key, "another").await.refused(422, "idempotency_mismatch");
    send(caller, &PATH.replace("10", "11"), &key, "a disk").await.refused(422, "idempotency_mismatch");
    assert_eq!(caller.get("/disks").await.body["pagination"]["total_items"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_disk_fails_with_the_reason() {
    let platform = platform().await;
    let caller = &platform.admin;
    platform.engine.refuse("bring_disk", EngineError::Permanent("the image builds on another file".into()));
    let path = format!("/disks/{}", send(caller, PATH, &[], "no disk").await.id());
    let failed = settled(caller, &path, "failed").await;
    assert_eq!(failed["message"], "the image builds on another file");
    caller.until("an empty folder", |_| async { platform.engine.staged().is_empty() }).await;
    assert_eq!(caller.delete(&path).await.status, 204);
    gone(caller, &path).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_on_its_way_counts_as_the_disk_that_it_is_to_be() {
    let platform = platform().await;
    let caller = &platform.admin;
    let org = caller.org().rsplit('/').next().expect("an id");
    let limits = format!("/api/v1/admin/orgs/{org}/quota");
    let bound = async |gb: i64| assert_eq!(caller.put(&limits, json!({"disk_gb": gb})).await.status, 200);
    let used = async |c: Caller| c.get("/quota").await.body;
    bound(19).await;
    let mut slow = Slow::begin(caller, "POST", PATH, "").await;
    slow.send("half").await;
    caller.until("the file", |_| async { platform.engine.staged().len() == 1 }).await;
    let held = used(caller.clone()).await;
    assert_eq!((&held["disk_gb"]["used"], &held["disks"]["used"]), (&json!(10), &json!(1)));
    assert_eq!(caller.get("/disks").await.body["pagination"]["total_items"], 0, "it is no disk yet");
    send(caller, PATH, &[], "more").await.refused(403, "quota_exceeded");
    let body = json!({"name": "other", "type": "block", "size_gb": 10, "region_id": "local"});
    caller.post("/disks", body.clone()).await.refused(403, "quota_exceeded");
    bound(20).await;
    let other = caller.post("/disks", body).await;
    assert_eq!(other.status, 201, "{other:?}");
    // It does not count twice when it is there.
    assert_eq!(slow.end().await.status, 201);
    assert_eq!(used(caller.clone()).await["disk_gb"]["used"], 20);
    bound(30).await;
    let mut left = Slow::begin(caller, "POST", PATH, "").await;
    left.send("half").await;
    caller.until("its claim", async |c: Caller| used(c).await["disk_gb"]["used"] == 30).await;
    drop(left);
    caller.until("its end", async |c: Caller| used(c).await["disk_gb"]["used"] == 20).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_on_its_way_counts_no_more_after_a_death() {
    let platform = platform().await;
    let mut slow = Slow::begin(&platform.admin, "POST", PATH, "").await;
    slow.send("half").await;
    let used = async |c: Caller| c.get("/quota").await.body["disk_gb"]["used"].clone();
    platform.admin.until("its claim", async |c: Caller| used(c).await == 10).await;
    let platform = platform.crash_and_restart().await;
    assert_eq!(used(platform.admin.clone()).await, 0);
    nothing_stays(&platform).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_waits_for_room_on_the_host_and_says_so() {
    let platform = platform().await;
    let caller = &platform.admin;
    platform.engine.refuse("bring_disk", EngineError::NoCapacity("the host's disk is full".into()));
    let path = format!("/disks/{}", send(caller, PATH, &[], "a disk").await.id());
    let waits = async |c: Caller| {
        let message = c.get(&path).await.body["message"].clone();
        message.as_str().is_some_and(|text| text.starts_with("waiting for room on the host: the host's disk is full"))
    };
    caller.until("its wait", waits).await;
    assert_eq!(caller.get(&path).await.body["status"], "provisioning");
    platform.engine.allow("bring_disk");
    platform.advance(ROOM_PAUSE);
    settled(caller, &path, "ready").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_for_which_room_never_comes_fails_and_says_so() {
    let platform = platform().await;
    let caller = &platform.admin;
    platform.engine.refuse("bring_disk", EngineError::NoCapacity("the host's disk is full".into()));
    let path = format!("/disks/{}", send(caller, PATH, &[], "a disk").await.id());
    let waits = async |c: Caller| {
        let message = c.get(&path).await.body["message"].clone();
        message.as_str().is_some_and(|text| text.starts_with("waiting for room on the host: "))
    };
    caller.until("its wait", waits).await;
    platform.advance(LONGEST);
    let failed = settled(caller, &path, "failed").await;
    let says = |words: &str| failed["message"].as_str().is_some_and(|text| text.contains(words));
    assert!(says("the host had no room for the disk") && says("longer than 20 hours"), "{failed}");
    caller.until("an empty folder", |_| async { platform.engine.staged().is_empty() }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_whose_file_is_gone_fails() {
    let platform = platform().await;
    let caller = &platform.admin;
    platform.engine.refuse("bring_disk", EngineError::Transient("not now".into()));
    let id = send(caller, PATH, &[], "a disk").await.id();
    let path = format!("/disks/{id}");
    settled(caller, &path, "provisioning").await;
    let staging = berth_host::vm::Engine::staging(&*platform.engine).await.expect("a folder");
    std::fs::remove_file(staging.join(format!("{id}.imported"))).expect("a file");
    // A try that began before says when the next one comes.
    let has_failed = async |c: Caller| {
        platform.advance(1);
        c.get(&path).await.body["status"] == "failed"
    };
    caller.until("its failure", has_failed).await;
    let failed = caller.get(&path).await.body;
    assert_eq!(failed["message"], "the file is gone; delete this disk, and send the file again");
    assert_eq!(caller.delete(&path).await.status, 204);
    gone(caller, &path).await;
    nothing_stays(&platform).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_is_made_within_twenty_hours_or_fails() {
    for (seconds, status) in [(LONGEST - 600, "ready"), (LONGEST, "failed")] {
        let platform = platform().await;
        let caller = &platform.admin;
        platform.engine.hold("bring_disk");
        let path = format!("/disks/{}", send(caller, PATH, &[], "a disk").await.id());
        caller.until("the host's work", |_| async { platform.engine.waiting() > 0 }).await;
        platform.advance(seconds);
        if status == "ready" {
            platform.engine.let_go();
        }
        let ended = settled(caller, &path, status).await;
        let is_late = ended["message"].as_str().is_some_and(|text| text.contains("longer than 20 hours"));
        assert_eq!(is_late, status == "failed", "{ended}");
        caller.until("an empty folder", |_| async { platform.engine.staged().is_empty() }).await;
        platform.engine.let_go();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_organization_leaves_a_turn_to_whoever_comes_next() {
    let platform = platform().await;
    let caller = &platform.admin;
    let other = platform.sign_up("ada@example.com").await;
    let sent = async |caller: &Caller| format!("/disks/{}", send(caller, PATH, &[], "a disk").await.id());
    platform.engine.hold("bring_disk");
    let first = sent(caller).await;
    caller.until("the host's work", |_| async { platform.engine.waiting() == 1 }).await;
    let second = sent(caller).await;
    let waits = async |caller: &Caller| {
        let disk = caller.get(&second).await.body;
        (&disk["status"], &disk["message"]) == (&json!("provisioning"), &json!("waiting for its turn to be made"))
    };
    caller.until("its wait", async |c: Caller| waits(&c).await).await;
    // It came later, and does not wait.
    let theirs = sent(&other).await;
    caller.until("the host's work for both", |_| async { platform.engine.waiting() == 2 }).await;
    assert_eq!(other.get(&theirs).await.body["message"], "checking and converting");
    assert!(waits(caller).await, "{:?}", caller.get(&second).await);
    platform.engine.let_go();
    settled(caller, &first, "ready").await;
    settled(&other, &theirs, "ready").await;
    // It asks again in a while.
    platform.advance(5);
    settled(caller, &second, "ready").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_is_deleted_is_not_waited_for() {
    let platform = platform().await;
    let caller = &platform.admin;
    platform.engine.hold("bring_disk");
    let path = format!("/disks/{}", send(caller, PATH, &[], "a disk").await.id());
    settled(caller, &path, "provisioning").await;
    caller.until("the host's work", |_| async { platform.engine.waiting() > 0 }).await;
    assert_eq!(caller.delete(&path).await.status, 204);
    gone(caller, &path).await;
    nothing_stays(&platform).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_received_outlives_the_service() {
    let platform = platform().await;
    platform.engine.refuse("bring_disk", EngineError::Transient("not now".into()));
    let path = format!("/disks/{}", send(&platform.admin, PATH, &[], "a disk").await.id());
    settled(&platform.admin, &path, "provisioning").await;
    let staging = berth_host::vm::Engine::staging(&*platform.engine).await.expect("a folder");
    std::fs::write(staging.join("01900000-0000-7000-8000-000000000000.imported"), "nobody's").expect("a file");
    let platform = platform.restart().await;
    assert_eq!(platform.engine.staged().len(), 1, "what a row names is kept, and nothing else");
    platform.engine.allow("bring_disk");
    platform.advance(10);
    settled(&platform.admin, &path, "ready").await;
    platform.admin.until("an empty folder", |_| async { platform.engine.staged().is_empty() }).await;
}
