//! SIGKILL at every step of a project's network: the host comes to know it, or to have nothing of it.

use berth_domain::network::NetworkStep;
use berth_testkit::{Service, eventually};
use reqwest::Method;
use serde_json::{Value, json};

use crate::BERTH;
use crate::crash::{killed_at, stopped};

// The points at which the service is killed, by what it was doing.
const TELL: &[&str] = &["network.tell.before", "network.tell.done", "network.tell.after"];
const REMOVAL: &[&str] = &["network.remove.before", "network.remove.done", "network.remove.after"];

/// Waits until the host has so many networks.
fn has(service: &Service, count: usize) {
    eventually("the host's networks", 120, || (service.files("networks").len() == count).then_some(()));
}

#[test]
fn every_step_of_a_network_has_points_at_which_the_service_is_killed() {
    let killed: Vec<_> = [TELL, REMOVAL].into_iter().flatten().collect();
    for step in NetworkStep::ALL {
        for moment in ["before", "done", "after"] {
            let point = format!("network.{step}.{moment}");
            assert!(killed.contains(&&point.as_str()), "no test kills the service at {point}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_goes_on() {
    let mut service = Service::new(BERTH, &[]);
    for point in TELL {
        let caller = killed_at(&mut service, point, async |caller| {
            caller.ask(Method::POST, "/networks", json!({"name": "lan"}), 201).await;
        })
        .await;
        let id = caller.get("/networks").await.body["data"][0]["id"].as_str().expect("an id").to_owned();
        has(&service, 1);
        assert_eq!(caller.delete(&format!("/networks/{id}")).await.status, 204, "{point}");
        has(&service, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_that_is_deleted_goes() {
    let mut service = Service::new(BERTH, &[]);
    for point in REMOVAL {
        let caller = killed_at(&mut service, point, async |caller| {
            let id = caller.post("/networks", json!({"name": "lan"})).await.id();
            caller.ask(Method::DELETE, &format!("/networks/{id}"), Value::Null, 204).await;
        })
        .await;
        assert_eq!(caller.get("/networks").await.body["pagination"]["total_items"], 0, "{point}");
        has(&service, 0);
        // Nothing of it is in the way of the next one.
        let next = caller.post("/networks", json!({"name": "lan"})).await;
        assert_eq!((next.status, &next.body["cidr"]), (201, &json!("10.128.0.0/24")), "{point}");
        has(&service, 1);
        assert_eq!(caller.delete(&format!("/networks/{}", next.id())).await.status, 204);
        has(&service, 0);
        stopped(&mut service);
    }
}
