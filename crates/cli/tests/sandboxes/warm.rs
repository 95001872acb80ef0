//! Warm machines: whoever gets one notices nothing, and none outlives its purpose.

use std::collections::{BTreeMap, HashSet};
use std::os::unix::fs::MetadataExt;

use berth_testkit::{Caller, Service, eventually};
use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{
    OWN, content, delete, gone, nothing_left, put, run, service_with, shell, snapshot, template_ready,
};

/// The machine of a sandbox, by its name.
fn machine_of(service: &Service, id: &str) -> String {
    let folder = service.sandbox_machine(id).expect("a machine");
    folder.file_name().expect("a name").to_string_lossy().into_owned()
}

/// The machines of sandboxes, by their names.
fn machines_of(service: &Service, sandboxes: &[String]) -> Vec<String> {
    sandboxes.iter().map(|id| machine_of(service, id)).collect()
}

/// Waits until there are warm machines; their names. They are made one after the other, so when the second's folder is
/// there, the first is to be had.
fn warm_beside(service: &Service, sandboxes: &[String]) -> HashSet<String> {
    eventually("warm machines", 300, || {
        let owned = machines_of(service, sandboxes);
        let warm = service.files("sandbox/machines").into_iter().filter(|name| !owned.contains(name));
        Some(warm.collect::<HashSet<_>>()).filter(|warm| warm.len() == 2)
    })
}

async fn first(caller: &Caller, body: Value) -> Vec<String> {
    let id = caller.create_sandbox(body).await;
    caller.sandbox_reaches(&id, "Ready").await;
    vec![id]
}

/// The sandbox that a service creates as the last thing it does before it dies at a point, once it is back.
async fn created_by_one_that_dies(service: &mut Service, point: &str, caller: &Caller, body: Value) -> String {
    let name = body["name"].clone();
    caller.ask(Method::POST, "/sandboxes", body, 201).await;
    service.died_at(point);
    service.start();
    let all = caller.get("/sandboxes?limit=100").await.body;
    let named = all["data"].as_array().expect("a list").iter().find(|one| one["name"] == name);
    named.expect("it was recorded")["id"].as_str().expect("an id").to_owned()
}

/// How many machines run.
fn machines(service: &Service) -> usize {
    let program = |pid: &i32| std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    service.processes("sandbox").iter().filter(|pid| program(pid).to_string_lossy().contains("qemu")).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_gets_one_notices_nothing() {
    let (mut service, caller) = service_with("[sandbox]\nwarm_machines = 2\n").await;
    let mut sandboxes = first(&caller, json!({})).await;
    for number in 0..4 {
        let mut warm = warm_beside(&service, &sandboxes);
        let body = json!({
            "name": format!("box-{number}"), "env": {"NUMBER": number.to_string()}, "network": {"egress": "deny"},
        });
        let id = if number == 3 {
            service.stop();
            service.set("BERTH_FAULT", "sandbox.start.intent=kill:2");
            service.start();
            sandboxes.extend(first(&caller, json!({})).await);
            warm = warm_beside(&service, &sandboxes);
            created_by_one_that_dies(&mut service, "sandbox.start.intent", &caller, body).await
        } else {
            caller.create_sandbox(body).await
        };
        let ready = caller.sandbox_reaches(&id, "Ready").await;
        let machine = machine_of(&service, &id);
        assert!(warm.contains(&machine) && machine != id, "it was warm");
        assert_eq!(ready["message"], Value::Null, "{ready}");
        assert_eq!(
            shell(&caller, &id, "hostname; echo $NUMBER $BERTH_SANDBOX_ID").await,
            format!("box-{number}\n{number} {id}\n")
        );
        let denied = run(&caller, &id, json!({"cmd": "curl -sS -m 60 http://denied.example.net/"})).await;
        assert!(denied.stderr.contains("resolve"), "{denied:?}");
        sandboxes.push(id);
    }
    let mut seen = HashSet::new();
    for id in &sandboxes {
        let told = shell(&caller, id, OWN).await;
        assert!(told.lines().all(|line| seen.insert(line.to_owned())), "{told} is another's, too");
        assert_eq!(put(&caller, id, "own", id.clone().into()).await.status, 201);
    }
    for id in &sandboxes {
        assert_eq!(content(&caller, id, "own").await, id.as_bytes());
    }
    // The service that came back makes others, as other users.
    sandboxes.extend(first(&caller, json!({})).await);
    warm_beside(&service, &sandboxes);
    let mut users = BTreeMap::new();
    for pid in service.processes("sandbox/machines") {
        let user = std::fs::metadata(format!("/proc/{pid}")).expect("a process").uid();
        // A process that was made a moment ago is still the service's.
        if user >= 0x7000_0000 {
            assert_eq!(users.insert(user, pid), None, "two machines are one user of the host");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn none_outlives_its_service_but_for_one_that_dies() {
    let (mut service, caller) = service_with("[sandbox]\nwarm_machines = 2\n").await;
    let mut sandboxes = first(&caller, json!({})).await;
    warm_beside(&service, &sandboxes);
    service.stop();
    assert_eq!(service.files("sandbox/machines"), machines_of(&service, &sandboxes));
    eventually("the others' end", 120, || (machines(&service) == 1).then_some(()));
    service.start();
    eventually("their layers' end", 120, || (service.files("sandbox/layers").len() == 3).then_some(()));
    sandboxes.extend(first(&caller, json!({})).await);
    warm_beside(&service, &sandboxes);
    // What is being made when the service dies is ended by the next one; what was made is somebody's then.
    service.kill();
    let left = warm_beside(&service, &sandboxes);
    service.start();
    sandboxes.extend(first(&caller, json!({})).await);
    assert!(left.contains(&machine_of(&service, &sandboxes[2])), "the dead service had made it");
    service.stop();
    let file = service.dir.path().join("berth.toml");
    let none = std::fs::read_to_string(&file).expect("a file").replace("warm_machines = 2", "warm_machines = 0");
    std::fs::write(file, none).expect("a file");
    service.start();
    for id in &sandboxes {
        delete(&caller, id).await;
    }
    nothing_left(&service);
}

#[tokio::test(flavor = "multi_thread")]
async fn none_outlives_its_template() {
    let (service, caller) = service_with("[sandbox]\nwarm_machines = 2\n").await;
    let base = caller.ready_sandbox().await;
    let kept = snapshot(&caller, &base, json!({})).await;
    let made = caller.post("/sandbox_templates", json!({"name": "own", "from_snapshot": kept})).await;
    let path = format!("/sandbox_templates/{}", made.id());
    template_ready(&caller, &made.id()).await;
    let own = first(&caller, json!({"template_id": "own"})).await.remove(0);
    let sandboxes = machines_of(&service, &[base.clone(), own.clone()]);
    let of_base = memory_of(&service, &sandboxes[0]);
    let is_own =
        |name: &String| !sandboxes.contains(name) && !["", &of_base].contains(&memory_of(&service, name).as_str());
    let warm = |service: &Service| service.files("sandbox/machines").into_iter().filter(is_own).collect::<Vec<_>>();
    // Half of what may be kept is the new template's, once what the other has too much is gone.
    let theirs = eventually("a warm machine of it", 300, || {
        Some(warm(&service))
            .filter(|all| !all.is_empty() && all.iter().all(|name| service.sandbox_machine(name).is_some()))
    });
    assert_eq!(caller.delete(&path).await.status, 204);
    gone(&caller, &path).await;
    eventually("its end", 60, || {
        (!service.files("sandbox/machines").iter().any(|name| theirs.contains(name))).then_some(())
    });
    assert_eq!(shell(&caller, &own, "echo on").await, "on\n");
    let request = caller.request(Method::DELETE, &format!("/snapshots/{kept}"));
    assert_eq!(caller.send(request).await.status, 202);
}

/// The memory that a machine began with.
fn memory_of(service: &Service, machine: &str) -> String {
    let file = service.dir.path().join("sandbox/machines").join(machine).join("incarnation.json");
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let told: Value = serde_json::from_str(&text).unwrap_or_default();
    told["consumed"].as_str().unwrap_or_default().split(' ').next().unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn none_is_left_where_there_was_no_room() {
    let (service, caller) = service_with("[sandbox]\nwarm_machines = 2\nmax_sandboxes = 1\n").await;
    let sandboxes = first(&caller, json!({})).await;
    let warm = warm_beside(&service, &sandboxes);
    let id = caller.create_sandbox(json!({})).await;
    let failed = caller.sandbox_reaches(&id, "Failed").await;
    assert!(failed["message"].as_str().is_some_and(|text| text.starts_with("insufficient_capacity")), "{failed}");
    let ended = |name: &&String| service.processes(&format!("sandbox/machines/{name}")).is_empty();
    assert_eq!(warm.iter().filter(ended).count(), 1, "what failed runs nothing");
    delete(&caller, &id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_was_being_made_when_the_service_died_is_ended() {
    for point in ["warm.make.intent", "warm.make.done"] {
        let (mut service, caller) = service_with("[sandbox]\nwarm_machines = 1\n").await;
        service.stop();
        service.set("BERTH_FAULT", &format!("{point}=kill"));
        service.start();
        let id = created_by_one_that_dies(&mut service, point, &caller, json!({"name": "box"})).await;
        caller.sandbox_reaches(&id, "Ready").await;
        let own = machine_of(&service, &id);
        eventually("its end", 60, || (service.files("sandbox/machines") == [own.clone()]).then_some(()));
        delete(&caller, &id).await;
        nothing_left(&service);
    }
}
