//! Real sandboxes of a host that is asked by bytes, as one that is elsewhere.

use serde_json::json;

use crate::harness::{act, content, delete, fork, nothing_left, put, service_by_bytes, shell, snapshot, there};
use crate::templates::{build, tar, upload};

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_is_built_lives_and_is_forked() {
    let (service, caller) = service_by_bytes().await;
    assert!(service.log().contains("the host is asked by bytes"), "{}", service.log());
    let context = upload(&caller, tar(&[("data.txt", b"data\n", 0o644)])).await;
    let dockerfile =
        "FROM base\nCOPY data.txt /data.txt\nRUN cat /data.txt >>/twice.txt && cat /data.txt >>/twice.txt\n";
    let (built, log) = build(&caller, "app", json!({"dockerfile": dockerfile, "context_id": context.id()})).await;
    assert_eq!(built["status"], "ready", "{built}\n{log}");
    assert!(log.contains("COPY data.txt"), "{log}");

    let id = caller.create_sandbox(json!({"template_id": "app", "network": {"egress": "deny"}})).await;
    caller.sandbox_reaches(&id, "Ready").await;
    assert_eq!(shell(&caller, &id, "cat /twice.txt").await, "data\ndata\n");
    let large = vec![7; 3 << 20];
    assert_eq!(put(&caller, &id, "large", large.clone()).await.status, 201);
    assert_eq!(content(&caller, &id, "large").await, large);
    shell(&caller, &id, "nohup sh -c 'while :; do date +%s%N >tick; sleep 0.1; done' >/dev/null 2>&1 &").await;
    there(&caller, &id, "tick").await;

    let made = snapshot(&caller, &id, json!({"include_memory": true})).await;
    for copy in fork(&caller, &id, json!({"count": 2, "include_memory": true})).await {
        shell(&caller, &copy, "pgrep -f 'while :' >/dev/null && test $(stat -c %s large) = 3145728").await;
        delete(&caller, &copy).await;
    }
    assert_eq!(caller.delete(&format!("/snapshots/{made}")).await.status, 202);
    act(&caller, &id, "pause", json!({})).await;
    caller.sandbox_reaches(&id, "Paused").await;
    act(&caller, &id, "resume", json!({})).await;
    caller.sandbox_reaches(&id, "Ready").await;
    shell(&caller, &id, "pgrep -f 'while :' >/dev/null").await;
    delete(&caller, &id).await;
    assert_eq!(caller.delete("/sandbox_templates/app").await.status, 204);
    nothing_left(&service);
}
