//! SIGKILL at every step of every operation: nothing is lost, nothing leaks, everything goes on.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use berth_domain::vm::disk::DiskStep;
use berth_domain::vm::disk_snapshot::DiskSnapshotStep;
use berth_domain::vm::plan::StepKind;
use berth_testkit::{Caller, Service, eventually, token_in, vm};
use reqwest::Method;
use rustix::process::Pid;
use serde_json::{Value, json};

use crate::BERTH;
use crate::guest::ready;

// The points at which the service is killed, by what it was doing.
const CREATION: &[&str] = &[
    "vm.enter.before",
    "vm.enter.after",
    "vm.reserve.before",
    "vm.reserve.done",
    "vm.reserve.after",
    "vm.make_disk.before",
    "disk.make.done",
    "vm.make_disk.after",
    "vm.make_disk.before:2",
    "disk.make.done:2",
    "vm.enter.before:2",
    "vm.enter.after:2",
    "vm.start.before",
    "vm.start.intent",
    "vm.start.done",
    "vm.start.after",
];
/// Of a creation whose guest is heard of.
const SEEN: &[&str] = &["vm.guest_ready.before", "vm.guest_ready.after"];
const STOP: &[&str] = &[
    "vm.press_power.before",
    "vm.press_power.done",
    "vm.press_power.after",
    "vm.power_off.before",
    "vm.power_off.after",
    "vm.stopped.before",
    "vm.let_go.done",
    "vm.stopped.after",
];
const RESTART: &[&str] = &[
    "vm.press_power.done",
    "vm.power_off.before",
    "vm.power_off.after",
    "vm.ended.before",
    "vm.ended.after",
    "vm.start.intent",
    "vm.start.done",
];
const START: &[&str] =
    &["vm.reserve.before", "vm.reserve.done", "vm.start.before", "vm.start.intent", "vm.start.done", "vm.start.after"];
const DELETION: &[&str] = &[
    "vm.power_off.before",
    "vm.power_off.after",
    "vm.finish.before",
    "vm.let_go.done",
    "vm.finish.done",
    "vm.finish.after",
    "disk.remove.before",
    "disk.remove.done",
    "disk.remove.after",
];
/// Of a disk that no VM's creation makes.
const DISK: &[&str] =
    &["disk.place.before", "disk.place.after", "disk.make.before", "disk.make.done", "disk.make.after"];
/// Of a disk that no VM has.
const GROWTH: &[&str] = &["disk.grow.before", "disk.grow.placed", "disk.grow.done", "disk.grow.after"];
/// Of a disk of a VM that runs, and of one that does not.
const GROWTH_OF_VM: &[&str] = &["vm.grow_disk.before", "disk.grow.placed", "disk.grow.done", "vm.grow_disk.after"];
/// Of a data disk that comes to a VM that runs, and leaves it.
const ATTACHED: &[&str] = &["vm.attach_disk.before", "vm.attach_disk.done", "vm.attach_disk.after"];
/// Of a data disk that is brought to the host of its VM.
pub const TRAVEL: &[&str] =
    &["disk.travel.before", "disk.travel.fetched", "disk.travel.brought", "disk.travel.settled", "disk.travel.after"];
/// Of a VM whose host is drained, and that goes to another one while it runs.
pub const LEAVING: &[&str] = &[
    "vm.leave.before",
    "vm.leave.intent",
    "vm.leave.expected",
    "vm.leave.mirrored",
    "vm.leave.handed_over",
    "vm.leave.settled",
    "vm.leave.resumed",
    "vm.leave.after",
];
/// Of one whose way was interrupted at the first of these points.
pub const CALLED_OFF: (&str, &[&str]) =
    ("vm.leave.handed_over", &["vm.call_off.before", "vm.call_off.done", "vm.call_off.after"]);
/// Of one that is off.
pub const MOVING: &[&str] = &["vm.move.before", "vm.move.done", "vm.move.after"];
const DETACHED: &[&str] = &["vm.detach_disk.before", "vm.detach_disk.done", "vm.detach_disk.after"];
/// Of a disk that no VM has, and of one of a VM that runs.
const COPY: &[&str] = &[
    "disk.snapshot.before",
    "disk.snapshot.begun",
    "disk.snapshot.copied",
    "disk.snapshot.whole",
    "disk.snapshot.done",
    "disk.snapshot.after",
];
const COPY_OF_VM: &[&str] = &[
    "vm.snapshot_disk.before",
    "disk.snapshot.begun",
    "disk.snapshot.frozen",
    "disk.snapshot.underway",
    "vm.snapshot_disk.after",
    "disk.snapshot.copied",
    "disk.snapshot.whole",
    "disk.snapshot.done:2",
    "vm.snapshot_disk.after:2",
];
/// Of a copy that is not wanted any more while a machine makes it.
const GIVEN_UP: &[&str] = &["vm.snapshot_disk.before:2", "disk.snapshot.given_up"];
const COPY_REMOVED: &[&str] =
    &["disk_snapshot.remove.before", "disk_snapshot.remove.done", "disk_snapshot.remove.after"];
const PORTS: &[&str] = &["vm.set_ports.before", "vm.set_ports.done", "vm.set_ports.after"];
const KEYS: &[&str] = &["vm.set_keys.before", "vm.set_keys.done", "vm.set_keys.after"];
const SUSPENSION: &[&str] = &[
    "vm.suspend.before",
    "vm.memory.saved",
    "vm.suspend.done",
    "vm.suspend.after",
    "vm.power_off.before",
    "vm.power_off.after",
    "vm.suspended.before",
    "vm.suspended.after",
];
const RESUMPTION: &[&str] =
    &["vm.reserve.before", "vm.reserve.done", "vm.start.before", "vm.start.intent", "vm.start.done", "vm.start.after"];
/// Of a stop of a suspended one.
const FORGETTING: &[&str] = &["vm.forget_memory.before", "vm.forget_memory.done", "vm.forget_memory.after"];
/// Of one whose memory is not written in time.
const KEPT_RUNNING: &[&str] = &["vm.keep_running.before", "vm.keep_running.after"];
const DEADLINE: &[&str] = &["vm.retry.before", "vm.retry.after"];
const GUEST_OFF: &[&str] = &["vm.guest_off.before", "vm.guest_off.after"];
const RESUME: &[&str] = &["vm.resume.before", "vm.resume.after"];
const EXPIRY: &[&str] = &["vm.expire.before", "vm.expire.after"];
const RUNNING: &[&str] = &["vm.running.before", "vm.running.after"];
/// With the restart policy, and what becomes of the VM.
const DEATH: [(&str, &str, &str); 4] = [
    ("never", "vm.fail.before", "failed"),
    ("never", "vm.fail.after", "failed"),
    ("on-failure", "vm.start_again.before", "running"),
    ("on-failure", "vm.start_again.after", "running"),
];

/// A VM with a data disk.
pub fn body() -> Value {
    let mut body = vm("web");
    body["delete_root_disk"] = json!(true);
    body["data_disks"] = json!({"create_disks": [{"name": "data", "type": "filesystem", "size_gb": 10}]});
    body
}

/// A service that has no patience with guests, which stand still.
pub fn service() -> Service {
    impatient(Service::with_still_guests(BERTH, &["micro"]))
}

fn impatient(service: Service) -> Service {
    // A guest that has not booted does not hear the power button.
    service.configure("stop_seconds = 1\n");
    service
}

/// Deletes a VM and its data disk, and asserts that the host has nothing of them any more.
pub async fn leaves_nothing(service: &Service, caller: &Caller, id: &str) {
    let process = service.machine(id);
    caller.ask(Method::DELETE, &format!("/vms/{id}"), Value::Null, 202).await;
    caller.gone(id).await;
    nothing_is_left(service, caller, process).await;
}

/// Deletes the snapshots, and waits until the host has none.
async fn no_copies(service: &Service, caller: &Caller) {
    for snapshot in caller.get("/disk_snapshots").await.body["data"].as_array().expect("a list") {
        caller.delete(&format!("/disk_snapshots/{}", snapshot["id"].as_str().expect("an id"))).await;
    }
    caller.until("no snapshots", async |c: Caller| c.get("/disk_snapshots").await.body["data"] == json!([])).await;
    eventually("no copies", 120, || service.files("snapshots").is_empty().then_some(()));
}

/// Deletes the disks, and asserts that the host has nothing any more, the process of a machine neither.
async fn nothing_is_left(service: &Service, caller: &Caller, process: Option<Pid>) {
    no_copies(service, caller).await;
    for disk in caller.get("/disks").await.body["data"].as_array().expect("a list") {
        caller.delete(&format!("/disks/{}", disk["id"].as_str().expect("an id"))).await;
    }
    eventually("an empty host", 120, || {
        ["machines", "disks", "snapshots"].iter().all(|folder| service.files(folder).is_empty()).then_some(())
    });
    assert!(service.files("staging").is_empty(), "{:?}", service.files("staging"));
    if let Some(pid) = process {
        let path = format!("/proc/{}/exe", pid.as_raw_pid());
        assert!(std::fs::read_link(path).is_err(), "the machine's process is still there");
    }
    caller
        .until("empty sums", |c| async move {
            let quota = c.get("/quota").await.body;
            (&quota["vms"]["used"], &quota["disks"]["used"]) == (&json!(0), &json!(0))
        })
        .await;
}

/// What the host has of machines, disks and what those build on: names below the data folder.
pub fn held(service: &Service) -> Vec<String> {
    let folders = ["machines", "disks", "bases"].into_iter();
    let mut held: Vec<_> = folders
        .flat_map(|folder| service.files(folder).into_iter().map(move |name| format!("{folder}/{name}")))
        .collect();
    held.sort();
    held
}

/// Asserts that the host comes back to what it had before a service was killed at a point.
pub fn holds(service: &Service, before: &[String], point: &str) {
    let deadline = Instant::now() + Duration::from_mins(2);
    while held(service) != before && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(held(service), before, "{point}");
}

/// Has a service come to faults, which runs already or is started.
fn armed(service: &mut Service, faults: &str) {
    if service.is_started() {
        service.add_faults(faults);
    } else {
        service.set("BERTH_FAULT", faults);
        service.start();
    }
}

/// Ends a service that may still be at what the next kill is to be at.
pub fn stopped(service: &mut Service) {
    assert_eq!(service.stop(), Some(0));
}

/// Kills the service at a point of an operation, and starts it again.
pub async fn killed_at(service: &mut Service, point: &str, operation: impl AsyncFnOnce(&Caller)) -> Caller {
    let (name, nth) = point.split_once(':').unwrap_or((point, "1"));
    armed(service, &format!("{name}=kill:{nth}"));
    let caller = service.admin().await;
    operation(&caller).await;
    service.died_at(name);
    service.start();
    service.admin().await
}

/// The same, and once more at another point of what the service does by itself then.
pub async fn killed_twice(
    service: &mut Service,
    (first, second): (&str, &str),
    operation: impl AsyncFnOnce(&Caller),
) -> Caller {
    armed(service, &format!("{first}=kill:1"));
    let caller = service.admin().await;
    operation(&caller).await;
    service.died_at(first);
    killed_at_start(service, second).await
}

/// The same of what the service does by itself as soon as it starts.
async fn killed_at_start(service: &mut Service, point: &str) -> Caller {
    service.start_and_die_at(point);
    service.start();
    service.admin().await
}

#[test]
fn every_step_of_a_vm_has_points_at_which_the_service_is_killed() {
    let of_memory = [SUSPENSION, RESUMPTION, FORGETTING, KEPT_RUNNING];
    let of_disks = [DISK, GROWTH, GROWTH_OF_VM, ATTACHED, TRAVEL, DETACHED, COPY, COPY_OF_VM, COPY_REMOVED];
    let of_hosts = [LEAVING, CALLED_OFF.1, MOVING];
    let lists =
        [CREATION, SEEN, STOP, RESTART, START, DELETION, PORTS, KEYS, DEADLINE, GUEST_OFF, RESUME, RUNNING, EXPIRY];
    let lists = lists.into_iter().chain(of_disks).chain(of_hosts).chain(of_memory);
    let killed: Vec<_> = lists.flatten().copied().chain(DEATH.map(|(_, point, _)| point)).collect();
    for kind in StepKind::ALL.iter().filter(|kind| kind.acts()) {
        for moment in ["before", "after"] {
            let point = format!("vm.{kind}.{moment}");
            assert!(killed.contains(&point.as_str()), "no test kills the service at {point}");
        }
    }
    for step in DiskStep::ALL {
        for moment in ["before", "after"] {
            let point = format!("disk.{step}.{moment}");
            assert!(killed.contains(&point.as_str()), "no test kills the service at {point}");
        }
    }
    for step in DiskSnapshotStep::ALL {
        for moment in ["before", "after"] {
            let point = format!("disk_snapshot.{step}.{moment}");
            assert!(killed.contains(&point.as_str()), "no test kills the service at {point}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_goes_on() {
    let mut service = service();
    for point in DISK {
        let caller = killed_at(&mut service, point, async |caller| {
            let body = json!({"name": "data", "type": "filesystem", "size_gb": 10, "region_id": "local"});
            caller.ask(Method::POST, "/disks", body, 201).await;
        })
        .await;
        let id = caller.get("/disks").await.body["data"][0]["id"].as_str().expect("an id").to_owned();
        let path = format!("/disks/{id}");
        let ready = async |caller: Caller| caller.get(&path).await.body["status"] == "ready";
        caller.until("the disk", ready).await;
        assert_eq!(service.files("disks").len(), 1, "{point}");
        nothing_is_left(&service, &caller, None).await;
    }
}

/// Waits until nothing is under way for a disk, which has this size then, also on the host.
async fn has_grown(service: &Service, caller: &Caller, path: &str, gib: u64) {
    let at_rest = async |caller: Caller| caller.get(path).await.body["change"].is_null();
    caller.until("its growth", at_rest).await;
    let disk = caller.get(path).await.body;
    assert_eq!((&disk["size_gb"], &disk["message"]), (&json!(gib), &Value::Null));
    if path.starts_with("/disks/") {
        let file = service.dir.path().join("disks").join(format!("{}.raw", disk["id"].as_str().expect("an id")));
        assert_eq!(std::fs::metadata(file).expect("a file").len(), gib << 30);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_growth_goes_on() {
    let mut service = service();
    service.start();
    for point in GROWTH {
        let caller = service.admin().await;
        let body = json!({"name": "data", "type": "block", "size_gb": 10, "region_id": "local"});
        let path = format!("/disks/{}", caller.post("/disks", body).await.id());
        let ready = async |caller: Caller| caller.get(&path).await.body["status"] == "ready";
        caller.until("the disk", ready).await;
        let caller = killed_at(&mut service, point, async |caller| {
            caller.ask(Method::POST, &format!("{path}/resize"), json!({"size_gb": 11}), 202).await;
        })
        .await;
        has_grown(&service, &caller, &path, 11).await;
        nothing_is_left(&service, &caller, None).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn disks_of_a_vm_grow_on() {
    let (mut service, id) = with_machine().await;
    for (number, point) in GROWTH_OF_VM.iter().enumerate() {
        let before = service.machine(&id);
        let vm = service.admin().await.get(&format!("/vms/{id}")).await.body;
        let text = |disk: &Value| disk["id"].as_str().expect("an id").to_owned();
        let data = format!("/disks/{}", text(&vm["data_disks"][0]));
        let root = format!("/root_disks/{}", text(&vm["root_disk"]));
        let (path, gib) = if number % 2 == 0 { (data, 11 + number) } else { (root, 24 + number) };
        let caller = killed_at(&mut service, point, async |caller| {
            caller.ask(Method::POST, &format!("{path}/resize"), json!({"size_gb": gib}), 202).await;
        })
        .await;
        has_grown(&service, &caller, &path, gib as u64).await;
        assert_eq!(service.machine(&id), before, "{point}: the same process");
    }
    leaves_nothing(&service, &service.admin().await, &id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_comes_and_goes_on() {
    let (mut service, id) = with_guest().await;
    for point in ATTACHED.iter().chain(DETACHED) {
        let before = service.machine(&id);
        let caller = service.admin().await;
        let body = json!({"name": "late", "type": "block", "size_gb": 10, "region_id": "local"});
        let path = format!("/disks/{}", caller.post("/disks", body).await.id());
        let ready_disk = async |caller: Caller| caller.get(&path).await.body["status"] == "ready";
        caller.until("the disk", ready_disk).await;
        // A guest that boots does not let go of a disk.
        ready(&caller, &id).await;
        let is_there = |disk: &Value, there: bool| disk["change"].is_null() && disk["is_attached"] == there;
        let (attach, detach) = (format!("{path}/attach"), format!("{path}/detach"));
        let caller = killed_at(&mut service, point, async |caller| {
            caller.ask(Method::POST, &attach, json!({"vm_id": id}), 202).await;
            if DETACHED.contains(point) {
                let attached = async |caller: Caller| is_there(&caller.get(&path).await.body, true);
                caller.until("the disk's coming", attached).await;
                caller.ask(Method::POST, &detach, Value::Null, 202).await;
            }
        })
        .await;
        let there = ATTACHED.contains(point);
        caller.until("its rest", async |caller: Caller| is_there(&caller.get(&path).await.body, there)).await;
        assert_eq!(service.machine(&id), before, "{point}: the same process");
    }
    leaves_nothing(&service, &service.admin().await, &id).await;
}

/// Waits until a snapshot is ready, whose file is the only one then.
async fn is_copied(service: &Service, caller: &Caller, point: &str) {
    let listed = async |caller: &Caller| caller.get("/disk_snapshots").await.body["data"].clone();
    caller.until("the copy", async |caller: Caller| listed(&caller).await[0]["status"] == "ready").await;
    let snapshot = listed(caller).await[0].clone();
    let id = snapshot["id"].as_str().expect("an id");
    let (mut files, note) = (service.files("snapshots"), format!("{id}.base"));
    files.retain(|file| *file != note);
    assert_eq!(files, [format!("{id}.qcow2")], "{point}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_a_disk_goes_on() {
    let mut service = service();
    service.start();
    for point in COPY.iter().chain(COPY_REMOVED) {
        let caller = service.admin().await;
        let body = json!({"name": "data", "type": "filesystem", "size_gb": 10, "region_id": "local"});
        let id = caller.post("/disks", body).await.id();
        let path = format!("/disks/{id}");
        let ready = async |caller: Caller| caller.get(&path).await.body["status"] == "ready";
        caller.until("the disk", ready).await;
        let caller = killed_at(&mut service, point, async |caller| {
            caller.ask(Method::POST, "/disk_snapshots", json!({"disk_id": id}), 201).await;
            if COPY_REMOVED.contains(point) {
                is_copied_or_gone(caller).await;
                for snapshot in caller.get("/disk_snapshots").await.body["data"].as_array().expect("a list") {
                    let path = format!("/disk_snapshots/{}", snapshot["id"].as_str().expect("an id"));
                    caller.ask(Method::DELETE, &path, Value::Null, 202).await;
                }
            }
        })
        .await;
        if COPY.contains(point) {
            is_copied(&service, &caller, point).await;
        }
        nothing_is_left(&service, &caller, None).await;
    }
}

/// Waits until no copy is under way.
async fn is_copied_or_gone(caller: &Caller) {
    let at_rest = async |caller: Caller| {
        let all = caller.get("/disk_snapshots").await.body["data"].clone();
        all.as_array().expect("a list").iter().all(|snapshot| snapshot["status"] == "ready")
    };
    caller.until("the copy", at_rest).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn disks_of_a_vm_are_copied_on() {
    let (mut service, id) = with_machine().await;
    let before = service.machine(&id);
    for (number, point) in COPY_OF_VM.iter().chain(GIVEN_UP).enumerate() {
        let caller = service.admin().await;
        let vm = caller.get(&format!("/vms/{id}")).await.body;
        let text = |disk: &Value| disk["id"].as_str().expect("an id").to_owned();
        let body = match number % 2 {
            0 => json!({"root_disk_id": text(&vm["root_disk"])}),
            _ => json!({"disk_id": text(&vm["data_disks"][0])}),
        };
        let snapshots = service.dir.path().join("snapshots");
        let caller = killed_at(&mut service, point, async |caller| {
            let asked = caller.ask(Method::POST, "/disk_snapshots", body, 201).await;
            if GIVEN_UP.contains(point) {
                let path = format!("/disk_snapshots/{}", asked.expect("an answer").id());
                eventually("its copy", 60, || std::fs::read_dir(&snapshots).ok()?.next().map(drop));
                caller.ask(Method::DELETE, &path, Value::Null, 202).await;
            }
        })
        .await;
        if COPY_OF_VM.contains(point) {
            is_copied(&service, &caller, point).await;
        }
        assert_eq!(service.machine(&id), before, "{point}: the same process");
        no_copies(&service, &caller).await;
    }
    leaves_nothing(&service, &service.admin().await, &id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_creation_goes_on_or_can_be_undone() {
    creations(service(), CREATION).await;
    creations(impatient(Service::new(BERTH, &["micro"])), SEEN).await;
}

async fn creations(mut service: Service, points: &[&str]) {
    for (number, point) in points.iter().enumerate() {
        let caller = killed_at(&mut service, point, async |caller| {
            caller.ask(Method::POST, "/vms", body(), 201).await;
        })
        .await;
        let listed = caller.get("/vms").await.body;
        assert_eq!(listed["pagination"]["total_items"], 1, "{point}");
        let id = listed["data"][0]["id"].as_str().expect("an id").to_owned();
        // Every other time it is undone instead of finished.
        if number % 2 == 0 {
            caller.reaches(&id, "running").await;
            assert!(service.machine(&id).is_some(), "{point}");
            assert_eq!(service.files("machines").len(), 1, "{point}");
        }
        leaves_nothing(&service, &caller, &id).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_time_to_live_ends() {
    let mut service = service();
    for point in EXPIRY {
        let mut id = String::new();
        let caller = killed_at(&mut service, point, async |caller| {
            let mut body = body();
            body["ttl_seconds"] = json!(5);
            id = caller.create_vm(body).await;
        })
        .await;
        caller.gone(&id).await;
        nothing_is_left(&service, &caller, None).await;
    }
}

/// A service with a machine that stands still.
pub async fn with_machine() -> (Service, String) {
    with_machine_of(service()).await
}

/// A service with a machine whose guest boots.
async fn with_guest() -> (Service, String) {
    with_machine_of(impatient(Service::new(BERTH, &["micro"]))).await
}

async fn with_machine_of(mut service: Service) -> (Service, String) {
    service.start();
    let id = machine(&service.admin().await).await;
    (service, id)
}

/// A VM with a data disk that runs.
async fn machine(caller: &Caller) -> String {
    let id = caller.create_vm(body()).await;
    caller.reaches(&id, "running").await;
    id
}

/// Has a VM run again.
pub async fn runs_again(caller: &Caller, id: &str) {
    assert_eq!(caller.act(&format!("/vms/{id}/start")).await.status, 202);
    caller.reaches(id, "running").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_goes_on() {
    let (mut service, id) = with_machine().await;
    let (path, before) = (format!("/vms/{id}/stop"), held(&service));
    for point in STOP {
        let caller = killed_at(&mut service, point, async |caller| {
            caller.ask(Method::POST, &path, Value::Null, 202).await;
        })
        .await;
        caller.reaches(&id, "stopped").await;
        assert!(service.machine(&id).is_none(), "{point}");
        runs_again(&caller, &id).await;
        holds(&service, &before, point);
    }
    leaves_nothing(&service, &service.admin().await, &id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspension_goes_on() {
    let (mut service, id) = with_machine().await;
    let before = held(&service);
    for point in SUSPENSION {
        let path = format!("/vms/{id}/suspend");
        let caller = killed_at(&mut service, point, async |caller| {
            caller.ask(Method::POST, &path, Value::Null, 202).await;
        })
        .await;
        let suspended = caller.reaches(&id, "suspended").await;
        assert!(suspended["message"].is_null() && service.machine(&id).is_none(), "{point}: {suspended}");
        assert_eq!(caller.act(&format!("/vms/{id}/resume")).await.status, 202);
        let running = caller.reaches(&id, "running").await;
        assert!(running["message"].is_null(), "{point}: it goes on with its memory: {running}");
        holds(&service, &before, point);
    }
    leaves_nothing(&service, &service.admin().await, &id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resumption_goes_on_or_boots() {
    let (mut service, id) = with_machine().await;
    let before = held(&service);
    for point in RESUMPTION {
        let caller = service.admin().await;
        caller.act(&format!("/vms/{id}/suspend")).await;
        caller.reaches(&id, "suspended").await;
        let path = format!("/vms/{id}/resume");
        let caller = killed_at(&mut service, point, async |caller| {
            caller.ask(Method::POST, &path, Value::Null, 202).await;
        })
        .await;
        let running = caller.reaches(&id, "running").await;
        assert!(running["message"].is_null() && service.machine(&id).is_some(), "{point}: {running}");
        assert!(!service.dir.path().join("machines").join(&id).join("suspended").exists(), "{point}");
        holds(&service, &before, point);
    }
    leaves_nothing(&service, &service.admin().await, &id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspended_vm_is_stopped() {
    let (mut service, id) = with_machine().await;
    let before = held(&service);
    for point in FORGETTING {
        let caller = service.admin().await;
        caller.act(&format!("/vms/{id}/suspend")).await;
        caller.reaches(&id, "suspended").await;
        let path = format!("/vms/{id}/stop");
        let caller = killed_at(&mut service, point, async |caller| {
            caller.ask(Method::POST, &path, Value::Null, 202).await;
        })
        .await;
        caller.reaches(&id, "stopped").await;
        assert!(!service.dir.path().join("machines").join(&id).join("suspended").exists(), "{point}");
        runs_again(&caller, &id).await;
        holds(&service, &before, point);
    }
    leaves_nothing(&service, &service.admin().await, &id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_whose_memory_is_not_written_in_time_goes_on() {
    for point in KEPT_RUNNING {
        let (mut service, id) = with_guest().await;
        service.kill();
        let before = service.machine(&id);
        let config = service.dir.path().join("berth.toml");
        service.configure("suspending_seconds = 1\n");
        service.set("BERTH_FAULT", &format!("vm.suspend.before=fail,vm.suspend.done=fail,{point}=kill"));
        service.start();
        let caller = service.admin().await;
        caller.ask(Method::POST, &format!("/vms/{id}/suspend"), Value::Null, 202).await;
        service.died_at(point);
        let text = std::fs::read_to_string(&config).expect("a file");
        std::fs::write(&config, text.replace("suspending_seconds = 1\n", "")).expect("a file");
        service.start();
        let caller = service.admin().await;
        if point.ends_with("after") {
            let running = caller.reaches(&id, "running").await;
            assert!(
                running["message"].as_str().is_some_and(|text| text.contains("could not be suspended")),
                "{running}"
            );
            assert_eq!(service.machine(&id), before, "the same process");
            ready(&caller, &id).await;
        } else {
            // Nothing was recorded, and it has its time anew.
            caller.reaches(&id, "suspended").await;
        }
        leaves_nothing(&service, &caller, &id).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_goes_on() {
    let (mut service, id) = with_machine().await;
    let (path, had) = (format!("/vms/{id}/restart"), held(&service));
    for point in RESTART {
        let before = service.machine(&id);
        let caller = killed_at(&mut service, point, async |caller| {
            caller.ask(Method::POST, &path, Value::Null, 202).await;
        })
        .await;
        caller.reaches(&id, "running").await;
        assert_ne!(service.machine(&id), before, "{point}: it is another process");
        holds(&service, &had, point);
    }
    leaves_nothing(&service, &service.admin().await, &id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_goes_on() {
    let (mut service, id) = with_machine().await;
    let before = held(&service);
    for point in START {
        let caller = service.admin().await;
        caller.act(&format!("/vms/{id}/stop")).await;
        caller.reaches(&id, "stopped").await;
        let path = format!("/vms/{id}/start");
        let caller = killed_at(&mut service, point, async |caller| {
            caller.ask(Method::POST, &path, Value::Null, 202).await;
        })
        .await;
        caller.reaches(&id, "running").await;
        assert!(service.machine(&id).is_some(), "{point}");
        holds(&service, &before, point);
    }
    leaves_nothing(&service, &service.admin().await, &id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_goes_on() {
    let mut service = service();
    service.start();
    for point in DELETION {
        let id = machine(&service.admin().await).await;
        let (path, process) = (format!("/vms/{id}"), service.machine(&id));
        let caller = killed_at(&mut service, point, async |caller| {
            caller.ask(Method::DELETE, &path, Value::Null, 202).await;
        })
        .await;
        caller.gone(&id).await;
        caller.delete(&path).await.refused(404, "vm_not_found");
        nothing_is_left(&service, &caller, process).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_ports_goes_on() {
    let (mut service, id) = with_machine().await;
    let path = format!("/vms/{id}");
    for point in PORTS {
        let caller = killed_at(&mut service, point, async |caller| {
            let ports = json!({"exposed_ports": [{"port": 8080, "protocol": "tcp"}]});
            caller.ask(Method::PATCH, &path, ports, 200).await;
        })
        .await;
        let address = caller.get(&path).await.body["public_ip"].as_str().expect("an address").to_owned();
        let reach = || std::net::TcpStream::connect((address.as_str(), 8080)).ok();
        eventually("the open port", 120, reach);
        caller.ask(Method::PATCH, &path, json!({"exposed_ports": []}), 200).await;
        eventually("the shut port", 120, || reach().is_none().then_some(()));
        stopped(&mut service);
    }
    service.start();
    leaves_nothing(&service, &service.admin().await, &id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_keys_goes_on() {
    let (mut service, id) = with_guest().await;
    ready(&service.admin().await, &id).await;
    let path = format!("/vms/{id}/ssh_keys");
    for (number, point) in KEYS.iter().enumerate() {
        let caller = killed_at(&mut service, point, async |caller| {
            let keys = json!({"ssh_keys": [berth_testkit::key(number)]});
            caller.ask(Method::PUT, &path, keys, 200).await;
        })
        .await;
        // Its guest has no agent.
        let is_told =
            async |caller: Caller| caller.get(&format!("/vms/{id}")).await.body["ssh_keys_state"] == "next_boot";
        caller.until("an end of the change", is_told).await;
        stopped(&mut service);
    }
    service.start();
    leaves_nothing(&service, &service.admin().await, &id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_death_is_dealt_with() {
    let (mut service, id) = with_machine().await;
    let (path, before) = (format!("/vms/{id}"), held(&service));
    for (policy, point, end) in DEATH {
        let machine = service.machine(&id).expect("a process");
        let caller = killed_at(&mut service, point, async |caller| {
            assert_eq!(caller.patch(&path, json!({"restart_policy": policy})).await.status, 200);
            rustix::process::kill_process(machine, rustix::process::Signal::KILL).expect("a signal");
        })
        .await;
        if end == "running" {
            eventually("another machine", 60, || service.machine(&id).filter(|pid| *pid != machine));
        }
        caller.reaches(&id, end).await;
        assert_eq!(service.machine(&id).is_some(), end == "running", "{point}");
        if end == "failed" {
            runs_again(&caller, &id).await;
        }
        holds(&service, &before, point);
    }
    leaves_nothing(&service, &service.admin().await, &id).await;
}

/// Tells a machine something as its service would, from beside it; none if it does not answer.
fn tell(data: &Path, id: &str, command: &str) -> Option<()> {
    let mut stream = UnixStream::connect(data.join("machines").join(id).join("qmp.sock")).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    let mut answers = BufReader::new(stream.try_clone().ok()?).lines();
    let mut answer = || answers.next()?.ok();
    answer()?;
    for word in ["qmp_capabilities", command] {
        writeln!(stream, "{}", json!({"execute": word})).ok()?;
        while !answer()?.contains("\"return\"") {}
    }
    Some(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_that_powers_itself_off_is_dealt_with() {
    let (mut service, id) = with_guest().await;
    let (data, before) = (service.dir.path().to_owned(), held(&service));
    for point in GUEST_OFF {
        let caller = killed_at(&mut service, point, async |caller| {
            ready(caller, &id).await;
            let address = caller.base.trim_start_matches("http://");
            // A guest that booted a moment ago may not hear the button yet; the service dies of what it then does.
            eventually("a guest that hears the button", 300, || {
                tell(&data, &id, "system_powerdown");
                std::thread::sleep(Duration::from_secs(1));
                std::net::TcpStream::connect(address).is_err().then_some(())
            });
        })
        .await;
        let stopped = caller.reaches(&id, "stopped").await;
        assert_eq!(stopped["message"], "the guest powered itself off", "{point}");
        runs_again(&caller, &id).await;
        holds(&service, &before, point);
    }
    leaves_nothing(&service, &service.admin().await, &id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_machine_goes_on() {
    let (mut service, id) = with_guest().await;
    let (before, data) = (service.machine(&id), service.dir.path().to_owned());
    for point in RESUME {
        let caller = killed_at(&mut service, point, async |_| {
            eventually("QMP", 60, || tell(&data, &id, "stop"));
        })
        .await;
        caller.reaches(&id, "running").await;
        ready(&caller, &id).await;
        assert_eq!(service.machine(&id), before, "{point}: the same process");
        stopped(&mut service);
    }
    service.start();
    leaves_nothing(&service, &service.admin().await, &id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_was_started_unseen_is_recorded() {
    let mut service = service();
    for point in RUNNING {
        // The service dies between the start and its record, and again when it records what it finds.
        armed(&mut service, "vm.start.done=kill");
        service.admin().await.ask(Method::POST, "/vms", body(), 201).await;
        service.died_at("vm.start.done");
        let caller = killed_at_start(&mut service, point).await;
        let id = caller.get("/vms").await.body["data"][0]["id"].as_str().expect("an id").to_owned();
        caller.reaches(&id, "running").await;
        assert!(service.machine(&id).is_some(), "{point}");
        leaves_nothing(&service, &caller, &id).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_that_passed_begins_again() {
    for point in DEADLINE {
        let mut service = service();
        let config = service.dir.path().join("berth.toml");
        let before = std::fs::read(&config).expect("a file");
        // Two failures and the pauses after them take longer than a start may.
        service.configure("starting_seconds = 2\n");
        service.set("BERTH_FAULT", &format!("vm.start.before=fail,vm.start.intent=fail,{point}=kill"));
        service.start();
        let caller = service.admin().await;
        caller.ask(Method::POST, "/vms", body(), 201).await;
        service.died_at(point);
        std::fs::write(&config, &before).expect("a file");
        service.start();
        let caller = service.admin().await;
        let id = caller.get("/vms").await.body["data"][0]["id"].as_str().expect("an id").to_owned();
        caller.reaches(&id, "running").await;
        leaves_nothing(&service, &caller, &id).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mail_is_sent_at_least_once() {
    for point in ["outbox.send.before", "outbox.send.done", "outbox.send.after"] {
        let mut service = service();
        let body = json!({"email": "ada@example.com", "password": "five boats in the morning"});
        let caller = killed_at(&mut service, point, async |caller| {
            caller.ask(Method::POST, "/api/v1/auth/signup", body, 201).await;
        })
        .await;
        let token = token_in(&service.mail("ada@example.com", "Verify"));
        let verified = caller.anonymous().post("/api/v1/auth/email/verify", json!({"token": token})).await;
        assert_eq!(verified.status, 204, "{point}: {verified:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_fails_is_taken_again() {
    let mut service = service();
    for point in [
        "vm.reserve.done",
        "vm.make_disk.before",
        "disk.make.done",
        "vm.start.intent",
        "vm.start.done",
        "vm.power_off.before",
        "vm.finish.done",
        "disk.remove.done",
    ] {
        armed(&mut service, &format!("{point}=fail"));
        let caller = service.admin().await;
        let id = machine(&caller).await;
        leaves_nothing(&service, &caller, &id).await;
        assert_eq!(service.reached(point, "fail"), 1, "{point} was not reached");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_outlive_the_service_and_are_adopted() {
    let mut service = service();
    service.start();
    let caller = service.admin().await;
    let mut machines = Vec::new();
    for number in 0..3 {
        let id = caller.running_vm(&format!("vm{number}")).await;
        let pid = service.machine(&id).expect("a process");
        machines.push((id, pid));
    }
    // One dies while nobody looks.
    service.kill();
    rustix::process::kill_process(machines[0].1, rustix::process::Signal::KILL).expect("a signal");
    service.start();
    let caller = service.admin().await;
    let failed = caller.reaches(&machines[0].0, "failed").await;
    assert!(failed["message"].as_str().is_some_and(|m| m.contains("ended unexpectedly")), "{failed}");
    for (id, pid) in &machines[1..] {
        assert_eq!(caller.get(&format!("/vms/{id}")).await.body["status"], "running");
        assert_eq!(service.machine(id), Some(*pid), "the same process");
    }
    // SIGTERM leaves them running, too.
    assert_eq!(service.stop(), Some(0));
    assert_eq!(service.machine(&machines[1].0), Some(machines[1].1));
    // One dies under the service's eyes.
    service.start();
    rustix::process::kill_process(machines[1].1, rustix::process::Signal::KILL).expect("a signal");
    let caller = service.admin().await;
    caller.reaches(&machines[1].0, "failed").await;
    assert_eq!(caller.act(&format!("/vms/{}/start", machines[1].0)).await.status, 202);
    caller.reaches(&machines[1].0, "running").await;
}
