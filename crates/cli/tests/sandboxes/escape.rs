//! Paths of the API while a program inside pulls the ground away from under them.

use reqwest::Method;
use serde_json::json;

use crate::harness::{put, service, shell};

/// Rounds of each operation.
const ROUNDS: usize = 50;
/// Swaps a folder and a link to the root for each other, as fast as it can.
const SWAPS: &str = "import os
os.makedirs('real/etc/out'); os.makedirs('real/root/out'); os.symlink('/', 'link'); os.rename('real', 'd')
open('ready', 'w').close()
while True:
    os.rename('d', 'real'); os.rename('link', 'd'); os.rename('d', 'link'); os.rename('real', 'd')
";

#[tokio::test(flavor = "multi_thread")]
async fn no_race_leads_out_of_the_workspace() {
    let (_service, caller) = service().await;
    let id = caller.ready_sandbox().await;
    // Whoever got out could read and write there.
    let outside = "for d in /etc /root; do mkdir -m 777 $d/out; echo outside >$d/out/canary; done; \
                   chmod 755 /root; chmod 666 /etc/out/canary /root/out/canary";
    let made = crate::harness::run(&caller, &id, json!({"cmd": outside, "user": "root"})).await;
    assert_eq!(made.last.1["code"], 0, "{made:?}");
    let program = json!({"argv": ["python3", "-c", SWAPS]});
    assert_eq!(caller.post(&format!("/sandbox/{id}/processes"), program).await.status, 201);
    crate::harness::there(&caller, &id, "ready").await;
    let files = |rest: &str| format!("/sandbox/{id}/files/{rest}");
    let (mut within, mut refused) = (0, 0);
    for round in 0..ROUNDS {
        let folder = ["d/etc/out", "d/root/out"][round % 2];
        let written = put(&caller, &id, &format!("{folder}/canary"), b"inside".to_vec()).await;
        let read = caller.get(&files(&format!("content?path={folder}/canary"))).await;
        assert_ne!(read.body, "outside\n", "{read:?}");
        let listed = caller.get(&files(&format!("list?path={folder}"))).await;
        let removed = caller
            .send(caller.request(Method::POST, &files("remove")).json(&json!({"path": format!("{folder}/canary")})))
            .await;
        let moved = json!({"from": format!("{folder}/moved"), "to": format!("{folder}/canary"), "overwrite": true});
        let moved = caller.post(&files("move"), moved).await;
        let made = caller.post(&files("mkdir"), json!({"path": format!("{folder}/made-{round}")})).await;
        for answer in [written, read, listed, removed, moved, made] {
            assert!(answer.status < 500, "{answer:?}");
            *(if answer.status < 300 { &mut within } else { &mut refused }) += 1;
        }
    }
    assert!(within > 0 && refused > 0, "{within} went through, {refused} were refused");
    let told = shell(&caller, &id, "for d in /etc /root; do ls -A $d/out; cat $d/out/canary; done").await;
    assert_eq!(told, "canary\noutside\ncanary\noutside\n");
}
