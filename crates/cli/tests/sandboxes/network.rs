//! What a sandbox reaches, and what it does not.

use berth_testkit::{Service, eventually};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::harness::{run, service, shell};

/// The process that carries a sandbox's network, if it lives.
fn carrier(service: &Service, id: &str) -> Option<Pid> {
    let named =
        |pid: &i32| std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(b"berth-egress\0"));
    let machine = service.sandbox_machine(id)?;
    let folder = format!("sandbox/machines/{}", machine.file_name()?.to_string_lossy());
    let found: Vec<_> = service.processes(&folder).into_iter().filter(named).collect();
    assert!(found.len() < 2, "{found:?}");
    found.first().and_then(|pid| Pid::from_raw(*pid))
}

#[tokio::test(flavor = "multi_thread")]
async fn its_network_outlives_the_service_and_is_carried_again() {
    let (mut service, caller) = service().await;
    let id = caller.ready_sandbox().await;
    let before = eventually("its program", 120, || carrier(&service, &id));
    service.kill();
    service.start();
    let caller = service.admin().await;
    // Refused is what somebody answers; nobody would not.
    let ask = json!({"cmd": "curl -sS -m 20 http://192.168.1.1/"});
    let outcome = run(&caller, &id, ask.clone()).await;
    assert_eq!((outcome.last.1["code"].clone(), carrier(&service, &id)), (json!(7), Some(before)), "{outcome:?}");
    kill_process(before, Signal::KILL).expect("a signal");
    eventually("another program", 120, || carrier(&service, &id).filter(|pid| *pid != before));
    let outcome = run(&caller, &id, ask).await;
    assert_eq!(outcome.last.1["code"], json!(7), "{outcome:?}");
    caller.delete(&format!("/sandboxes/{id}")).await;
    eventually("the end of its program", 120, || carrier(&service, &id).is_none().then_some(()));
}

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
