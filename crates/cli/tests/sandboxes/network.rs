//! What a sandbox reaches, and what it does not.

use serde_json::json;

use crate::harness::{run, service, shell};

#[tokio::test(flavor = "multi_thread")]
async fn the_host_and_private_networks_are_out_of_reach() {
    let (service, caller) = service().await;
    let id = caller.ready_sandbox().await;
    let port = service.base.rsplit(':').next().expect("a port").to_owned();
    assert_eq!(shell(&caller, &id, "cat /etc/resolv.conf").await, "nameserver 10.0.2.3\n");
    for address in ["10.0.2.2", "169.254.169.254", "192.168.1.1", "127.64.0.1"] {
        let line = format!("curl -sS -m 5 http://{address}:{port}/healthz");
        let outcome = run(&caller, &id, json!({"cmd": line})).await;
        assert_ne!(outcome.last.1["code"], json!(0), "{address}: {outcome:?}");
    }
    // Its rules may change while it runs.
    let change = json!({"network": {"egress": "deny", "allow": ["example.org", "192.0.2.0/24"]}});
    let changed = caller.patch(&format!("/sandboxes/{id}"), change).await;
    assert_eq!((changed.status, &changed.body["network"]["egress"]), (200, &json!("deny")), "{changed:?}");
    let denied = run(&caller, &id, json!({"cmd": "curl -sS -m 60 http://denied.example.net/"})).await;
    assert!(denied.stderr.contains("resolve"), "{denied:?}");
    let wrong = caller.patch(&format!("/sandboxes/{id}"), json!({"network": {"allow": ["10.0.0.1/8"]}})).await;
    wrong.refused(400, "invalid_request");
}
