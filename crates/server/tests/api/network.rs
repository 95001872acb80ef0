//! Networks of a project: their rows, who belongs to them, and what the host is told.

use std::collections::BTreeSet;

use berth_domain::host::network::{Membership, NetworkSpec};
use berth_host::EngineError;
use berth_testkit::{Caller, Platform, vm};
use serde_json::{Value, json};

async fn network(caller: &Caller, name: &str) -> String {
    let made = caller.post("/networks", json!({"name": name})).await;
    assert_eq!(made.status, 201, "{made:?}");
    made.id()
}

fn vm_in(name: &str, networks: &[&str]) -> Value {
    let mut body = vm(name);
    body["network_ids"] = json!(networks);
    body
}

/// Waits until the host knows a network as the rows have it, by the names and addresses of its members.
async fn told(platform: &Platform, id: &str, wanted: &[(&str, &str)]) -> NetworkSpec {
    let wanted: BTreeSet<(String, String)> =
        wanted.iter().map(|(name, address)| ((*name).to_owned(), (*address).to_owned())).collect();
    let known = |spec: &NetworkSpec| -> BTreeSet<(String, String)> {
        spec.members.iter().map(|member| (member.names[0].clone(), member.address.to_string())).collect()
    };
    let is_told = |_| async { platform.networks.spec(id).is_some_and(|spec| known(&spec) == wanted) };
    platform.admin.until(&format!("a host that knows {wanted:?}"), is_told).await;
    platform.networks.spec(id).expect("a network")
}

async fn forgotten(platform: &Platform, id: &str) {
    platform.admin.until("a host without the network", |_| async { platform.networks.spec(id).is_none() }).await;
}

/// The networks that something belongs to, as its owner sees them.
fn memberships(view: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let all = view["networks"].as_array().expect("a list");
    all.iter().map(|one| (text(&one["name"]), text(&one["address"]))).collect()
}

fn at(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, address)| ((*name).to_owned(), (*address).to_owned())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_project_has_so_many_networks_and_no_more() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let last = network(caller, "first").await;
    for number in 1..256 {
        network(caller, &format!("n{number}")).await;
    }
    caller.post("/networks", json!({"name": "one-more"})).await.refused(409, "conflict");
    assert!([202, 204].contains(&caller.delete(&format!("/networks/{last}")).await.status));
    forgotten(&platform, &last).await;
    network(caller, "one-more").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_called_like_anothers_id() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let lan = network(caller, "lan").await;
    let web = caller.create_vm(vm_in("web", &[&lan])).await;
    let other = caller.create_sandbox(json!({"name": web, "network_ids": [lan]})).await;
    let names = |spec: &NetworkSpec, address: &str| {
        let member = spec.members.iter().find(|member| member.address.to_string() == address);
        member.map(|member| member.names.clone()).unwrap_or_default()
    };
    let is_told = |_| async { platform.networks.spec(&lan).is_some_and(|spec| spec.members.len() == 2) };
    caller.until("both are told", is_told).await;
    let spec = platform.networks.spec(&lan).expect("a network");
    assert_eq!(names(&spec, "10.128.0.2"), ["web".to_owned(), web]);
    assert_eq!(names(&spec, "10.128.0.3"), [other]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_of_an_older_copy_goes_on_from_what_its_host_was_told() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let id = caller.post("/networks", json!({"name": "front"})).await.id();
    let spec = told(&platform, &id, &[]).await;
    platform.networks.leave(NetworkSpec { revision: 7, ..spec });
    assert_eq!(caller.patch(&format!("/networks/{id}"), json!({"name": "back"})).await.status, 200);
    caller
        .until("the host is told", |_| async { platform.networks.spec(&id).is_some_and(|spec| spec.name == "back") })
        .await;
    assert_eq!(platform.networks.spec(&id).expect("a network").revision, 8);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_is_made_read_renamed_and_deleted() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let made = caller.post("/networks", json!({"name": "lan"})).await;
    let id = made.id();
    assert_eq!(made.status, 201);
    assert_eq!(made.header("location"), Some(format!("{}/networks/{id}", caller.project).as_str()));
    for (field, value) in [
        ("name", json!("lan")),
        ("cidr", json!("10.128.0.0/24")),
        ("resolver", json!("10.128.0.1")),
        ("member_count", json!(0)),
        ("members", json!([])),
    ] {
        assert_eq!(made.body[field], value, "{field}");
    }
    told(&platform, &id, &[]).await;
    let path = format!("/networks/{id}");
    assert_eq!(caller.get(&path).await.body, made.body);
    let renamed = caller.patch(&path, json!({"name": "office"})).await;
    assert_eq!((renamed.status, &renamed.body["name"]), (200, &json!("office")), "{renamed:?}");
    caller
        .until("the new name", |_| async { platform.networks.spec(&id).is_some_and(|spec| spec.name == "office") })
        .await;
    let listed = caller.get("/networks?name=office").await.body;
    assert_eq!((&listed["pagination"]["total_items"], &listed["data"][0]["id"]), (&json!(1), &json!(id)));
    assert_eq!(listed["data"][0]["members"], Value::Null);
    assert_eq!(caller.delete(&path).await.status, 204);
    caller.get(&path).await.refused(404, "not_found");
    caller.delete(&path).await.refused(404, "not_found");
    caller.patch(&path, json!({})).await.refused(404, "not_found");
    forgotten(&platform, &id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_and_addresses_are_a_projects_own() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    network(caller, "lan").await;
    caller.post("/networks", json!({"name": "lan"})).await.refused(409, "network_exists");
    let other = network(caller, "other").await;
    assert_eq!(caller.get(&format!("/networks/{other}")).await.body["cidr"], "10.128.1.0/24");
    caller.patch(&format!("/networks/{other}"), json!({"name": "lan"})).await.refused(409, "network_exists");
    assert_eq!(caller.patch(&format!("/networks/{other}"), json!({"name": "other"})).await.status, 200);
    for (cidr, status) in [("10.128.1.128/28", 409), ("10.128.0.0/16", 409), ("10.129.0.0/16", 201)] {
        let made = caller.post("/networks", json!({"name": "wide", "cidr": cidr})).await;
        assert_eq!(made.status, status, "{cidr}: {made:?}");
    }
    // What is deleted is in nobody's way, and another project has names and addresses of its own.
    assert_eq!(caller.delete(&format!("/networks/{other}")).await.status, 204);
    assert_eq!(network_cidr(caller, "other").await, "10.128.1.0/24");
    let elsewhere = caller.another_project("elsewhere").await;
    assert_eq!(network_cidr(&elsewhere, "lan").await, "10.128.0.0/24");
}

async fn network_cidr(caller: &Caller, name: &str) -> String {
    let made = caller.post("/networks", json!({"name": name})).await;
    made.body["cidr"].as_str().expect("addresses").to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn ipv6_addresses_are_named_or_made_or_none_and_a_projects_own() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let made = caller.post("/networks", json!({"name": "lan", "cidr6": "fd00:20::/64"})).await;
    let lan = made.id();
    assert_eq!((&made.body["cidr6"], &made.body["resolver6"]), (&json!("fd00:20::/64"), &json!("fd00:20::1")));
    assert_eq!(caller.get(&format!("/networks/{lan}")).await.body, made.body);
    for (cidr6, status) in [("fd00:20::/48", 409), ("fd00:20::/64", 409), ("fd00:20:0:1::/64", 201)] {
        let made = caller.post("/networks", json!({"name": "next", "cidr6": cidr6})).await;
        assert_eq!(made.status, status, "{cidr6}: {made:?}");
    }
    // Some made by chance are nobody else's; without any there is nothing to see.
    let mut seen = BTreeSet::new();
    for number in 0..3 {
        let made = caller.post("/networks", json!({"name": format!("n{number}")})).await.body;
        let cidr6 = made["cidr6"].as_str().expect("addresses").to_owned();
        assert!(cidr6.starts_with("fd") && cidr6.ends_with("::/64") && seen.insert(cidr6), "{made}");
    }
    let plain = caller.post("/networks", json!({"name": "plain", "cidr6": "none"})).await;
    assert_eq!((&plain.body["cidr6"], &plain.body["resolver6"]), (&Value::Null, &Value::Null));
    // The host is told, each start says so, and owners see it.
    let web = caller.create_vm(vm_in("web", &[&lan, &plain.id()])).await;
    let view = caller.reaches(&web, "running").await;
    let shown = |place: usize| view["networks"][place]["address6"].clone();
    assert_eq!((shown(0), shown(1)), (json!("fd00:20::2"), Value::Null));
    let told = |id: &str| platform.networks.spec(id).expect("a network").cidr6.map(|cidr6| cidr6.to_string());
    assert_eq!((told(&lan), told(&plain.id())), (Some("fd00:20::/64".to_owned()), None));
    // Another project may have the same.
    let elsewhere = caller.another_project("elsewhere").await;
    assert_eq!(elsewhere.post("/networks", json!({"name": "lan", "cidr6": "fd00:20::/64"})).await.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_not_valid() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let answer = caller.post("/networks", json!({"name": "-", "cidr": "10.0.0.1/24", "mtu": 1})).await;
    answer.refused(400, "invalid_request");
    assert!(["name", "cidr", "mtu"].iter().all(|field| answer.names(field)), "{answer:?}");
    for cidr6 in ["fd00:20::1/64", "2001:db8::/64", "fd00::/47", "auto"] {
        let answer = caller.post("/networks", json!({"name": "lan", "cidr6": cidr6})).await;
        answer.refused(400, "invalid_request");
        assert!(answer.names("cidr6"), "{answer:?}");
    }
    caller.get("/networks/x").await.refused(400, "invalid_request");
    caller
        .patch(&format!("/networks/{}", uuid::Uuid::now_v7()), json!({"cidr": "x"}))
        .await
        .refused(400, "invalid_request");
}

#[tokio::test(flavor = "multi_thread")]
async fn vms_and_sandboxes_belong_to_networks_from_their_creation_to_their_end() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let (lan, dmz) = (network(caller, "lan").await, network(caller, "dmz").await);
    let web = caller.create_vm(vm_in("web", &[&dmz, &lan])).await;
    let view = caller.reaches(&web, "running").await;
    assert_eq!(memberships(&view), at(&[("dmz", "10.128.1.2"), ("lan", "10.128.0.2")]));
    assert_eq!(view["networks"][0]["network_id"], json!(dmz));
    let box_id = caller.create_sandbox(json!({"name": "box", "network_ids": [lan]})).await;
    let sandbox = caller.sandbox_reaches(&box_id, "Ready").await;
    assert_eq!(memberships(&sandbox), at(&[("lan", "10.128.0.3")]));
    // The host is told by names and ids, and each start says where its machine is.
    let spec = told(&platform, &lan, &[("web", "10.128.0.2"), ("box", "10.128.0.3")]).await;
    assert_eq!((spec.name.as_str(), spec.cidr.to_string().as_str()), ("lan", "10.128.0.0/24"));
    for member in &spec.members {
        let id = if member.names[0] == "web" { &web } else { &box_id };
        assert_eq!(&member.names[1], id);
    }
    let started = platform.sandboxes.spec(&box_id).expect("a machine").0.networks;
    let expected = Membership { network: spec.id, cidr: spec.cidr, cidr6: spec.cidr6, address: [10, 128, 0, 3].into() };
    assert_eq!(started, [expected]);
    // Both lists, and the network itself, show who belongs.
    assert_eq!(memberships(&caller.get("/vms").await.body["data"][0]).len(), 2);
    assert_eq!(memberships(&caller.get("/sandboxes").await.body["data"][0]).len(), 1);
    assert_eq!(caller.get("/networks?name=lan").await.body["data"][0]["member_count"], 2);
    let shown = caller.get(&format!("/networks/{lan}")).await.body;
    let six = |place: &str| format!("{}{place}", shown["cidr6"].as_str().expect("addresses").trim_end_matches("/64"));
    assert_eq!(
        shown["members"],
        json!([
            {"kind": "vm", "id": web, "name": "web", "address": "10.128.0.2", "address6": six("2")},
            {"kind": "sandbox", "id": box_id, "name": "box", "address": "10.128.0.3", "address6": six("3")},
        ])
    );
    assert_eq!(view["networks"][1]["address6"], json!(six("2")));
    assert_eq!(sandbox["networks"][0]["address6"], json!(six("3")));
    // A new name is told, and a network is used for as long as one of them is there.
    assert_eq!(caller.patch(&format!("/vms/{web}"), json!({"name": "www"})).await.status, 200);
    told(&platform, &lan, &[("www", "10.128.0.2"), ("box", "10.128.0.3")]).await;
    caller.delete(&format!("/networks/{lan}")).await.refused(409, "network_in_use");
    caller.delete(&format!("/vms/{web}")).await;
    caller.gone(&web).await;
    told(&platform, &lan, &[("box", "10.128.0.3")]).await;
    told(&platform, &dmz, &[]).await;
    assert_eq!(caller.delete(&format!("/networks/{dmz}")).await.status, 204);
    caller.delete(&format!("/networks/{lan}")).await.refused(409, "network_in_use");
    // The address is free again.
    let next = caller.create_vm(vm_in("next", &[&lan])).await;
    assert_eq!(memberships(&caller.reaches(&next, "running").await), at(&[("lan", "10.128.0.2")]));
    let deleted = caller.get(&format!("/vms/{web}?include_deleted=true")).await.body;
    assert_eq!(deleted["networks"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_tells_the_host_once_more() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let lan = network(caller, "lan").await;
    let web = caller.create_vm(vm_in("web", &[&lan])).await;
    caller.reaches(&web, "running").await;
    let sandbox = caller.create_sandbox(json!({"name": "box", "network_ids": [lan]})).await;
    caller.sandbox_reaches(&sandbox, "Ready").await;
    let members = [("web", "10.128.0.2"), ("box", "10.128.0.3")];
    told(&platform, &lan, &members).await;
    let forget = || {
        let spec = platform.networks.spec(&lan).expect("a network");
        platform.networks.leave(NetworkSpec { members: Vec::new(), ..spec });
    };
    for (verb, status) in [("stop", "stopped"), ("start", "running")] {
        forget();
        assert_eq!(caller.act(&format!("/vms/{web}/{verb}")).await.status, 202);
        caller.reaches(&web, status).await;
    }
    told(&platform, &lan, &members).await;
    for (verb, phase) in [("pause", "Paused"), ("resume", "Ready")] {
        forget();
        assert_eq!(caller.act(&format!("/sandboxes/{sandbox}/{verb}")).await.status, 202);
        let shown = caller.sandbox_reaches(&sandbox, phase).await;
        assert_eq!(memberships(&shown), at(&[("lan", "10.128.0.3")]), "{phase}");
    }
    told(&platform, &lan, &members).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_that_a_request_may_not_name() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let theirs = network(&caller.another_project("theirs").await, "lan").await;
    let deleted = network(caller, "gone").await;
    caller.delete(&format!("/networks/{deleted}")).await;
    for id in [uuid::Uuid::now_v7().to_string(), theirs, deleted] {
        let answer = caller.post("/vms", vm_in("web", &[&id])).await;
        answer.refused(400, "network_not_found");
        assert!(answer.names("network_ids"), "{answer:?}");
        caller.post("/sandboxes", json!({"network_ids": [id]})).await.refused(400, "network_not_found");
    }
    // References are looked at in order: disks come before networks, a region before all.
    let unknown = uuid::Uuid::now_v7().to_string();
    let mut body = vm_in("web", &[&unknown]);
    body["data_disks"] = json!({"attached_disks": [{"disk_id": unknown}]});
    caller.post("/vms", body.clone()).await.refused(400, "disk_not_found");
    body["region_id"] = json!("none");
    caller.post("/vms", body).await.refused(404, "region_not_found");
    let mut networks = Vec::new();
    for name in ["a", "b", "c", "d", "e"] {
        networks.push(network(caller, name).await);
    }
    let ids: Vec<&str> = networks.iter().map(String::as_str).collect();
    caller.post("/vms", vm_in("web", &ids)).await.refused(400, "invalid_request");
    caller.post("/sandboxes", json!({"network_ids": [ids[0], ids[0]]})).await.refused(400, "invalid_request");
    let web = caller.create_vm(vm_in("web", &ids[..4])).await;
    assert_eq!(memberships(&caller.reaches(&web, "running").await).len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_has_so_many_addresses() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let made = caller.post("/networks", json!({"name": "small", "cidr": "192.168.7.16/28"})).await;
    let small = made.id();
    let source = caller.create_sandbox(json!({"network_ids": [small]})).await;
    caller.sandbox_reaches(&source, "Ready").await;
    // Thirteen in all: neither the ends nor the resolver.
    let fork = async |count: i64| caller.post(&format!("/sandboxes/{source}/fork"), json!({"count": count})).await;
    fork(13).await.refused(409, "network_full");
    assert_eq!(caller.get("/sandboxes").await.body["pagination"]["total_items"], 1);
    assert_eq!(fork(12).await.status, 201);
    caller.post("/sandboxes", json!({"network_ids": [small]})).await.refused(409, "network_full");
    caller.post("/vms", vm_in("web", &[&small])).await.refused(409, "network_full");
    let members = caller.get(&format!("/networks/{small}")).await.body;
    assert_eq!(members["member_count"], 13);
    assert_eq!(members["members"][0]["address"], "192.168.7.18");
    assert_eq!(members["members"][12]["address"], "192.168.7.30");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_made_of_a_sandbox_belongs_where_it_did() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let (lan, dmz) = (network(caller, "lan").await, network(caller, "dmz").await);
    let source = caller.create_sandbox(json!({"name": "box", "network_ids": [lan, dmz]})).await;
    caller.sandbox_reaches(&source, "Ready").await;
    let forked = caller.post(&format!("/sandboxes/{source}/fork"), json!({"count": 2})).await;
    let children: Vec<_> = forked.body["data"].as_array().expect("a list").iter().map(memberships).collect();
    let first = at(&[("lan", "10.128.0.3"), ("dmz", "10.128.1.3")]);
    assert_eq!(children, [first, at(&[("lan", "10.128.0.4"), ("dmz", "10.128.1.4")])]);
    let snapshot = caller.post(&format!("/sandboxes/{source}/snapshots"), json!({})).await.id();
    let path = format!("/snapshots/{snapshot}");
    caller
        .until("the snapshot", |c| {
            let path = path.clone();
            async move { c.get(&path).await.body["status"] == "Ready" }
        })
        .await;
    let all = caller.get("/sandboxes").await.body["data"].as_array().expect("a list").clone();
    for sandbox in all {
        let id = sandbox["id"].as_str().expect("an id").to_owned();
        caller.sandbox_reaches(&id, "Ready").await;
        assert_eq!(caller.delete(&format!("/sandboxes/{id}")).await.status, 202);
        caller
            .until("its end", |c| {
                let path = format!("/sandboxes/{id}");
                async move { c.get(&path).await.status == 404 }
            })
            .await;
    }
    // The snapshot knows where its sandbox belonged, of which one is gone.
    assert_eq!(caller.delete(&format!("/networks/{lan}")).await.status, 204);
    let made = caller.post("/sandboxes", json!({"snapshot_id": snapshot})).await;
    assert_eq!(memberships(&made.body), at(&[("dmz", "10.128.1.2")]), "{made:?}");
    let none = caller.post("/sandboxes", json!({"snapshot_id": snapshot, "network_ids": []})).await;
    assert_eq!(memberships(&none.body), at(&[]));
    let own = network(caller, "own").await;
    let other = caller.post("/sandboxes", json!({"snapshot_id": snapshot, "network_ids": [own]})).await;
    assert_eq!(memberships(&other.body), at(&[("own", "10.128.0.2")]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_refuses_is_told_until_it_knows() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    platform.networks.refuse("set", EngineError::Permanent("broken".into()));
    let lan = network(caller, "lan").await;
    let web = caller.create_vm(vm_in("web", &[&lan])).await;
    caller.reaches(&web, "running").await;
    assert!(platform.networks.spec(&lan).is_none());
    platform.networks.allow("set");
    platform.advance(30);
    told(&platform, &lan, &[("web", "10.128.0.2")]).await;
    caller.delete(&format!("/vms/{web}")).await;
    caller.gone(&web).await;
    platform.networks.refuse("remove", EngineError::Transient("slow".into()));
    assert_eq!(caller.delete(&format!("/networks/{lan}")).await.status, 204);
    caller.get(&format!("/networks/{lan}")).await.refused(404, "not_found");
    assert!(platform.networks.spec(&lan).is_some());
    platform.networks.allow("remove");
    platform.advance(30);
    forgotten(&platform, &lan).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_starts_tells_everything_once_more_and_removes_what_nobody_owns() {
    let platform = Platform::start().await;
    let lan = network(&platform.admin, "lan").await;
    let web = platform.admin.create_vm(vm_in("web", &[&lan])).await;
    platform.admin.reaches(&web, "running").await;
    let spec = told(&platform, &lan, &[("web", "10.128.0.2")]).await;
    let nobodys = uuid::Uuid::now_v7().to_string();
    platform.networks.leave(NetworkSpec { id: nobodys.parse().expect("an id"), ..spec.clone() });
    // The host forgot whom it was told of.
    platform.networks.leave(NetworkSpec { members: Vec::new(), ..spec.clone() });
    let platform = platform.crash_and_restart().await;
    let again = told(&platform, &lan, &[("web", "10.128.0.2")]).await;
    assert_eq!(again, NetworkSpec { revision: again.revision, ..spec.clone() });
    forgotten(&platform, &nobodys).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_kept_for_whoever_asks_again_and_everything_is_recorded() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let ask = async |body: Value| {
        let request = caller.request(reqwest::Method::POST, "/networks").header("Idempotency-Key", "once").json(&body);
        caller.send(request).await
    };
    let first = ask(json!({"name": "lan"})).await;
    let again = ask(json!({"name": "lan"})).await;
    assert_eq!((again.status, &again.body, again.header("idempotent-replayed")), (201, &first.body, Some("true")));
    ask(json!({"name": "dmz"})).await.refused(422, "idempotency_mismatch");
    let id = first.id();
    caller.patch(&format!("/networks/{id}"), json!({"name": "dmz"})).await;
    caller.delete(&format!("/networks/{id}")).await;
    let audit = caller.get(&format!("{}/audit_log", caller.org())).await.body;
    let actions: Vec<_> = audit["data"].as_array().expect("a list").iter().map(|one| one["action"].clone()).collect();
    for action in ["network.create", "network.update", "network.delete"] {
        assert!(actions.contains(&json!(action)), "{action}: {actions:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_project_has_so_many_networks_and_is_deleted_without() {
    let platform = Platform::start().await;
    let ada = platform.sign_up("ada@example.com").await;
    let quota = format!("/api/v1/admin/projects/{}/quota", ada.project_id());
    let set = platform.admin.request(reqwest::Method::PUT, &quota).json(&json!({"networks": 1}));
    assert_eq!(platform.admin.send(set).await.status, 200);
    let lan = network(&ada, "lan").await;
    ada.post("/networks", json!({"name": "dmz"})).await.refused(403, "quota_exceeded");
    assert_eq!(ada.get("/quota").await.body["networks"], json!({"used": 1, "limit": 1}));
    ada.delete(&ada.project.clone()).await.refused(409, "conflict");
    assert_eq!(ada.delete(&format!("/networks/{lan}")).await.status, 204);
    assert_eq!(ada.get("/quota").await.body["networks"], json!({"used": 0, "limit": 1}));
    assert_eq!(ada.delete(&ada.project.clone()).await.status, 204);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_for_vms_or_for_sandboxes_is_good_for_networks() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    for (scope, status) in [("vm", 201), ("sandbox", 201), ("inference", 403)] {
        let key = caller.post("/api_keys", json!({"name": scope, "scopes": [scope]})).await;
        let key = caller.with_token(key.body["key"].as_str().expect("a key"));
        let made = key.post("/networks", json!({"name": scope})).await;
        assert_eq!(made.status, status, "{scope}: {made:?}");
        assert_eq!(status == 403, made.body["code"] == "missing_scope");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn networks_that_the_host_does_not_take_are_counted() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let untold = async |count: u32| {
        let counted = async || {
            let metrics = reqwest::get(format!("{}/metrics", caller.base)).await.expect("an answer");
            metrics.text().await.expect("a body").contains(&format!("\nberth_networks_untold {count}\n"))
        };
        caller.until(&format!("{count} in the metrics"), |_| counted()).await;
    };
    let (front, back) = (network(caller, "front").await, network(caller, "back").await);
    untold(0).await;
    for call in ["set", "remove"] {
        platform.networks.refuse(call, EngineError::Transient("no switch".into()));
    }
    assert_eq!(caller.patch(&format!("/networks/{front}"), json!({"name": "lan"})).await.status, 200);
    untold(1).await;
    assert_eq!(caller.delete(&format!("/networks/{back}")).await.status, 204);
    untold(2).await;
    for call in ["set", "remove"] {
        platform.networks.allow(call);
    }
    untold(0).await;
}
