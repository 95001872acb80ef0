//! Firewall rules of VMs and of networks: their rows, and what the host is told.

use std::collections::BTreeSet;

use berth_host::EngineError;
use berth_testkit::{Caller, Platform, vm};
use serde_json::{Value, json};

/// A rule of each form.
fn rules() -> Value {
    json!([
        {"direction": "in", "protocol": "tcp", "ports": [22, "8000-8100"], "source": "10.20.0.0/24", "action": "allow"},
        {"direction": "in", "protocol": "any", "action": "deny"},
        {"direction": "out", "protocol": "udp", "ports": [53], "source": "2001:db8::/32", "action": "deny"},
    ])
}

/// What the host has of a VM's rules.
fn told(platform: &Platform, vm: &str) -> Value {
    serde_json::to_value(platform.engine.spec(vm).expect("a machine").rules).expect("rules")
}

/// Records of an action, newest first.
async fn audit(caller: &Caller, action: &str) -> Vec<Value> {
    let log = caller.get(&format!("/api/v1/orgs/administrator/audit_log?action={action}")).await.body;
    log["data"].as_array().expect("records").clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_vm_follows_its_rules_and_keeps_them_through_its_life() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let id = caller.running_vm("web").await;
    let path = format!("/vms/{id}/rules");
    assert_eq!(caller.get(&path).await.body, json!({"rules": []}));
    let before = caller.get(&format!("/vms/{id}")).await.body["updated_at"].clone();
    platform.advance(1);
    let set = caller.put(&path, json!({"rules": rules()})).await;
    assert_eq!((set.status, &set.body), (200, &json!({"rules": rules()})), "{set:?}");
    assert_eq!(caller.get(&path).await.body, json!({"rules": rules()}));
    caller.until("a machine with rules", |_| async { told(&platform, &id) == rules() }).await;
    let changed = caller.get(&format!("/vms/{id}")).await.body["updated_at"].clone();
    assert_ne!(changed, before);
    // The same once more is no change.
    platform.advance(1);
    assert_eq!(caller.put(&path, json!({"rules": rules()})).await.status, 200);
    assert_eq!(caller.get(&format!("/vms/{id}")).await.body["updated_at"], changed);

    assert_eq!(caller.act(&format!("/vms/{id}/stop")).await.status, 202);
    caller.reaches(&id, "stopped").await;
    let one = json!([{"direction": "out", "protocol": "any", "action": "deny"}]);
    assert_eq!(caller.put(&path, json!({"rules": one})).await.status, 200);
    assert_eq!(caller.act(&format!("/vms/{id}/start")).await.status, 202);
    caller.reaches(&id, "running").await;
    assert_eq!(told(&platform, &id), one, "its start says them");

    let log = audit(caller, "vm.set_rules").await;
    assert_eq!((log.len(), &log[0]["data"]["rules"]), (2, &one), "{log:?}");
    caller.delete(&format!("/vms/{id}")).await;
    caller.gone(&id).await;
    assert_eq!(caller.get(&path).await.status, 404);
    caller.put(&path, json!({"rules": []})).await.refused(404, "vm_not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_that_cannot_be_told_are_told_later_and_the_last_ones_hold() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let id = caller.running_vm("web").await;
    let path = format!("/vms/{id}/rules");
    platform.engine.refuse("set_ports", EngineError::Transient("it is silent".into()));
    assert_eq!(caller.put(&path, json!({"rules": rules()})).await.status, 200);
    let says = async |caller: Caller| {
        let vm = caller.get(&format!("/vms/{id}")).await.body;
        vm["message"].as_str().is_some_and(|message| message.contains("firewall rules"))
    };
    caller.until("a word of it", |caller| says(caller.clone())).await;
    assert_eq!(caller.put(&path, json!({"rules": []})).await.status, 200);
    platform.engine.allow("set_ports");
    platform.advance(20);
    caller.until("the last rules", |_| async { told(&platform, &id) == json!([]) }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_networks_rules_are_told_with_the_network() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let lan = caller.post("/networks", json!({"name": "lan"})).await.id();
    let path = format!("/networks/{lan}/rules");
    assert_eq!(caller.get(&path).await.body, json!({"rules": []}));
    let set = caller.put(&path, json!({"rules": rules()})).await;
    assert_eq!((set.status, &set.body), (200, &json!({"rules": rules()})), "{set:?}");
    let known = || platform.networks.spec(&lan).map(|spec| serde_json::to_value(spec.rules).expect("rules"));
    caller.until("a host that knows them", |_| async { known() == Some(rules()) }).await;
    let mut body = vm("web");
    body["network_ids"] = json!([lan]);
    caller.create_vm(body).await;
    caller
        .until("a member", |_| async { platform.networks.spec(&lan).is_some_and(|spec| spec.members.len() == 1) })
        .await;
    assert_eq!(known(), Some(rules()), "who joins changes nothing of them");
    assert_eq!(audit(caller, "network.set_rules").await.len(), 1);
    caller
        .put(&format!("/networks/{}/rules", uuid::Uuid::now_v7()), json!({"rules": []}))
        .await
        .refused(404, "not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_rules_are_named_and_change_nothing() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let id = caller.running_vm("web").await;
    let lan = caller.post("/networks", json!({"name": "lan"})).await.id();
    for path in [format!("/vms/{id}/rules"), format!("/networks/{lan}/rules")] {
        assert_eq!(caller.put(&path, json!({"rules": rules()})).await.status, 200);
        let wrong = json!({"rules": [{"direction": "in", "protocol": "icmp", "ports": [80], "source": "10.0.0.1/8"}]});
        let refused = caller.put(&path, wrong).await;
        let fields: Vec<_> =
            refused.body["details"].as_array().expect("details").iter().map(|d| d["field"].clone()).collect();
        assert_eq!(refused.status, 400);
        assert_eq!(fields, ["rules[0].source", "rules[0].action", "rules[0].ports"]);
        let rule = json!({"direction": "in", "protocol": "tcp", "action": "deny"});
        assert_eq!(caller.put(&path, json!({"rules": vec![rule.clone(); 101]})).await.status, 400);
        assert_eq!(caller.put(&path, json!({})).await.status, 400);
        assert_eq!(caller.get(&path).await.body, json!({"rules": rules()}));
        assert_eq!(caller.put(&path, json!({"rules": vec![rule; 100]})).await.status, 200);
    }
}

/// A VM of these labels in a network; its id and addresses there.
async fn labelled(caller: &Caller, name: &str, labels: Value, lan: &str) -> (String, BTreeSet<String>) {
    let mut body = vm(name);
    (body["labels"], body["network_ids"]) = (labels, json!([lan]));
    let id = caller.create_vm(body).await;
    let view = caller.reaches(&id, "running").await;
    let place = &view["networks"][0];
    let addresses = ["address", "address6"].map(|name| place[name].as_str().expect("an address").to_owned());
    (id, addresses.into())
}

/// Who is in the group of the first of some rules.
fn members(rules: &Value) -> BTreeSet<String> {
    let members = rules[0]["members"].as_array();
    members.into_iter().flatten().map(|address| address.as_str().expect("an address").to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_is_who_has_the_label_as_labels_change_and_vms_come_and_go() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let lan = caller.post("/networks", json!({"name": "lan"})).await.id();
    let other = caller.post("/networks", json!({"name": "other"})).await.id();
    let (first, a) = labelled(caller, "first", json!({"role": "web"}), &lan).await;
    let (second, b) = labelled(caller, "second", json!({"role": "db", "x": "web"}), &lan).await;
    labelled(caller, "far", json!({"role": "web"}), &other).await;
    let said = json!([
        {"direction": "in", "protocol": "tcp", "ports": [5432], "source": "label:role=web", "action": "allow"},
        {"direction": "in", "protocol": "any", "action": "deny"},
    ]);
    let paths = [format!("/networks/{lan}/rules"), format!("/vms/{second}/rules")];
    for path in &paths {
        let set = caller.put(path, json!({"rules": said})).await;
        assert_eq!((set.status, &set.body), (200, &json!({"rules": said})), "{set:?}");
    }
    // Both the network's rules and the VM's follow, and owners see what they wrote.
    let known = async |wanted: BTreeSet<String>| {
        let of_network = || platform.networks.spec(&lan).map(|spec| serde_json::to_value(spec.rules).expect("rules"));
        let is_so = |_| async {
            of_network().is_some_and(|rules| members(&rules) == wanted) && members(&told(&platform, &second)) == wanted
        };
        caller.until(&format!("a group of {wanted:?}"), is_so).await;
        for path in &paths {
            assert_eq!(caller.get(path).await.body, json!({"rules": said}));
        }
    };
    known(a.clone()).await;
    assert_eq!(caller.patch(&format!("/vms/{second}"), json!({"labels": {"role": "web"}})).await.status, 200);
    known(&a | &b).await;
    let (third, c) = labelled(caller, "third", json!({"role": "web"}), &lan).await;
    known(&(&a | &b) | &c).await;
    assert_eq!(caller.patch(&format!("/vms/{first}"), json!({"labels": {}})).await.status, 200);
    known(&b | &c).await;
    caller.delete(&format!("/vms/{third}")).await;
    caller.gone(&third).await;
    known(b).await;
    assert_eq!(caller.patch(&format!("/vms/{second}"), json!({"labels": {}})).await.status, 200);
    known(BTreeSet::new()).await;
    for source in ["label:role", "label:=web", "label:a b=c"] {
        let rule = json!({"direction": "in", "protocol": "tcp", "source": source, "action": "deny"});
        caller.put(&paths[0], json!({"rules": [rule]})).await.refused(400, "invalid_request");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_s_rules_follow_labels_though_its_network_cannot_be_told() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let lan = caller.post("/networks", json!({"name": "lan"})).await.id();
    let (first, a) = labelled(caller, "first", json!({"role": "web"}), &lan).await;
    let (second, b) = labelled(caller, "second", json!({}), &lan).await;
    let said = json!([{"direction": "in", "protocol": "any", "source": "label:role=web", "action": "deny"}]);
    assert_eq!(caller.put(&format!("/vms/{first}/rules"), json!({"rules": said})).await.status, 200);
    let known = async |wanted: BTreeSet<String>| {
        let is_so = |_| async { members(&told(&platform, &first)) == wanted };
        caller.until(&format!("a group of {wanted:?}"), is_so).await;
    };
    known(a.clone()).await;
    platform.networks.refuse("set", EngineError::Transient("a member does not answer".into()));
    assert_eq!(caller.patch(&format!("/vms/{second}"), json!({"labels": {"role": "web"}})).await.status, 200);
    known(&a | &b).await;
    caller.delete(&format!("/vms/{second}")).await;
    known(a).await;
    platform.networks.allow("set");
}
