//! VMs that go to another host while they run.

use berth_domain::vm::plan::Machine;
use berth_host::EngineError;
use berth_testkit::{Caller, JoinedHost, Platform, vm};
use futures::StreamExt;
use serde_json::{Value, json};

use crate::drain::{MEMORY_MB, drain, is_here, on_beta, verb};
use crate::event::client;
use crate::fleet::{disk, host, is, join, leave, two};
use crate::host::{told, told_again};

const HOSTS: &str = "/api/v1/admin/hosts";
/// What a VM of these tests has.
const VM_MEMORY_MB: i64 = 512;
/// What is asked of either host while a VM goes, in order, and which of them is asked.
const CALLS: [(&str, bool); 5] =
    [("expect_machine", true), ("send_machine", false), ("mirrored", false), ("hand_over", false), ("taken", true)];

/// What its owner was told of a VM until now: the statuses and messages.
async fn told_of(platform: &Platform, id: &str) -> Vec<(Value, Value)> {
    let marker = platform.admin.post("/ssh_keys", json!({"name": "end", "public_key": KEY})).await;
    assert!(matches!(marker.status, 201 | 409), "{marker:?}");
    let mut events = std::pin::pin!(client(&platform.admin).events(Some(0)).await.expect("a stream"));
    let mut all = Vec::new();
    loop {
        let event = events.next().await.expect("more").expect("an event");
        if event.kind == "vm.status" && event.subject == id {
            all.push((event.data["status"].clone(), event.data["message"].clone()));
        }
        if event.kind.starts_with("ssh_key") {
            return all;
        }
    }
}

const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPwUdIwM0r2mDE0uSKK0fGnSwe2dmSn7zJ0mSZRcDzUi end";

async fn holds(admin: &Caller, id: &str) -> Value {
    admin.get(&format!("{HOSTS}/{id}")).await.body["holds"].clone()
}

/// Nothing of a VM is on the service's own host, and it runs on the one that joined.
async fn is_there(platform: &Platform, beta: &JoinedHost, id: &str, root: &str) {
    let own = platform.app().fleet.own().to_string();
    let is_clear = async |admin: Caller| {
        let is_gone = platform.engine.machine(id).is_none() && platform.engine.disk_gb(root).is_none();
        is_gone && holds(&admin, &own).await["machines"] == 0 && beta.engine.machine(id) == Some(Machine::Running)
    };
    platform.admin.until("it is where it was", is_clear).await;
    let shown = platform.admin.get(&format!("/vms/{id}")).await.body;
    assert_eq!(
        (&shown["status"], &shown["message"], &shown["host_id"]),
        (&json!("running"), &Value::Null, &json!(beta.id))
    );
}

/// Lets time pass until a VM has left the host that joined.
async fn has_left_in_time(platform: &Platform, beta: &JoinedHost, id: &str) {
    let left = async |admin: Caller| {
        platform.advance(10);
        host(&admin, id).await != json!(beta.id)
    };
    platform.admin.until("it left", left).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_runs_goes_as_it_runs_with_its_disks_and_is_reached_there() {
    let (platform, beta) = two().await;
    let admin = &platform.admin;
    let (id, root) = on_beta(admin, &beta, "web").await;
    leave(&platform.engine, MEMORY_MB);
    drain(admin, &beta, "").await;
    is_here(&platform, &beta, &id, &root).await;
    let shown = admin.reaches(&id, "running").await;
    assert_eq!(shown["message"], Value::Null);
    assert_eq!(platform.engine.machine(&id), Some(Machine::Running));
    admin.until("its former machine's end", async |_| beta.engine.machine(&id).is_none()).await;
    assert_eq!(platform.engine.counts().2, 0, "it was never started here");
    // It is reached where its row says.
    let spec = platform.engine.spec(&id).expect("a machine");
    assert_eq!(shown["public_ip"], json!(spec.ports[0].at.ip().to_string()));
    let all = told_of(&platform, &id).await;
    let since = all.iter().position(|(status, _)| status == "running").expect("it ran");
    assert!(all[since..].iter().all(|(status, _)| status == "running"), "{all:?}");
    assert!(all.iter().any(|(_, message)| message == "going to another host while it runs"), "{all:?}");
    assert_eq!(told(admin, "vm.placed").await.subject, id);
    let path = format!("{HOSTS}/{}", beta.id);
    let empty = json!({"machines": 0, "disks": 0, "images": 0, "layers": 0, "leaving": 0});
    admin.until("nothing is left", async |admin| holds(&admin, &beta.id).await == empty).await;
    assert_eq!(admin.delete(&path).await.status, 204);
    // It is one like any other.
    verb(admin, &id, "stop", "stopped").await;
    verb(admin, &id, "start", "running").await;
    assert_eq!(platform.engine.counts().2, 1);
    assert_eq!(admin.delete(&format!("/vms/{id}")).await.status, 202);
    admin.gone(&id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_other_host_is_not_like_stays_until_it_may_be_restarted() {
    let (platform, beta) = two().await;
    let admin = &platform.admin;
    let (id, root) = on_beta(admin, &beta, "web").await;
    leave(&platform.engine, MEMORY_MB);
    platform.engine.set_processor("kvm another one");
    drain(admin, &beta, "").await;
    let why = told(admin, "vm.unplaced").await;
    let reason = why.data["reason"].as_str().expect("a sentence");
    assert!(why.subject == id && reason.contains("it cannot go while it runs: the other host has another"), "{why:?}");
    is_there(&platform, &beta, &id, &root).await;
    drain(admin, &beta, "?restart=true").await;
    has_left_in_time(&platform, &beta, &id).await;
    is_here(&platform, &beta, &id, &root).await;
    admin.reaches(&id, "running").await;
    assert!(platform.engine.brought(&root).is_some(), "its disk came while it was off");
}

#[tokio::test(flavor = "multi_thread")]
async fn whichever_call_fails_it_goes_on_where_it_was() {
    for (call, is_here) in CALLS {
        let (platform, beta) = two().await;
        let admin = &platform.admin;
        let (id, root) = on_beta(admin, &beta, "web").await;
        leave(&platform.engine, MEMORY_MB);
        let engine = if is_here { &platform.engine } else { &beta.engine };
        engine.refuse(call, EngineError::Transient("the way broke off".into()));
        drain(admin, &beta, "").await;
        let why = told(admin, "vm.unplaced").await.data["reason"].clone();
        assert!(why.as_str().is_some_and(|why| why.contains("the way broke off")), "{call}: {why}");
        self::is_there(&platform, &beta, &id, &root).await;
        engine.allow(call);
        has_left_in_time(&platform, &beta, &id).await;
        self::is_here(&platform, &beta, &id, &root).await;
    }
}

/// Waits until a VM is at a call on its way.
async fn at(platform: &Platform, beta: &JoinedHost, (call, is_here): (&str, bool)) {
    let engine = if is_here { &platform.engine } else { &beta.engine };
    engine.hold(call);
    drain(&platform.admin, beta, "").await;
    platform.admin.until(call, async |_| engine.waiting() > 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_dies_while_it_goes_leaves_one_machine_that_runs() {
    for (call, is_here) in CALLS {
        let (platform, beta) = two().await;
        let (id, root) = on_beta(&platform.admin, &beta, "web").await;
        leave(&platform.engine, MEMORY_MB);
        at(&platform, &beta, (call, is_here)).await;
        // Whoever comes finds no room here, so that it stays.
        leave(&platform.engine, 0);
        let platform = platform.crash_and_restart().await;
        platform.engine.let_go();
        beta.engine.let_go();
        is_there(&platform, &beta, &id, &root).await;
        leave(&platform.engine, MEMORY_MB);
        has_left_in_time(&platform, &beta, &id).await;
        self::is_here(&platform, &beta, &id, &root).await;
        assert_eq!(platform.engine.machine(&id), Some(Machine::Running), "{call}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_came_and_was_not_resumed_is_resumed_there_alone() {
    let (platform, beta) = two().await;
    let (id, root) = on_beta(&platform.admin, &beta, "web").await;
    leave(&platform.engine, MEMORY_MB);
    at(&platform, &beta, ("resume", true)).await;
    assert_eq!(host(&platform.admin, &id).await, json!(platform.app().fleet.own().to_string()));
    assert_eq!(
        (platform.engine.machine(&id), beta.engine.machine(&id)),
        (Some(Machine::Paused), Some(Machine::Paused))
    );
    let platform = platform.crash_and_restart().await;
    platform.engine.let_go();
    let runs = async |_| platform.engine.machine(&id) == Some(Machine::Running);
    platform.admin.until("it runs here", runs).await;
    // A search of its former host finds what is left there.
    platform.admin.until("its end there", async |_| beta.engine.machine(&id).is_none()).await;
    platform.admin.until("one copy", async |_| beta.engine.disk_gb(&root).is_none()).await;
    assert_eq!(platform.engine.counts().2, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_its_owner_wants_meanwhile_comes_first() {
    let (platform, beta) = two().await;
    let admin = &platform.admin;
    let (id, root) = on_beta(admin, &beta, "web").await;
    let more = disk(admin, "more").await;
    leave(&platform.engine, MEMORY_MB);
    at(&platform, &beta, ("mirrored", false)).await;
    leave(&platform.engine, 0);
    assert_eq!(admin.post(&format!("/disks/{more}/attach"), json!({"vm_id": id})).await.status, 202);
    let has_it = async |_| beta.engine.spec(&id).is_some_and(|spec| spec.data_disks.len() == 2);
    beta.engine.let_go();
    admin.until("its disk", has_it).await;
    is_there(&platform, &beta, &id, &root).await;
    leave(&platform.engine, MEMORY_MB);
    has_left_in_time(&platform, &beta, &id).await;
    self::is_here(&platform, &beta, &id, &root).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_to_stop_meanwhile_stops() {
    let (platform, beta) = two().await;
    let admin = &platform.admin;
    let (id, root) = on_beta(admin, &beta, "web").await;
    leave(&platform.engine, MEMORY_MB);
    at(&platform, &beta, ("mirrored", false)).await;
    verb(admin, &id, "stop", "stopped").await;
    beta.engine.let_go();
    is_here(&platform, &beta, &id, &root).await;
    assert!(platform.engine.brought(&root).is_some(), "it left as what is off does");
    verb(admin, &id, "start", "running").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_it_is_to_have_there_nobody_else_gets() {
    let (platform, beta) = two().await;
    let admin = &platform.admin;
    let (id, root) = on_beta(admin, &beta, "web").await;
    leave(&platform.engine, VM_MEMORY_MB);
    platform.engine.set_capacity(|capacity| capacity.disk_gb = 30);
    at(&platform, &beta, ("mirrored", false)).await;
    let own = platform.app().fleet.own().to_string();
    assert_eq!(holds(admin, &own).await["machines"], 1);
    let other = admin.create_vm(vm("other")).await;
    let failed = admin.reaches(&other, "failed").await;
    assert!(failed["message"].as_str().is_some_and(|why| why.starts_with("insufficient_capacity")), "{failed}");
    beta.engine.let_go();
    is_here(&platform, &beta, &id, &root).await;
    assert_eq!(holds(admin, &own).await["machines"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_than_two_of_a_host_go_at_a_time() {
    let (platform, beta) = two().await;
    let admin = &platform.admin;
    let mut all = Vec::new();
    for name in ["one", "two", "three"] {
        all.push(on_beta(admin, &beta, name).await);
    }
    leave(&platform.engine, MEMORY_MB);
    at(&platform, &beta, ("mirrored", false)).await;
    admin.until("two", async |_| beta.engine.waiting() == 2).await;
    let own = platform.app().fleet.own().to_string();
    assert_eq!(holds(admin, &own).await["machines"], 2);
    beta.engine.let_go();
    for (id, root) in &all {
        is_here(&platform, &beta, id, root).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_word_is_taken_back_while_it_goes() {
    let (platform, beta) = two().await;
    let admin = &platform.admin;
    let (id, root) = on_beta(admin, &beta, "web").await;
    leave(&platform.engine, MEMORY_MB);
    at(&platform, &beta, ("mirrored", false)).await;
    assert_eq!(admin.act(&format!("{HOSTS}/{}/uncordon", beta.id)).await.status, 202);
    is_there(&platform, &beta, &id, &root).await;
    beta.engine.let_go();
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_hosts_one_that_it_is_like_takes_it() {
    let (platform, beta) = two().await;
    let admin = &platform.admin;
    let (id, _) = on_beta(admin, &beta, "web").await;
    let gamma = join(&platform, "gamma").await;
    // The one that has most is another one.
    leave(&platform.engine, 1 << 40);
    platform.engine.set_processor("kvm another one");
    drain(admin, &beta, "").await;
    admin.until("the third one", async |admin| host(&admin, &id).await == json!(gamma.id)).await;
    admin.until("it runs", async |_| gamma.engine.machine(&id) == Some(Machine::Running)).await;
    assert!(platform.engine.machine(&id).is_none() && beta.engine.counts().2 == 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_breaks_off_is_no_reason_to_shut_it_down() {
    for (call, is_here) in [("likeness", false), ("expect_machine", true), ("hand_over", false)] {
        let (platform, beta) = two().await;
        let admin = &platform.admin;
        let (id, root) = on_beta(admin, &beta, "web").await;
        leave(&platform.engine, MEMORY_MB);
        let engine = if is_here { &platform.engine } else { &beta.engine };
        engine.refuse(call, EngineError::Transient("the way broke off".into()));
        drain(admin, &beta, "?restart=true").await;
        assert_eq!(told(admin, "vm.unplaced").await.subject, id, "{call}");
        is_there(&platform, &beta, &id, &root).await;
        assert_eq!(beta.engine.counts().2, 1, "{call}: it was started once");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_whose_way_took_long_and_broke_off_lets_others_go_first() {
    let (platform, beta) = two().await;
    let admin = &platform.admin;
    let mut all = Vec::new();
    for name in ["one", "two", "three"] {
        all.push(on_beta(admin, &beta, name).await);
    }
    leave(&platform.engine, MEMORY_MB);
    at(&platform, &beta, ("mirrored", false)).await;
    admin.until("two", async |_| beta.engine.waiting() == 2).await;
    // Longer than one is not asked again that could not leave. The service looks every two seconds of any clock.
    for _ in 0..14 {
        platform.advance(10);
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    }
    beta.engine.refuse("hand_over", EngineError::Transient("the way broke off".into()));
    beta.engine.let_go();
    assert_eq!(told_again(admin, "vm.unplaced", 3).await.subject, all[2].0, "the third one had its turn");
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_that_are_wished_meanwhile_are_open_at_once() {
    let (platform, beta) = two().await;
    let admin = &platform.admin;
    let (id, root) = on_beta(admin, &beta, "web").await;
    leave(&platform.engine, MEMORY_MB);
    at(&platform, &beta, ("mirrored", false)).await;
    let wished = json!({"exposed_ports": [{"port": 8443, "protocol": "tcp"}]});
    assert_eq!(admin.patch(&format!("/vms/{id}"), wished).await.status, 200);
    admin.until("the port", async |_| beta.engine.open_ports(&id).contains(&8443)).await;
    beta.engine.let_go();
    has_left_in_time(&platform, &beta, &id).await;
    is_here(&platform, &beta, &id, &root).await;
    let is_open = || platform.engine.open_ports(&id).contains(&8443);
    admin.until("the port there", async |_| is_open()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_whose_vms_do_not_leave_are_asked_for_others() {
    let (platform, beta) = two().await;
    let admin = &platform.admin;
    let mut all = Vec::new();
    for name in ["one", "two", "three"] {
        all.push(on_beta(admin, &beta, name).await);
    }
    for (id, _) in &all[..2] {
        beta.engine.happen(id, Machine::Unresponsive);
    }
    leave(&platform.engine, MEMORY_MB);
    drain(admin, &beta, "").await;
    let left = async |admin: Caller| {
        platform.advance(10);
        host(&admin, &all[2].0).await != json!(beta.id)
    };
    admin.until("the third one", left).await;
    is_here(&platform, &beta, &all[2].0, &all[2].1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_breaks_off_again_and_again_is_restarted_where_it_may_be() {
    let (platform, beta) = two().await;
    let admin = &platform.admin;
    let (id, root) = on_beta(admin, &beta, "web").await;
    leave(&platform.engine, MEMORY_MB);
    beta.engine.refuse("hand_over", EngineError::Transient("a bad sector".into()));
    drain(admin, &beta, "?restart=true").await;
    assert_eq!(told_again(admin, "vm.unplaced", 1).await.subject, id);
    has_left_in_time(&platform, &beta, &id).await;
    is_here(&platform, &beta, &id, &root).await;
    admin.reaches(&id, "running").await;
    assert_eq!(told_again(admin, "vm.unplaced", 2).await.subject, id, "it was tried three times");
    assert!(platform.engine.brought(&root).is_some(), "its disk came while it was off");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_whose_machine_does_not_answer_on_the_way_can_be_deleted() {
    let (platform, beta) = two().await;
    let admin = &platform.admin;
    let (id, _) = on_beta(admin, &beta, "web").await;
    leave(&platform.engine, MEMORY_MB);
    beta.engine.refuse("call_off", EngineError::Transient("it says nothing".into()));
    at(&platform, &beta, ("mirrored", false)).await;
    assert_eq!(admin.delete(&format!("/vms/{id}")).await.status, 202);
    beta.engine.let_go();
    admin.gone(&id).await;
    let own = platform.app().fleet.own().to_string();
    admin.until("nothing here", async |admin| holds(&admin, &own).await["machines"] == 0).await;
    assert!(platform.engine.machine(&id).is_none() && beta.engine.machine(&id).is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn one_whose_host_is_lost_on_the_way_holds_nothing_elsewhere_and_goes_on_when_it_is_back() {
    let (platform, mut beta) = two().await;
    let (id, root) = on_beta(&platform.admin, &beta, "web").await;
    leave(&platform.engine, MEMORY_MB);
    at(&platform, &beta, ("mirrored", false)).await;
    beta.close().await;
    platform.advance(40);
    let admin = &platform.admin;
    is(admin, &beta, "lost").await;
    let own = platform.app().fleet.own().to_string();
    let is_free = async |admin: Caller| {
        platform.advance(10);
        let is_gone = platform.engine.machine(&id).is_none() && platform.engine.disk_gb(&root).is_none();
        is_gone && holds(&admin, &own).await["machines"] == 0
    };
    admin.until("nothing here", is_free).await;
    leave(&platform.engine, 0);
    beta.engine.let_go();
    beta.open().await;
    is(admin, &beta, "draining").await;
    is_there(&platform, &beta, &id, &root).await;
}
