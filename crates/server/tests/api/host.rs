//! Hosts as administrators see them, the service's own and one that is lost; and what they say of hosts.

use berth_client::Event;
use berth_domain::ids::HostId;
use berth_server::db::sql;
use berth_testkit::{Caller, Platform, vm};
use futures::StreamExt;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::event::client;

const HOSTS: &str = "/api/v1/admin/hosts";

/// A host that was the database's before.
async fn lost(platform: &Platform) -> String {
    let id = Uuid::now_v7();
    let row = "INSERT INTO hosts (id, name, addresses, regions, cpus, memory_mb, overcommit, labels, state, last_seen, \
               created_at) VALUES ($1, 'beta', '[]', '[\"local\"]', 2, 1024, '{\"vm\": 1.5}', '{\"rack\":\"7\"}', \
               'lost', 1000000, 0)";
    let mut tx = platform.app().db.begin().await.expect("a transaction");
    sql(row).bind(HostId(id)).execute(&mut tx).await.expect("a row");
    tx.commit().await.expect("a commit");
    id.to_string()
}

/// A host without what changes by itself: when it was seen, and what it holds while templates are booted.
fn at_rest(mut host: Value) -> Value {
    let fields = host.as_object_mut().expect("a host");
    fields.retain(|name, _| !["last_seen_at", "holds", "load"].contains(&name.as_str()));
    host
}

#[tokio::test(flavor = "multi_thread")]
async fn an_administrator_sees_the_own_host_and_when_it_was_last_seen() {
    let platform = Platform::start().await;
    let own = platform.admin.get(HOSTS).await.body;
    assert_eq!(own["pagination"]["total_items"], 1, "{own}");
    let own = own["data"][0].clone();
    assert_eq!((&own["state"], &own["region_ids"], &own["labels"]), (&json!("ready"), &json!(["local"]), &json!({})));
    assert!(own["cpus"].as_i64() > Some(0) && own["memory_mb"].as_i64() > Some(0), "{own}");
    assert!(["vm", "sandbox"].iter().all(|kind| own["memory_overcommit"][kind].as_f64() > Some(0.0)), "{own}");
    let path = format!("{HOSTS}/{}", own["id"].as_str().expect("an id"));
    assert_eq!(at_rest(platform.admin.get(&path).await.body), at_rest(own.clone()));
    let platform = platform.restart().await;
    let again = platform.admin.get(&path).await.body;
    let seen = |host: &Value| host["last_seen_at"].as_str().expect("a time").to_owned();
    assert!(seen(&again) > seen(&own), "{again}");
    assert_eq!(at_rest(again), at_rest(own), "it is the same host");
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_are_found_by_state_name_and_label() {
    let platform = Platform::start().await;
    let admin = &platform.admin;
    let own = admin.get(HOSTS).await.body["data"][0]["id"].as_str().expect("an id").to_owned();
    let lost = lost(&platform).await;
    let found = async |query: &str| -> Vec<String> {
        let answer = admin.get(&format!("{HOSTS}?{query}")).await.body;
        let all = answer["data"].as_array().unwrap_or_else(|| panic!("{query} {answer}")).iter();
        all.map(|host| host["id"].as_str().expect("an id").to_owned()).collect()
    };
    assert_eq!(found("").await, [&*own, &lost], "newest first");
    assert_eq!(found("state=ready").await, [&*own]);
    assert_eq!(found("state=lost").await, [&*lost]);
    assert_eq!(found("state=draining").await, Vec::<String>::new());
    for query in ["name=beta", "label=rack", "label=rack%3D7"] {
        assert_eq!(found(query).await, [&*lost], "{query}");
    }
    let one = admin.get(&format!("{HOSTS}/{lost}")).await.body;
    let expected = json!({
        "id": lost, "name": "beta", "region_ids": ["local"], "addresses": [], "cpus": 2, "memory_mb": 1024,
        "memory_overcommit": {"vm": 1.5}, "gpus": [], "stores": [], "labels": {"rack": "7"}, "state": "lost",
        "drain": null, "holds": {"machines": 0, "disks": 0, "images": 0, "layers": 0, "leaving": 0}, "load": {"vcpu": 0, "memory_mb": 0}, "joined": false, "service": null, "version": null, "trouble": null, "certificate_expires_at": null,
        "last_seen_at": "1970-01-01T00:00:01.000000Z", "created_at": "1970-01-01T00:00:00.000000Z",
    });
    assert_eq!(one, expected);
    admin.get(&format!("{HOSTS}/{}", Uuid::now_v7())).await.refused(404, "not_found");
    admin.get(&format!("{HOSTS}/beta")).await.refused(400, "invalid_request");
    let ada = platform.sign_up("ada@example.com").await;
    for path in [HOSTS.to_owned(), format!("{HOSTS}/{own}")] {
        ada.get(&path).await.refused(403, "forbidden");
        ada.anonymous().get(&path).await.refused(401, "unauthorized");
    }
}

/// The path of the service's own host.
async fn own(platform: &Platform) -> String {
    let own = platform.admin.get(&format!("{HOSTS}?sort=created_at")).await.body;
    let own = own["data"].as_array().expect("hosts").iter().find(|host| host["state"] != "lost").expect("the own one");
    format!("{HOSTS}/{}", own["id"].as_str().expect("an id"))
}

/// The next event of a kind in the caller's project, of all that are kept.
pub async fn told(caller: &Caller, kind: &str) -> Event {
    told_again(caller, kind, 1).await
}

/// The same, once there are so many of them: the last of these.
pub async fn told_again(caller: &Caller, kind: &str, mut times: usize) -> Event {
    let mut events = std::pin::pin!(client(caller).events(Some(0)).await.expect("a stream"));
    loop {
        let event = events.next().await.expect("more").expect("an event");
        times -= usize::from(event.kind == kind);
        if times == 0 {
            return event;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cordoned_host_takes_no_new_machine_and_what_is_there_goes_on() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let path = own(&platform).await;
    lost(&platform).await;
    let old = caller.running_vm("old").await;
    let cordoned = caller.act(&format!("{path}/cordon")).await;
    assert_eq!((cordoned.status, &cordoned.body["state"]), (202, &json!("cordoned")), "{}", cordoned.body);
    assert_eq!(caller.get(&format!("{HOSTS}?state=cordoned")).await.body["pagination"]["total_items"], 1);
    let new = caller.create_vm(vm("new")).await;
    let failed = caller.reaches(&new, "failed").await;
    let message = failed["message"].as_str().expect("a sentence");
    assert!(message.starts_with("insufficient_capacity: no host takes new machines now"), "{message}");
    let unplaced = told(caller, "vm.unplaced").await;
    let name = cordoned.body["name"].as_str().expect("a name");
    let lift = "cordoned; to lift it: berth admin host uncordon";
    assert_eq!(unplaced.subject, new);
    assert_eq!(unplaced.data["hosts"], json!([format!("host {name}: {lift} {name}"), "host beta: lost"]));
    // What is there is stopped and started again, and the word holds on when the service starts again.
    assert_eq!(caller.act(&format!("/vms/{old}/stop")).await.status, 202);
    caller.reaches(&old, "stopped").await;
    let platform = platform.restart().await;
    let caller = &platform.admin;
    assert_eq!(caller.get(&path).await.body["state"], "cordoned");
    assert_eq!(caller.act(&format!("/vms/{old}/start")).await.status, 202);
    caller.reaches(&old, "running").await;
    assert_eq!(caller.act(&format!("/vms/{new}/start")).await.status, 202);
    caller.reaches(&new, "failed").await;
    let taken = caller.act(&format!("{path}/uncordon")).await;
    assert_eq!((taken.status, &taken.body["state"]), (202, &json!("ready")), "{}", taken.body);
    assert_eq!(caller.act(&format!("/vms/{new}/start")).await.status, 202);
    caller.reaches(&new, "running").await;
    let host = path.trim_start_matches(HOSTS).trim_start_matches('/');
    let placed = told(caller, "vm.placed").await;
    assert_eq!((placed.subject, &placed.data["host_id"]), (old, &json!(host)));
    assert!(placed.data["reason"].as_str().is_some_and(|why| why.starts_with(&format!("host {name}: "))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cordoned_host_takes_no_new_sandbox_and_resumes_what_it_has() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let path = own(&platform).await;
    let old = caller.ready_sandbox().await;
    assert_eq!(caller.act(&format!("/sandboxes/{old}/pause")).await.status, 202);
    caller.sandbox_reaches(&old, "Paused").await;
    assert_eq!(caller.act(&format!("{path}/cordon")).await.status, 202);
    let new = caller.create_sandbox(json!({})).await;
    let failed = caller.sandbox_reaches(&new, "Failed").await;
    let message = failed["message"].as_str().expect("a sentence");
    assert!(message.starts_with("insufficient_capacity: no host takes new machines now"), "{message}");
    let unplaced = told(caller, "sandbox.unplaced").await;
    assert_eq!((unplaced.subject, unplaced.data["hosts"].as_array().map(Vec::len)), (new, Some(1)));
    let fork = caller.post(&format!("/sandboxes/{old}/fork"), json!({})).await;
    assert_eq!(fork.status, 201, "{}", fork.body);
    let fork = fork.body["data"][0]["id"].as_str().expect("an id").to_owned();
    caller.sandbox_reaches(&fork, "Failed").await;
    assert_eq!(caller.act(&format!("/sandboxes/{old}/resume")).await.status, 202);
    caller.sandbox_reaches(&old, "Ready").await;
    assert_eq!(caller.act(&format!("{path}/uncordon")).await.status, 202);
    let after = caller.ready_sandbox().await;
    let placed = told(caller, "sandbox.placed").await;
    assert_eq!(placed.subject, old);
    assert_ne!(after, old);
}

/// Names of the templates that have their memory.
async fn booted(platform: &Platform) -> Vec<String> {
    let names = "SELECT name FROM sandbox_templates WHERE memory_id IS NOT NULL ORDER BY name";
    sql(names).fetch_all(&platform.app().db).await.expect("rows")
}

/// Waits until a template has a status, and says what begins so.
async fn says(caller: &Caller, name: &str, status: &str, words: &str) {
    let path = format!("/sandbox_templates/{name}");
    caller
        .until(&format!("{name}: {status}, {words}"), async |caller| {
            let template = caller.get(&path).await.body;
            template["status"] == status && template["message"].as_str().unwrap_or_default().starts_with(words)
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_that_a_cordon_holds_up_is_built_and_has_its_memory_after_it() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let path = own(&platform).await;
    let id = caller.ready_sandbox().await;
    let taken = caller.post(&format!("/sandboxes/{id}/snapshots"), json!({})).await.id();
    let snapshot = format!("/snapshots/{taken}");
    caller.until("the snapshot", async |caller| caller.get(&snapshot).await.body["status"] == "Ready").await;
    assert_eq!(caller.act(&format!("{path}/cordon")).await.status, 202);
    platform.sandboxes.rebuild_base();
    let from_disk = "until it was booted once, its sandboxes start from the disk: no host takes new machines now";
    let waits = "it waits: no host takes new machines now";
    says(caller, "base", "ready", from_disk).await;
    let made = json!({"name": "kept", "from_snapshot": taken, "start_command": "true"});
    assert_eq!(caller.post("/sandbox_templates", made).await.status, 201);
    says(caller, "kept", "building", waits).await;
    let made = json!({"name": "built", "dockerfile": "FROM base\nRUN x", "vcpu": 1, "memory_mb": 512, "disk_gb": 10});
    assert_eq!(caller.post("/sandbox_templates", made).await.status, 201);
    says(caller, "built", "building", waits).await;
    assert_eq!(booted(&platform).await, Vec::<String>::new());
    assert_eq!(caller.act(&format!("{path}/uncordon")).await.status, 202);
    caller.until("their memories", async |_| booted(&platform).await == ["base", "built", "kept"]).await;
    for name in ["base", "built", "kept"] {
        says(caller, name, "ready", "").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_said_of_a_host_stays_and_stands_in_the_audit_log_once() {
    let platform = Platform::start().await;
    let path = own(&platform).await;
    for _ in 0..2 {
        assert_eq!(platform.admin.act(&format!("{path}/cordon")).await.body["state"], "cordoned");
        let said = platform.admin.patch(&path, json!({"name": "north 1", "labels": {"disk": "ssd"}})).await;
        assert_eq!(
            (said.status, &said.body["name"], &said.body["labels"]),
            (200, &json!("north 1"), &json!({"disk": "ssd"}))
        );
    }
    let same = platform.admin.patch(&path, json!({})).await;
    assert_eq!((same.status, &same.body["name"]), (200, &json!("north 1")));
    let platform = platform.restart().await;
    let admin = &platform.admin;
    let host = admin.get(&path).await.body;
    assert_eq!(
        (&host["name"], &host["labels"], &host["state"]),
        (&json!("north 1"), &json!({"disk": "ssd"}), &json!("cordoned"))
    );
    for query in ["name=north%201", "label=disk%3Dssd", "state=cordoned"] {
        assert_eq!(admin.get(&format!("{HOSTS}?{query}")).await.body["pagination"]["total_items"], 1, "{query}");
    }
    assert_eq!(admin.get(&format!("{HOSTS}?state=ready")).await.body["pagination"]["total_items"], 0);
    for _ in 0..2 {
        assert_eq!(admin.act(&format!("{path}/uncordon")).await.body["state"], "ready");
    }
    let done = admin.get("/api/v1/admin/audit?limit=100").await.body;
    let done = done["data"].as_array().expect("records").iter();
    let done: Vec<_> =
        done.filter_map(|record| record["action"].as_str()).filter(|it| it.starts_with("host.")).collect();
    assert_eq!(done, ["host.uncordon", "host.update", "host.cordon"], "newest first, and nothing twice");
    admin.patch(&path, json!({"name": "", "state": "lost"})).await.refused(400, "invalid_request");
}

#[tokio::test(flavor = "multi_thread")]
async fn administrators_alone_say_things_of_hosts_and_read_where_machines_are() {
    let platform = Platform::start().await;
    let path = own(&platform).await;
    let host = json!(path.trim_start_matches(HOSTS).trim_start_matches('/'));
    let ada = platform.sign_up("ada@example.com").await;
    let nowhere = format!("{HOSTS}/{}", Uuid::now_v7());
    for verb in ["cordon", "uncordon"] {
        for at in [&path, &nowhere] {
            ada.act(&format!("{at}/{verb}")).await.refused(403, "forbidden");
            ada.anonymous().act(&format!("{at}/{verb}")).await.refused(401, "unauthorized");
        }
        platform.admin.act(&format!("{nowhere}/{verb}")).await.refused(404, "not_found");
    }
    ada.patch(&path, json!({"name": "hers"})).await.refused(403, "forbidden");
    platform.admin.patch(&nowhere, json!({"name": "x"})).await.refused(404, "not_found");
    let (vm_id, box_id) = (ada.running_vm("hers").await, ada.ready_sandbox().await);
    for path in [format!("/vms/{vm_id}"), "/vms".into(), format!("/sandboxes/{box_id}"), "/sandboxes".into()] {
        let seen = ada.get(&path).await.body.to_string();
        assert!(seen.contains(&vm_id) || seen.contains(&box_id), "{seen}");
        assert!(!seen.contains("host_id"), "{seen}");
    }
    for all in ["vms", "sandboxes"] {
        let seen = platform.admin.get(&format!("/api/v1/admin/{all}")).await.body;
        assert_eq!(seen["data"][0]["host_id"], host, "{seen}");
    }
    let own_vm = platform.admin.running_vm("own").await;
    for _ in 0..2 {
        assert_eq!(platform.admin.get(&format!("/vms/{own_vm}")).await.body["host_id"], host);
    }
    // Her events pass over where her machines were put; the last of them is behind that.
    assert_eq!(ada.delete(&format!("/vms/{vm_id}")).await.status, 202);
    let mut events = std::pin::pin!(client(&ada).events(Some(0)).await.expect("a stream"));
    loop {
        let event = events.next().await.expect("more").expect("an event");
        assert!(!event.kind.ends_with("placed"), "{event:?}");
        if event.kind == "vm.status" && event.data["status"] == "deleted" {
            break;
        }
    }
}
