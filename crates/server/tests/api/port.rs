//! Where the ports of a VM are reached, and what happens to those that cannot be had.

use berth_host::EngineError;
use berth_testkit::{Caller, Platform, vm};
use serde_json::{Value, json};

fn tcp(ports: &[u16]) -> Value {
    ports.iter().map(|port| json!({"port": port, "protocol": "tcp"})).collect()
}

fn with_ports(ports: &[u16]) -> Value {
    let mut body = vm("web");
    body["exposed_ports"] = tcp(ports);
    body
}

/// Changes the ports of a running VM, and waits until that was tried.
async fn expose(platform: &Platform, id: &str, ports: &[u16]) -> Value {
    let caller = &platform.admin;
    assert_eq!(caller.patch(&format!("/vms/{id}"), json!({"exposed_ports": tcp(ports)})).await.status, 200);
    let engine = &platform.engine;
    let wanted = ports.to_vec();
    let has = |id: &str| engine.spec(id).is_some_and(|spec| spec.ports.iter().map(|p| p.port).eq(wanted.clone()));
    caller.until("the ports", |_| async { has(id) }).await;
    shown(caller, id).await
}

async fn shown(caller: &Caller, id: &str) -> Value {
    caller.get(&format!("/vms/{id}")).await.body
}

async fn says(caller: &Caller, id: &str, part: &'static str) {
    let path = format!("/vms/{id}");
    caller
        .until(part, |c| {
            let path = path.clone();
            async move { c.get(&path).await.body["message"].as_str().is_some_and(|text| text.contains(part)) }
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ssh_makes_room_for_a_port_that_its_owner_exposes() {
    let platform = Platform::start().await;
    platform.engine.set_ssh_port(2222);
    let caller = &platform.admin;
    let id = caller.create_vm(with_ports(&[2222, 8080])).await;
    let running = caller.reaches(&id, "running").await;
    assert_eq!(running["ssh"]["port"], 2223, "{running}");
    assert_eq!(platform.engine.spec(&id).expect("a machine").ssh_port, 2223);
    // While it runs, too.
    let id = caller.create_vm(with_ports(&[])).await;
    assert_eq!(caller.reaches(&id, "running").await["ssh"]["port"], 2222);
    expose(&platform, &id, &[2222]).await;
    let path = format!("/vms/{id}");
    caller
        .until("another port", |c| {
            let path = path.clone();
            async move { c.get(&path).await.body["ssh"]["port"] == 2223 }
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_exposed_port_tells_where_it_is_reached() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let answer = caller.post("/vms", with_ports(&[8080])).await;
    let port = &answer.body["exposed_ports"][0];
    assert_eq!((&port["host"], &port["public_port"]), (&Value::Null, &json!(8080)), "{answer:?}");
    let running = caller.reaches(&answer.id(), "running").await;
    let port = &running["exposed_ports"][0];
    assert_eq!(
        (&port["host"], &port["port"], &port["public_port"]),
        (&running["public_ip"], &json!(8080), &json!(8080))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_another_program_has_is_named_and_creation_goes_on() {
    let platform = Platform::start().await;
    platform.engine.take_port(8080);
    let caller = &platform.admin;
    let id = caller.create_vm(with_ports(&[8080, 9090])).await;
    let running = caller.reaches(&id, "running").await;
    let message = running["message"].as_str().expect("a message");
    assert!(message.contains("8080/tcp") && !message.contains("9090"), "{message}");
    // A change that leaves it out clears the word; one that asks for it again says it again.
    expose(&platform, &id, &[9090]).await;
    let path = format!("/vms/{id}");
    caller
        .until("no message", |c| {
            let path = path.clone();
            async move { c.get(&path).await.body["message"].is_null() }
        })
        .await;
    expose(&platform, &id, &[8080]).await;
    says(caller, &id, "8080/tcp").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_ports_that_does_not_work_is_told_until_it_does() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let id = caller.running_vm("web").await;
    platform.engine.refuse("set_ports", EngineError::Transient("QMP is silent at /data/machines".into()));
    assert_eq!(caller.patch(&format!("/vms/{id}"), json!({"exposed_ports": tcp(&[8080])})).await.status, 200);
    says(caller, &id, "could not be changed").await;
    let vm = shown(caller, &id).await;
    assert_eq!(vm["status"], "running");
    assert!(!vm["message"].as_str().is_some_and(|text| text.contains("/data")), "{vm}");
    platform.engine.allow("set_ports");
    platform.advance(20);
    let path = format!("/vms/{id}");
    caller
        .until("the change", |c| {
            let path = path.clone();
            async move { c.get(&path).await.body["message"].is_null() }
        })
        .await;
    assert_eq!(platform.engine.spec(&id).expect("a machine").ports.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_ports_that_ended_half_way_and_was_taken_back_leaves_none_open() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let id = caller.create_vm(with_ports(&[9090])).await;
    caller.reaches(&id, "running").await;
    assert_eq!(platform.engine.open_ports(&id), [22, 9090]);
    platform.engine.refuse("set_ports", EngineError::Transient("QMP is silent".into()));
    let path = format!("/vms/{id}");
    assert_eq!(caller.patch(&path, json!({"exposed_ports": tcp(&[8080])})).await.status, 200);
    says(caller, &id, "could not be changed").await;
    assert_eq!(platform.engine.open_ports(&id), [22, 8080, 9090]);
    assert_eq!(caller.patch(&path, json!({"exposed_ports": tcp(&[9090])})).await.status, 200);
    platform.engine.allow("set_ports");
    platform.advance(20);
    caller.until("the change", |_| async { platform.engine.open_ports(&id) == [22, 9090] }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_that_is_off_has_no_ssh_and_no_ready_guest() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let id = caller.running_vm("web").await;
    let path = format!("/vms/{id}");
    caller
        .until("the guest", |c| {
            let path = path.clone();
            async move { c.get(&path).await.body["guest_ready"] == true }
        })
        .await;
    caller.act(&format!("/vms/{id}/stop")).await;
    let stopped = caller.reaches(&id, "stopped").await;
    assert_eq!((&stopped["guest_ready"], &stopped["ssh"]), (&json!(false), &Value::Null), "{stopped}");
    assert!(stopped["public_ip"].is_string(), "its address stays: {stopped}");
}
