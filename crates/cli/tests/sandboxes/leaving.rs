//! A sandbox that goes from host to host with its memory, while the service dies at every step.

use berth_testkit::{Caller, HostProcess, Service};
use serde_json::{Value, json};

use crate::crash::World;
use crate::{BERTH, points};

const HOSTS: &str = "/api/v1/admin/hosts";

/// A second host, which has joined and has what sandboxes boot; its id, and that of the service's own.
async fn beta(service: &Service, admin: &Caller) -> (HostProcess, [String; 2]) {
    let mut adding = service.berth(&["admin", "host", "add", "beta"]);
    let added = adding.env("BERTH_URL", &service.base).env("BERTH_TOKEN", &admin.token).output().expect("an end");
    let typed = String::from_utf8_lossy(&added.stdout).lines().last().expect("a command").to_owned();
    let mut host = HostProcess::new(BERTH);
    host.join(&typed);
    let id = named(admin, "beta").await;
    let is_there = async |admin: Caller| admin.get(&format!("{HOSTS}/{id}")).await.body["state"] == "ready";
    admin.until("the host", async |admin| is_there(admin).await).await;
    let guest = host.dir.path().join("sandbox/guest/guest.json");
    admin.until("what it boots", async |_| guest.exists()).await;
    let all = admin.get(HOSTS).await.body["data"].as_array().expect("hosts").clone();
    let own = all.iter().find(|it| it["id"] != id.as_str()).expect("the service's own");
    let own = own["id"].as_str().expect("an id").to_owned();
    (host, [own, id])
}

async fn named(admin: &Caller, name: &str) -> String {
    let all = admin.get(HOSTS).await.body["data"].as_array().expect("hosts").clone();
    let found = all.iter().find(|it| it["name"] == name).unwrap_or_else(|| panic!("{all:?}"));
    found["id"].as_str().expect("an id").to_owned()
}

/// Waits until nothing is at home on a host any more.
async fn is_left(admin: &Caller, host: &str) {
    let path = format!("{HOSTS}/{host}");
    let holds = async |admin: Caller| {
        let holds = admin.get(&path).await.body["holds"].clone();
        (holds["machines"].clone(), holds["layers"].clone()) == (json!(0), json!(0))
    };
    admin.until("nothing at home", async |admin| holds(admin).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_goes_from_host_to_host_with_what_runs_in_it_and_the_service_dies_at_every_step() {
    let mut world = World::new().await;
    let (host, hosts) = beta(&world.service, &world.caller).await;
    // Three deaths on each way, none beside one of its neighbours.
    for number in 0..3 {
        let deaths: Vec<_> = points::LEAVING.iter().skip(number).step_by(3).collect();
        let (from, to) = (&hosts[number % 2], &hosts[1 - number % 2]);
        assert_eq!(world.caller.act(&format!("{HOSTS}/{to}/uncordon")).await.status, 202);
        let drain = format!("{HOSTS}/{from}/drain?restart=true");
        world.service.add_faults(&format!("{}=kill", deaths[0]));
        world.caller.ask(reqwest::Method::POST, &drain, Value::Null, 202).await;
        world.service.died_at(deaths[0]);
        for point in &deaths[1..] {
            world.service.start_and_die_at(point);
        }
        world.service.start();
        let path = format!("/sandboxes/{}", world.id);
        let is_there = async |caller: Caller| caller.get(&path).await.body["host_id"] == to.as_str();
        world.caller.until(deaths[0], async |caller| is_there(caller).await).await;
        // Its process goes on there.
        let id = world.id.clone();
        world.is_whole(&id, true).await;
        is_left(&world.caller, from).await;
        let left = |folder: &str| -> Vec<String> {
            let data = if number % 2 == 0 { world.service.dir.path() } else { host.dir.path() };
            let entries = std::fs::read_dir(data.join("sandbox").join(folder)).into_iter().flatten().flatten();
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
        };
        // The memory of the platform's template is where its service is.
        for (folder, stays) in [("memories", 1 - number % 2), ("machines", 0)] {
            world.caller.until(folder, async |_| left(folder).len() == stays).await;
        }
    }
    assert!(world.caller.delete(&format!("/sandboxes/{}", world.id)).await.status == 202);
    world.caller.sandbox_reaches(&world.id, "Deleted").await;
}
