//! Creating, reading and changing VMs: each rule with values on both sides of its bound.

use berth_testkit::{Caller, Platform, key, vm};
use serde_json::{Value, json};

const CREATE: &str = "/root_disk/create_disk_request";

/// A valid body with one thing changed.
fn with(pointer: &str, value: Value) -> Value {
    let mut body = vm("web");
    let (parent, name) = pointer.rsplit_once('/').expect("a pointer");
    body.pointer_mut(parent).expect("a parent")[name] = value;
    body
}

fn without(pointer: &str) -> Value {
    let mut body = vm("web");
    let (parent, name) = pointer.rsplit_once('/').expect("a pointer");
    body.pointer_mut(parent).and_then(Value::as_object_mut).expect("a parent").remove(name);
    body
}

async fn accepts(caller: &Caller, body: Value) -> Value {
    let answer = caller.post("/vms", body.clone()).await;
    assert_eq!(answer.status, 201, "{body}\n{answer:?}");
    answer.body
}

async fn refuses(caller: &Caller, body: Value, field: &str) {
    let answer = caller.post("/vms", body.clone()).await;
    answer.refused(400, "invalid_request");
    assert!(answer.names(field), "{field} is not named for {body}\n{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_vm_is_pending_and_complete() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let answer = caller.post("/vms", vm("web")).await;
    assert_eq!(answer.status, 201);
    let path = format!("{}/vms/{}", caller.project, answer.id());
    assert_eq!(answer.header("location"), Some(path.as_str()));
    assert_eq!(answer.body["status"], "pending");
    assert_eq!(answer.body["image_id"], "micro");
    assert_eq!(answer.body["delete_root_disk"], false);
    assert_eq!(answer.body["public_ip"], Value::Null);
    assert_eq!(answer.body["exposed_ports"], json!([]));
    assert_eq!(answer.body["root_disk"]["name"], "root");
    assert_eq!(answer.body["root_disk"]["size_gb"], 20);
    assert!(answer.body["created_at"].as_str().is_some_and(|t| t.len() == 27 && t.ends_with('Z')));
    let vm = caller.reaches(&answer.id(), "running").await;
    assert!(vm["public_ip"].as_str().is_some_and(|ip| ip.starts_with("127.")));
    assert_eq!(vm["ssh"]["user"], "root");
    assert_eq!(caller.get(&path).await.body["id"], vm["id"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn names() {
    let platform = Platform::start().await;
    let longest = "a".repeat(20);
    for good in ["a", "0", "a-b", "a--b", "0a9", longest.as_str()] {
        accepts(&platform.admin, with("/name", json!(good))).await;
        accepts(&platform.admin, with(&format!("{CREATE}/name"), json!(good))).await;
    }
    let too_long = "a".repeat(21);
    for bad in ["", "-a", "a-", "A", "a_b", "a.b", "a b", "ä", "a\n", too_long.as_str()] {
        refuses(&platform.admin, with("/name", json!(bad)), "name").await;
        refuses(&platform.admin, with(&format!("{CREATE}/name"), json!(bad)), "root_disk.create_disk_request.name")
            .await;
    }
    for bad in [Value::Null, json!(1), json!(true), json!([]), json!({})] {
        refuses(&platform.admin, with("/name", bad), "name").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn required_fields_and_wrong_types() {
    let platform = Platform::start().await;
    for field in ["name", "region_id", "vm_config_id", "plan_id", "root_disk"] {
        refuses(&platform.admin, without(&format!("/{field}")), field).await;
        refuses(&platform.admin, with(&format!("/{field}"), json!(7)), field).await;
    }
    for field in ["name", "size_gb", "image_id"] {
        let path = format!("root_disk.create_disk_request.{field}");
        refuses(&platform.admin, without(&format!("{CREATE}/{field}")), &path).await;
    }
    for (field, wrong) in [
        ("ssh_keys", json!("x")),
        ("exposed_ports", json!({})),
        ("delete_root_disk", json!("true")),
        ("data_disks", json!([])),
        ("gpu_config_count", json!("1")),
        ("user_data", json!(1)),
        ("labels", json!([])),
        ("restart_policy", json!("sometimes")),
    ] {
        refuses(&platform.admin, with(&format!("/{field}"), wrong), field).await;
    }
    let answer = platform.admin.post("/vms", json!({})).await;
    for field in ["name", "region_id", "vm_config_id", "plan_id", "root_disk"] {
        assert!(answer.names(field), "every invalid field is named: {answer:?}");
    }
    for body in [json!([]), json!(null), json!("x"), json!(1)] {
        platform.admin.post("/vms", body).await.refused(400, "invalid_request");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn root_disk_sizes() {
    let platform = Platform::start().await;
    for good in [json!(20), json!(2048), json!(20.0)] {
        accepts(&platform.admin, with(&format!("{CREATE}/size_gb"), good)).await;
    }
    for bad in [json!(19), json!(2049), json!(0), json!(-20), json!(20.5), json!("20"), json!(1e300), Value::Null] {
        refuses(&platform.admin, with(&format!("{CREATE}/size_gb"), bad), "root_disk.create_disk_request.size_gb")
            .await;
    }
    // The image `large` has 25 GiB.
    let sized = |size: i64| {
        let mut body = with(&format!("{CREATE}/image_id"), json!("large"));
        body["root_disk"]["create_disk_request"]["size_gb"] = json!(size);
        body
    };
    accepts(&platform.admin, sized(25)).await;
    refuses(&platform.admin, sized(24), "root_disk.create_disk_request.size_gb").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn exactly_one_root_disk() {
    let platform = Platform::start().await;
    let mut both = vm("web");
    both["root_disk"]["attach_disk_request"] = json!({"disk_id": uuid::Uuid::now_v7()});
    platform.admin.post("/vms", both).await.refused(400, "invalid_request");
    platform.admin.post("/vms", with("/root_disk", json!({}))).await.refused(400, "invalid_request");
    // What is null is absent.
    let mut one = vm("web");
    one["root_disk"]["attach_disk_request"] = Value::Null;
    accepts(&platform.admin, one).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ssh_keys() {
    let platform = Platform::start().await;
    let ten: Vec<_> = (0..10).map(key).collect();
    accepts(&platform.admin, with("/ssh_keys", json!(ten))).await;
    let eleven: Vec<_> = (0..11).map(key).collect();
    refuses(&platform.admin, with("/ssh_keys", json!(eleven)), "ssh_keys").await;
    refuses(&platform.admin, with("/ssh_keys", json!([key(1), key(1)])), "ssh_keys").await;
    let sized = |n: usize| format!("ssh-rsa {}", "A".repeat(n - 8));
    for good in [
        sized(50),
        sized(2000),
        format!("{}==", sized(60)),
        format!("{} a comment, of any kind: ä", sized(60)),
        "ssh-rsa\t\u{a0}".to_owned() + &"A".repeat(60),
    ] {
        accepts(&platform.admin, with("/ssh_keys", json!([good]))).await;
    }
    let bad = [
        sized(49),
        sized(2001),
        format!("ssh-dss {}", "A".repeat(60)),
        format!("ssh-rsa{}", "A".repeat(60)),
        format!(" {}", sized(60)),
        format!("{}===", sized(60)),
        format!("{}=x", sized(60)),
        format!("{}!", sized(60)),
        format!("{}\n", sized(60)),
        format!("{} a\rb", sized(60)),
        format!("{} a\u{b}b", sized(60)),
        format!("{} a\u{c}b", sized(60)),
        format!("{} a\u{85}b", sized(60)),
        format!("{} a\u{2028}b", sized(60)),
        format!("{} a\u{2029}b", sized(60)),
    ];
    for key in bad {
        refuses(&platform.admin, with("/ssh_keys", json!([key])), "ssh_keys[0]").await;
    }
    refuses(&platform.admin, with("/ssh_keys", json!([1])), "ssh_keys[0]").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn exposed_ports() {
    let platform = Platform::start().await;
    let port = |port: i64, protocol: &str| json!({"port": port, "protocol": protocol});
    let ten: Vec<_> = (1..=10).map(|n| port(1000 + n, "tcp")).collect();
    accepts(&platform.admin, with("/exposed_ports", json!(ten))).await;
    let eleven: Vec<_> = (1..=11).map(|n| port(1000 + n, "tcp")).collect();
    refuses(&platform.admin, with("/exposed_ports", json!(eleven)), "exposed_ports").await;
    accepts(
        &platform.admin,
        with("/exposed_ports", json!([port(53, "tcp"), port(53, "udp"), port(1, "tcp"), port(65535, "udp")])),
    )
    .await;
    refuses(&platform.admin, with("/exposed_ports", json!([port(80, "tcp"), port(80, "tcp")])), "exposed_ports").await;
    for bad in [port(22, "tcp"), port(22, "udp"), port(0, "tcp"), port(65536, "tcp"), port(-1, "tcp")] {
        refuses(&platform.admin, with("/exposed_ports", json!([bad])), "exposed_ports[0].port").await;
    }
    for bad in ["icmp", "TCP", ""] {
        refuses(&platform.admin, with("/exposed_ports", json!([port(80, bad)])), "exposed_ports[0].protocol").await;
    }
    refuses(&platform.admin, with("/exposed_ports", json!([{"port": 80}])), "exposed_ports[0].protocol").await;
    refuses(&platform.admin, with("/exposed_ports", json!([80])), "exposed_ports[0]").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn data_disks() {
    let platform = Platform::start().await;
    let disk = |name: &str, kind: &str, size: Value| json!({"name": name, "type": kind, "size_gb": size});
    let four: Vec<_> = (0..4).map(|n| disk(&format!("d{n}"), "block", json!(10))).collect();
    let vm = accepts(&platform.admin, with("/data_disks", json!({"create_disks": four}))).await;
    assert_eq!(vm["data_disks"].as_array().map(Vec::len), Some(4));
    assert_eq!(vm["data_disks"][3]["name"], "d3");
    let five: Vec<_> = (0..5).map(|n| disk(&format!("d{n}"), "block", json!(10))).collect();
    refuses(&platform.admin, with("/data_disks", json!({"create_disks": five})), "data_disks.create_disks").await;
    for size in [json!(10), json!(2048)] {
        accepts(&platform.admin, with("/data_disks", json!({"create_disks": [disk("d", "filesystem", size)]}))).await;
    }
    for size in [json!(9), json!(2049), json!(10.5), Value::Null] {
        let body = with("/data_disks", json!({"create_disks": [disk("d", "block", size)]}));
        refuses(&platform.admin, body, "data_disks.create_disks[0].size_gb").await;
    }
    let body = with("/data_disks", json!({"create_disks": [disk("d", "ext4", json!(10))]}));
    refuses(&platform.admin, body, "data_disks.create_disks[0].type").await;
    let body = with("/data_disks", json!({"create_disks": [disk("D", "block", json!(10))]}));
    refuses(&platform.admin, body, "data_disks.create_disks[0].name").await;
    let body = with("/data_disks", json!({"attached_disks": [{"disk_id": "x"}]}));
    refuses(&platform.admin, body, "data_disks.attached_disks[0].disk_id").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn extensions_have_bounds_too() {
    let platform = Platform::start().await;
    accepts(&platform.admin, with("/user_data", json!(format!("#!{}", "x".repeat(64 * 1024 - 2))))).await;
    refuses(&platform.admin, with("/user_data", json!(format!("#!{}", "x".repeat(64 * 1024 - 1)))), "user_data").await;
    let labels = |n: usize| (0..n).map(|i| (format!("k{i}"), json!("v"))).collect::<serde_json::Map<_, _>>();
    accepts(&platform.admin, with("/labels", labels(64).into())).await;
    refuses(&platform.admin, with("/labels", labels(65).into()), "labels").await;
    for bad in [
        json!({"": "v"}),
        json!({"k".repeat(64): "v"}),
        json!({"k": 1}),
        json!({"a b": "v"}),
        json!({"k": "v".repeat(256)}),
    ] {
        refuses(&platform.admin, with("/labels", bad), "labels").await;
    }
    for policy in ["never", "on-failure", "always"] {
        accepts(&platform.admin, with("/restart_policy", json!(policy))).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn references() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    caller.post("/vms", with("/region_id", json!("mars"))).await.refused(404, "region_not_found");
    caller.post("/vms", with(&format!("{CREATE}/image_id"), json!("plan9"))).await.refused(404, "image_not_found");
    refuses(caller, with("/vm_config_id", json!("huge")), "vm_config_id").await;
    refuses(caller, with("/plan_id", json!("free")), "plan_id").await;
    // The order: region before vm_config before plan before image.
    let mut all = with(&format!("{CREATE}/image_id"), json!("plan9"));
    all["region_id"] = json!("mars");
    all["vm_config_id"] = json!("huge");
    caller.post("/vms", all.clone()).await.refused(404, "region_not_found");
    all["region_id"] = json!("local");
    refuses(caller, all, "vm_config_id").await;
    // Syntax before references.
    let mut bad = with("/region_id", json!("mars"));
    bad["name"] = json!("BAD");
    caller.post("/vms", bad).await.refused(400, "invalid_request");
    let nowhere = json!({"attach_disk_request": {"disk_id": uuid::Uuid::now_v7()}});
    caller.post("/vms", with("/root_disk", nowhere)).await.refused(400, "disk_not_found");
    let nowhere = json!({"attached_disks": [{"disk_id": uuid::Uuid::now_v7()}]});
    caller.post("/vms", with("/data_disks", nowhere)).await.refused(400, "disk_not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn gpu_counts() {
    let platform = Platform::start().await;
    let vm = accepts(&platform.admin, with("/gpu_config_count", json!(0))).await;
    assert_eq!(vm["gpu_config_count"], 0);
    for bad in [json!(-1), json!(1), json!(1_000_000), json!(1.5)] {
        refuses(&platform.admin, with("/gpu_config_count", bad), "gpu_config_count").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_that_the_host_lacks_is_insufficient_capacity() {
    let platform = Platform::start_with(|config| {
        let mut gpu = config.catalog.vm_configs[0].clone();
        gpu.id = "gpu".into();
        gpu.gpu_model = Some("Example 9000".into());
        gpu.gpu_max = 2;
        config.catalog.vm_configs.push(gpu);
    })
    .await;
    let mut body = with("/vm_config_id", json!("gpu"));
    body["gpu_config_count"] = json!(3);
    refuses(&platform.admin, body.clone(), "gpu_config_count").await;
    body["gpu_config_count"] = json!(2);
    let id = platform.admin.create_vm(body).await;
    let vm = platform.admin.reaches(&id, "failed").await;
    assert!(vm["message"].as_str().is_some_and(|m| m.starts_with("insufficient_capacity:")), "{vm}");
}

#[tokio::test(flavor = "multi_thread")]
async fn names_may_repeat() {
    let platform = Platform::start().await;
    accepts(&platform.admin, vm("web")).await;
    accepts(&platform.admin, vm("web")).await;
    let listed = platform.admin.get("/vms?name=web").await;
    assert_eq!(listed.body["pagination"]["total_items"], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_that_are_not_ids() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    for bad in ["x", "1", "%20", "00000000-0000-0000-0000-00000000000", "null", "..%2f"] {
        caller.get(&format!("/vms/{bad}")).await.refused(400, "invalid_request");
        caller.delete(&format!("/vms/{bad}")).await.refused(400, "invalid_request");
        caller.act(&format!("/vms/{bad}/start")).await.refused(400, "invalid_request");
        caller.delete(&format!("/root_disks/{bad}")).await.refused(400, "invalid_request");
        let answer = caller.get(&format!("/root_disks/{bad}")).await;
        assert_eq!(answer.status, 404, "{answer:?}");
    }
    let nobody = uuid::Uuid::now_v7();
    caller.get(&format!("/vms/{nobody}")).await.refused(404, "vm_not_found");
    caller.delete(&format!("/vms/{nobody}")).await.refused(404, "vm_not_found");
    for verb in ["start", "stop", "restart"] {
        caller.act(&format!("/vms/{nobody}/{verb}")).await.refused(404, "vm_not_found");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_can_be_changed() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let id = caller.running_vm("web").await;
    let change = json!({"name": "shop", "labels": {"env": "test"}, "exposed_ports": [{"port": 8080, "protocol": "tcp"}], "restart_policy": "always"});
    let answer = caller.patch(&format!("/vms/{id}"), change).await;
    assert_eq!((answer.status, answer.body["name"].as_str()), (200, Some("shop")));
    assert_eq!(answer.body["labels"], json!({"env": "test"}));
    let engine = platform.engine.clone();
    caller
        .until("the ports", |_| {
            let (engine, id) = (engine.clone(), id.clone());
            async move { engine.open_ports(&id) == [22, 8080] }
        })
        .await;
    caller.patch(&format!("/vms/{id}"), json!({"name": "BAD"})).await.refused(400, "invalid_request");
    caller
        .patch(&format!("/vms/{id}"), json!({"exposed_ports": [{"port": 22, "protocol": "tcp"}]}))
        .await
        .refused(400, "invalid_request");
    let same = caller.patch(&format!("/vms/{id}"), json!({})).await;
    assert_eq!((same.status, same.body["name"].as_str()), (200, Some("shop")));
}
