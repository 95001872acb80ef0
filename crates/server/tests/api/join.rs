//! Hosts that join, are lost and come back, and are removed.

use berth_domain::ids::HostId;
use berth_server::db::sql;
use berth_testkit::{Answer, Caller, JoinedHost, Platform, vm};
use serde_json::{Value, json};

const HOSTS: &str = "/api/v1/admin/hosts";
const JOIN: &str = "/api/v1/hosts/join";

/// Names a host, and returns the answer.
async fn add(admin: &Caller, name: &str) -> Value {
    let made = admin.post(HOSTS, json!({"name": name, "region_id": "local", "labels": {"rack": "7"}})).await;
    assert_eq!(made.status, 201, "{made:?}");
    made.body
}

fn text<'a>(body: &'a Value, field: &str) -> &'a str {
    body[field].as_str().unwrap_or_else(|| panic!("{field} of {body}"))
}

/// A host that has joined and is ready.
async fn ready(platform: &Platform, name: &str) -> JoinedHost {
    let token = text(&add(&platform.admin, name).await, "token").to_owned();
    let beta = JoinedHost::join(&platform.admin.anonymous(), &token).await.expect("it joins");
    reaches(&platform.admin, &beta, "ready").await;
    beta
}

async fn reaches(admin: &Caller, beta: &JoinedHost, state: &str) -> Value {
    let path = format!("{HOSTS}/{}", beta.id);
    admin.until(state, async |admin| admin.get(&path).await.body["state"] == state).await;
    admin.get(&path).await.body
}

fn id(beta: &JoinedHost) -> HostId {
    HostId(beta.id.parse().expect("an id"))
}

fn refused(outcome: Result<JoinedHost, Answer>) {
    let Err(answer) = outcome else { panic!("it has joined") };
    answer.refused(400, "invalid_token");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_is_added_joins_by_its_command_and_is_asked_from_then_on() {
    let platform = Platform::start().await;
    let admin = &platform.admin;
    let made = add(admin, "north 2").await;
    let (path, token) = (format!("{HOSTS}/{}", text(&made, "id")), text(&made, "token").to_owned());
    assert_eq!(
        (&made["state"], &made["name"], &made["labels"]),
        (&json!("joining"), &json!("north 2"), &json!({"rack": "7"}))
    );
    assert_eq!(text(&made, "command"), format!("berth host join {} {token}", admin.base));
    let shown = admin.get(&path).await.body;
    assert!(shown.get("token").is_none() && shown.get("command").is_none() && shown["joined"] == true, "{shown}");
    assert_eq!(admin.get(&format!("{HOSTS}?state=joining")).await.body["pagination"]["total_items"], 1);
    let beta = JoinedHost::join(&admin.anonymous(), &token).await.expect("it joins");
    assert_eq!(json!(beta.id), made["id"]);
    let host = reaches(admin, &beta, "ready").await;
    assert_eq!((&host["name"], &host["version"], &host["trouble"]), (&json!("north 2"), &json!("1.2.3"), &json!(null)));
    assert_eq!(
        (&host["cpus"], &host["memory_mb"], &host["addresses"]),
        (&json!(8), &json!(16_384), &json!([beta.address.to_string()]))
    );
    assert!(host["certificate_expires_at"].is_string(), "{host}");
    // What it is asked, its own engines answer.
    let engines = platform.app().fleet.of(id(&beta)).expect("its engines");
    assert_eq!(engines.vm.capacity().await, berth_host_of(&beta).await);
    // Another start of the service finds it again, and it is nobody's to take home.
    let platform = platform.restart().await;
    reaches(&platform.admin, &beta, "ready").await;
    assert!(platform.app().fleet.of(id(&beta)).is_ok());
}

/// What a host's engine says without anything in between.
async fn berth_host_of(beta: &JoinedHost) -> berth_host::Result<berth_host::vm::Capacity> {
    berth_host::vm::Engine::capacity(&*beta.engine).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_holds_once_and_for_a_day() {
    let platform = Platform::start().await;
    let (admin, anybody) = (&platform.admin, platform.admin.anonymous());
    let mut tokens = Vec::new();
    for name in ["a", "b", "c"] {
        tokens.push(text(&add(admin, name).await, "token").to_owned());
    }
    let beta = JoinedHost::join(&anybody, &tokens[0]).await.expect("it joins");
    refused(JoinedHost::join(&anybody, &tokens[0]).await);
    // A replaced one holds no more.
    let again = admin.act(&format!("{HOSTS}/{}/token", beta.id)).await;
    assert_eq!((again.status, again.body["id"] == json!(beta.id)), (201, true), "{again:?}");
    let other = admin.act(&format!("{HOSTS}/{}/token", beta.id)).await;
    refused(JoinedHost::join(&anybody, text(&again.body, "token")).await);
    JoinedHost::join(&anybody, text(&other.body, "token")).await.expect("it joins again");
    // One that nobody made, and what is none.
    refused(JoinedHost::join(&anybody, &format!("bht_{}", "A".repeat(86))).await);
    let Err(answer) = JoinedHost::join(&anybody, "bht_A").await else { panic!("it has joined") };
    answer.refused(400, "invalid_request");
    platform.advance(24 * 3600 - 60);
    JoinedHost::join(&anybody, &tokens[1]).await.expect("a minute is left");
    platform.advance(60);
    refused(JoinedHost::join(&anybody, &tokens[2]).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_joins_again_takes_the_place_of_who_has_the_earlier_certificate() {
    let platform = Platform::start().await;
    let first = ready(&platform, "one").await;
    let token = platform.admin.act(&format!("{HOSTS}/{}/token", first.id)).await;
    let second = JoinedHost::join(&platform.admin.anonymous(), text(&token.body, "token")).await.expect("it joins");
    assert_eq!(first.id, second.id);
    let host = reaches(&platform.admin, &second, "ready").await;
    assert_eq!(host["addresses"], json!([second.address.to_string()]));
    assert!(second.asked() > 0);
    // Where the second one listens, the first one shows what it has.
    let (mut first, mut second) = (first, second);
    second.close().await;
    first.close().await;
    first.address = second.address;
    let asked = first.asked();
    first.open().await;
    let path = format!("{HOSTS}/{}", first.id);
    let wrong = async |admin: Caller| admin.get(&path).await.body["trouble"].to_string().contains("certificate");
    platform.admin.until("trouble", async |admin| wrong(admin).await).await;
    assert_eq!(first.asked(), asked);
    first.close().await;
    second.open().await;
    platform.admin.until("no trouble", async |admin| admin.get(&path).await.body["trouble"].is_null()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_does_not_answer_for_half_a_minute_is_lost_and_ready_once_it_answers() {
    let platform = Platform::start().await;
    let mut beta = ready(&platform, "one").await;
    beta.close().await;
    let path = format!("{HOSTS}/{}", beta.id);
    platform.admin.until("trouble", async |admin| admin.get(&path).await.body["trouble"].is_string()).await;
    let host = platform.admin.get(&path).await.body;
    assert_eq!(host["state"], "ready", "not lost before its time: {host}");
    assert!(text(&host, "trouble").starts_with(&beta.address.to_string()), "{host}");
    platform.advance(30);
    reaches(&platform.admin, &beta, "lost").await;
    assert_eq!(platform.admin.get(&format!("{HOSTS}?state=lost")).await.body["pagination"]["total_items"], 1);
    beta.open().await;
    let host = reaches(&platform.admin, &beta, "ready").await;
    assert_eq!(host["trouble"], json!(null));
}

/// What its row says of when it was there may be another service's clock, or of hours ago.
#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_begins_waits_half_a_minute_for_each_host() {
    let platform = Platform::start().await;
    let mut beta = ready(&platform, "one").await;
    beta.close().await;
    let platform = platform.restart().await;
    let long_ago = "UPDATE hosts SET last_seen = last_seen - 3600000, trouble = NULL WHERE id = $1";
    let mut tx = platform.app().db.begin().await.expect("a transaction");
    assert_eq!(sql(long_ago).bind(beta.id.as_str()).execute(&mut tx).await.expect("a change"), 1);
    tx.commit().await.expect("a commit");
    let path = format!("{HOSTS}/{}", beta.id);
    platform.admin.until("trouble", async |admin| admin.get(&path).await.body["trouble"].is_string()).await;
    assert_eq!(platform.admin.get(&path).await.body["state"], "ready");
    platform.advance(30);
    reaches(&platform.admin, &beta, "lost").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_host_is_asked_no_more_and_opens_nothing() {
    let platform = Platform::start().await;
    let admin = &platform.admin;
    let beta = ready(&platform, "one").await;
    let path = format!("{HOSTS}/{}", beta.id);
    let unused = admin.act(&format!("{path}/token")).await;
    assert_eq!(admin.delete(&path).await.status, 204);
    admin.get(&path).await.refused(404, "not_found");
    admin.delete(&path).await.refused(404, "not_found");
    admin.act(&format!("{path}/token")).await.refused(404, "not_found");
    refused(JoinedHost::join(&admin.anonymous(), text(&unused.body, "token")).await);
    admin.until("its end", async |_| platform.app().fleet.of(id(&beta)).is_err()).await;
    let asked = beta.asked();
    let platform = platform.restart().await;
    ready(&platform, "three").await;
    assert_eq!(beta.asked(), asked);
    let done = platform.admin.get("/api/v1/admin/audit?limit=100").await.body;
    let done = done["data"].as_array().expect("records").iter().filter(|it| it["subject"] == json!(beta.id));
    let done: Vec<_> = done.filter_map(|record| record["action"].as_str()).collect();
    assert_eq!(done, ["host.delete", "host.token", "host.join", "host.create"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_with_machines_is_removed_only_as_lost_and_the_own_one_never() {
    let platform = Platform::start().await;
    let admin = &platform.admin;
    let own = platform.app().fleet.own();
    for query in ["", "?lost=true"] {
        admin.delete(&format!("{HOSTS}/{own}{query}")).await.refused(409, "conflict");
    }
    admin.act(&format!("{HOSTS}/{own}/token")).await.refused(409, "conflict");
    let beta = ready(&platform, "one").await;
    assert_eq!(admin.act(&format!("{HOSTS}/{own}/cordon")).await.status, 202);
    let mut body = vm("there");
    body["delete_root_disk"] = json!(true);
    let there = admin.create_vm(body).await;
    admin.reaches(&there, "running").await;
    assert_eq!(admin.get(&format!("/vms/{there}")).await.body["host_id"], json!(beta.id));
    let path = format!("{HOSTS}/{}", beta.id);
    let refusal = admin.delete(&path).await;
    assert!(text(&refusal.body, "message").contains("--lost"), "{refusal:?}");
    refusal.refused(409, "conflict");
    admin.delete(&format!("{path}?lost=maybe")).await.refused(400, "invalid_request");
    assert_eq!(admin.get(&path).await.body["state"], "ready");
    drop(beta);
    assert_eq!(admin.delete(&format!("{path}?lost=true")).await.status, 204);
    // It is told to be gone, and its owner can let go of it; what is new goes elsewhere.
    admin.reaches(&there, "failed").await;
    assert_eq!(admin.delete(&format!("/vms/{there}")).await.status, 202);
    admin.gone(&there).await;
    assert_eq!(admin.act(&format!("{HOSTS}/{own}/uncordon")).await.status, 202);
    admin.running_vm("here").await;
    admin.until("its end", async |_| platform.app().fleet.all().len() == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_is_there_again_ends_what_is_off() {
    let platform = Platform::start().await;
    let admin = &platform.admin;
    let elsewhere = admin.running_vm("elsewhere").await;
    admin.act(&format!("/vms/{elsewhere}/stop")).await;
    admin.reaches(&elsewhere, "stopped").await;
    let beta = ready(&platform, "one").await;
    let own = platform.app().fleet.own();
    assert_eq!(admin.act(&format!("{HOSTS}/{own}/cordon")).await.status, 202);
    let (runs, off) = (admin.running_vm("runs").await, admin.running_vm("off").await);
    admin.act(&format!("/vms/{off}/stop")).await;
    admin.reaches(&off, "stopped").await;
    let before = beta.engine.ends(&off);
    // To a service that begins every host is there again.
    let platform = platform.restart().await;
    let admin = &platform.admin;
    admin.until("it is ended", async |_| beta.engine.ends(&off) > before).await;
    admin.reaches(&runs, "running").await;
    let after = [&runs, &elsewhere].map(|vm| beta.engine.ends(vm));
    assert_eq!(after, [0, 0]);
    admin.act(&format!("/vms/{off}/start")).await;
    admin.reaches(&off, "running").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_steals_a_host_can_ask_the_platform_nothing() {
    let platform = Platform::start().await;
    let made = add(&platform.admin, "one").await;
    let token = text(&made, "token").to_owned();
    let beta = JoinedHost::join(&platform.admin.anonymous(), &token).await.expect("it joins");
    reaches(&platform.admin, &beta, "ready").await;
    let papers = beta.papers();
    for credential in [&*token, &*papers.certificate.replace('\n', ""), "", &*beta.id] {
        let thief = platform.admin.with_token(credential);
        for path in [HOSTS.to_owned(), format!("{HOSTS}/{}", beta.id), "/vms".into(), "/sandboxes".into()] {
            thief.get(&path).await.refused(401, "unauthorized");
        }
        thief.act(&format!("{HOSTS}/{}/token", beta.id)).await.refused(401, "unauthorized");
        thief.delete(&format!("{HOSTS}/{}", beta.id)).await.refused(401, "unauthorized");
    }
    refused(JoinedHost::join(&platform.admin.anonymous(), &token).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_renewed_while_the_host_goes_on() {
    let platform = Platform::start().await;
    let mut beta = ready(&platform, "one").await;
    let (path, before) = (format!("{HOSTS}/{}", beta.id), beta.papers());
    // So many days that less than a third is left of thirty.
    let days = "UPDATE hosts SET certificate_until = certificate_until - $2 WHERE id = $1";
    let mut tx = platform.app().db.begin().await.expect("a transaction");
    sql(days).bind(id(&beta)).bind(21 * 86_400 * 1_000_000_i64).execute(&mut tx).await.expect("a row");
    tx.commit().await.expect("a commit");
    let soon = text(&platform.admin.get(&path).await.body, "certificate_expires_at").to_owned();
    let platform = platform.restart().await;
    let renewed = async |admin: Caller| text(&admin.get(&path).await.body, "certificate_expires_at") > soon.as_str();
    platform.admin.until("another certificate", async |admin| renewed(admin.clone()).await).await;
    let after = beta.papers();
    assert!(before.key != after.key && before.certificate != after.certificate && before.authority == after.authority);
    // With the new one it is let in after a start of both.
    beta.close().await;
    beta.open().await;
    let platform = platform.restart().await;
    let asked = beta.asked();
    platform.admin.until("a look", async |_| beta.asked() > asked).await;
    reaches(&platform.admin, &beta, "ready").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_addition_shows_no_token_and_mistakes_are_named() {
    let platform = Platform::start().await;
    let admin = &platform.admin;
    let body = json!({"name": "one", "region_id": "local"});
    let once = async || {
        let request = admin.request(reqwest::Method::POST, HOSTS).header("Idempotency-Key", "k").json(&body);
        let answer = request.send().await.expect("an answer");
        let (status, location) = (answer.status().as_u16(), answer.headers()["location"].clone());
        (status, location, answer.json::<Value>().await.expect("JSON"))
    };
    let (first, second) = (once().await, once().await);
    assert_eq!((first.0, second.0, &first.1), (201, 201, &second.1));
    assert!(first.2["token"].is_string() && second.2.get("token").is_none() && second.2.get("command").is_none());
    assert_eq!(admin.get(&format!("{HOSTS}?name=one")).await.body["pagination"]["total_items"], 1);
    admin.post(HOSTS, json!({"name": "x", "region_id": "moon"})).await.refused(404, "region_not_found");
    let wrong = admin.post(HOSTS, json!({"name": "", "zone": 1})).await;
    assert_eq!(wrong.body["details"].as_array().map(Vec::len), Some(3), "{wrong:?}");
    wrong.refused(400, "invalid_request");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_tries_tokens_is_counted_before_what_they_send_is_read() {
    let platform = Platform::start().await;
    let anybody = platform.admin.anonymous();
    let mut last = anybody.post(JOIN, json!({})).await;
    for _ in 0..200 {
        if last.status != 400 {
            break;
        }
        last = anybody.post(JOIN, json!({})).await;
    }
    assert!(last.headers.contains_key("retry-after"), "{last:?}");
    last.refused(429, "rate_limited");
}
