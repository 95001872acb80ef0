//! VMs with GPUs: sizes by what the host has, which devices a machine gets, and when others get them.

use std::slice;

use berth_domain::host::gpu::Gpu;
use berth_domain::vm::plan::Machine;
use berth_host::EngineError;
use berth_server::db::machine_gpu;
use berth_testkit::{Chance, Platform, vm};
use serde_json::{Value, json};

const MODEL: &str = "example-9000";
const FIRST: &str = "0000:01:00.0";
const SECOND: &str = "0000:02:00.0";

/// A platform whose host has these GPUs.
async fn with_gpus(addresses: &[&str]) -> Platform {
    let platform = Platform::start().await;
    platform.engine.set_gpus(addresses);
    platform.restart().await
}

fn body(name: &str, count: i64) -> Value {
    let mut body = vm(name);
    (body["vm_config_id"], body["gpu_config_count"]) = (json!(MODEL), json!(count));
    body
}

async fn running(platform: &Platform, name: &str, count: i64) -> String {
    let id = platform.admin.create_vm(body(name, count)).await;
    platform.admin.reaches(&id, "running").await;
    id
}

/// The devices that a machine was started with.
fn devices(platform: &Platform, vm: &str) -> Vec<String> {
    let spec = platform.engine.spec(vm).expect("a machine");
    spec.gpus.iter().map(ToString::to_string).collect()
}

/// How many functions are somebody's, by the rows.
async fn held(platform: &Platform) -> usize {
    machine_gpu::all(&platform.app().db).await.expect("rows").len()
}

async fn fails(platform: &Platform, id: &str) -> String {
    platform.admin.reaches(id, "failed").await["message"].as_str().expect("a reason").to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_model_of_the_host_is_a_size() {
    let platform = with_gpus(&[FIRST, SECOND]).await;
    let sizes = platform.admin.get("/api/v1/vm_configs").await;
    let size = sizes.body["data"].as_array().expect("sizes").iter().find(|size| size["id"] == MODEL).expect("a size");
    assert_eq!(
        (&size["gpu_max"], &size["gpu_model"], &size["name"]),
        (&json!(2), &json!(MODEL), &json!("Example 9000"))
    );
    assert!(size["vcpu"].as_i64() > Some(0) && size["memory_mb"].as_i64() >= Some(1024), "{size}");
    let refused = platform.admin.post("/vms", body("web", 3)).await;
    refused.refused(400, "invalid_request");
    assert!(refused.names("gpu_config_count"), "{refused:?}");
    let id = running(&platform, "none", 0).await;
    assert_eq!((devices(&platform, &id), held(&platform).await), (vec![], 0), "none was asked for");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_is_one_machine_s_until_that_stops_or_goes() {
    let platform = with_gpus(&[FIRST, SECOND]).await;
    let caller = &platform.admin;
    let (one, two) = (running(&platform, "one", 1).await, running(&platform, "two", 1).await);
    assert_eq!((devices(&platform, &one), devices(&platform, &two)), (vec![FIRST.to_owned()], vec![SECOND.to_owned()]));
    let three = caller.create_vm(body("three", 1)).await;
    let reason = fails(&platform, &three).await;
    let lacks = "insufficient_capacity: this region has 0 free GPUs of the model example-9000, and 1 would be needed";
    assert_eq!(reason, lacks);
    caller.act(&format!("/vms/{one}/stop")).await;
    caller.reaches(&one, "stopped").await;
    assert_eq!(held(&platform).await, 1);
    caller.act(&format!("/vms/{three}/start")).await;
    caller.reaches(&three, "running").await;
    assert_eq!(devices(&platform, &three), [FIRST]);
    // Who was stopped has to find another one.
    caller.act(&format!("/vms/{one}/start")).await;
    assert_eq!(fails(&platform, &one).await, lacks);
    caller.delete(&format!("/vms/{two}")).await;
    caller.gone(&two).await;
    caller.act(&format!("/vms/{one}/start")).await;
    caller.reaches(&one, "running").await;
    assert_eq!((devices(&platform, &one), held(&platform).await), (vec![SECOND.to_owned()], 2));
    caller.act(&format!("/vms/{one}/restart")).await;
    caller.reaches(&one, "running").await;
    assert_eq!((devices(&platform, &one), platform.engine.clashes()), (vec![SECOND.to_owned()], 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn several_are_handed_out_at_once_or_none() {
    let platform = with_gpus(&[FIRST, SECOND, "0000:03:00.0"]).await;
    let both = running(&platform, "both", 2).await;
    assert_eq!(devices(&platform, &both), [FIRST, SECOND]);
    let more = platform.admin.create_vm(body("more", 2)).await;
    let reason = fails(&platform, &more).await;
    assert!(
        reason.contains("this region has 1 free GPUs of the model example-9000, and 2 would be needed"),
        "{reason}"
    );
    assert_eq!(held(&platform).await, 2, "nothing stays allocated");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_dies_keeps_its_gpu_while_it_is_started_again_and_loses_it_for_good() {
    let platform = with_gpus(&[FIRST]).await;
    let caller = &platform.admin;
    let id = running(&platform, "one", 1).await;
    caller.patch(&format!("/vms/{id}"), json!({"restart_policy": "on-failure"})).await;
    platform.engine.happen(&id, Machine::Absent);
    caller.until("its next start", async |_| platform.engine.counts().2 == 2).await;
    caller.reaches(&id, "running").await;
    assert_eq!((devices(&platform, &id), platform.engine.clashes()), (vec![FIRST.to_owned()], 0));
    caller.patch(&format!("/vms/{id}"), json!({"restart_policy": "never"})).await;
    platform.engine.happen(&id, Machine::Absent);
    fails(&platform, &id).await;
    assert_eq!(
        (held(&platform).await, platform.engine.assigned()),
        (0, 0),
        "the host has it back before the rows say so"
    );
    let next = running(&platform, "next", 1).await;
    assert_eq!((devices(&platform, &next), platform.engine.clashes()), (vec![FIRST.to_owned()], 0));
    // A guest that powers itself off is stopped.
    platform.engine.happen(&next, Machine::PoweredOff);
    caller.reaches(&next, "stopped").await;
    assert_eq!((held(&platform).await, platform.engine.assigned()), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_fails_gives_back_what_it_had() {
    let platform = with_gpus(&[FIRST]).await;
    platform.engine.refuse("start", EngineError::NoCapacity("the GPU 0000:01:00.0 cannot be handed out: gone".into()));
    let id = platform.admin.create_vm(body("one", 1)).await;
    let reason = fails(&platform, &id).await;
    assert!(reason.starts_with("insufficient_capacity: the GPU 0000:01:00.0"), "{reason}");
    assert_eq!(held(&platform).await, 0);
    platform.engine.allow("start");
    platform.admin.act(&format!("/vms/{id}/start")).await;
    platform.admin.reaches(&id, "running").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_does_not_take_a_gpu_back_has_its_machine_keep_it() {
    let platform = with_gpus(&[FIRST]).await;
    let caller = &platform.admin;
    let id = running(&platform, "one", 1).await;
    caller.patch(&format!("/vms/{id}"), json!({"restart_policy": "never"})).await;
    platform.engine.refuse("power_off", EngineError::Transient("a driver of the host does not let go of a GPU".into()));
    platform.engine.happen(&id, Machine::Absent);
    let other = caller.create_vm(body("other", 1)).await;
    let reason = fails(&platform, &other).await;
    assert!(reason.contains("0 free GPUs"), "{reason}");
    platform.engine.allow("power_off");
    platform.advance(60);
    fails(&platform, &id).await;
    caller.act(&format!("/vms/{other}/start")).await;
    caller.reaches(&other, "running").await;
    assert_eq!(platform.engine.clashes(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_administrator_sees_who_has_which_gpu_and_why_one_is_nobody_s() {
    let platform = with_gpus(&[FIRST, SECOND]).await;
    let id = running(&platform, "one", 1).await;
    let out = |gpus: &mut Vec<Gpu>| gpus[1].unavailable = Some("its reset failed after a machine had it".into());
    platform.engine.change_gpus(out);
    let other = platform.admin.create_vm(body("other", 1)).await;
    let reason = fails(&platform, &other).await;
    assert!(reason.contains("0 free GPUs"), "it is not handed out any more: {reason}");
    let platform = platform.restart().await;
    let hosts = platform.admin.get("/api/v1/admin/hosts").await.body;
    let expected = json!([
        {"address": FIRST, "model": MODEL, "name": "Example 9000", "iommu_group": 1, "numa_node": 1, "vm_id": id,
         "sandbox_id": null, "unavailable": null, "kinds": [], "parts": []},
        {"address": SECOND, "model": MODEL, "name": "Example 9000", "iommu_group": 2, "numa_node": 2, "vm_id": null,
         "sandbox_id": null, "unavailable": "its reset failed after a machine had it", "kinds": [], "parts": []},
    ]);
    assert_eq!(hosts["data"][0]["gpus"], expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_s_size_of_a_model_takes_the_place_of_the_found_one() {
    let platform = Platform::start_with(|config| {
        let mut size = config.catalog.vm_configs[0].clone();
        (size.id, size.gpu_model, size.gpu_max) = ("large-gpu".into(), Some("Example 9000".into()), 1);
        config.catalog.vm_configs.push(size.clone());
        (size.id, size.vcpu) = (MODEL.into(), 7);
        config.catalog.vm_configs.push(size);
    })
    .await;
    platform.engine.set_gpus(&[FIRST, SECOND]);
    let platform = platform.restart().await;
    let mut body = body("one", 1);
    let id = platform.admin.create_vm(body.clone()).await;
    platform.admin.reaches(&id, "running").await;
    assert_eq!(platform.engine.spec(&id).expect("a machine").vcpu, 7);
    body["vm_config_id"] = json!("large-gpu");
    let other = platform.admin.create_vm(body).await;
    platform.admin.reaches(&other, "running").await;
    assert_eq!(devices(&platform, &other), [SECOND], "of the same model, whose name says it as well as its id");
}

/// Whatever happens to machines, guests and the service: no device is ever two machines'.
#[tokio::test(flavor = "multi_thread")]
async fn no_device_is_two_machines_whatever_happens() {
    for seed in 1..=3 {
        let mut chance = Chance::new(seed);
        let mut platform = with_gpus(&[FIRST, SECOND, "0000:03:00.0"]).await;
        let mut vms: Vec<String> = Vec::new();
        for step in 0..60 {
            let caller = platform.admin.clone();
            let some = vms.get(chance.below(vms.len().max(1))).cloned();
            match (chance.below(8), some) {
                (0 | 1, _) | (_, None) => {
                    let mut body = body(&format!("vm-{step}"), i64::try_from(chance.below(2) + 1).expect("a count"));
                    body["restart_policy"] = json!(["never", "on-failure", "always"][chance.below(3)]);
                    vms.push(caller.create_vm(body).await);
                }
                (2, Some(id)) => drop(caller.act(&format!("/vms/{id}/stop")).await),
                (3, Some(id)) => drop(caller.act(&format!("/vms/{id}/start")).await),
                (4, Some(id)) => drop(caller.act(&format!("/vms/{id}/restart")).await),
                (5, Some(id)) => drop(caller.delete(&format!("/vms/{id}")).await),
                (6, Some(id)) => {
                    let end = [Machine::Absent, Machine::PoweredOff, Machine::Panicked][chance.below(3)];
                    platform.engine.happen_if_there(&id, end);
                }
                (_, Some(_)) => platform = platform.crash_and_restart().await,
            }
            assert_eq!(platform.engine.clashes(), 0, "after step {step} of {seed}");
        }
        for id in &vms {
            platform.admin.delete(&format!("/vms/{id}")).await;
        }
        for id in &vms {
            platform.admin.gone(id).await;
        }
        let left = (platform.engine.clashes(), platform.engine.assigned(), held(&platform).await);
        assert_eq!(left, (0, 0, 0), "of {seed}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_of_a_gpu_is_one_machine_s_and_is_known_before_it_is_made() {
    let platform = Platform::start().await;
    platform.engine.divide_gpu(FIRST, &[("small", 2), ("large", 1)]);
    let platform = platform.restart().await;
    let caller = platform.admin.clone();
    let sizes = platform.admin.get("/api/v1/vm_configs").await;
    let offered = sizes.body["data"].as_array().expect("sizes").iter().filter(|size| size["gpu_max"] == 1);
    assert_eq!(
        offered.map(|size| size["id"].as_str()).collect::<Vec<_>>(),
        [Some("example-small"), Some("example-large")]
    );
    let of = |name: &str, model: &str| {
        let mut body = body(name, 1);
        body["vm_config_id"] = json!(model);
        body
    };
    let mut two = of("two", "example-small");
    two["gpu_config_count"] = json!(2);
    assert!(caller.post("/vms", two).await.names("gpu_config_count"), "one part at most");
    // A start that fails has its part known, by the row, before the host hears of it.
    platform.engine.refuse("start", EngineError::Transient("not now".into()));
    let one = caller.create_vm(of("one", "example-small")).await;
    caller.until("its part", async |_| held(&platform).await == 1).await;
    let promised = machine_gpu::all(&platform.app().db).await.expect("rows").remove(0).device.to_string();
    assert_eq!(platform.engine.assigned(), 0);
    platform.engine.allow("start");
    platform.advance(60);
    caller.reaches(&one, "running").await;
    assert_eq!(devices(&platform, &one), slice::from_ref(&promised));
    assert!(promised.starts_with("0000:01:00.0/small/"), "{promised}");
    let other = caller.create_vm(of("other", "example-small")).await;
    caller.reaches(&other, "running").await;
    assert_ne!(devices(&platform, &other), slice::from_ref(&promised));
    // Both kinds are sizes while the host has no room for either.
    let platform = platform.crash_and_restart().await;
    let caller = platform.admin.clone();
    for model in ["example-small", "example-large"] {
        let more = caller.create_vm(of("more", model)).await;
        let lacks = format!("this region has 0 free GPUs of the model {model}, and 1 would be needed");
        assert_eq!(fails(&platform, &more).await, format!("insufficient_capacity: {lacks}"));
    }
    let hosts = platform.admin.get("/api/v1/admin/hosts").await.body;
    let gpu = &hosts["data"][0]["gpus"][0];
    let kinds = json!([
        {"model": "example-small", "name": "Example small", "free": 0, "most": 2},
        {"model": "example-large", "name": "Example large", "free": 0, "most": 1},
    ]);
    assert_eq!(gpu["kinds"], kinds);
    let parts = gpu["parts"].as_array().expect("parts");
    assert_eq!(parts.len(), 2);
    assert!(
        parts.contains(&json!({"part": promised, "model": "example-small", "vm_id": one, "sandbox_id": null})),
        "{parts:?}"
    );
    for id in [&one, &other] {
        caller.delete(&format!("/vms/{id}")).await;
        caller.gone(id).await;
    }
    let large = caller.create_vm(of("large", "example-large")).await;
    caller.reaches(&large, "running").await;
    assert_eq!((held(&platform).await, platform.engine.clashes()), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_with_a_gpu_is_not_suspended() {
    let platform = with_gpus(&[FIRST]).await;
    let id = running(&platform, "web", 1).await;
    platform.admin.act(&format!("/vms/{id}/suspend")).await.refused(409, "not_supported");
    assert_eq!(platform.admin.get(&format!("/vms/{id}")).await.body["status"], "running");
}
