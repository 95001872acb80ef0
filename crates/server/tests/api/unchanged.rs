//! A PATCH that changes nothing leaves no trace; one that changes something does.

use berth_testkit::{Caller, Platform};
use serde_json::json;

async fn audited(caller: &Caller, action: &str) -> usize {
    let log = caller.get(&format!("{}/audit_log?action={action}", caller.org())).await.body;
    log["data"].as_array().map(Vec::len).expect("records")
}

#[tokio::test(flavor = "multi_thread")]
async fn what_stays_as_it_is_was_not_updated() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let vm = caller.running_vm("web").await;
    let ready = async |c: Caller| c.get(&format!("/vms/{vm}")).await.body["guest_ready"] == true;
    caller.until("the guest", ready).await;
    let sandbox = caller.ready_sandbox().await;
    let network = caller.post("/networks", json!({"name": "lan"})).await.id();
    let key = caller.post("/api_keys", json!({"name": "ci", "scopes": ["vm"]})).await.id();
    let things = [
        (format!("/vms/{vm}"), "vm.update", json!({"name": "web", "labels": {}}), json!({"name": "other"})),
        (format!("/sandboxes/{sandbox}"), "sandbox.update", json!({"metadata": {}}), json!({"metadata": {"a": "b"}})),
        (format!("/networks/{network}"), "network.update", json!({"name": "lan"}), json!({"name": "wan"})),
        (format!("/api_keys/{key}"), "api_key.update", json!({"scopes": ["vm"]}), json!({"name": "cd"})),
        (caller.project.clone(), "project.update", json!({}), json!({"name": "new"})),
        (caller.org().to_owned(), "org.update", json!({"max_key_seconds": 0}), json!({"name": "new"})),
        ("/api/v1/users/me".to_owned(), "", json!({}), json!({"name": "new"})),
    ];
    for (path, action, same, another) in things {
        let before = caller.get(&path).await.body;
        for body in [json!({}), same] {
            let answer = caller.patch(&path, body.clone()).await;
            assert_eq!((answer.status, &answer.body["updated_at"]), (200, &before["updated_at"]), "{path} {body}");
        }
        assert_eq!(caller.get(&path).await.body["updated_at"], before["updated_at"], "{path}");
        if !action.is_empty() {
            assert_eq!(audited(caller, action).await, 0, "{path}");
        }
        let answer = caller.patch(&path, another).await;
        assert!(answer.status == 200 && answer.body["updated_at"].as_str() > before["updated_at"].as_str(), "{path}");
        if !action.is_empty() {
            assert_eq!(audited(caller, action).await, 1, "{path}");
        }
    }
}
