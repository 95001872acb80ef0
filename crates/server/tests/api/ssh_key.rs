//! Stored SSH keys: whose they are, how many there may be, and VMs that are made with them.

use berth_host::EngineError;
use berth_server::db::{Db, sql};
use berth_testkit::{Caller, Platform, key, vm};
use serde_json::{Value, json};

const OWN: &str = "/api/v1/users/me/ssh_keys";
const PROJECTS: &str = "/ssh_keys";

async fn store(caller: &Caller, place: &str, name: &str, key: &str) -> String {
    let made = caller.post(place, json!({"name": name, "public_key": key})).await;
    assert_eq!(made.status, 201, "{made:?}");
    made.id()
}

/// A VM with keys of its own and stored ones.
fn vm_with(name: &str, keys: &[String], ids: &[&str]) -> Value {
    let mut body = vm(name);
    body["ssh_keys"] = json!(keys);
    body["ssh_key_ids"] = json!(ids);
    body
}

/// The keys that a running VM's machine was started with.
async fn keys_of(platform: &Platform, caller: &Caller, body: Value) -> Vec<String> {
    let id = caller.create_vm(body).await;
    caller.reaches(&id, "running").await;
    platform.engine.spec(&id).expect("a machine").ssh_keys
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_stored_listed_and_deleted() {
    const REAL: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOkvXqWhmrNwsKUVRjPMWzZ0pE7gNRQnxVbQkG4HmCrf me@laptop";
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let project = format!("{}/ssh_keys", caller.project);
    for (place, full) in [(OWN, OWN), (PROJECTS, project.as_str())] {
        let made = caller.post(place, json!({"name": "laptop", "public_key": REAL})).await;
        let id = made.id();
        assert_eq!((made.status, made.header("location")), (201, Some(format!("{full}/{id}").as_str())));
        assert_eq!(made.body["fingerprint"], "SHA256:zT2ghIEGfGNkaEqSw9m1gSK5cT2R9ZL8SxGhVA4DFu4");
        assert_eq!((&made.body["name"], &made.body["public_key"]), (&json!("laptop"), &json!(REAL)));
        let other = store(caller, place, "other", &key(1)).await;
        let listed = caller.get(place).await.body;
        assert_eq!(listed["data"][0]["id"], json!(other), "{listed}");
        assert_eq!(listed["data"][0]["fingerprint"], Value::Null);
        assert_eq!((&listed["data"][1], &listed["pagination"]["total_items"]), (&made.body, &json!(2)));
        assert_eq!(caller.get(&format!("{place}?name=laptop")).await.body["data"].as_array().map(Vec::len), Some(1));
        assert_eq!(caller.get(&format!("{place}/{id}")).await.body, made.body);
        assert_eq!(caller.delete(&format!("{place}/{id}")).await.status, 204);
        caller.delete(&format!("{place}/{id}")).await.refused(404, "not_found");
        caller.get(&format!("{place}/{id}")).await.refused(404, "not_found");
        caller.get(&format!("{place}/x")).await.refused(400, "invalid_request");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn names_and_keys_are_an_owners_own() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    for place in [OWN, PROJECTS] {
        store(caller, place, "laptop", &key(1)).await;
        caller.post(place, json!({"name": "laptop", "public_key": key(2)})).await.refused(409, "ssh_key_exists");
        let commented = key(1).replace("me@host", "another comment");
        caller.post(place, json!({"name": "desk", "public_key": commented})).await.refused(409, "ssh_key_exists");
        for body in [json!({"name": "desk", "public_key": "ssh-rsa A"}), json!({"name": "Desk"}), json!({})] {
            caller.post(place, body).await.refused(400, "invalid_request");
        }
    }
    // Somebody else's are others.
    let ada = platform.sign_up("ada@example.com").await;
    for place in [OWN, PROJECTS] {
        assert_eq!(ada.get(place).await.body["data"], json!([]));
        store(&ada, place, "laptop", &key(1)).await;
    }
    let of_admin = caller.get(OWN).await.body["data"][0]["id"].as_str().expect("an id").to_owned();
    ada.delete(&format!("{OWN}/{of_admin}")).await.refused(404, "not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_stores_so_many_keys_and_no_more() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    for place in [OWN, PROJECTS] {
        for number in 1..=100 {
            store(caller, place, &format!("k{number}"), &key(number)).await;
        }
        let more = json!({"name": "one-more", "public_key": key(101)});
        caller.post(place, more.clone()).await.refused(409, "conflict");
        let first = caller.get(&format!("{place}?name=k1")).await.body["data"][0]["id"].clone();
        assert_eq!(caller.delete(&format!("{place}/{}", first.as_str().expect("an id"))).await.status, 204);
        assert_eq!(caller.post(place, more).await.status, 201);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn vms_are_made_with_copies_of_chosen_keys() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let own = store(caller, OWN, "own", &key(1)).await;
    let shared = store(caller, PROJECTS, "shared", &key(2)).await;
    let body = vm_with("web", &[key(3)], &[&own, &shared]);
    let made = caller.create_vm(body).await;
    caller.reaches(&made, "running").await;
    for (place, id) in [(OWN, &own), (PROJECTS, &shared)] {
        assert_eq!(caller.delete(&format!("{place}/{id}")).await.status, 204);
    }
    assert_eq!(caller.act(&format!("/vms/{made}/restart")).await.status, 202);
    caller.reaches(&made, "running").await;
    assert_eq!(platform.engine.spec(&made).expect("a machine").ssh_keys, [key(3), key(1), key(2)]);
    // The same key once, whoever stores it and whatever it is called there.
    let own = store(caller, OWN, "own", &key(4)).await;
    let shared = store(caller, PROJECTS, "shared", &key(4).replace("me@host", "us")).await;
    assert_eq!(keys_of(&platform, caller, vm_with("one", &[], &[&own, &shared])).await, [key(4)]);
    assert_eq!(keys_of(&platform, caller, vm_with("two", &[key(4)], &[&shared])).await, [key(4)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_own_keys_and_the_projects_can_be_chosen() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let ada = platform.sign_up("ada@example.com").await;
    let (own, shared) = (store(caller, OWN, "own", &key(1)).await, store(caller, PROJECTS, "shared", &key(2)).await);
    let nothing = uuid::Uuid::now_v7().to_string();
    for (who, id) in [(&ada, &own), (&ada, &shared), (caller, &nothing)] {
        let refused = who.post("/vms", vm_with("web", &[], &[id])).await;
        refused.refused(400, "ssh_key_not_found");
        assert!(refused.names("ssh_key_ids"), "{refused:?}");
    }
    // A key of the API is nobody's, and so has nobody's keys.
    let made = caller.post("/api_keys", json!({"name": "ci", "scopes": ["vm"]})).await;
    let program = caller.with_token(made.body["key"].as_str().expect("a key"));
    program.post("/vms", vm_with("web", &[], &[&own])).await.refused(400, "ssh_key_not_found");
    assert_eq!(keys_of(&platform, &program, vm_with("web", &[], &[&shared])).await, [key(2)]);
    assert_eq!(program.get(OWN).await.status, 401);
    let made = caller.post("/api_keys", json!({"name": "boxes", "scopes": ["sandbox", "inference"]})).await;
    let without = caller.with_token(made.body["key"].as_str().expect("a key"));
    without.get(PROJECTS).await.refused(403, "missing_scope");
    without.post(PROJECTS, json!({"name": "late", "public_key": key(3)})).await.refused(403, "missing_scope");
    without.delete(&format!("{PROJECTS}/{shared}")).await.refused(403, "missing_scope");
    assert_eq!(program.get(PROJECTS).await.body["pagination"]["total_items"], 1);
    // References come in the contract's order: networks before keys.
    let mut body = vm_with("web", &[], &[&nothing]);
    body["network_ids"] = json!([nothing]);
    caller.post("/vms", body).await.refused(400, "network_not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_keys_of_a_vm_are_replaced_for_its_next_boot() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let stored = store(caller, OWN, "own", &key(2)).await;
    let id = caller.create_vm(vm_with("web", &[key(1)], &[])).await;
    let before = caller.reaches(&id, "running").await;
    let put = async |body: Value| {
        let request = caller.request(reqwest::Method::PUT, &format!("/vms/{id}/ssh_keys")).json(&body);
        caller.send(request).await
    };
    let keys = || platform.engine.spec(&id).expect("a machine").ssh_keys;
    let changed = put(json!({"ssh_keys": [key(3)], "ssh_key_ids": [stored]})).await;
    assert_eq!((changed.status, &changed.body["status"]), (200, &json!("running")), "{changed:?}");
    assert!(changed.body["updated_at"].as_str() > before["updated_at"].as_str());
    assert_eq!(keys(), [key(1)], "its machine runs on as it was started");
    assert_eq!(caller.act(&format!("/vms/{id}/restart")).await.status, 202);
    caller.reaches(&id, "running").await;
    assert_eq!(keys(), [key(3), key(2)]);
    assert_eq!(put(json!({"ssh_keys": []})).await.status, 200);
    for _ in 0..2 {
        caller.act(&format!("/vms/{id}/stop")).await;
        caller.reaches(&id, "stopped").await;
        caller.act(&format!("/vms/{id}/start")).await;
        caller.reaches(&id, "running").await;
        assert_eq!(keys(), Vec::<String>::new());
    }
    let log = caller.get(&format!("{}/audit_log?action=vm.replace_ssh_keys", caller.org())).await.body;
    assert_eq!((&log["pagination"]["total_items"], &log["data"][0]["subject"]), (&json!(2), &json!(id)));
    let many = (0..11).map(key).collect::<Vec<_>>();
    for wrong in
        [json!({}), json!({"ssh_keys": many}), json!({"ssh_keys": [key(1), key(1)]}), json!({"ssh_keys": ["x"]})]
    {
        put(wrong).await.refused(400, "invalid_request");
    }
    put(json!({"ssh_keys": many[..10]})).await;
    put(json!({"ssh_key_ids": [uuid::Uuid::now_v7()]})).await.refused(400, "ssh_key_not_found");
    caller.delete(&format!("/vms/{id}")).await;
    caller.gone(&id).await;
    put(json!({"ssh_keys": []})).await.refused(404, "vm_not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_with_an_agent_gets_its_keys_while_it_runs() {
    let platform = Platform::start().await;
    let (caller, engine) = (&platform.admin, &platform.engine);
    let id = caller.create_vm(vm_with("web", &[key(1)], &[])).await;
    let path = format!("/vms/{id}");
    let put = async |keys: &[String]| {
        let request = caller.request(reqwest::Method::PUT, &format!("{path}/ssh_keys"));
        caller.send(request.json(&json!({"ssh_keys": keys}))).await
    };
    let reaches = async |state: &str| {
        caller.until(state, async |caller| caller.get(&path).await.body["ssh_keys_state"] == state).await;
        engine.spec(&id).expect("a machine").ssh_keys
    };
    caller.reaches(&id, "running").await;
    assert_eq!(reaches("applied").await, [key(1)]);
    // Without an agent it keeps those that it booted with.
    assert_eq!(put(&[key(2)]).await.body["ssh_keys_state"], "pending");
    assert_eq!(reaches("next_boot").await, [key(1)]);
    engine.set_has_agent(true);
    assert_eq!(put(&[key(2)]).await.body["ssh_keys_state"], "next_boot", "nothing has changed");
    put(&[key(2), key(3)]).await;
    assert_eq!(reaches("applied").await, [key(2), key(3)]);
    // A host that says nothing is asked again, and what is put meanwhile is what it gets.
    engine.refuse("set_keys", EngineError::Transient("it is silent".into()));
    put(&[key(4)]).await;
    assert_eq!(put(&[]).await.body["ssh_keys_state"], "pending");
    engine.allow("set_keys");
    assert_eq!(reaches("applied").await, Vec::<String>::new());
    // One that is suspended gets them when it goes on, and one that is off when it boots.
    for (verb, status, back) in [("suspend", "suspended", "resume"), ("stop", "stopped", "start")] {
        caller.act(&format!("{path}/{verb}")).await;
        caller.reaches(&id, status).await;
        let keys = [key(5), key(status.len())];
        let state = if status == "stopped" { "next_boot" } else { "pending" };
        assert_eq!(put(&keys).await.body["ssh_keys_state"], state);
        caller.act(&format!("{path}/{back}")).await;
        caller.reaches(&id, "running").await;
        assert_eq!(reaches("applied").await, keys);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_that_takes_keys_at_its_first_boot_alone_gets_later_ones_by_its_agent() {
    let platform = Platform::start().await;
    let (caller, engine) = (&platform.admin, &platform.engine);
    engine.set_takes_keys_once(true);
    let id = caller.create_vm(vm_with("web", &[key(1)], &[])).await;
    let path = format!("/vms/{id}");
    for (number, (has_agent, state)) in [(false, "next_boot"), (true, "applied")].into_iter().enumerate() {
        caller.reaches(&id, "running").await;
        caller.act(&format!("{path}/stop")).await;
        caller.reaches(&id, "stopped").await;
        engine.set_has_agent(has_agent);
        let put = caller.request(reqwest::Method::PUT, &format!("{path}/ssh_keys"));
        let put = caller.send(put.json(&json!({"ssh_keys": [key(2 + number)]}))).await;
        assert_eq!(put.body["ssh_keys_state"], "next_boot");
        caller.act(&format!("{path}/start")).await;
        caller.reaches(&id, "running").await;
        let is_told = async |caller: Caller| {
            let vm = caller.get(&path).await.body;
            vm["guest_ready"] == true && vm["ssh_keys_state"] == state
        };
        caller.until(state, is_told).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_is_under_way_comes_to_its_end_whatever_keys_come_meanwhile() {
    let platform = Platform::start().await;
    let (caller, engine) = (&platform.admin, &platform.engine);
    engine.hold("start");
    let mut body = vm_with("web", &[key(1)], &[]);
    body["exposed_ports"] = json!([{"port": 8000, "protocol": "tcp"}]);
    let id = caller.create_vm(body).await;
    caller.until("the start", |_| async { engine.waiting() > 0 }).await;
    let put = caller.request(reqwest::Method::PUT, &format!("/vms/{id}/ssh_keys"));
    assert_eq!(caller.send(put.json(&json!({"ssh_keys": [key(2)]}))).await.status, 200);
    engine.let_go();
    caller.reaches(&id, "running").await;
    caller.until("its port", |_| async { engine.open_ports(&id).contains(&8000) }).await;
    caller.act(&format!("/vms/{id}/restart")).await;
    caller.reaches(&id, "running").await;
    assert_eq!(engine.spec(&id).expect("a machine").ssh_keys, [key(2)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn user_data_is_changed_for_the_next_boot() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let id = caller.running_vm("web").await;
    let path = format!("/vms/{id}");
    let script = "#!/bin/sh\necho hello\n";
    assert_eq!(caller.patch(&path, json!({"user_data": script})).await.status, 200);
    caller.act(&format!("{path}/restart")).await;
    caller.reaches(&id, "running").await;
    assert_eq!(platform.engine.spec(&id).expect("a machine").user_data.as_deref(), Some(script));
    for (length, status) in [(64 * 1024, 200), (64 * 1024 + 1, 400)] {
        let text = format!("#!/bin/sh\n{}", "#".repeat(length - 10));
        assert_eq!(caller.patch(&path, json!({"user_data": text})).await.status, status, "{length}");
    }
    caller.patch(&path, json!({"user_data": "hello"})).await.refused(400, "invalid_request");
}

#[tokio::test(flavor = "multi_thread")]
async fn storing_is_audited_told_and_repeatable() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let body = json!({"name": "laptop", "public_key": key(1)});
    let ask = async |body: &Value| {
        let request = caller.request(reqwest::Method::POST, PROJECTS).header("Idempotency-Key", "once").json(body);
        caller.send(request).await
    };
    let (first, again) = (ask(&body).await, ask(&body).await);
    assert_eq!((first.status, again.status, &first.body), (201, 201, &again.body));
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
    ask(&json!({"name": "desk", "public_key": key(1)})).await.refused(422, "idempotency_mismatch");
    assert_eq!(caller.delete(&format!("{PROJECTS}/{}", first.id())).await.status, 204);
    let log = caller.get(&format!("{}/audit_log?limit=100", caller.org())).await.body;
    for action in ["ssh_key.create", "ssh_key.delete"] {
        let found = log["data"].as_array().expect("a list").iter().find(|record| record["action"] == action);
        assert_eq!(found.map(|record| &record["data"]["name"]), Some(&json!("laptop")), "{action}: {log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_go_with_their_owner() {
    let platform = Platform::start().await;
    let ada = platform.sign_up("ada@example.com").await;
    store(&ada, OWN, "own", &key(1)).await;
    let other = ada.another_project("other").await;
    store(&other, PROJECTS, "shared", &key(2)).await;
    assert_eq!(ada.delete(&other.project).await.status, 204);
    let deleted = ada.request(reqwest::Method::DELETE, "/api/v1/users/me");
    let deleted = ada.send(deleted.json(&json!({"current_password": "a quiet harbour at night"}))).await;
    assert_eq!(deleted.status, 204, "{deleted:?}");
    let db = Db::open(&platform.config.database_url).await.expect("the database");
    let left: i64 = sql("SELECT COUNT(*) FROM ssh_keys").fetch_one(&db).await.expect("a count");
    assert_eq!(left, 0);
}
