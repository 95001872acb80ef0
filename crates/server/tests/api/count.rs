//! Several VMs with one request: all of them or none.

use berth_testkit::{Caller, Platform, vm};
use reqwest::Method;
use serde_json::{Value, json};

fn several(name: &str, count: i64) -> Value {
    let mut body = vm(name);
    body["count"] = json!(count);
    body
}

/// The names of a project's VMs, in their order.
async fn names(caller: &Caller) -> Vec<String> {
    let listed = caller.get("/vms?sort=name&limit=100").await.body;
    let all = listed["data"].as_array().expect("a list");
    all.iter().map(|vm| vm["name"].as_str().expect("a name").to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn several_are_made_with_disks_and_networks_of_their_own() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let lan = caller.post("/networks", json!({"name": "lan"})).await.id();
    let mut body = several("web", 3);
    body["data_disks"] = json!({"create_disks": [{"name": "data", "type": "filesystem", "size_gb": 10}]});
    body["network_ids"] = json!([lan]);
    let made = caller.post("/vms", body).await;
    assert_eq!(made.status, 201, "{made:?}");
    let vms = made.body["data"].as_array().expect("a list");
    let of = |pointer: &str| vms.iter().map(|vm| vm.pointer(pointer).cloned().unwrap_or_default()).collect::<Vec<_>>();
    assert_eq!(of("/name"), [json!("web-1"), json!("web-2"), json!("web-3")]);
    let first = vms[0]["id"].as_str().expect("an id");
    assert_eq!(made.header("location"), Some(format!("{}/vms/{first}", caller.project).as_str()));
    assert_eq!(of("/networks/0/address"), [json!("10.128.0.2"), json!("10.128.0.3"), json!("10.128.0.4")]);
    for pointer in ["/id", "/root_disk/id", "/data_disks/0/id"] {
        let ids = of(pointer);
        assert!(ids[0].is_string() && ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2], "{pointer}: {ids:?}");
    }
    for vm in vms {
        caller.reaches(vm["id"].as_str().expect("an id"), "running").await;
    }
    let log = caller.get(&format!("{}/audit_log?action=vm.create", caller.org())).await.body;
    assert_eq!(log["pagination"]["total_items"], json!(3), "{log}");
    let one = caller.post("/vms", several("solo", 1)).await;
    assert_eq!((one.status, &one.body["data"][0]["name"]), (201, &json!("solo")), "{one:?}");
    assert_eq!(caller.post("/vms", vm("alone")).await.body["name"], json!("alone"));
}

#[tokio::test(flavor = "multi_thread")]
async fn as_many_as_there_may_be_and_no_more() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    assert_eq!(caller.post("/vms", several("web", 20)).await.body["data"].as_array().map(Vec::len), Some(20));
    for count in [0, 21] {
        assert!(caller.post("/vms", several("web", count)).await.names("count"));
    }
    assert!(caller.post("/vms", several(&"a".repeat(19), 2)).await.names("name"));
    let disk = json!({"name": "d", "type": "block", "size_gb": 10, "region_id": "local"});
    let disk = caller.post("/disks", disk).await.id();
    let mut body = several("web", 2);
    body["data_disks"] = json!({"attached_disks": [{"disk_id": disk}]});
    let refused = caller.post("/vms", body).await;
    refused.refused(400, "invalid_request");
    assert!(refused.names("count"), "{refused:?}");
    assert_eq!(names(caller).await.len(), 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_or_none() {
    let platform = Platform::start().await;
    let ada = platform.sign_up("ada@example.com").await;
    let quota = format!("/api/v1/admin/projects/{}/quota", ada.project_id());
    for (limit, count) in [("vms", 3), ("vcpu", 3), ("memory_mb", 3 * 512), ("disks", 3), ("disk_gb", 3 * 20)] {
        let set = platform.admin.request(Method::PUT, &quota).json(&json!({limit: count}));
        assert_eq!(platform.admin.send(set).await.status, 200);
        ada.post("/vms", several("web", 4)).await.refused(403, "quota_exceeded");
        assert_eq!(names(&ada).await, Vec::<String>::new(), "{limit}");
    }
    let made = ada.post("/vms", several("web", 3)).await;
    assert_eq!((made.status, names(&ada).await.len()), (201, 3), "{made:?}");
    // A network with room for two.
    let caller = &platform.admin;
    let small = caller.post("/networks", json!({"name": "small", "cidr": "10.9.0.0/28"})).await.id();
    let mut body = several("db", 14);
    body["network_ids"] = json!([small]);
    caller.post("/vms", body.clone()).await.refused(409, "network_full");
    assert_eq!(names(caller).await, Vec::<String>::new());
    body["count"] = json!(13);
    assert_eq!(caller.post("/vms", body).await.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_request_makes_no_more() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let ask = async |count: i64| {
        let request = caller.request(Method::POST, "/vms").header("Idempotency-Key", "once");
        caller.send(request.json(&several("web", count))).await
    };
    let (first, again) = (ask(2).await, ask(2).await);
    assert_eq!((first.status, again.status, &first.body), (201, 201, &again.body));
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
    ask(3).await.refused(422, "idempotency_mismatch");
    assert_eq!(names(caller).await, ["web-1", "web-2"]);
}
