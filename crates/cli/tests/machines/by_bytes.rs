//! Real VMs of a host that is asked by bytes, as one that is elsewhere.

use berth_testkit::Service;
use serde_json::json;

use crate::BERTH;
use crate::guest::{ready, says, with_login};

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_is_reached_stopped_and_started() {
    let mut service = Service::new(BERTH, &["micro"]);
    service.ask_by_bytes();
    service.start();
    let caller = service.admin().await;
    assert!(service.log().contains("the host is asked by bytes"), "{}", service.log());
    let lan = caller.post("/networks", json!({"name": "lan"})).await.id();
    let mut body = with_login(&service);
    body["network_ids"] = json!([lan]);
    let id = caller.create_vm(body).await;
    let vm = ready(&caller, &id).await;
    assert_eq!(says(&service, &vm, "hostname; echo kept >file; sync"), "web");
    assert_eq!(service.processes("networks").len(), 1, "its network has a switch");
    let log = caller.get(&format!("/vms/{id}/console")).await;
    assert!(log.body.as_str().is_some_and(|text| text.contains("login")), "{log:?}");
    let before = service.machine(&id).expect("a machine");

    // Its host goes on without whoever asked it.
    service.kill();
    service.start();
    let caller = service.admin().await;
    assert_eq!(service.machine(&id), Some(before));
    let ports = json!({"exposed_ports": [{"port": 9000, "protocol": "tcp"}]});
    assert_eq!(caller.patch(&format!("/vms/{id}"), ports).await.status, 200);
    assert_eq!(says(&service, &vm, "cat file"), "kept");
    for (act, reached) in [("stop", "stopped"), ("start", "running")] {
        assert_eq!(caller.act(&format!("/vms/{id}/{act}")).await.status, 202);
        caller.reaches(&id, reached).await;
    }
    let vm = ready(&caller, &id).await;
    assert_eq!(says(&service, &vm, "cat file"), "kept");
    caller.delete(&format!("/vms/{id}")).await;
    caller.gone(&id).await;
    assert!(service.files("machines").is_empty() && service.machine(&id).is_none());
}
