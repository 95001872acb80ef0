//! VMs whose host is drained, and that cannot leave it, or whose disks cannot follow: they stay, or say why, and nothing of
//! another one's is taken.

use std::time::Duration;

use berth_domain::vm::plan::Machine;
use berth_host::EngineError;
use berth_testkit::{Caller, JoinedHost, Platform, vm};
use futures::StreamExt;
use serde_json::{Value, json};

use crate::drain::{MEMORY_MB, drain, has_left, is_here, off_on_beta, on_beta, restarting, verb};
use crate::event::client;
use crate::fleet::{disk, host, leave};
use crate::host::told;

const HOSTS: &str = "/api/v1/admin/hosts";
/// What a VM of these tests has.
const VM_MEMORY_MB: i64 = 512;
/// Longer than a VM may be on its way.
const LATE: i64 = 301;
/// In which time a second passes.
const PACE: Duration = Duration::from_millis(50);

/// The statuses that a VM had until it was in this one.
async fn statuses(admin: &Caller, id: &str, last: &str) -> Vec<String> {
    let mut events = std::pin::pin!(client(admin).events(Some(0)).await.expect("a stream"));
    let mut all = Vec::new();
    while all.last().is_none_or(|status| status != last) {
        let event = events.next().await.expect("more").expect("an event");
        if event.kind == "vm.status" && event.subject == id {
            all.push(event.data["status"].as_str().expect("a status").to_owned());
        }
    }
    all
}

/// Lets the time pass of a VM that waits for a disk which cannot be brought; why it failed.
async fn fails(platform: &Platform, id: &str, root: &str) -> String {
    let admin = &platform.admin;
    let path = format!("/root_disks/{root}");
    let says = async |admin: Caller| {
        let message = admin.get(&path).await.body["message"].clone();
        message.as_str().is_some_and(|text| text.starts_with("it cannot be brought to the host of its VM"))
    };
    admin.until("a reason", says).await;
    assert_eq!(admin.get(&format!("/vms/{id}")).await.body["status"], "restarting");
    platform.advance(LATE);
    admin.reaches(id, "failed").await["message"].as_str().expect("a reason").to_owned()
}

async fn uncordon(admin: &Caller, beta: &JoinedHost) {
    assert_eq!(admin.act(&format!("{HOSTS}/{}/uncordon", beta.id)).await.status, 202);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_whose_disk_cannot_be_sent_fails_with_the_reason_and_goes_on_once_it_is_started() {
    let (platform, beta) = restarting().await;
    let admin = &platform.admin;
    let (id, root) = on_beta(admin, &beta, "web").await;
    leave(&platform.engine, MEMORY_MB);
    beta.engine.refuse("export", EngineError::NoCapacity("no room for a copy".into()));
    drain(admin, &beta, "?restart=true").await;
    let why = fails(&platform, &id, &root).await;
    assert_eq!(why, "it cannot be brought to the host of its VM: no room for a copy");
    beta.engine.allow("export");
    verb(admin, &id, "start", "running").await;
    is_here(&platform, &beta, &id, &root).await;
    assert_eq!(admin.get(&format!("/root_disks/{root}")).await.body["message"], Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_whose_disk_was_on_a_host_that_will_not_come_back_waits_no_longer() {
    let (platform, beta) = restarting().await;
    let admin = &platform.admin;
    let (id, root) = on_beta(admin, &beta, "web").await;
    leave(&platform.engine, MEMORY_MB);
    beta.engine.hold("export");
    drain(admin, &beta, "?restart=true").await;
    admin.until("a travel", async |_| beta.engine.waiting() > 0).await;
    let (engine, gone) = (beta.engine.clone(), beta.id.clone());
    drop(beta);
    assert_eq!(admin.delete(&format!("{HOSTS}/{gone}?lost=true")).await.status, 204);
    engine.let_go();
    let why = fails(&platform, &id, &root).await;
    assert!(why.contains("will not come back"), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_on_its_way_goes_back_where_its_disk_is_once_that_takes_it_again() {
    let (platform, beta) = restarting().await;
    let admin = &platform.admin;
    let (id, root) = off_on_beta(admin, &beta, "web").await;
    leave(&platform.engine, MEMORY_MB);
    beta.engine.refuse("export", EngineError::Transient("not now".into()));
    drain(admin, &beta, "").await;
    has_left(admin, &beta, &id).await;
    let path = format!("/root_disks/{root}");
    let is_under_way = async |admin: Caller| !admin.get(&path).await.body["message"].is_null();
    admin.until("a travel", is_under_way).await;
    uncordon(admin, &beta).await;
    leave(&platform.engine, 0);
    verb(admin, &id, "start", "running").await;
    assert_eq!(host(admin, &id).await, json!(beta.id));
    let is_at_rest = async |admin: Caller| admin.get(&path).await.body["message"].is_null();
    admin.until("its rest", is_at_rest).await;
    assert!(beta.engine.disk_gb(&root).is_some() && platform.engine.disk_gb(&root).is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_disks_come_than_a_host_has_room_for() {
    let (platform, beta) = restarting().await;
    let admin = &platform.admin;
    let all = [off_on_beta(admin, &beta, "one").await, off_on_beta(admin, &beta, "two").await];
    leave(&platform.engine, MEMORY_MB);
    platform.engine.set_capacity(|capacity| capacity.disk_gb = 30);
    beta.engine.hold("export");
    drain(admin, &beta, "").await;
    let stays = told(admin, "vm.unplaced").await.subject;
    let (goes, root) = all.iter().find(|(id, _)| *id != stays).expect("another one");
    has_left(admin, &beta, goes).await;
    beta.engine.let_go();
    is_here(&platform, &beta, goes, root).await;
    assert_eq!(host(admin, &stays).await, json!(beta.id));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_arrived_of_a_vm_takes_its_place_once() {
    let (platform, beta) = restarting().await;
    let admin = &platform.admin;
    let (id, root) = on_beta(admin, &beta, "web").await;
    verb(admin, &id, "stop", "stopped").await;
    leave(&platform.engine, MEMORY_MB);
    platform.engine.set_capacity(|capacity| capacity.disk_gb = 30);
    beta.engine.refuse(&format!("export {root}"), EngineError::Transient("not now".into()));
    drain(admin, &beta, "").await;
    let data = admin.get(&format!("/vms/{id}")).await.body["data_disks"][0]["id"].as_str().expect("an id").to_owned();
    admin.until("the data disk", async |_| beta.engine.disk_gb(&data).is_none()).await;
    assert_eq!((platform.engine.disk_gb(&data), platform.engine.disk_gb(&root)), (Some(10), None));
    assert_eq!(admin.act(&format!("/vms/{id}/start")).await.status, 202);
    let has_place = async |admin: Caller| !admin.get(&format!("/vms/{id}")).await.body["public_ip"].is_null();
    admin.until("its place", has_place).await;
    beta.engine.allow(&format!("export {root}"));
    admin.reaches(&id, "running").await;
    is_here(&platform, &beta, &id, &root).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_finds_its_place_taken_goes_on_where_it_was() {
    let (platform, beta) = restarting().await;
    let admin = &platform.admin;
    let all = [on_beta(admin, &beta, "one").await.0, on_beta(admin, &beta, "two").await.0];
    leave(&platform.engine, VM_MEMORY_MB);
    beta.engine.hold("export");
    drain(admin, &beta, "?restart=true").await;
    let stays = told(admin, "vm.unplaced").await.subject;
    let goes = all.iter().find(|id| **id != stays).expect("another one");
    has_left(admin, &beta, goes).await;
    beta.engine.let_go();
    for id in &all {
        admin.reaches(id, "running").await;
    }
    assert_eq!(host(admin, &stays).await, json!(beta.id));
    for id in &all {
        verb(admin, id, "stop", "stopped").await;
        let all = statuses(admin, id, "stopped").await;
        assert!(!all.contains(&"failed".to_owned()), "{all:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_shut_down_whose_disks_could_not_be_sent_or_boot() {
    let (platform, beta) = restarting().await;
    let admin = &platform.admin;
    let (id, _) = on_beta(admin, &beta, "web").await;
    leave(&platform.engine, MEMORY_MB);
    let began = beta.engine.spec(&id).map(|spec| spec.generation);
    beta.engine.set_capacity(|capacity| capacity.disk_free = false);
    drain(admin, &beta, "?restart=true").await;
    let why = told(admin, "vm.unplaced").await.data["reason"].clone();
    assert!(why.as_str().is_some_and(|why| why.contains("no room for copies of its disks")), "{why}");
    assert_eq!(admin.reaches(&id, "running").await["host_id"], json!(beta.id));
    assert_eq!(beta.engine.spec(&id).map(|spec| spec.generation), began);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_takes_no_root_disk_whose_image_it_does_not_have() {
    let (platform, beta) = restarting().await;
    let admin = &platform.admin;
    let (id, _) = off_on_beta(admin, &beta, "web").await;
    leave(&platform.engine, MEMORY_MB);
    platform.engine.lose_image("micro");
    drain(admin, &beta, "").await;
    assert_eq!(told(admin, "vm.unplaced").await.subject, id);
    assert_eq!(host(admin, &id).await, json!(beta.id));
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_shut_down_once_the_word_is_taken_back() {
    for word in ["uncordon", "drain"] {
        let (platform, beta) = restarting().await;
        let admin = &platform.admin;
        let (id, _) = on_beta(admin, &beta, "web").await;
        let began = beta.engine.spec(&id).expect("a machine").generation;
        leave(&platform.engine, MEMORY_MB);
        platform.engine.hold("capacity");
        drain(admin, &beta, "?restart=true").await;
        admin.until("a look for another host", async |_| platform.engine.waiting() == 1).await;
        assert_eq!(admin.act(&format!("{HOSTS}/{}/{word}", beta.id)).await.status, 202);
        platform.engine.let_go();
        // What its worker does next it does after what was under way.
        verb(admin, &id, "stop", "stopped").await;
        let all = statuses(admin, &id, "stopped").await;
        assert!(!all.contains(&"restarting".to_owned()), "{word}: {all:?}");
        assert_eq!(beta.engine.spec(&id).map_or(began, |spec| spec.generation), began, "{word}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn those_that_do_not_answer_keep_no_other_from_leaving() {
    let (platform, beta) = restarting().await;
    let admin = &platform.admin;
    let (one, _) = on_beta(admin, &beta, "one").await;
    let (two, _) = on_beta(admin, &beta, "two").await;
    let (three, root) = on_beta(admin, &beta, "three").await;
    for id in [&one, &two] {
        beta.engine.happen(id, Machine::Unresponsive);
    }
    leave(&platform.engine, MEMORY_MB);
    drain(admin, &beta, "?restart=true").await;
    // The service looks every two seconds of any clock, and asks again after two minutes of its own.
    let passes = async {
        for _ in 0..LATE {
            platform.advance(1);
            tokio::time::sleep(PACE).await;
        }
    };
    let told = tokio::select! {
        told = told(admin, "vm.unplaced") => told,
        () = passes => panic!("nobody is told"),
    };
    assert!([&one, &two].contains(&&told.subject), "{told:?}");
    is_here(&platform, &beta, &three, &root).await;
    assert_eq!(host(admin, &one).await, json!(beta.id));
}

/// Two machines of one network on the host that joined, of which the first is a VM that could leave.
async fn in_network(admin: &Caller, names: [&str; 2]) -> [String; 2] {
    let lan = admin.post("/networks", json!({"name": "lan"})).await.id();
    let mut all = Vec::new();
    for name in names {
        let mut body = vm(name);
        body["network_ids"] = json!([lan]);
        let id = admin.create_vm(body).await;
        admin.reaches(&id, "running").await;
        all.push(id);
    }
    all.try_into().expect("two")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_is_not_torn_apart_by_what_cannot_leave() {
    for (how, its) in [("", "off"), ("?restart=true", "running")] {
        let (platform, beta) = restarting().await;
        let admin = &platform.admin;
        let [goes, suspended] = in_network(admin, ["goes", "suspended"]).await;
        verb(admin, &suspended, "suspend", "suspended").await;
        if its == "off" {
            verb(admin, &goes, "stop", "stopped").await;
        }
        leave(&platform.engine, MEMORY_MB);
        drain(admin, &beta, how).await;
        assert_eq!(told(admin, "vm.unplaced").await.subject, goes);
        assert_eq!(host(admin, &goes).await, json!(beta.id), "{its}");
        verb(admin, &suspended, "stop", "stopped").await;
        admin
            .until("both", async |admin: Caller| {
                platform.advance(1);
                host(&admin, &goes).await != json!(beta.id) && host(&admin, &suspended).await != json!(beta.id)
            })
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn disks_that_are_under_way_keep_no_other_disk_waiting() {
    let (platform, beta) = restarting().await;
    let admin = &platform.admin;
    for number in 0..9 {
        off_on_beta(admin, &beta, &format!("vm-{number}")).await;
    }
    leave(&platform.engine, MEMORY_MB);
    beta.engine.hold("export");
    drain(admin, &beta, "").await;
    let have_left = async |admin: Caller| {
        let vms = admin.get("/vms").await.body["data"].clone();
        vms.as_array().expect("VMs").iter().all(|vm| vm["host_id"] != json!(beta.id))
    };
    admin.until("nine on their way", have_left).await;
    admin.until("a way", async |_| beta.engine.waiting() > 0).await;
    disk(admin, "other").await;
    assert_eq!(beta.engine.waiting(), 1, "the other way is for what is waited for");
    let path = format!("{HOSTS}/{}", beta.id);
    let holds = json!({"machines": 0, "disks": 9, "images": 0, "layers": 0, "leaving": 9});
    assert_eq!(admin.get(&path).await.body["holds"], holds);
    beta.engine.let_go();
    let next = async |admin: Caller| admin.get(&path).await.body["holds"]["leaving"].as_i64() < Some(8);
    admin.until("the next ones", next).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_passes_through_the_service_than_it_has_room_for() {
    let (platform, beta) = restarting().await;
    let admin = &platform.admin;
    let all = [on_beta(admin, &beta, "one").await, on_beta(admin, &beta, "two").await];
    leave(&platform.engine, MEMORY_MB);
    // A file of a disk has 300,000.
    platform.engine.set_capacity(|capacity| capacity.room_bytes = 400_000);
    platform.engine.hold("bring_disk");
    drain(admin, &beta, "?restart=true").await;
    admin.until("another try", async |_| beta.engine.exports() >= 3 && platform.engine.waiting() > 0).await;
    assert_eq!((platform.engine.waiting(), platform.engine.staged().len()), (1, 1));
    platform.engine.let_go();
    for (id, root) in &all {
        is_here(&platform, &beta, id, root).await;
        admin.reaches(id, "running").await;
    }
}
