//! VMs on several hosts: where they are put, what is asked of which host, and hosts that come and go.

use berth_domain::ids::HostId;
use berth_domain::vm::plan::Machine;
use berth_host::EngineError;
use berth_testkit::{Caller, JoinedHost, Platform, SimulatedEngine, eventually, vm};
use serde_json::{Value, json};

use crate::host::told;

const HOSTS: &str = "/api/v1/admin/hosts";

/// A host that has joined and is ready.
pub async fn join(platform: &Platform, name: &str) -> JoinedHost {
    let made = platform.admin.post(HOSTS, json!({"name": name, "region_id": "local"})).await;
    let token = made.body["token"].as_str().unwrap_or_else(|| panic!("{made:?}"));
    let beta = JoinedHost::join(&platform.admin.anonymous(), token).await.expect("it joins");
    is(&platform.admin, &beta, "ready").await;
    beta
}

pub async fn is(admin: &Caller, beta: &JoinedHost, state: &str) {
    let path = format!("{HOSTS}/{}", beta.id);
    admin.until(state, async |admin| admin.get(&path).await.body["state"] == state).await;
}

/// Leaves so many MiB of a host's memory to VMs.
pub fn leave(engine: &SimulatedEngine, memory_mb: i64) {
    engine.set_capacity(|capacity| capacity.memory_mb = memory_mb);
}

/// A platform whose own host has no room, and the host that has.
pub async fn two() -> (Platform, JoinedHost) {
    let platform = Platform::start().await;
    leave(&platform.engine, 0);
    let beta = join(&platform, "beta").await;
    (platform, beta)
}

/// The host that a VM is on.
pub async fn host(admin: &Caller, vm: &str) -> Value {
    admin.get(&format!("/vms/{vm}")).await.body["host_id"].clone()
}

/// A data disk that is ready.
pub async fn disk(admin: &Caller, name: &str) -> String {
    let body = json!({"name": name, "type": "block", "size_gb": 10, "region_id": "local"});
    let id = admin.post("/disks", body).await.id();
    ready(admin, &format!("/disks/{id}")).await;
    id
}

pub async fn ready(admin: &Caller, path: &str) {
    admin.until(path, async |admin| admin.get(path).await.body["status"] == "ready").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_is_put_onto_the_host_that_has_room_and_lives_there() {
    let (platform, beta) = two().await;
    let admin = &platform.admin;
    let mut body = vm("web");
    body["data_disks"] = json!({"create_disks": [{"name": "data", "type": "block", "size_gb": 10}]});
    let id = admin.create_vm(body).await;
    admin.reaches(&id, "running").await;
    assert_eq!(host(admin, &id).await, json!(beta.id));
    assert!(beta.engine.spec(&id).is_some() && platform.engine.spec(&id).is_none());
    let shown = admin.get(&format!("/vms/{id}")).await.body;
    let root = shown["root_disk"]["id"].as_str().expect("a root disk").to_owned();
    assert!(beta.engine.disk_gb(&root).is_some() && platform.engine.disk_gb(&root).is_none());
    // What is asked of it, its own host is asked.
    assert_eq!(admin.get(&format!("/vms/{id}/console")).await.status, 200);
    let snapshot = admin.post("/disk_snapshots", json!({"root_disk_id": root})).await.id();
    ready(admin, &format!("/disk_snapshots/{snapshot}")).await;
    assert_eq!((beta.engine.snapshots().0, platform.engine.snapshots().0), (1, 0));
    let file = admin.get(&format!("/disk_snapshots/{snapshot}/export")).await;
    assert_eq!((file.status, beta.engine.exports(), platform.engine.exports()), (200, 1, 0));
    assert_eq!(admin.post(&format!("/root_disks/{root}/resize"), json!({"size_gb": 30})).await.status, 202);
    admin.until("30 GiB", async |_| beta.engine.disk_gb(&root) == Some(30)).await;
    for (verb, status) in [("suspend", "suspended"), ("resume", "running"), ("restart", "running"), ("stop", "stopped")]
    {
        assert_eq!(admin.act(&format!("/vms/{id}/{verb}")).await.status, 202);
        admin.reaches(&id, status).await;
    }
    assert_eq!(admin.act(&format!("/vms/{id}/start")).await.status, 202);
    admin.reaches(&id, "running").await;
    // And there it ends, with its disks.
    assert_eq!(admin.delete(&format!("/vms/{id}")).await.status, 202);
    admin.gone(&id).await;
    assert_eq!(admin.delete(&format!("/disk_snapshots/{snapshot}")).await.status, 202);
    assert_eq!(admin.delete(&format!("/root_disks/{root}")).await.status, 202);
    let is_clear = || (beta.engine.counts().0, beta.engine.snapshots().0, beta.engine.disk_gb(&root)) == (0, 0, None);
    admin.until("an end", async |_| is_clear()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_vm_begins_with_ties_it_to_the_host_that_has_it() {
    let (platform, beta) = two().await;
    let admin = &platform.admin;
    let first = admin.running_vm("first").await;
    let root = admin.get(&format!("/vms/{first}")).await.body["root_disk"]["id"].clone();
    let snapshot = admin.post("/disk_snapshots", json!({"root_disk_id": root})).await.id();
    ready(admin, &format!("/disk_snapshots/{snapshot}")).await;
    let image = admin.post("/images", json!({"from_root_disk": root, "name": "golden"})).await.id();
    ready(admin, &format!("/images/{image}")).await;
    assert_eq!((beta.engine.owned_images(), platform.engine.owned_images()), (1, 0));
    // From now on the own host has far more room.
    leave(&platform.engine, 1 << 40);
    let (mut from_snapshot, mut from_image) = (vm("second"), vm("second"));
    from_snapshot["root_disk"]["create_disk_request"].as_object_mut().expect("a disk").remove("image_id");
    from_snapshot["snapshot_id"] = json!(snapshot);
    from_image["root_disk"]["create_disk_request"]["image_id"] = json!(image);
    for body in [from_snapshot, from_image] {
        let id = admin.create_vm(body).await;
        admin.reaches(&id, "running").await;
        assert_eq!(host(admin, &id).await, json!(beta.id));
    }
    let elsewhere = admin.running_vm("third").await;
    assert_eq!(host(admin, &elsewhere).await, json!(platform.app().fleet.own().to_string()));
    // A network joins machines of one host.
    let network = admin.post("/networks", json!({"name": "lan"})).await.id();
    leave(&platform.engine, 0);
    let mut body = vm("fourth");
    body["network_ids"] = json!([network]);
    let fourth = admin.create_vm(body.clone()).await;
    admin.reaches(&fourth, "running").await;
    assert_eq!(host(admin, &fourth).await, json!(beta.id));
    leave(&platform.engine, 1 << 40);
    body["name"] = json!("fifth");
    let fifth = admin.create_vm(body).await;
    admin.reaches(&fifth, "running").await;
    assert_eq!(host(admin, &fifth).await, json!(beta.id));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_is_brought_to_the_host_of_its_vm() {
    let (platform, beta) = two().await;
    let admin = &platform.admin;
    let (first, second) = (disk(admin, "first").await, disk(admin, "second").await);
    let id = admin.running_vm("web").await;
    // While it runs.
    assert_eq!(admin.post(&format!("/disks/{first}/attach"), json!({"vm_id": id})).await.status, 202);
    let attached = async |admin: Caller| admin.get(&format!("/disks/{first}")).await.body["change"].is_null();
    admin.until("it is attached", attached).await;
    let is_moved = |disk: &str| beta.engine.disk_gb(disk) == Some(10) && platform.engine.disk_gb(disk).is_none();
    admin.until("one copy", async |_| is_moved(&first)).await;
    assert_eq!(admin.get(&format!("/disks/{first}")).await.body["message"], Value::Null);
    assert!(beta.engine.brought(&first).is_some());
    // While it is off, and with the start of a new one.
    assert_eq!(admin.act(&format!("/vms/{id}/stop")).await.status, 202);
    admin.reaches(&id, "stopped").await;
    assert_eq!(admin.post(&format!("/disks/{second}/attach"), json!({"vm_id": id})).await.status, 200);
    admin.until("one copy", async |_| is_moved(&second)).await;
    assert_eq!(admin.act(&format!("/vms/{id}/start")).await.status, 202);
    admin.reaches(&id, "running").await;
    assert_eq!(beta.engine.spec(&id).map(|spec| spec.data_disks.len()), Some(2));
    let third = disk(admin, "third").await;
    let mut body = vm("beside");
    body["data_disks"] = json!({"attached_disks": [{"disk_id": third}]});
    let beside = admin.create_vm(body).await;
    admin.reaches(&beside, "running").await;
    assert!(is_moved(&third));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_whose_owner_changes_their_mind_stays_where_it_was() {
    let (platform, beta) = two().await;
    let admin = &platform.admin;
    let data = disk(admin, "data").await;
    let id = admin.running_vm("web").await;
    assert_eq!(admin.act(&format!("/vms/{id}/stop")).await.status, 202);
    admin.reaches(&id, "stopped").await;
    beta.engine.hold("bring_disk");
    let attach = json!({"vm_id": id});
    assert_eq!(admin.post(&format!("/disks/{data}/attach"), attach.clone()).await.status, 200);
    admin.until("a copy under way", async |_| beta.engine.waiting() == 1).await;
    let shown = admin.get(&format!("/disks/{data}")).await.body;
    assert_eq!(shown["message"], "being brought to the host of its VM");
    assert_eq!(admin.act(&format!("/disks/{data}/detach")).await.status, 200);
    beta.engine.let_go();
    admin.until("one copy", async |_| beta.engine.disk_gb(&data).is_none()).await;
    assert_eq!(platform.engine.disk_gb(&data), Some(10));
    // A host that has no room for it is no end of it.
    beta.engine.set_capacity(|capacity| capacity.disk_gb = 0);
    assert_eq!(admin.post(&format!("/disks/{data}/attach"), attach).await.status, 200);
    let says = async |admin: Caller| admin.get(&format!("/disks/{data}")).await.body["message"].to_string();
    admin.until("a refusal", async |admin| says(admin).await.contains("cannot be brought to the host of its VM")).await;
    beta.engine.set_capacity(|capacity| capacity.disk_gb = 1 << 40);
    let moved = || beta.engine.disk_gb(&data) == Some(10) && platform.engine.disk_gb(&data).is_none();
    admin.until("one copy", async |_| moved()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_without_the_image_is_passed_over_and_owners_read_of_no_host() {
    let platform = Platform::start().await;
    let beta = join(&platform, "beta").await;
    let admin = &platform.admin;
    let own = json!(platform.app().fleet.own().to_string());
    leave(&platform.engine, 1024);
    leave(&beta.engine, 1 << 40);
    beta.engine.refuse("expect_image", EngineError::NoCapacity("no room".into()));
    beta.engine.lose_image("micro");
    let id = admin.running_vm("first").await;
    assert_eq!(host(admin, &id).await, own, "the other one has no image");
    let full = admin.running_vm("second").await;
    assert_eq!(host(admin, &full).await, own);
    let none = admin.create_vm(vm("third")).await;
    admin.reaches(&none, "failed").await;
    let message = admin.get(&format!("/vms/{none}")).await.body["message"].clone();
    assert!(message.as_str().is_some_and(|text| !text.contains("beta")), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn vms_of_a_host_that_is_lost_say_so_and_go_on_once_it_is_back() {
    let (platform, mut beta) = two().await;
    let admin = &platform.admin;
    let id = admin.running_vm("web").await;
    let path = format!("/vms/{id}");
    beta.close().await;
    platform.advance(30);
    is(admin, &beta, "lost").await;
    let shown = admin.get(&path).await.body;
    assert!(shown["message"].as_str().is_some_and(|text| text.contains("does not answer")), "{shown}");
    assert_eq!(shown["status"], "running", "nobody knows better");
    let listed = admin.get("/vms").await.body["data"][0]["message"].clone();
    assert!(listed.as_str().is_some_and(|text| text.contains("does not answer")), "{listed}");
    // What is asked of it waits, and whatever else there is goes on.
    assert_eq!(admin.act(&format!("{path}/stop")).await.status, 202);
    let other = admin.create_vm(vm("other")).await;
    admin.reaches(&other, "failed").await;
    leave(&platform.engine, 4096);
    assert_eq!(admin.act(&format!("/vms/{other}/start")).await.status, 202);
    admin.reaches(&other, "running").await;
    assert_eq!(admin.get(&path).await.body["status"], "stopping");
    // It is there before its row says so: what was stopped starts on the disk that it has there.
    beta.open().await;
    admin.reaches(&id, "stopped").await;
    assert_eq!(admin.act(&format!("{path}/start")).await.status, 202);
    admin.reaches(&id, "running").await;
    is(admin, &beta, "ready").await;
    assert!(admin.get(&path).await.body["message"].is_null());
    assert_eq!(admin.act(&format!("{path}/stop")).await.status, 202);
    admin.reaches(&id, "stopped").await;
    // What was wrong with one before is told, too.
    beta.engine.refuse("start", EngineError::Permanent("its disk is damaged".into()));
    assert_eq!(admin.act(&format!("{path}/start")).await.status, 202);
    admin.reaches(&id, "failed").await;
    beta.close().await;
    platform.advance(30);
    is(admin, &beta, "lost").await;
    let told = admin.get(&path).await.body["message"].as_str().expect("a sentence").to_owned();
    assert!(told.contains("does not answer") && told.contains("its disk is damaged"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_dies_on_another_host_is_started_again_there_and_nobodys_is_ended() {
    let (platform, beta) = two().await;
    let admin = &platform.admin;
    let mut body = vm("web");
    body["restart_policy"] = json!("always");
    let id = admin.create_vm(body).await;
    admin.reaches(&id, "running").await;
    let starts = beta.engine.counts().2;
    beta.engine.happen(&id, Machine::Absent);
    admin.until("another start", async |_| beta.engine.counts().2 > starts).await;
    admin.reaches(&id, "running").await;
    // The next service finds it where it is.
    let platform = platform.crash_and_restart().await;
    is(&platform.admin, &beta, "ready").await;
    platform.admin.reaches(&id, "running").await;
    eventually("one machine", 30, || (beta.engine.counts().0 == 1).then_some(()));
    assert_eq!(platform.engine.counts().0, 0);
    let host_id = HostId(beta.id.parse().expect("an id"));
    assert!(platform.app().fleet.of(host_id).is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_that_ended_with_their_hosts_boot_are_started_again() {
    let (platform, mut beta) = two().await;
    let admin = &platform.admin;
    let id = admin.running_vm("web").await;
    let starts = beta.engine.counts().2;
    beta.close().await;
    beta.engine.restart_host();
    beta.open().await;
    admin.until("another start", async |_| beta.engine.counts().2 > starts).await;
    admin.reaches(&id, "running").await;
    assert_eq!(host(admin, &id).await, json!(beta.id));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_says_what_machines_hold_of_it_to_administrators_and_to_monitoring() {
    let (platform, mut beta) = two().await;
    let admin = &platform.admin;
    let id = admin.running_vm("web").await;
    let path = format!("{HOSTS}/{}", beta.id);
    assert_eq!(admin.get(&path).await.body["load"], json!({"vcpu": 1, "memory_mb": 512}));
    let measured = async || {
        let answer = reqwest::get(format!("{}/metrics", admin.base)).await.expect("an answer");
        answer.text().await.expect("a text")
    };
    let text = measured().await;
    let of_beta: Vec<_> = text.lines().filter(|line| line.contains(&beta.id)).collect();
    let (up, state) = (format!("berth_host_up{{host=\"{}\"}}", beta.id), "berth_host_state");
    let figure = |name: &str| format!("berth_host_{name}{{host=\"{}\"}}", beta.id);
    for line in [
        format!("{up} 1"),
        format!("{state}{{host=\"{}\",state=\"ready\"}} 1", beta.id),
        format!("{} 1", figure("machines")),
        format!("{} 1", figure("vcpus_held")),
        format!("{} {}", figure("memory_held_bytes"), 512_i64 << 20),
        format!("{} 0", figure("trouble")),
    ] {
        assert!(of_beta.contains(&&*line), "{line}: {of_beta:#?}");
    }
    assert!(!text.contains("beta"), "who asks without a credential learns no name: {text}");
    // One that is off holds nothing.
    assert_eq!(admin.act(&format!("/vms/{id}/stop")).await.status, 202);
    admin.reaches(&id, "stopped").await;
    assert_eq!(admin.get(HOSTS).await.body["data"][0]["load"], json!({"vcpu": 0, "memory_mb": 0}));
    assert!(measured().await.contains(&format!("{} 0", figure("machines"))));
    beta.close().await;
    platform.advance(30);
    is(admin, &beta, "lost").await;
    let text = measured().await;
    assert!(text.contains(&format!("{up} 0")), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_at_once_fill_every_host_and_none_beyond_what_it_has() {
    const EACH: usize = 3;
    let (platform, beta) = two().await;
    let admin = &platform.admin;
    let mut hosts = vec![beta];
    for number in 0..10 {
        hosts.push(join(&platform, &format!("other-{number}")).await);
    }
    for joined in &hosts {
        leave(&joined.engine, 512 * 3);
    }
    // All within a moment, in which what rows said of hosts before is what is chosen by.
    let create = async |number: usize| admin.create_vm(vm(&format!("vm-{number}"))).await;
    let ids = futures::future::join_all((0..EACH * hosts.len()).map(create)).await;
    for id in &ids {
        admin.reaches(id, "running").await;
    }
    for joined in &hosts {
        assert_eq!(joined.engine.counts().0, EACH);
    }
    let none = admin.create_vm(vm("one-more")).await;
    admin.reaches(&none, "failed").await;
    let unplaced = told(admin, "vm.unplaced").await;
    let told: Vec<_> = unplaced.data["hosts"].as_array().expect("hosts").iter().filter_map(Value::as_str).collect();
    assert_eq!(told.len(), hosts.len() + 1, "{told:?}");
    assert_eq!(told.iter().filter(|it| it.contains("0 of 1536 MiB left, 512 wanted")).count(), hosts.len(), "{told:?}");
    // Whoever goes makes room, whatever was known of it before.
    let gone = &ids[0];
    assert_eq!(admin.delete(&format!("/vms/{gone}")).await.status, 202);
    admin.gone(gone).await;
    assert_eq!(admin.act(&format!("/vms/{none}/start")).await.status, 202);
    admin.reaches(&none, "running").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn among_many_hosts_a_vm_goes_to_the_one_that_has_room_whoever_is_asked_first() {
    let (platform, beta) = two().await;
    let admin = &platform.admin;
    let mut others = Vec::new();
    for number in 0..9 {
        others.push(join(&platform, &format!("other-{number}")).await);
    }
    for other in others.iter().chain([&beta]) {
        leave(&other.engine, 0);
    }
    // Rows say the same of all of them, so that the youngest is not among those that are asked first.
    let last = others.last().expect("a host");
    leave(&last.engine, 512);
    let id = admin.running_vm("first").await;
    assert_eq!(host(admin, &id).await, json!(last.id));
    // Who refuses it was asked, each of them.
    let none = admin.create_vm(vm("second")).await;
    admin.reaches(&none, "failed").await;
    let unplaced = told(admin, "vm.unplaced").await;
    let hosts = unplaced.data["hosts"].as_array().expect("hosts").clone();
    assert_eq!(hosts.len(), 11, "{hosts:?}");
    assert!(hosts.iter().all(|host| host.as_str().is_some_and(|it| !it.contains("does not say"))), "{hosts:?}");
}
