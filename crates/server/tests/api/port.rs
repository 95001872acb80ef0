//! Where the ports of a VM are reached, and what happens to those that cannot be had.

use berth_domain::vm::pool::Pool;
use berth_host::EngineError;
use berth_server::config::{Config, Network, NetworkMode};
use berth_server::db::sql;
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
    let has =
        |id: &str| engine.spec(id).is_some_and(|spec| spec.ports.iter().skip(1).map(|p| p.to.port).eq(wanted.clone()));
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

/// Waits until a VM's owner is told nothing any more.
async fn says_nothing(caller: &Caller, id: &str) {
    let path = format!("/vms/{id}");
    caller
        .until("no message", |c| {
            let path = path.clone();
            async move { c.get(&path).await.body["message"].is_null() }
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
    assert_eq!(platform.engine.spec(&id).expect("a machine").ports[0].at.port(), 2223);
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
    says_nothing(caller, &id).await;
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
    says_nothing(caller, &id).await;
    assert_eq!(platform.engine.spec(&id).expect("a machine").ports.len(), 2);
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

/// A platform whose VMs share ports of an address.
async fn shared(ports: (u16, u16)) -> Platform {
    settled(Platform::start_with(|config| share(config, ports)).await).await
}

/// Waits until no machine of a template's has a slot, and with it a block of ports.
async fn settled(platform: Platform) -> Platform {
    // The template `base` is made first, on a machine of its own.
    let slots = "SELECT (SELECT COUNT(*) FROM machines WHERE slot IS NOT NULL) \
                 + (SELECT COUNT(*) FROM sandbox_templates WHERE memory_id IS NULL) \
                 + (SELECT CASE WHEN EXISTS (SELECT 1 FROM sandbox_templates) THEN 0 ELSE 1 END)";
    platform
        .admin
        .until("free slots", async |_| sql(slots).fetch_one::<i64>(&platform.app().db).await.expect("a count") == 0)
        .await;
    platform
}

fn share(config: &mut Config, ports: (u16, u16)) {
    config.network.mode = Some(NetworkMode::Shared);
    config.network.address = Some([192, 0, 2, 1].into());
    config.network.ports = ports;
}

/// Where SSH and the exposed ports of a VM are reached.
fn places(vm: &Value) -> (u64, Vec<(u64, u64)>) {
    assert_eq!((&vm["public_ip"], &vm["ssh"]["host"]), (&json!("192.0.2.1"), &json!("192.0.2.1")), "{vm}");
    let exposed = vm["exposed_ports"].as_array().expect("a list").iter().map(|port| {
        assert_eq!(port["host"], "192.0.2.1", "{vm}");
        (port["port"].as_u64().expect("a port"), port["public_port"].as_u64().expect("a port"))
    });
    (vm["ssh"]["port"].as_u64().expect("a port"), exposed.collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn vms_that_share_an_address_have_ports_of_their_own_there() {
    let platform = shared((20_000, 20_021)).await;
    let caller = &platform.admin;
    let answer = caller.post("/vms", with_ports(&[80, 443])).await;
    let port = &answer.body["exposed_ports"][0];
    assert_eq!(
        (&port["host"], &port["public_port"], &answer.body["public_ip"]),
        (&Value::Null, &Value::Null, &Value::Null)
    );
    let first = answer.id();
    let running = caller.reaches(&first, "running").await;
    assert_eq!(places(&running), (20_000, vec![(80, 20_001), (443, 20_002)]));
    assert_eq!(platform.engine.open_ports(&first), [20_000, 20_001, 20_002]);
    // What stays exposed stays where it is; what was shut leads nowhere else while there is room.
    let changed = expose(&platform, &first, &[443, 8080]).await;
    assert_eq!(places(&changed), (20_000, vec![(443, 20_002), (8080, 20_003)]));
    caller.until("the ports", |_| async { platform.engine.open_ports(&first) == [20_000, 20_002, 20_003] }).await;
    let second = caller.create_vm(with_ports(&[80])).await;
    assert_eq!(places(&caller.reaches(&second, "running").await), (20_011, vec![(80, 20_012)]));
    // There is room for two, and for another one once one is gone.
    let third = caller.create_vm(with_ports(&[])).await;
    let failed = caller.reaches(&third, "failed").await;
    let message = failed["message"].as_str().expect("a message");
    assert!(message.starts_with("insufficient_capacity:") && message.contains("20000-20021"), "{message}");
    assert_eq!((&failed["public_ip"], &failed["ssh"]), (&Value::Null, &Value::Null));
    assert_eq!(caller.delete(&format!("/vms/{first}")).await.status, 202);
    caller.until("its end", |_| async { platform.engine.spec(&first).is_none() }).await;
    caller.act(&format!("/vms/{third}/start")).await;
    assert_eq!(places(&caller.reaches(&third, "running").await), (20_000, vec![]));
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_that_run_are_reached_elsewhere_when_the_operator_says_so() {
    let mut platform = settled(Platform::start().await).await;
    let id = platform.admin.create_vm(with_ports(&[8080])).await;
    platform.admin.reaches(&id, "running").await;
    let starts = platform.engine.counts().2;
    share(&mut platform.config, (20_000, 20_999));
    let mut platform = platform.restart().await;
    platform.admin.until("the ports", |_| async { platform.engine.open_ports(&id) == [20_000, 20_001] }).await;
    let path = format!("/vms/{id}");
    platform
        .admin
        .until("its address", |c| {
            let path = path.clone();
            async move { c.get(&path).await.body["public_ip"] == "192.0.2.1" }
        })
        .await;
    assert_eq!(places(&shown(&platform.admin, &id).await), (20_000, vec![(8080, 20_001)]));
    platform.config.network = Network::default();
    let platform = platform.restart().await;
    platform.admin.until("the ports", |_| async { platform.engine.open_ports(&id) == [22, 8080] }).await;
    assert_eq!(platform.engine.counts().2, starts, "nobody was started again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_that_runs_outside_of_a_narrower_range_keeps_its_ports_until_it_is_stopped() {
    let mut platform = shared((20_000, 20_999)).await;
    let first = platform.admin.running_vm("first").await;
    let second = platform.admin.create_vm(with_ports(&[80])).await;
    assert_eq!(places(&platform.admin.reaches(&second, "running").await), (20_011, vec![(80, 20_012)]));
    share(&mut platform.config, (20_000, 20_010));
    let platform = platform.restart().await;
    platform.engine.refuse("set_ports", EngineError::Transient("QMP is silent".into()));
    let caller = &platform.admin;
    let path = format!("/vms/{second}");
    assert_eq!(caller.patch(&path, json!({"exposed_ports": []})).await.status, 200);
    says(caller, &second, "could not be changed").await;
    platform.engine.allow("set_ports");
    platform.advance(20);
    caller.until("the shut port", |_| async { platform.engine.open_ports(&second) == [20_011] }).await;
    assert_eq!(shown(caller, &second).await["status"], "running");
    // Once it holds nothing it is like every other one, and may have what the first leaves.
    caller.act(&format!("/vms/{second}/stop")).await;
    caller.reaches(&second, "stopped").await;
    assert_eq!(caller.delete(&format!("/vms/{first}")).await.status, 202);
    caller.until("its end", |_| async { platform.engine.spec(&first).is_none() }).await;
    caller.act(&format!("/vms/{second}/start")).await;
    assert_eq!(places(&caller.reaches(&second, "running").await), (20_000, vec![]));
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_that_another_program_has_are_given_to_nobody() {
    let platform = shared((20_000, 20_999)).await;
    let caller = &platform.admin;
    platform.engine.take_port(20_010);
    let id = caller.create_vm(with_ports(&[])).await;
    assert_eq!(places(&caller.reaches(&id, "running").await), (20_011, vec![]));
    // One that comes later has its place until it goes.
    platform.engine.take_port(20_012);
    expose(&platform, &id, &[80]).await;
    says(caller, &id, "80/tcp; it is tried again").await;
    platform.engine.free_port(20_012);
    platform.advance(60);
    says_nothing(caller, &id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_keeps_its_block_when_there_is_no_room_for_it() {
    let platform = shared((20_000, 20_999)).await;
    let caller = &platform.admin;
    let id = caller.running_vm("web").await;
    caller.act(&format!("/vms/{id}/stop")).await;
    caller.reaches(&id, "stopped").await;
    platform.engine.set_capacity(|capacity| capacity.memory_mb = 1);
    caller.act(&format!("/vms/{id}/start")).await;
    caller.reaches(&id, "failed").await;
    platform.engine.set_capacity(|capacity| capacity.memory_mb = 1_000_000);
    let other = caller.create_vm(vm("other")).await;
    assert_eq!(places(&caller.reaches(&other, "running").await).0, 20_011);
    caller.act(&format!("/vms/{id}/start")).await;
    assert_eq!(places(&caller.reaches(&id, "running").await).0, 20_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn ssh_has_its_own_port_again_once_the_service_may_bind_it() {
    let platform = Platform::start().await;
    platform.engine.set_ssh_port(2222);
    let caller = &platform.admin;
    let id = caller.running_vm("web").await;
    caller.act(&format!("/vms/{id}/stop")).await;
    caller.reaches(&id, "stopped").await;
    platform.engine.set_ssh_port(22);
    caller.act(&format!("/vms/{id}/start")).await;
    assert_eq!(caller.reaches(&id, "running").await["ssh"]["port"], 22);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_that_keeps_its_own_address_is_told_what_holds_for_that() {
    let mut platform = settled(Platform::start().await).await;
    platform.admin.running_vm("first").await;
    let second = platform.admin.running_vm("second").await;
    // There is a block for the first alone.
    share(&mut platform.config, (20_000, 20_010));
    let platform = platform.restart().await;
    platform.engine.take_port(8080);
    expose(&platform, &second, &[8080]).await;
    says(&platform.admin, &second, "expose another port").await;
    assert_eq!(shown(&platform.admin, &second).await["exposed_ports"][0]["public_port"], 8080);
}

fn pool(config: &mut Config, ranges: &[&str]) {
    config.network.mode = Some(NetworkMode::Pool);
    config.network.pool = Some(Pool::read(ranges.iter().copied()).expect("ranges"));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_vm_has_an_address_of_the_pool_while_it_is_there() {
    let platform = Platform::start_with(|config| pool(config, &["127.9.0.8/31", "::1"])).await;
    let caller = &platform.admin;
    let first = caller.create_vm(with_ports(&[80])).await;
    let running = caller.reaches(&first, "running").await;
    assert_eq!((&running["public_ip"], &running["ssh"]["port"]), (&json!("127.9.0.8"), &json!(22)), "{running}");
    let port = &running["exposed_ports"][0];
    assert_eq!((&port["host"], &port["public_port"]), (&json!("127.9.0.8"), &json!(80)));
    let second = caller.running_vm("second").await;
    let third = caller.running_vm("third").await;
    assert_eq!(shown(caller, &second).await["public_ip"], "127.9.0.9");
    assert_eq!(shown(caller, &third).await["public_ip"], "::1", "of whatever family is left");
    let fourth = caller.create_vm(with_ports(&[80])).await;
    let failed = caller.reaches(&fourth, "failed").await;
    assert!(failed["message"].as_str().is_some_and(|text| text.contains("all given out")), "{failed}");
    assert_eq!(failed["public_ip"], Value::Null);
    // One that is off keeps its address, and one that is gone gives it back.
    caller.act(&format!("/vms/{first}/stop")).await;
    assert_eq!(caller.reaches(&first, "stopped").await["public_ip"], "127.9.0.8");
    assert_eq!(caller.delete(&format!("/vms/{second}")).await.status, 202);
    caller.gone(&second).await;
    caller.act(&format!("/vms/{fourth}/start")).await;
    assert_eq!(caller.reaches(&fourth, "running").await["public_ip"], "127.9.0.9");
    caller.act(&format!("/vms/{first}/start")).await;
    assert_eq!(caller.reaches(&first, "running").await["public_ip"], "127.9.0.8");
}

#[tokio::test(flavor = "multi_thread")]
async fn vms_that_run_keep_what_they_are_reached_at_until_they_have_an_address_of_the_pool() {
    let mut platform = Platform::start().await;
    let id = platform.admin.running_vm("web").await;
    let own = shown(&platform.admin, &id).await["public_ip"].clone();
    pool(&mut platform.config, &["127.9.0.8"]);
    let mut platform = platform.restart().await;
    assert_eq!(shown(&platform.admin, &id).await["public_ip"], own);
    platform.admin.act(&format!("/vms/{id}/stop")).await;
    platform.admin.reaches(&id, "stopped").await;
    platform.admin.act(&format!("/vms/{id}/start")).await;
    assert_eq!(platform.admin.reaches(&id, "running").await["public_ip"], "127.9.0.8");
    // What the operator takes out of the pool stays with it until then, too; without a pool it is here alone at once.
    pool(&mut platform.config, &["127.9.0.9"]);
    let mut platform = platform.restart().await;
    assert_eq!(shown(&platform.admin, &id).await["public_ip"], "127.9.0.8");
    platform.config.network = Network::default();
    let platform = platform.restart().await;
    let is_here = async |caller: Caller| caller.get(&format!("/vms/{id}")).await.body["public_ip"] == own;
    platform.admin.until("its own address", |caller| is_here(caller.clone())).await;
}
