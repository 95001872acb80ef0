//! SIGKILL of the service at every step: nothing acknowledged is lost, nothing is left over.

use berth_testkit::{Caller, Service};
use reqwest::Method;
use serde_json::{Value, json};

use crate::BERTH;
use crate::harness::{base_ready, content, delete, put, service};

/// A service that was killed at a point comes back; the point has to have been reached.
async fn survives(service: &mut Service, point: &str, caller: &Caller, method: Method, path: &str, body: Value) {
    service.stop();
    service.set("BERTH_FAULT", &format!("{point}=kill"));
    service.start();
    let caller = caller.clone();
    let status = if method == Method::POST && path == "/sandboxes" { 201 } else { 202 };
    caller.ask(method, path, body, status).await;
    service.died();
    assert!(service.log().contains(point), "{point} was not reached");
    service.set("BERTH_FAULT", "");
    service.start();
}

#[tokio::test(flavor = "multi_thread")]
async fn creation_pause_resume_and_deletion_survive() {
    let (mut service, caller) = service().await;
    for point in ["sandbox.reserve.after", "sandbox.make_disk.after", "sandbox.start.before", "sandbox.start.after"] {
        survives(&mut service, point, &caller, Method::POST, "/sandboxes", json!({"name": "made"})).await;
        let id = caller.get("/sandboxes?limit=1").await.body["data"][0]["id"].as_str().expect("an id").to_owned();
        caller.sandbox_reaches(&id, "Ready").await;
        assert_eq!(put(&caller, &id, "kept.txt", point.into()).await.status, 201);
        for (verb, phase) in [("pause", "Paused"), ("resume", "Ready")] {
            let step = if verb == "pause" { "sandbox.pause.after" } else { "sandbox.start.after" };
            let path = format!("/sandboxes/{id}/{verb}");
            survives(&mut service, step, &caller, Method::POST, &path, Value::Null).await;
            caller.sandbox_reaches(&id, phase).await;
        }
        assert_eq!(content(&caller, &id, "kept.txt").await, point.as_bytes());
        survives(
            &mut service,
            "sandbox.finish.before",
            &caller,
            Method::DELETE,
            &format!("/sandboxes/{id}"),
            Value::Null,
        )
        .await;
        caller
            .until("its end", |c| {
                let path = format!("/sandboxes/{id}");
                async move { c.get(&path).await.status == 404 }
            })
            .await;
    }
    berth_testkit::eventually("nothing left", 20, || {
        let layers = service.files("sandbox/layers").len();
        (service.files("sandbox/machines").is_empty() && layers == 2).then_some(())
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_comes_back_finds_its_sandboxes() {
    let mut service = Service::new(BERTH, &[]).with_sandboxes();
    service.start();
    let caller = service.admin().await;
    base_ready(&caller).await;
    let id = caller.ready_sandbox().await;
    let started = caller.post(&format!("/sandbox/{id}/processes"), json!({"argv": ["sleep", "1000"]})).await;
    let machine = service.sandbox(&id).expect("a machine");
    service.kill();
    service.start();
    caller.sandbox_reaches(&id, "Ready").await;
    assert_eq!(service.sandbox(&id), Some(machine), "the machine went on");
    let process = caller.get(&format!("/sandbox/{id}/processes/{}", started.body["pid"])).await;
    assert_eq!(process.body["state"], "running");
    delete(&caller, &id).await;
}
