//! Sandboxes with GPUs: what is on offer, which devices a machine gets, and what one that has some cannot do.

use berth_domain::gateway::Nano;
use berth_host::EngineError;
use berth_host::sandbox::From;
use berth_server::config::Amount;
use berth_server::db::machine_gpu;
use berth_testkit::{Caller, Chance, Platform, vm};
use serde_json::{Value, json};

const MODEL: &str = "example-9000";
const FIRST: &str = "0000:01:00.0";
const SECOND: &str = "0000:02:00.0";

/// A platform with a small size for a model, so that machines beside each other lack nothing but GPUs.
async fn with_size(model: &str, most: i64) -> Platform {
    Platform::start_with(|config| {
        let mut size = config.catalog.vm_configs[0].clone();
        (size.id, size.gpu_model, size.gpu_max) = (model.into(), Some(model.into()), most);
        config.catalog.vm_configs.push(size);
    })
    .await
}

async fn with_gpus(addresses: &[&str]) -> Platform {
    let platform = with_size(MODEL, 2).await;
    platform.engine.set_gpus(addresses);
    platform.restart().await
}

fn body(name: &str) -> Value {
    json!({"name": name, "gpu_config_count": 1})
}

async fn ready(caller: &Caller, body: Value) -> String {
    let id = caller.create_sandbox(body).await;
    caller.sandbox_reaches(&id, "Ready").await;
    id
}

/// The devices that a machine was started with.
fn devices(platform: &Platform, sandbox: &str) -> Vec<String> {
    let (spec, _) = platform.sandboxes.spec(sandbox).expect("a machine");
    spec.gpus.iter().map(ToString::to_string).collect()
}

async fn gone(caller: &Caller, id: &str) {
    let path = format!("/sandboxes/{id}");
    caller.until("its end", async |caller| caller.get(&path).await.status == 404).await;
}

async fn held(platform: &Platform) -> usize {
    machine_gpu::all(&platform.app().db).await.expect("rows").len()
}

/// A VM and a sandbox never have the same one, and each is free again after its machine.
#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_has_its_gpu_from_its_start_until_it_is_paused_or_goes() {
    let platform = with_gpus(&[FIRST, SECOND]).await;
    let caller = &platform.admin;
    let one = ready(caller, body("one")).await;
    let shown = caller.get(&format!("/sandboxes/{one}")).await.body;
    assert_eq!((&shown["gpu_config_count"], &shown["gpu_model"]), (&json!(1), &json!(MODEL)));
    assert_eq!(devices(&platform, &one), [FIRST]);
    let (spec, from_memory) = platform.sandboxes.spec(&one).expect("a machine");
    assert!(!from_memory && spec.from == From::Disk, "it boots: {spec:?}");
    let mut wanted = vm("vm");
    (wanted["vm_config_id"], wanted["gpu_config_count"]) = (json!(MODEL), json!(1));
    let beside = caller.create_vm(wanted).await;
    caller.reaches(&beside, "running").await;
    let hosts = caller.get("/api/v1/admin/hosts").await.body;
    let holders: Vec<_> = hosts["data"][0]["gpus"]
        .as_array()
        .expect("GPUs")
        .iter()
        .map(|gpu| (gpu["vm_id"].clone(), gpu["sandbox_id"].clone()))
        .collect();
    assert_eq!(holders, [(Value::Null, json!(one)), (json!(beside), Value::Null)]);
    // None is left.
    let two = caller.create_sandbox(body("two")).await;
    let failed = caller.sandbox_reaches(&two, "Failed").await;
    let lacks = "insufficient_capacity: this region has 0 free GPUs of the model example-9000, and 1 would be needed";
    assert_eq!(failed["message"], lacks);
    assert_eq!(caller.post(&format!("/sandboxes/{one}/pause"), json!({})).await.status, 202);
    caller.sandbox_reaches(&one, "Paused").await;
    assert_eq!((held(&platform).await, platform.engine.assigned()), (1, 1));
    let three = ready(caller, body("three")).await;
    assert_eq!(devices(&platform, &three), [FIRST]);
    // One that is resumed while none is free stays paused, and loses nothing.
    caller.act(&format!("/sandboxes/{one}/resume")).await;
    let told = || async { caller.get(&format!("/sandboxes/{one}")).await.body };
    caller.until("its refusal", async |_| told().await["message"] == lacks).await;
    assert_eq!(told().await["phase"], "Paused");
    caller.delete(&format!("/sandboxes/{three}")).await;
    gone(caller, &three).await;
    caller.act(&format!("/sandboxes/{one}/resume")).await;
    caller.sandbox_reaches(&one, "Ready").await;
    assert_eq!((devices(&platform, &one), platform.engine.clashes()), (vec![FIRST.to_owned()], 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_is_on_offer_can_be_asked_for() {
    let platform = Platform::start().await;
    let none = platform.admin.post("/sandboxes", body("one")).await;
    none.refused(400, "invalid_request");
    assert!(none.names("gpu_config_count"), "{none:?}");
    platform.engine.set_gpus(&[FIRST, SECOND]);
    let platform = platform.restart().await;
    let caller = &platform.admin;
    let refused = async |change: Value, field: &str| {
        let answer = caller.post("/sandboxes", change).await;
        answer.refused(400, "invalid_request");
        assert!(answer.names(field), "{answer:?}");
    };
    refused(json!({"gpu_config_count": -1}), "gpu_config_count").await;
    refused(json!({"gpu_config_count": 3}), "gpu_config_count").await;
    refused(json!({"gpu_config_count": 1, "gpu_model": "another"}), "gpu_model").await;
    refused(json!({"gpu_model": MODEL}), "gpu_model").await;
    refused(json!({"gpu_config_count": 0, "gpu_model": MODEL}), "gpu_model").await;
    let without = ready(caller, json!({"gpu_config_count": 0})).await;
    assert_eq!((devices(&platform, &without), held(&platform).await), (vec![], 0), "0 is none");
    let both = ready(caller, json!({"gpu_config_count": 2, "gpu_model": "Example 9000"})).await;
    assert_eq!(devices(&platform, &both), [FIRST, SECOND]);
    caller.delete(&format!("/sandboxes/{both}")).await;
    gone(caller, &both).await;
    // Of several models one has to be named.
    platform.engine.change_gpus(|gpus| {
        (gpus[1].model, gpus[1].name) = ("example-l4".into(), "Example L4".into());
    });
    let platform = platform.restart().await;
    let refused = platform.admin.post("/sandboxes", body("one")).await;
    assert!(refused.names("gpu_model") && refused.body["message"].as_str().is_some_and(|m| m.contains("example-l4")));
    let named = ready(&platform.admin, json!({"gpu_config_count": 1, "gpu_model": "example-l4"})).await;
    assert_eq!(devices(&platform, &named), [SECOND]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_memory_of_one_with_a_gpu_is_never_kept() {
    let platform = with_gpus(&[FIRST, SECOND]).await;
    let caller = &platform.admin;
    let id = ready(caller, body("one")).await;
    let at = |verb: &str| format!("/sandboxes/{id}/{verb}");
    for (verb, asked, instead) in [
        ("pause", json!({"include_memory": true}), "berth sandbox pause one"),
        ("fork", json!({"include_memory": true}), "boot from its disk"),
        ("snapshots", json!({"include_memory": true}), "without include_memory"),
    ] {
        let answer = caller.post(&at(verb), asked).await;
        answer.refused(409, "not_supported");
        assert!(answer.body["message"].as_str().is_some_and(|text| text.contains(instead)), "{answer:?}");
    }
    assert_eq!(caller.get(&format!("/sandboxes/{id}")).await.body["phase"], "Ready");
    // Without it all of that is done. What is forked has a GPU of its own.
    let forked = caller.post(&at("fork"), json!({"count": 2})).await;
    let children: Vec<_> = forked.body["data"]
        .as_array()
        .expect("two")
        .iter()
        .map(|made| made["id"].as_str().expect("an id").to_owned())
        .collect();
    let mut phases = Vec::new();
    for child in &children {
        caller
            .until("its end", async |_| {
                let phase = caller.get(&format!("/sandboxes/{child}")).await.body["phase"].clone();
                phase == "Ready" || phase == "Failed"
            })
            .await;
        phases
            .push(caller.get(&format!("/sandboxes/{child}")).await.body["phase"].as_str().expect("a phase").to_owned());
    }
    phases.sort();
    assert_eq!(phases, ["Failed", "Ready"], "one GPU was left");
    let snapshot = caller.post(&at("snapshots"), json!({})).await.id();
    caller
        .until("the snapshot", async |_| caller.get(&format!("/snapshots/{snapshot}")).await.body["status"] == "Ready")
        .await;
    // Its time is over: the platform keeps what can be kept.
    caller.patch(&format!("/sandboxes/{id}"), json!({"timeout_seconds": 5})).await;
    platform.advance(6);
    let paused = caller.sandbox_reaches(&id, "Paused").await;
    assert!(!paused["message"].as_str().unwrap_or_default().contains("could not be kept"), "{paused}");
    assert_eq!((platform.sandboxes.violations(), platform.engine.clashes()), (vec![], 0));
}

/// One that is made of a snapshot with memory, or of a template that was captured, boots from the disk.
#[tokio::test(flavor = "multi_thread")]
async fn one_with_a_gpu_begins_from_its_disk_whatever_was_captured() {
    let platform = with_gpus(&[FIRST]).await;
    let caller = &platform.admin;
    let source = ready(caller, json!({"name": "source"})).await;
    let made = caller.post(&format!("/sandboxes/{source}/snapshots"), json!({"include_memory": true})).await;
    let snapshot = made.id();
    caller
        .until("the snapshot", async |_| caller.get(&format!("/snapshots/{snapshot}")).await.body["status"] == "Ready")
        .await;
    let captured = caller.get(&format!("/snapshots/{snapshot}")).await.body;
    assert_eq!(captured["captures"], json!(["disk", "memory"]));
    let id = ready(caller, json!({"snapshot_id": snapshot, "gpu_config_count": 1})).await;
    let (spec, from_memory) = platform.sandboxes.spec(&id).expect("a machine");
    assert!(!from_memory && spec.from == From::Disk && spec.gpus.len() == 1, "{spec:?}");
    // A restore that brings a memory along begins from the disk, too.
    caller.post(&format!("/sandboxes/{id}/restore"), json!({"snapshot_id": snapshot})).await;
    caller.sandbox_reaches(&id, "Ready").await;
    let (spec, from_memory) = platform.sandboxes.spec(&id).expect("a machine");
    assert!(!from_memory && spec.gpus.len() == 1, "{spec:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_of_a_sandbox_costs_while_it_is_ready() {
    let platform = Platform::start_with(|config| {
        config.prices.sandbox_gpu_hour = Some(Amount(Nano::of_price(2.0).expect("an amount")));
        config.identity.access_token_seconds = 2_000_000;
    })
    .await;
    platform.engine.set_gpus(&[FIRST]);
    let platform = platform.restart().await;
    let caller = &platform.admin;
    let id = ready(caller, body("one")).await;
    platform.advance(3600);
    caller.post(&format!("/sandboxes/{id}/pause"), json!({"include_memory": false})).await;
    caller.sandbox_reaches(&id, "Paused").await;
    platform.advance(3600);
    let usage = platform.resource_usage().await;
    let cost: f64 = usage["data"]
        .as_array()
        .expect("rows")
        .iter()
        .filter(|row| row["resource_id"] == id.as_str())
        .filter_map(|row| row["cost"].as_f64())
        .sum();
    assert!((2.0..2.5).contains(&cost), "{usage}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_whose_start_fails_or_whose_service_dies_gives_its_gpu_back() {
    let platform = with_gpus(&[FIRST]).await;
    platform.sandboxes.refuse("start", EngineError::NoCapacity("the GPU 0000:01:00.0 cannot be handed out".into()));
    let id = platform.admin.create_sandbox(body("one")).await;
    platform.admin.sandbox_reaches(&id, "Failed").await;
    assert_eq!((held(&platform).await, platform.engine.assigned()), (0, 0));
    platform.sandboxes.allow("start");
    let next = ready(&platform.admin, body("next")).await;
    let platform = platform.crash_and_restart().await;
    platform.admin.sandbox_reaches(&next, "Ready").await;
    assert_eq!((held(&platform).await, platform.engine.assigned(), platform.engine.clashes()), (1, 1, 0));
    platform.admin.delete(&format!("/sandboxes/{next}")).await;
    gone(&platform.admin, &next).await;
    assert_eq!((held(&platform).await, platform.engine.assigned()), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_counts_the_gpus_of_vms_and_sandboxes_together() {
    let platform = with_gpus(&[FIRST, SECOND]).await;
    let caller = &platform.admin;
    let org = caller.org().rsplit('/').next().expect("an id");
    let limits = format!("/api/v1/admin/orgs/{org}/quota");
    let bound = async |gpus: Value| assert_eq!(caller.put(&limits, json!({"gpus": gpus})).await.status, 200);
    let with_gpus = |name: &str, count: i64| {
        let mut wanted = vm(name);
        (wanted["vm_config_id"], wanted["gpu_config_count"]) = (json!(MODEL), json!(count));
        wanted
    };
    bound(json!(1)).await;
    caller.post("/vms", with_gpus("web", 2)).await.refused(403, "quota_exceeded");
    let mut two = with_gpus("web", 1);
    two["count"] = json!(2);
    caller.post("/vms", two).await.refused(403, "quota_exceeded");
    let sandbox = ready(caller, body("one")).await;
    caller.post("/vms", with_gpus("web", 1)).await.refused(403, "quota_exceeded");
    caller.post("/sandboxes", body("two")).await.refused(403, "quota_exceeded");
    let refused = caller.post(&format!("/sandboxes/{sandbox}/fork"), json!({"include_memory": false})).await;
    refused.refused(403, "quota_exceeded");
    assert!(refused.body["message"].as_str().is_some_and(|text| text.contains("1 GPU;")), "{refused:?}");
    assert_eq!(caller.post("/sandboxes", json!({"name": "without"})).await.status, 201);
    let quota = caller.get("/quota").await.body;
    assert_eq!(quota["gpus"], json!({"used": 1, "limit": null}), "it is the organization's");
    bound(json!(2)).await;
    caller.create_vm(with_gpus("web", 1)).await;
    let org_quota = caller.get(&format!("{}/quota", caller.org())).await.body;
    assert_eq!(org_quota["gpus"], json!({"used": 2, "limit": 2}));
    let usage = caller.get("/api/v1/admin/usage").await;
    assert_eq!(usage.body["data"][0]["gpus"], 2, "{usage:?}");
    bound(json!(3)).await;
    let forked = caller.post(&format!("/sandboxes/{sandbox}/fork"), json!({"include_memory": false})).await;
    assert_eq!(forked.status, 201, "{forked:?}");
    bound(Value::Null).await;
    assert_eq!(caller.post("/sandboxes", body("three")).await.status, 201);
}

/// Whatever happens to VMs, sandboxes and the service: no part of a GPU is two machines', and none is left over.
#[tokio::test(flavor = "multi_thread")]
async fn no_part_is_two_machines_whatever_happens() {
    for seed in 1..=2 {
        let mut chance = Chance::new(seed);
        let platform = with_size("example-small", 1).await;
        platform.engine.divide_gpu(FIRST, &[("small", 3)]);
        let mut platform = platform.restart().await;
        let (mut sandboxes, mut vms): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
        for step in 0..40 {
            let caller = platform.admin.clone();
            let some = sandboxes.get(chance.below(sandboxes.len().max(1))).cloned();
            match (chance.below(7), some) {
                (0 | 1, _) | (_, None) => {
                    sandboxes.push(caller.create_sandbox(body(&format!("sandbox-{step}"))).await);
                    let mut beside = vm(&format!("vm-{step}"));
                    (beside["vm_config_id"], beside["gpu_config_count"]) = (json!("example-small"), json!(1));
                    vms.push(caller.create_vm(beside).await);
                }
                (2, Some(id)) => {
                    drop(caller.post(&format!("/sandboxes/{id}/pause"), json!({"include_memory": false})).await);
                }
                (3, Some(id)) => drop(caller.act(&format!("/sandboxes/{id}/resume")).await),
                (4, Some(id)) => drop(caller.post(&format!("/sandboxes/{id}/fork"), json!({})).await),
                (5, Some(id)) => {
                    caller.delete(&format!("/sandboxes/{id}")).await;
                    let vm = vms.swap_remove(chance.below(vms.len()));
                    caller.delete(&format!("/vms/{vm}")).await;
                    sandboxes.retain(|other| *other != id);
                }
                (_, Some(_)) => platform = platform.crash_and_restart().await,
            }
            assert_eq!(platform.engine.clashes(), 0, "after step {step} of {seed}");
        }
        let caller = &platform.admin;
        for kind in ["vms", "sandboxes"] {
            caller
                .until("their end", async |caller| {
                    let left = caller.get(&format!("/{kind}?limit=100")).await.body;
                    let rows = left["data"].as_array().expect("rows").clone();
                    for row in &rows {
                        caller.delete(&format!("/{kind}/{}", row["id"].as_str().expect("an id"))).await;
                    }
                    rows.is_empty()
                })
                .await;
        }
        let left = (platform.engine.clashes(), platform.engine.assigned(), held(&platform).await);
        assert_eq!(left, (0, 0, 0), "of {seed}");
    }
}
