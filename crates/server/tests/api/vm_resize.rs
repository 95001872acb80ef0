//! Another size for a VM that is off.

use berth_testkit::{Caller, Platform};
use reqwest::Method;
use serde_json::{Value, json};

/// A VM that was stopped, of the size `tiny`.
async fn stopped(caller: &Caller) -> String {
    let id = caller.running_vm("web").await;
    caller.act(&format!("/vms/{id}/stop")).await;
    caller.reaches(&id, "stopped").await;
    id
}

fn to(size: &str) -> Value {
    json!({"vm_config_id": size})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_starts_with_the_size_that_it_was_given() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let id = stopped(caller).await;
    let path = format!("/vms/{id}/resize");
    let answer = caller.post(&path, to("medium")).await;
    assert_eq!(
        (answer.status, &answer.body["vm_config_id"], &answer.body["status"]),
        (202, &json!("medium"), &json!("stopped"))
    );
    // The size that it has changes nothing.
    let again = caller.post(&path, to("medium")).await;
    assert_eq!((again.status, &again.body["updated_at"]), (202, &answer.body["updated_at"]));
    let quota = caller.get("/quota").await.body;
    assert_eq!((&quota["vcpu"]["used"], &quota["memory_mb"]["used"]), (&json!(2), &json!(4096)));
    caller.act(&format!("/vms/{id}/start")).await;
    caller.reaches(&id, "running").await;
    let spec = platform.engine.spec(&id).expect("a machine");
    assert_eq!((spec.vcpu, spec.memory_mb), (2, 4096));
    let operations = caller.get(&format!("/vms/{id}/operations")).await.body;
    let verbs: Vec<_> =
        operations["data"].as_array().expect("a list").iter().map(|o| (&o["verb"], &o["status"])).collect();
    assert!(verbs.contains(&(&json!("resize"), &json!("done"))), "{verbs:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_vm_that_is_off_gets_another_size_and_only_one_of_the_catalog() {
    let platform = Platform::start_with(|config| {
        let catalog = &mut config.catalog;
        let mut elsewhere = catalog.vm_configs[0].clone();
        (elsewhere.id, elsewhere.regions) = ("elsewhere".into(), vec!["mars".into()]);
        catalog.vm_configs.push(elsewhere);
    })
    .await;
    let caller = &platform.admin;
    let running = caller.running_vm("busy").await;
    caller.post(&format!("/vms/{running}/resize"), to("small")).await.refused(400, "invalid_status");
    let path = format!("/vms/{}/resize", stopped(caller).await);
    for body in [to("huge"), to("elsewhere"), to(""), json!({})] {
        let refused = caller.post(&path, body).await;
        refused.refused(400, "invalid_request");
        assert!(refused.names("vm_config_id"), "{refused:?}");
    }
    caller.post(&path, json!({"vm_config_id": "small", "size": 1})).await.refused(400, "invalid_request");
    caller.post(&format!("/vms/{}/resize", uuid::Uuid::now_v7()), to("small")).await.refused(404, "vm_not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_size_counts_against_quota_and_host_as_at_a_creation() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let id = stopped(caller).await;
    let path = format!("/vms/{id}/resize");
    let org: Vec<_> = caller.project.split('/').collect();
    let limits = format!("/api/v1/admin/orgs/{}/quota", org[4]);
    caller.ask(Method::PUT, &limits, json!({"memory_mb": 1024}), 200).await;
    caller.post(&path, to("medium")).await.refused(403, "quota_exceeded");
    assert_eq!(caller.post(&path, to("small")).await.status, 202);
    // Less is never too much.
    caller.ask(Method::PUT, &limits, json!({"memory_mb": 1}), 200).await;
    assert_eq!(caller.post(&path, to("tiny")).await.status, 202);
    caller.ask(Method::PUT, &limits, json!({"memory_mb": null}), 200).await;
    // What the host does not have fails the start, after which a smaller size helps.
    platform.engine.set_capacity(|capacity| capacity.memory_mb = 2048);
    assert_eq!(caller.post(&path, to("medium")).await.status, 202);
    caller.act(&format!("/vms/{id}/start")).await;
    let failed = caller.reaches(&id, "failed").await;
    assert!(failed["message"].as_str().is_some_and(|m| m.starts_with("insufficient_capacity:")), "{failed}");
    assert_eq!(caller.post(&path, to("small")).await.status, 202);
    caller.act(&format!("/vms/{id}/start")).await;
    caller.reaches(&id, "running").await;
    // What it took is counted by size.
    platform.advance(3600);
    let used = platform.resource_usage().await;
    let rows = used["data"].as_array().expect("a list").iter().filter(|row| row["resource_id"] == id.as_str());
    let sizes: Vec<_> = rows.map(|row| row["size"].as_str().unwrap_or_default().to_owned()).collect();
    assert!(sizes.contains(&"tiny".to_owned()) && sizes.contains(&"small".to_owned()), "{used}");
    assert!(!sizes.contains(&"medium".to_owned()), "{used}");
}
