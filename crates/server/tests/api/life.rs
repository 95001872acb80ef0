//! The life of a VM: every verb in every status, deletion, failure, restart policies, adoption.

use berth_domain::vm::plan::Machine;
use berth_host::EngineError;
use berth_server::db::sql;
use berth_testkit::{Platform, vm};
use serde_json::{Value, json};

fn permanent(text: &str) -> EngineError {
    EngineError::Permanent(text.into())
}

fn transient(text: &str) -> EngineError {
    EngineError::Transient(text.into())
}

/// 202, and nothing changed: neither the status nor `updated_at`.
async fn is_unchanged(platform: &Platform, id: &str, verb: &str) {
    let before = platform.admin.get(&format!("/vms/{id}")).await.body;
    let answer = platform.admin.act(&format!("/vms/{id}/{verb}")).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    assert_eq!((&answer.body["status"], &answer.body["updated_at"]), (&before["status"], &before["updated_at"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn verbs_on_machines_at_rest() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let id = caller.running_vm("web").await;
    caller
        .until("the guest", |c| {
            let path = format!("/vms/{id}");
            async move { c.get(&path).await.body["guest_ready"] == true }
        })
        .await;
    is_unchanged(&platform, &id, "start").await;
    let answer = caller.act(&format!("/vms/{id}/restart")).await;
    assert_eq!((answer.status, answer.body["status"].as_str()), (202, Some("restarting")));
    caller.reaches(&id, "running").await;
    let answer = caller.act(&format!("/vms/{id}/stop")).await;
    assert_eq!((answer.status, answer.body["status"].as_str()), (202, Some("stopping")));
    caller.reaches(&id, "stopped").await;
    is_unchanged(&platform, &id, "stop").await;
    is_unchanged(&platform, &id, "restart").await;
    let answer = caller.act(&format!("/vms/{id}/start")).await;
    assert_eq!((answer.status, answer.body["status"].as_str()), (202, Some("starting")));
    caller.reaches(&id, "running").await;
    let operations = caller.get(&format!("/vms/{id}/operations")).await.body;
    let verbs: Vec<_> = operations["data"].as_array().expect("a list").iter().map(|o| o["verb"].clone()).collect();
    assert_eq!(json!(verbs), json!(["start", "stop", "restart", "create"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn verbs_while_provisioning() {
    let platform = Platform::start().await;
    platform.engine.refuse("make_disk", transient("slow storage"));
    let caller = &platform.admin;
    let id = caller.create_vm(vm("web")).await;
    caller.reaches(&id, "provisioning").await;
    for verb in ["start", "stop", "restart"] {
        caller.act(&format!("/vms/{id}/{verb}")).await.refused(400, "invalid_status");
    }
    assert_eq!(caller.delete(&format!("/vms/{id}")).await.status, 202);
    caller.gone(&id).await;
    caller
        .until("its disk's end", |c| async move { c.get("/root_disks").await.body["pagination"]["total_items"] == 0 })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn verbs_while_starting_and_restarting() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    platform.engine.refuse("start", transient("busy"));
    let id = caller.create_vm(vm("web")).await;
    caller.reaches(&id, "starting").await;
    is_unchanged(&platform, &id, "start").await;
    caller.act(&format!("/vms/{id}/restart")).await.refused(400, "invalid_status");
    platform.engine.allow("start");
    platform.advance(30);
    caller.reaches(&id, "running").await;
    platform.engine.set_deaf(true);
    assert_eq!(caller.act(&format!("/vms/{id}/restart")).await.status, 202);
    is_unchanged(&platform, &id, "restart").await;
    caller.act(&format!("/vms/{id}/start")).await.refused(400, "invalid_status");
    let answer = caller.act(&format!("/vms/{id}/stop")).await;
    assert_eq!((answer.status, answer.body["status"].as_str()), (202, Some("stopping")));
    is_unchanged(&platform, &id, "stop").await;
    caller.act(&format!("/vms/{id}/start")).await.refused(400, "invalid_status");
    caller.act(&format!("/vms/{id}/restart")).await.refused(400, "invalid_status");
    // A guest that ignores the button is powered off after 30 s.
    platform.advance(31);
    caller.reaches(&id, "stopped").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn verbs_while_deleting_and_deletion_twice() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let id = caller.running_vm("web").await;
    platform.engine.refuse("power_off", transient("stuck"));
    assert_eq!(caller.delete(&format!("/vms/{id}")).await.status, 202);
    assert_eq!(caller.get(&format!("/vms/{id}")).await.body["status"], "deleting");
    for verb in ["start", "stop", "restart"] {
        caller.act(&format!("/vms/{id}/{verb}")).await.refused(400, "invalid_status");
    }
    let again = caller.delete(&format!("/vms/{id}")).await;
    assert_eq!((again.status, &again.body), (202, &Value::Null));
    platform.engine.allow("power_off");
    platform.advance(60);
    caller.gone(&id).await;
    caller.delete(&format!("/vms/{id}")).await.refused(404, "vm_not_found");
    let ever = caller.get(&format!("/vms/{id}?include_deleted=true")).await;
    assert_eq!((ever.status, ever.body["status"].as_str()), (200, Some("deleted")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_vm_can_be_started_stopped_and_deleted() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    platform.engine.refuse("start", permanent("the image's kernel is damaged"));
    let id = caller.create_vm(vm("web")).await;
    let failed = caller.reaches(&id, "failed").await;
    assert_eq!(failed["message"], "the image's kernel is damaged");
    is_unchanged(&platform, &id, "restart").await;
    assert_eq!(caller.act(&format!("/vms/{id}/stop")).await.status, 202);
    caller.reaches(&id, "stopped").await;
    platform.engine.allow("start");
    assert_eq!(caller.act(&format!("/vms/{id}/start")).await.status, 202);
    caller.reaches(&id, "running").await;
    assert_eq!(caller.delete(&format!("/vms/{id}")).await.status, 202);
    caller.gone(&id).await;
    // Its root disk was to be kept, and is free now.
    let disks = caller.get("/root_disks").await.body;
    assert_eq!((&disks["data"][0]["status"], &disks["data"][0]["is_attached"]), (&json!("ready"), &json!(false)));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_capacity_a_vm_fails_and_holds_nothing() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    for lacking in ["vcpu", "memory", "disk", "room"] {
        platform.engine.set_capacity(|c| match lacking {
            "vcpu" => c.vcpu = 0,
            "memory" => c.memory_mb = 511,
            "disk" => c.disk_gb = 19,
            _ => c.disk_free = false,
        });
        let id = caller.create_vm(vm("web")).await;
        let failed = caller.reaches(&id, "failed").await;
        assert!(failed["message"].as_str().is_some_and(|m| m.starts_with("insufficient_capacity: ")), "{failed}");
        assert_eq!((&failed["public_ip"], &failed["ssh"]), (&Value::Null, &Value::Null));
        platform.engine.set_capacity(|c| {
            (c.vcpu, c.memory_mb, c.disk_gb, c.disk_free) = (1000, 512_000, 100_000, true);
        });
        assert_eq!(caller.act(&format!("/vms/{id}/start")).await.status, 202);
        caller.reaches(&id, "running").await;
        caller.delete(&format!("/vms/{id}")).await;
        caller.gone(&id).await;
        for disk in caller.get("/root_disks").await.body["data"].as_array().expect("a list") {
            caller.delete(&format!("/root_disks/{}", disk["id"].as_str().expect("an id"))).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn capacity_is_what_the_rows_hold() {
    let platform = Platform::start().await;
    platform.engine.set_capacity(|c| c.memory_mb = 1024);
    let caller = &platform.admin;
    let (first, _second) = (caller.running_vm("a").await, caller.running_vm("b").await);
    let third = caller.create_vm(vm("c")).await;
    caller.reaches(&third, "failed").await;
    caller.act(&format!("/vms/{first}/stop")).await;
    caller.reaches(&first, "stopped").await;
    caller.act(&format!("/vms/{third}/start")).await;
    caller.reaches(&third, "running").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deletion_removes_or_keeps_the_root_disk() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let mut body = vm("web");
    body["delete_root_disk"] = json!(true);
    body["data_disks"] = json!({"create_disks": [{"name": "data", "type": "block", "size_gb": 10}]});
    let id = caller.create_vm(body.clone()).await;
    caller.reaches(&id, "running").await;
    caller.delete(&format!("/vms/{id}")).await;
    caller.gone(&id).await;
    caller
        .until(
            "the root disk's end",
            |c| async move { c.get("/root_disks").await.body["pagination"]["total_items"] == 0 },
        )
        .await;
    let data = caller.get("/disks").await.body["data"][0].clone();
    assert_eq!((&data["status"], &data["is_attached"], &data["vm_id"]), (&json!("ready"), &json!(false), &Value::Null));
    // A root disk that was attached stays, whatever was asked for.
    let kept = caller.running_vm("kept").await;
    let disk = caller.get(&format!("/vms/{kept}")).await.body["root_disk"]["id"].clone();
    caller.delete(&format!("/vms/{kept}")).await;
    caller.gone(&kept).await;
    let mut attached = vm("again");
    attached["root_disk"] = json!({"attach_disk_request": {"disk_id": disk}});
    attached["delete_root_disk"] = json!(true);
    let again = caller.create_vm(attached).await;
    let running = caller.reaches(&again, "running").await;
    assert_eq!((&running["image_id"], &running["root_disk"]["id"]), (&json!("micro"), &disk));
    caller.delete(&format!("/vms/{again}")).await;
    caller.gone(&again).await;
    let volume = caller.get(&format!("/root_disks/{}", disk.as_str().expect("an id"))).await;
    assert_eq!((volume.status, volume.body["status"].as_str()), (200, Some("ready")));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_happens_to_machines_is_told() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let off = caller.running_vm("off").await;
    platform.engine.happen(&off, Machine::PoweredOff);
    let vm = caller.reaches(&off, "stopped").await;
    assert_eq!(vm["message"], "the guest powered itself off");
    for end in [Machine::Absent, Machine::Panicked] {
        let id = caller.running_vm("dead").await;
        platform.engine.happen(&id, end);
        let vm = caller.reaches(&id, "failed").await;
        assert!(vm["message"].as_str().is_some_and(|m| !m.is_empty()), "{vm}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_changes_while_a_machine_is_looked_at_counts_for_its_death() {
    let platform = Platform::start().await;
    let (caller, engine) = (&platform.admin, &platform.engine);
    let id = caller.running_vm("web").await;
    let path = format!("/vms/{id}");
    assert_eq!(caller.patch(&path, json!({"restart_policy": "never"})).await.status, 200);
    engine.hold("observe");
    engine.happen(&id, Machine::Running);
    caller.until("the look", |_| async { engine.waiting() > 0 }).await;
    assert_eq!(caller.patch(&path, json!({"restart_policy": "on-failure"})).await.status, 200);
    engine.happen(&id, Machine::Absent);
    engine.let_go();
    caller.until("another machine", |_| async { engine.counts().2 == 2 }).await;
    caller.reaches(&id, "running").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn restart_policies() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    for policy in ["on-failure", "always"] {
        let mut body = vm("web");
        body["restart_policy"] = json!(policy);
        let id = caller.create_vm(body).await;
        caller.reaches(&id, "running").await;
        let (_, _, starts) = platform.engine.counts();
        platform.engine.happen(&id, Machine::Absent);
        let engine = platform.engine.clone();
        caller
            .until("the second start", |_| {
                let engine = engine.clone();
                async move { engine.counts().2 > starts }
            })
            .await;
        caller.reaches(&id, "running").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_that_takes_too_long_is_tried_again_and_then_failed() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    platform.engine.refuse("start", transient("no luck"));
    let id = caller.create_vm(vm("web")).await;
    caller.reaches(&id, "starting").await;
    caller
        .until("its failure", |c| {
            let path = format!("/vms/{id}/wait?status=failed&timeout=3");
            platform.advance(301);
            async move { c.get(&path).await.body["status"] == "failed" }
        })
        .await;
    let vm = caller.reaches(&id, "failed").await;
    assert!(vm["message"].as_str().is_some_and(|m| m.contains("after 300 seconds")), "{vm}");
    platform.engine.allow("start");
    assert_eq!(caller.delete(&format!("/vms/{id}")).await.status, 202);
    caller.gone(&id).await;
}

#[tokio::test]
async fn a_row_of_an_older_copy_goes_on_from_the_generation_of_its_host() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let id = caller.running_vm("web").await;
    platform.engine.overtake(&id, 7);
    assert_eq!(caller.act(&format!("/vms/{id}/stop")).await.status, 202);
    caller.reaches(&id, "stopped").await;
    assert_eq!(caller.act(&format!("/vms/{id}/start")).await.status, 202);
    caller.reaches(&id, "running").await;
    assert_eq!(platform.engine.spec(&id).expect("a machine").generation, 9);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_cannot_be_ended_fails_its_stop_and_its_deletion_in_time() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    for (verb, seconds) in [("stop", 60), ("delete", 300)] {
        let id = caller.running_vm("web").await;
        platform.engine.refuse("power_off", transient("it does not die"));
        let path = format!("/vms/{id}");
        let asked = if verb == "stop" { caller.act(&format!("{path}/stop")).await } else { caller.delete(&path).await };
        assert_eq!(asked.status, 202);
        caller
            .until("its failure", |c| {
                let path = format!("{path}/wait?status=failed&timeout=1");
                platform.advance(seconds + 1);
                async move { c.get(&path).await.body["status"] == "failed" }
            })
            .await;
        let failed = caller.get(&path).await.body;
        let late = format!("after {seconds} seconds, twice");
        assert!(failed["message"].as_str().is_some_and(|text| text.contains(&late)), "{failed}");
        platform.engine.allow("power_off");
        assert_eq!(caller.delete(&path).await.status, 202);
        caller.gone(&id).await;
    }
}

/// A start whose answer never came may still be under way on the host: whatever the VM's row says afterwards calls it off.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_whose_answer_never_came_is_called_off() {
    let platform = Platform::start().await;
    let (caller, engine) = (&platform.admin, &platform.engine);
    let starting = async |name: &str| {
        engine.refuse("start", transient("its answer is lost"));
        let id = caller.create_vm(vm(name)).await;
        caller.reaches(&id, "starting").await;
        id
    };
    let stopped = starting("stopped").await;
    assert_eq!(caller.act(&format!("/vms/{stopped}/stop")).await.status, 202);
    caller.reaches(&stopped, "stopped").await;
    assert!(engine.has_ended(&stopped));
    let late = starting("late").await;
    caller
        .until("its failure", async |caller| {
            platform.advance(60);
            caller.get(&format!("/vms/{late}")).await.body["status"] == "failed"
        })
        .await;
    assert!(engine.has_ended(&late));
    // A host that cannot even do that has the time of a stop.
    let slow = starting("slow").await;
    engine.refuse("power_off", transient("a note cannot be read"));
    assert_eq!(caller.act(&format!("/vms/{slow}/stop")).await.status, 202);
    caller.reaches(&slow, "stopping").await;
    caller
        .until("its stop", async |caller| {
            platform.advance(60);
            caller.get(&format!("/vms/{slow}")).await.body["status"] == "stopped"
        })
        .await;
    engine.allow("power_off");
    // One that fails has failed all the same.
    let stuck = starting("stuck").await;
    engine.refuse("power_off", transient("a note cannot be read"));
    engine.refuse("start", permanent("no such image"));
    caller.reaches(&stuck, "failed").await;
    engine.allow("power_off");
    engine.allow("start");
    assert_eq!(caller.delete(&format!("/vms/{stuck}")).await.status, 202);
    caller.gone(&stuck).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_status_has_its_own_retry() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    platform.engine.refuse("make_disk", transient("slow storage"));
    let id = caller.create_vm(vm("web")).await;
    caller.reaches(&id, "provisioning").await;
    let told = "SELECT COUNT(*) FROM events WHERE subject = $1 AND data LIKE '%trying once more%'";
    let retries = async || sql(told).bind(id.as_str()).fetch_one::<i64>(&platform.app().db).await.expect("a count");
    platform.advance(601);
    caller.until("the second try", |_| async { retries().await == 1 }).await;
    platform.engine.refuse("start", transient("busy"));
    platform.engine.allow("make_disk");
    platform.advance(20);
    caller.reaches(&id, "starting").await;
    platform.advance(301);
    caller.until("the second try to start", |_| async { retries().await == 2 }).await;
    assert_eq!(caller.get(&format!("/vms/{id}")).await.body["status"], "starting");
    platform.engine.allow("start");
    platform.advance(20);
    caller.reaches(&id, "running").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wish_that_comes_while_a_step_fails_does_not_wait_for_the_next_try() {
    let platform = Platform::start().await;
    let (caller, engine) = (&platform.admin, &platform.engine);
    engine.refuse("make_disk", transient("slow storage"));
    engine.hold("make_disk");
    let id = caller.create_vm(vm("web")).await;
    let (db, clock) = (platform.app().db.clone(), platform.app().clock.clone());
    let select = "SELECT COALESCE(work_at, 0) FROM vms WHERE id = $1";
    let waits = async || {
        let work_at: i64 = sql(select).bind(id.as_str()).fetch_one(&db).await.expect("a time");
        work_at > clock.now().0
    };
    // The more tries failed, the later is the next.
    for _ in 0..4 {
        caller.until("a try", |_| async { engine.waiting() > 0 }).await;
        engine.let_go();
        caller.until("its failure", |_| async { waits().await }).await;
        engine.hold("make_disk");
        platform.advance(20);
    }
    caller.until("another try", |_| async { engine.waiting() > 0 }).await;
    assert_eq!(caller.delete(&format!("/vms/{id}")).await.status, 202);
    engine.let_go();
    caller
        .until("its end", |c| {
            let waits = &waits;
            let path = format!("/vms/{id}");
            async move {
                assert!(!waits().await, "the deletion waits");
                c.get(&path).await.status == 404
            }
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_the_host_has_no_room_for_stands_still_and_says_so() {
    let platform = Platform::start().await;
    let (caller, engine) = (&platform.admin, &platform.engine);
    let id = caller.running_vm("web").await;
    engine.set_capacity(|capacity| capacity.disk_free = false);
    engine.happen(&id, Machine::Stalled);
    let path = format!("/vms/{id}");
    let message = async || caller.get(&path).await.body["message"].to_string();
    caller.until("the message", |_| async { message().await.contains("the host's disk is full") }).await;
    assert_eq!(caller.get(&path).await.body["status"], "running");
    engine.set_capacity(|capacity| capacity.disk_free = true);
    platform.advance(5);
    caller.until("no message", |_| async { message().await == "null" }).await;
    // It stops like every other.
    engine.happen(&id, Machine::Stalled);
    assert_eq!(caller.act(&format!("{path}/stop")).await.status, 202);
    caller.reaches(&id, "stopped").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_its_row_knows_to_be_off_is_ended_at_the_start() {
    let mut platform = Platform::start().await;
    let id = platform.admin.running_vm("web").await;
    assert_eq!(platform.admin.act(&format!("/vms/{id}/stop")).await.status, 202);
    platform.admin.reaches(&id, "stopped").await;
    platform.stop().await;
    // As it is where a database of before the machine's start was put back.
    platform.engine.happen(&id, Machine::Running);
    let platform = platform.restart().await;
    platform.admin.until("no machine", |_| async { platform.engine.counts().0 == 0 }).await;
    assert_eq!(platform.admin.get(&format!("/vms/{id}")).await.body["status"], "stopped");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_was_set_back_keeps_nothing_waiting() {
    let platform = Platform::start().await;
    let (caller, engine) = (&platform.admin, &platform.engine);
    engine.refuse("make_disk", transient("slow storage"));
    platform.advance(1800);
    let id = caller.create_vm(vm("web")).await;
    let (db, clock) = (platform.app().db.clone(), platform.app().clock.clone());
    let waits = async || {
        let work_at = sql("SELECT COALESCE(work_at, 0) FROM vms WHERE id = $1").bind(id.as_str());
        work_at.fetch_one::<i64>(&db).await.expect("a time") > clock.now().0
    };
    caller.until("its failure", |_| async { waits().await }).await;
    let ahead = clock.now();
    let seen = async || sql("SELECT seen_at FROM keeper").fetch_one::<i64>(&db).await.expect("a time");
    caller.until("the service to have seen that clock", |_| async { seen().await >= ahead.0 }).await;
    engine.allow("make_disk");
    platform.advance(-1800);
    caller.reaches(&id, "running").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_power_button_is_pressed_until_the_guest_hears_it() {
    let platform = Platform::start_with(|config| {
        // It is never switched off.
        (config.vm.stop_seconds, config.vm.stopping_seconds) = (86_400, 86_400);
    })
    .await;
    let caller = &platform.admin;
    let id = caller.running_vm("web").await;
    platform.engine.set_unheard(2);
    caller.act(&format!("/vms/{id}/stop")).await;
    caller.reaches(&id, "stopped").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_vm_leaves_no_secret_of_its_owner() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let mut body = vm("web");
    body["user_data"] = json!("#cloud-config\npassword: hunter2\n");
    let id = caller.create_vm(body).await;
    caller.reaches(&id, "running").await;
    let kept = "SELECT COUNT(*) FROM vms WHERE id = $1 AND user_data IS NOT NULL";
    let count = async || sql(kept).bind(id.as_str()).fetch_one::<i64>(&platform.app().db).await.expect("a count");
    assert_eq!(count().await, 1);
    caller.delete(&format!("/vms/{id}")).await;
    caller.gone(&id).await;
    assert_eq!(count().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_are_adopted_by_the_next_service() {
    let platform = Platform::start().await;
    let running = platform.admin.running_vm("runs").await;
    let dies = platform.admin.running_vm("dies").await;
    let stopped = platform.admin.running_vm("stops").await;
    platform.admin.act(&format!("/vms/{stopped}/stop")).await;
    platform.admin.reaches(&stopped, "stopped").await;
    let starts = platform.engine.counts().2;
    let mut platform = platform;
    platform.stop().await;
    platform.engine.happen(&dies, Machine::Absent);
    let platform = platform.restart().await;
    platform.admin.reaches(&dies, "failed").await;
    assert_eq!(platform.admin.get(&format!("/vms/{running}")).await.body["status"], "running");
    assert_eq!(platform.admin.get(&format!("/vms/{stopped}")).await.body["status"], "stopped");
    assert_eq!(platform.engine.counts().2, starts, "nothing was started anew");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restart_of_the_host_what_ran_runs_again() {
    let platform = Platform::start().await;
    let running = platform.admin.running_vm("runs").await;
    let stopped = platform.admin.running_vm("stops").await;
    platform.admin.act(&format!("/vms/{stopped}/stop")).await;
    platform.admin.reaches(&stopped, "stopped").await;
    platform.engine.restart_host();
    let platform = platform.restart().await;
    let engine = platform.engine.clone();
    platform
        .admin
        .until("the machine", |_| {
            let engine = engine.clone();
            async move { engine.counts().0 == 1 }
        })
        .await;
    platform.admin.reaches(&running, "running").await;
    assert_eq!(platform.admin.get(&format!("/vms/{stopped}")).await.body["status"], "stopped");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_row_owns_is_removed() {
    let platform = Platform::start().await;
    let id = platform.admin.running_vm("web").await;
    let (machines, disks, _) = platform.engine.counts();
    assert_eq!((machines, disks), (1, 1));
    let other = Platform::start().await;
    let stray = other.admin.running_vm("stray").await;
    let spec = other.engine.spec(&stray).expect("a machine");
    berth_host::vm::Engine::start(&*platform.engine, &spec).await.expect("a stray");
    assert_eq!(platform.engine.counts().0, 2);
    let platform = platform.restart().await;
    let engine = platform.engine.clone();
    platform
        .admin
        .until("the stray's end", |_| {
            let engine = engine.clone();
            async move { engine.counts().0 == 1 }
        })
        .await;
    assert_eq!(platform.admin.get(&format!("/vms/{id}")).await.body["status"], "running");
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_ends_with_the_time_and_has_bounds() {
    let platform = Platform::start().await;
    let id = platform.admin.running_vm("web").await;
    let answer = platform.admin.get(&format!("/vms/{id}/wait?status=stopped&timeout=1")).await;
    assert_eq!((answer.status, answer.body["status"].as_str()), (200, Some("running")));
    for bad in ["timeout=0", "timeout=301", "timeout=", "timeout=x", "status=asleep", "status="] {
        platform.admin.get(&format!("/vms/{id}/wait?{bad}")).await.refused(400, "invalid_request");
    }
    assert_eq!(platform.admin.get(&format!("/vms/{id}/wait?status=running&timeout=300")).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn console_and_metrics() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let id = caller.running_vm("web").await;
    assert_eq!(caller.get(&format!("/vms/{id}/console")).await.body, json!("login: "));
    for bad in ["bytes=0", "bytes=1048577", "bytes=x"] {
        caller.get(&format!("/vms/{id}/console?{bad}")).await.refused(400, "invalid_request");
    }
    let metrics = caller.get(&format!("/vms/{id}/metrics?window=1m&resolution=10s")).await;
    assert_eq!((metrics.status, metrics.body["series"]["cpu_percent"].as_array().map(Vec::len)), (200, Some(6)));
    for bad in ["window=0s", "window=2h", "resolution=1s", "window=1m&resolution=5m", "window=x"] {
        caller.get(&format!("/vms/{id}/metrics?{bad}")).await.refused(400, "invalid_request");
    }
    caller.get(&format!("/vms/{id}/console/ws")).await.refused(400, "invalid_request");
    let client = berth_client::Client::new(&caller.base)
        .expect("a client")
        .with_tokens(berth_client::Tokens { access_token: caller.token.clone(), refresh_token: String::new() });
    let names: Vec<_> = caller.project.split('/').collect();
    let mut console = client.project(names[4], names[6]).console(&id).await.expect("a console");
    console.write(b"hello").await.expect("typing");
    assert_eq!(console.read().await.expect("an echo"), Some(b"hello".to_vec()));
}
