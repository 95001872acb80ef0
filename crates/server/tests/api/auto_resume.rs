//! Sandboxes that are resumed by whoever uses them.

use berth_domain::gateway::Nano;
use berth_host::EngineError;
use berth_server::config::Amount;
use berth_server::db::sql;
use berth_testkit::{Caller, Platform, agent, token_in};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::drain::drain;
use crate::sandbox_fleet::{host, sandbox, two};

const PASSWORD: &str = "a quiet harbour at night";

/// A platform with an agent in every machine, which says back what it is sent.
async fn with_agent() -> (Platform, TempDir) {
    let (platform, folder) = (Platform::start().await, tempfile::tempdir().expect("a folder"));
    platform.sandboxes.set_agent(&agent::play(folder.path()));
    (platform, folder)
}

fn open() -> Value {
    json!({"auto_resume": true})
}

/// A sandbox like this that is paused.
async fn paused(caller: &Caller, body: Value) -> String {
    let id = caller.create_sandbox(body).await;
    caller.sandbox_reaches(&id, "Ready").await;
    pause(caller, &id).await;
    id
}

async fn pause(caller: &Caller, id: &str) {
    assert_eq!(caller.act(&format!("/sandboxes/{id}/pause")).await.status, 202);
    caller.sandbox_reaches(id, "Paused").await;
}

async fn phase(caller: &Caller, id: &str) -> Value {
    caller.get(&format!("/sandboxes/{id}")).await.body["phase"].clone()
}

/// How often somebody resumed it, by the audit log and by what was told of it.
async fn resumed(platform: &Platform, id: &str) -> (i64, i64) {
    let count = async |query: String| sql(query).fetch_one::<i64>(&platform.app().db).await.expect("a number");
    let recorded = format!("SELECT COUNT(*) FROM audit WHERE action = 'sandbox.resume' AND subject = '{id}'");
    let told = format!(
        "SELECT COUNT(*) FROM events WHERE kind = 'sandbox.phase' AND subject = '{id}' \
         AND data LIKE '%waiting for a worker to resume%'"
    );
    (count(recorded).await, count(told).await)
}

async fn run(caller: &Caller, id: &str) {
    let command = json!({"cmd": "true"});
    let answer = caller.post(&format!("/sandbox/{id}/commands"), command.clone()).await;
    assert_eq!((answer.status, &answer.body), (200, &command), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_asked_of_it_resumes_it() {
    let (platform, _folder) = with_agent().await;
    let caller = &platform.admin;
    let id = paused(caller, open()).await;
    run(caller, &id).await;
    assert_eq!((phase(caller, &id).await, resumed(&platform, &id).await), (json!("Ready"), (1, 1)));
    assert!(platform.sandboxes.spec(&id).is_some_and(|(_, from_memory)| from_memory));
    let log = caller.get(&format!("{}/audit_log?action=sandbox.resume", caller.org())).await.body;
    assert_eq!((&log["data"][0]["actor_name"], &log["data"][0]["subject"]), (&json!("admin@example.com"), &json!(id)));
    for (times, path) in [(2, "files/content?path=a"), (3, "files/list"), (4, "processes")] {
        pause(caller, &id).await;
        let answer = caller.get(&format!("/sandbox/{id}/{path}")).await;
        assert_eq!((answer.status, resumed(&platform, &id).await), (200, (times, times)), "{answer:?}");
    }
    pause(caller, &id).await;
    // Nothing listens there, and yet it was asked.
    caller.get(&format!("/sandbox/{id}/ports/8000/")).await;
    assert_eq!((phase(caller, &id).await, resumed(&platform, &id).await), (json!("Ready"), (5, 5)));
    // A key of the project works in it, too.
    pause(caller, &id).await;
    let key = caller.post("/api_keys", json!({"name": "k", "scopes": ["sandbox"]})).await;
    run(&caller.with_token(key.body["key"].as_str().expect("a key")), &id).await;
    assert_eq!(resumed(&platform, &id).await, (6, 6));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_that_wish_it_stays_paused() {
    let (platform, _folder) = with_agent().await;
    let caller = &platform.admin;
    let id = paused(caller, json!({})).await;
    let path = format!("/sandboxes/{id}");
    assert_eq!(caller.get(&path).await.body["auto_resume"], false);
    let commands = format!("/sandbox/{id}/commands");
    let stays = async || {
        let refused = caller.post(&commands, json!({"cmd": "true"})).await;
        refused.refused(409, "sandbox_paused");
        assert!(refused.body["message"].as_str().is_some_and(|text| text.contains("auto_resume")), "{refused:?}");
        assert_eq!(phase(caller, &id).await, "Paused");
    };
    stays().await;
    for wrong in [json!("true"), json!(1)] {
        let refused = caller.patch(&path, json!({"auto_resume": wrong})).await;
        refused.refused(400, "invalid_request");
        assert!(refused.names("auto_resume"));
    }
    let changed = caller.patch(&path, open()).await;
    assert_eq!((changed.status, &changed.body["auto_resume"]), (200, &json!(true)));
    assert_eq!(caller.patch(&path, json!({"metadata": {"a": "b"}})).await.body["auto_resume"], true);
    run(caller, &id).await;
    assert_eq!(caller.patch(&path, json!({"auto_resume": false})).await.body["auto_resume"], false);
    pause(caller, &id).await;
    stays().await;
    assert_eq!(resumed(&platform, &id).await, (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_only_read_resumes_nothing() {
    let (platform, _folder) = with_agent().await;
    let ada = platform.sign_up("ada@example.com").await;
    let email = "bob@example.com";
    let invited = json!({"email": email, "role": "member"});
    assert_eq!(ada.post(&format!("{}/invitations", ada.org()), invited).await.status, 201);
    let token = token_in(&platform.message(email, 1).await);
    let body = json!({"email": email, "password": PASSWORD, "invitation_token": token});
    assert_eq!(ada.anonymous().post("/api/v1/auth/signup", body).await.status, 201);
    assert_eq!(ada.post("/members", json!({"email": email, "role": "viewer"})).await.status, 201);
    let bob = Caller::login(&ada.base, email, PASSWORD).await.in_project(&ada.project);
    let id = paused(&ada, open()).await;
    let list = format!("/sandbox/{id}/files/list");
    let refused = bob.get(&list).await;
    refused.refused(409, "sandbox_paused");
    assert!(refused.body["message"].as_str().is_some_and(|text| text.contains("who may change it")), "{refused:?}");
    bob.post(&format!("/sandbox/{id}/commands"), json!({"cmd": "true"})).await.refused(403, "forbidden");
    assert_eq!((phase(&ada, &id).await, resumed(&platform, &id).await), (json!("Paused"), (0, 0)));
    // Who changes it asks the same, and both get it then.
    assert_eq!(ada.get(&list).await.status, 200);
    assert_eq!(bob.get(&list).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_at_once_resume_it_once() {
    let (platform, _folder) = with_agent().await;
    let caller = &platform.admin;
    let id = paused(caller, open()).await;
    let starts = platform.sandboxes.counts().3;
    // It comes up once all have asked, or some of them.
    platform.sandboxes.refuse("start", EngineError::Transient("slow".into()));
    let all = futures::future::join_all((0..16).map(|_| run(caller, &id)));
    let lets = async {
        caller.sandbox_reaches(&id, "Resuming").await;
        for _ in 0..20 {
            assert_eq!(phase(caller, &id).await, "Resuming");
        }
        platform.sandboxes.allow("start");
    };
    tokio::join!(all, lets);
    assert_eq!((resumed(&platform, &id).await, platform.sandboxes.counts().3), ((1, 1), starts + 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_being_paused_is_paused_and_then_resumed() {
    let (platform, _folder) = with_agent().await;
    let caller = &platform.admin;
    let id = caller.create_sandbox(open()).await;
    caller.sandbox_reaches(&id, "Ready").await;
    platform.sandboxes.refuse("pause", EngineError::Transient("slow".into()));
    assert_eq!(caller.act(&format!("/sandboxes/{id}/pause")).await.status, 202);
    let still = async {
        for _ in 0..20 {
            assert_eq!(phase(caller, &id).await, "Pausing");
        }
    };
    let mut asked = std::pin::pin!(run(caller, &id));
    tokio::select! {
        biased;
        () = &mut asked => panic!("it answered while it was being paused"),
        () = still => {}
    }
    platform.sandboxes.allow("pause");
    asked.await;
    assert_eq!((phase(caller, &id).await, resumed(&platform, &id).await), (json!("Ready"), (1, 1)));
    assert!(platform.sandboxes.spec(&id).is_some_and(|(spec, _)| spec.generation == 2), "it was put away");
}

#[tokio::test(flavor = "multi_thread")]
async fn its_life_time_is_as_whoever_resumes_it_has_it() {
    let (platform, _folder) = with_agent().await;
    let caller = &platform.admin;
    let id = caller.create_sandbox(json!({"auto_resume": true, "timeout_seconds": 100})).await;
    caller.sandbox_reaches(&id, "Ready").await;
    platform.advance(101);
    caller.sandbox_reaches(&id, "Paused").await;
    // Its time is over, and another one begins.
    run(caller, &id).await;
    assert!(caller.get(&format!("/sandboxes/{id}")).await.body["expires_at"].is_string());
    platform.advance(90);
    run(caller, &id).await;
    assert_eq!(resumed(&platform, &id).await, (1, 1));
    platform.advance(11);
    caller.sandbox_reaches(&id, "Paused").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_resume_it_gets_no_further_by_using_it() {
    let (platform, _folder) = with_agent().await;
    let (admin, ada) = (&platform.admin, platform.sign_up("ada@example.com").await);
    let id = paused(&ada, open()).await;
    let commands = format!("/sandbox/{id}/commands");
    let org = ada.get("").await.body["org_id"].as_str().expect("an id").to_owned();
    let path = format!("/api/v1/admin/orgs/{org}");
    assert_eq!(admin.act(&format!("{path}/suspend")).await.status, 200);
    let refused = ada.post(&commands, json!({"cmd": "true"})).await;
    assert_eq!(refused.status, 403, "{refused:?}");
    assert_eq!(refused.body, ada.act(&format!("/sandboxes/{id}/resume")).await.body);
    assert_eq!(admin.act(&format!("{path}/unsuspend")).await.status, 200);
    assert_eq!((phase(&ada, &id).await, resumed(&platform, &id).await), (json!("Paused"), (0, 0)));
    run(&ada, &id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_spent_the_months_money_does_not_resume_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let price = Amount(Nano::of_price(1.0).expect("an amount"));
    let platform = Platform::start_with(|config| config.prices.sandbox_vcpu_hour = price).await;
    platform.sandboxes.set_agent(&agent::play(folder.path()));
    let caller = &platform.admin;
    let id = caller.create_sandbox(open()).await;
    caller.sandbox_reaches(&id, "Ready").await;
    platform.advance(2 * 3600);
    pause(caller, &id).await;
    let quota = format!("/api/v1/admin/projects/{}/quota", caller.project_id());
    assert_eq!(caller.put(&quota, json!({"spend_per_month": 0})).await.status, 200);
    caller.post(&format!("/sandbox/{id}/commands"), json!({"cmd": "true"})).await.refused(403, "quota_exceeded");
    assert_eq!((phase(caller, &id).await, resumed(&platform, &id).await), (json!("Paused"), (0, 0)));
    assert_eq!(caller.put(&quota, json!({"spend_per_month": 1000})).await.status, 200);
    run(caller, &id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_there_is_no_room_it_is_tried_once_and_said_why() {
    let (platform, _folder) = with_agent().await;
    let caller = &platform.admin;
    let id = paused(caller, open()).await;
    platform.sandboxes.set_capacity(|capacity| capacity.memory_mb = 0);
    let refused = caller.post(&format!("/sandbox/{id}/commands"), json!({"cmd": "true"})).await;
    refused.refused(409, "sandbox_paused");
    let message = refused.body["message"].as_str().expect("a message");
    assert!(message.contains("paused again: insufficient_capacity: "), "{message}");
    assert_eq!((phase(caller, &id).await, resumed(&platform, &id).await), (json!("Paused"), (1, 1)));
    platform.sandboxes.set_capacity(|capacity| capacity.memory_mb = 1 << 20);
    run(caller, &id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_goes_to_another_host_is_waited_for_there() {
    let ((platform, beta), folder) = (two().await, tempfile::tempdir().expect("a folder"));
    let admin = &platform.admin;
    platform.sandboxes.set_agent(&agent::play(folder.path()));
    platform.sandboxes.set_capacity(|capacity| capacity.memory_mb = 1 << 40);
    let id = sandbox(admin).await;
    assert_eq!(admin.patch(&format!("/sandboxes/{id}"), open()).await.status, 200);
    beta.sandboxes.refuse("pause", EngineError::Transient("slow".into()));
    drain(admin, &beta, "?restart=true").await;
    admin.sandbox_reaches(&id, "Pausing").await;
    let goes = async {
        assert_eq!(phase(admin, &id).await, "Pausing");
        beta.sandboxes.allow("pause");
    };
    tokio::join!(run(admin, &id), goes);
    assert_eq!(host(admin, &id).await, json!(platform.app().fleet.own().to_string()));
    assert_eq!(resumed(&platform, &id).await, (0, 0), "it went on by itself");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_has_it_of_its_source_and_what_is_made_of_a_snapshot_by_its_own_wish() {
    let (platform, _folder) = with_agent().await;
    let caller = &platform.admin;
    let id = paused(caller, open()).await;
    let snapshot = caller.post(&format!("/sandboxes/{id}/snapshots"), json!({})).await.id();
    let path = format!("/snapshots/{snapshot}");
    caller.until("the snapshot", async |c| c.get(&path).await.body["status"] == "Ready").await;
    let of = async |body: Value| caller.post("/sandboxes", body).await.body["auto_resume"].clone();
    assert_eq!(of(json!({"snapshot_id": snapshot})).await, false);
    assert_eq!(of(json!({"snapshot_id": snapshot, "auto_resume": true})).await, true);
    for (wanted, body) in [(true, json!({})), (true, json!({"snapshot_id": snapshot})), (false, json!({}))] {
        assert_eq!(caller.patch(&format!("/sandboxes/{id}"), json!({"auto_resume": wanted})).await.status, 200);
        let forked = caller.post(&format!("/sandboxes/{id}/fork"), body).await;
        assert_eq!((forked.status, &forked.body["data"][0]["auto_resume"]), (201, &json!(wanted)), "{forked:?}");
    }
    // What goes back to a snapshot stays as its owner wants it.
    let restored = caller.post(&format!("/sandboxes/{id}/restore"), json!({"snapshot_id": snapshot})).await;
    assert_eq!((restored.status, &restored.body["auto_resume"]), (202, &json!(false)));
    let listed = caller.get("/sandboxes").await.body;
    assert!(listed["data"].as_array().expect("a list").iter().all(|one| one["auto_resume"].is_boolean()), "{listed}");
}
