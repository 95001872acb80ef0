//! Hosts that are drained: which VMs leave them, with what, and which stay.

use berth_host::EngineError;
use berth_testkit::{Caller, JoinedHost, Platform, vm};
use serde_json::{Value, json};

use crate::fleet::{disk, host, leave, ready, two};
use crate::host::told;

const HOSTS: &str = "/api/v1/admin/hosts";
pub const MEMORY_MB: i64 = 65_536;

/// A platform whose own host has no room, and the host that has, whose VMs cannot leave it while they run.
pub async fn restarting() -> (Platform, JoinedHost) {
    let (platform, beta) = two().await;
    beta.engine.refuse("likeness", EngineError::Permanent("its QEMU is another one".into()));
    (platform, beta)
}

/// A VM on the host that joined, with a data disk, and its root disk.
pub async fn on_beta(admin: &Caller, beta: &JoinedHost, name: &str) -> (String, String) {
    let mut body = vm(name);
    body["data_disks"] = json!({"create_disks": [{"name": format!("{name}-data"), "type": "block", "size_gb": 10}]});
    let id = admin.create_vm(body).await;
    let vm = admin.reaches(&id, "running").await;
    assert_eq!(host(admin, &id).await, json!(beta.id));
    (id, vm["root_disk"]["id"].as_str().expect("a root disk").to_owned())
}

pub async fn verb(admin: &Caller, id: &str, verb: &str, status: &str) {
    assert_eq!(admin.act(&format!("/vms/{id}/{verb}")).await.status, 202);
    admin.reaches(id, status).await;
}

pub async fn drain(admin: &Caller, beta: &JoinedHost, how: &str) -> Value {
    let drained = admin.act(&format!("{HOSTS}/{}/drain{how}", beta.id)).await;
    assert_eq!(drained.status, 202, "{drained:?}");
    drained.body
}

/// Waits until a VM is on the service's own host, with its disks.
pub async fn is_here(platform: &Platform, beta: &JoinedHost, id: &str, root: &str) {
    let admin = &platform.admin;
    admin.until("it left", async |admin| host(&admin, id).await != json!(beta.id)).await;
    let is_moved = || platform.engine.disk_gb(root).is_some() && beta.engine.disk_gb(root).is_none();
    admin.until("one copy", async |_| is_moved()).await;
    for disk in admin.get(&format!("/vms/{id}")).await.body["data_disks"].as_array().expect("disks") {
        let disk = disk["id"].as_str().expect("an id").to_owned();
        let is_moved = || platform.engine.disk_gb(&disk).is_some() && beta.engine.disk_gb(&disk).is_none();
        admin.until("one copy", async |_| is_moved()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_off_leaves_and_what_runs_does_once_it_may_restart() {
    let (platform, beta) = restarting().await;
    let admin = &platform.admin;
    let (off, off_root) = on_beta(admin, &beta, "off").await;
    let (runs, runs_root) = on_beta(admin, &beta, "runs").await;
    verb(admin, &off, "stop", "stopped").await;
    leave(&platform.engine, MEMORY_MB);
    let drained = drain(admin, &beta, "").await;
    assert_eq!((&drained["state"], &drained["drain"]), (&json!("draining"), &json!("off")));
    assert_eq!(drained["holds"], json!({"machines": 2, "disks": 4, "images": 0, "layers": 0, "leaving": 0}));
    assert_eq!(admin.get(&format!("{HOSTS}?state=draining")).await.body["pagination"]["total_items"], 1);
    is_here(&platform, &beta, &off, &off_root).await;
    let stopped = admin.get(&format!("/vms/{off}")).await.body;
    assert_eq!((&stopped["status"], &stopped["message"]), (&json!("stopped"), &Value::Null));
    // What was on it is on the disk that came.
    assert!(platform.engine.brought(&off_root).is_some());
    verb(admin, &off, "start", "running").await;
    assert!(platform.engine.spec(&off).is_some() && beta.engine.spec(&off).is_none());
    assert_eq!(host(admin, &runs).await, json!(beta.id));
    assert_eq!(drain(admin, &beta, "?restart=true").await["drain"], "all");
    // It was asked once, and is asked again later.
    platform.advance(130);
    is_here(&platform, &beta, &runs, &runs_root).await;
    let running = admin.reaches(&runs, "running").await;
    assert_eq!(running["message"], Value::Null);
    assert!(platform.engine.spec(&runs).is_some() && beta.engine.spec(&runs).is_none());
    let path = format!("{HOSTS}/{}", beta.id);
    let empty = json!({"machines": 0, "disks": 0, "images": 0, "layers": 0, "leaving": 0});
    admin.until("nothing is left", async |admin| admin.get(&path).await.body["holds"] == empty).await;
    assert_eq!(admin.delete(&path).await.status, 204);
    for id in [&off, &runs] {
        assert_eq!(admin.delete(&format!("/vms/{id}")).await.status, 202);
        admin.reaches(id, "deleted").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_other_host_takes_stays_and_goes_on_until_the_word_is_taken_back() {
    let (platform, beta) = restarting().await;
    let admin = &platform.admin;
    let (id, root) = on_beta(admin, &beta, "web").await;
    let began = beta.engine.spec(&id).map(|spec| spec.generation);
    drain(admin, &beta, "?restart=true").await;
    let asked = format!("{HOSTS}/{}", beta.id);
    assert_eq!(told(admin, "vm.unplaced").await.subject, id);
    let shown = admin.get(&format!("/vms/{id}")).await.body;
    assert_eq!((&shown["status"], shown["host_id"].as_str()), (&json!("running"), Some(beta.id.as_str())));
    assert_eq!(beta.engine.spec(&id).map(|spec| spec.generation), began, "nothing is shut down that has nowhere to go");
    // The same word twice is one, and cordoning alone takes none back.
    assert_eq!(drain(admin, &beta, "?restart=true").await["state"], "draining");
    assert_eq!(admin.act(&format!("{asked}/cordon")).await.body["state"], "draining");
    let free = admin.act(&format!("{asked}/uncordon")).await.body;
    assert_eq!((&free["state"], &free["drain"]), (&json!("ready"), &Value::Null));
    leave(&platform.engine, MEMORY_MB);
    verb(admin, &id, "stop", "stopped").await;
    verb(admin, &id, "start", "running").await;
    assert_eq!(host(admin, &id).await, json!(beta.id), "its host takes it again");
    assert!(beta.engine.disk_gb(&root).is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_its_memory_on_the_host_stays_and_so_does_what_is_no_vms() {
    let (platform, beta) = restarting().await;
    let admin = &platform.admin;
    let (id, root) = on_beta(admin, &beta, "web").await;
    let snapshot = admin.post("/disk_snapshots", json!({"root_disk_id": root})).await.id();
    ready(admin, &format!("/disk_snapshots/{snapshot}")).await;
    let (off, off_root) = on_beta(admin, &beta, "off").await;
    verb(admin, &off, "stop", "stopped").await;
    verb(admin, &id, "suspend", "suspended").await;
    leave(&platform.engine, MEMORY_MB);
    drain(admin, &beta, "?restart=true").await;
    let other = disk(admin, "other").await;
    assert!(platform.engine.disk_gb(&other).is_some());
    // Once another one has left, this one was looked at, too.
    is_here(&platform, &beta, &off, &off_root).await;
    assert_eq!(host(admin, &id).await, json!(beta.id));
    verb(admin, &id, "resume", "running").await;
    is_here(&platform, &beta, &id, &root).await;
    admin.reaches(&id, "running").await;
    let left = admin.get(&format!("{HOSTS}/{}", beta.id)).await.body["holds"].clone();
    assert_eq!(left, json!({"machines": 0, "disks": 1, "images": 0, "layers": 0, "leaving": 0}), "the snapshot");
    let refused = admin.delete(&format!("{HOSTS}/{}", beta.id)).await;
    refused.refused(409, "conflict");
}

#[tokio::test(flavor = "multi_thread")]
async fn vms_of_one_network_leave_together() {
    let (platform, beta) = restarting().await;
    let admin = &platform.admin;
    let lan = admin.post("/networks", json!({"name": "lan"})).await.id();
    let mut all = Vec::new();
    for name in ["one", "two", "three"] {
        let mut body = vm(name);
        body["network_ids"] = json!([lan]);
        let id = admin.create_vm(body).await;
        let root = admin.reaches(&id, "running").await["root_disk"]["id"].as_str().expect("an id").to_owned();
        all.push((id, root));
    }
    verb(admin, &all[0].0, "stop", "stopped").await;
    leave(&platform.engine, MEMORY_MB);
    beta.engine.hold("export");
    drain(admin, &beta, "?restart=true").await;
    // Each has its place before its disk has left: the others may be on either host then.
    let has_place = |vm: &&Value| vm["host_id"] != json!(beta.id) && !vm["public_ip"].is_null();
    let have_places = async |admin: Caller| {
        let vms = admin.get("/vms").await.body["data"].clone();
        assert!(!vms.as_array().expect("VMs").iter().any(|vm| vm["status"] == "failed"), "{vms}");
        vms.as_array().expect("VMs").iter().filter(has_place).count() == 2
    };
    admin.until("two places", have_places).await;
    beta.engine.let_go();
    for (id, root) in &all {
        is_here(&platform, &beta, id, root).await;
    }
    for (id, _) in &all[1..] {
        admin.reaches(id, "running").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_than_two_are_down_at_a_time() {
    let (platform, beta) = restarting().await;
    let admin = &platform.admin;
    let mut all = Vec::new();
    for name in ["one", "two", "three"] {
        all.push(on_beta(admin, &beta, name).await);
    }
    leave(&platform.engine, MEMORY_MB);
    beta.engine.hold("export");
    drain(admin, &beta, "?restart=true").await;
    let down = async |admin: &Caller| {
        let vms = admin.get("/vms").await.body["data"].clone();
        vms.as_array().expect("VMs").iter().filter(|vm| vm["status"] == "restarting").count()
    };
    admin.until("two that wait for their disks", async |admin| down(&admin).await == 2).await;
    admin.until("their disks", async |_| beta.engine.waiting() > 0).await;
    assert_eq!(down(admin).await, 2);
    beta.engine.let_go();
    for (id, root) in &all {
        is_here(&platform, &beta, id, root).await;
        admin.reaches(id, "running").await;
    }
}

/// A VM that is off on the host that joined, whose root disk is about to leave.
pub async fn off_on_beta(admin: &Caller, beta: &JoinedHost, name: &str) -> (String, String) {
    let id = admin.running_vm(name).await;
    let root = admin.get(&format!("/vms/{id}")).await.body["root_disk"]["id"].as_str().expect("an id").to_owned();
    verb(admin, &id, "stop", "stopped").await;
    assert!(beta.engine.disk_gb(&root).is_some());
    (id, root)
}

pub async fn has_left(admin: &Caller, beta: &JoinedHost, id: &str) {
    admin.until("its host's name", async |admin| host(&admin, id).await != json!(beta.id)).await;
}

async fn reinstalled(admin: &Caller, id: &str) {
    let answer = admin.post(&format!("/vms/{id}/reinstall"), json!({"image_id": "micro"})).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    admin.reaches(id, "running").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_root_disk_that_comes_late_takes_nothing_from_the_one_that_was_made_meanwhile() {
    let (platform, beta) = restarting().await;
    let admin = &platform.admin;
    let (id, root) = off_on_beta(admin, &beta, "web").await;
    leave(&platform.engine, MEMORY_MB);
    beta.engine.hold("exported");
    drain(admin, &beta, "").await;
    admin.until("a travel", async |_| beta.engine.waiting() == 1).await;
    reinstalled(admin, &id).await;
    assert_eq!(platform.engine.clones(&root), ["micro"]);
    beta.engine.let_go();
    // Its own worker does one thing at a time, so the travel has ended where the disk is removed.
    assert_eq!(admin.delete(&format!("/vms/{id}")).await.status, 202);
    admin.gone(&id).await;
    assert_eq!(admin.delete(&format!("/root_disks/{root}")).await.status, 202);
    admin.until("its end", async |_| platform.engine.disk_gb(&root).is_none()).await;
    let is_gone = async |admin: Caller| admin.get(&format!("/root_disks/{root}")).await.status == 404;
    admin.until("its end", is_gone).await;
    assert_eq!(platform.engine.removals(&root), 1, "by its owner's word alone");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_that_begins_anew_does_so_where_it_is_put_and_waits_for_nothing_of_what_it_was() {
    let (platform, beta) = restarting().await;
    let admin = &platform.admin;
    let (id, root) = off_on_beta(admin, &beta, "web").await;
    leave(&platform.engine, MEMORY_MB);
    beta.engine.refuse("export", EngineError::Transient("not now".into()));
    drain(admin, &beta, "").await;
    has_left(admin, &beta, &id).await;
    reinstalled(admin, &id).await;
    assert_eq!(
        (platform.engine.clones(&root), beta.engine.clones(&root)),
        (vec!["micro".into()], vec!["micro".into()])
    );
    assert!(platform.engine.brought(&root).is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_asked_otherwise_is_refused() {
    let platform = Platform::start().await;
    let own = platform.admin.get(HOSTS).await.body["data"][0]["id"].as_str().expect("an id").to_owned();
    platform.admin.act(&format!("{HOSTS}/{own}/drain?restart=perhaps")).await.refused(400, "invalid_request");
    platform.admin.act(&format!("{HOSTS}/{own}/drain?stop=true")).await.refused(400, "invalid_request");
    let none = "01900000-0000-7000-8000-000000000000";
    platform.admin.act(&format!("{HOSTS}/{none}/drain")).await.refused(404, "not_found");
    // A host alone has nowhere to send anything, and says that it is drained.
    assert_eq!(platform.admin.act(&format!("{HOSTS}/{own}/drain")).await.body["state"], "draining");
    let platform = platform.restart().await;
    assert_eq!(platform.admin.get(&format!("{HOSTS}/{own}")).await.body["drain"], "off");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_dies_while_one_is_restarted_brings_it_there() {
    for (call, is_here) in
        [("power_off", false), ("discard", false), ("export", false), ("bring_disk", true), ("start", true)]
    {
        let (platform, beta) = restarting().await;
        let (id, root) = on_beta(&platform.admin, &beta, "web").await;
        leave(&platform.engine, MEMORY_MB);
        let engine = if is_here { &platform.engine } else { &beta.engine };
        engine.hold(call);
        drain(&platform.admin, &beta, "?restart=true").await;
        platform.admin.until(call, async |_| engine.waiting() > 0).await;
        let platform = platform.crash_and_restart().await;
        platform.engine.let_go();
        beta.engine.let_go();
        self::is_here(&platform, &beta, &id, &root).await;
        platform.admin.reaches(&id, "running").await;
        assert!(platform.engine.spec(&id).is_some() && beta.engine.spec(&id).is_none(), "{call}");
    }
}
