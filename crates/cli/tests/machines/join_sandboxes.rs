//! Sandboxes on a second machine, to which what they boot comes by itself.

use std::collections::BTreeSet;
use std::path::Path;

use berth_domain::sandbox::layer_copy::CopyStep;
use berth_testkit::commands::shell;
use berth_testkit::{Caller, HostProcess, Service, eventually};
use serde_json::{Value, json};

use crate::BERTH;
use crate::backup_s3::Server;
use crate::join::{added, of, reaches};

/// The points at which the service dies while it brings two layers to a host.
const BRINGING: &[&str] = &[
    "layer_copy.bring.before",
    "layer.travel.expected",
    "layer.travel.taken",
    "layer_copy.bring.done",
    "layer_copy.bring.after",
];

#[test]
fn every_step_of_a_layers_copy_has_points_at_which_the_service_is_killed() {
    // That its time is over is written as that it came is.
    for step in CopyStep::ALL.iter().filter(|step| **step != CopyStep::Expire) {
        for moment in ["before", "after"] {
            let point = format!("layer_copy.{step}.{moment}");
            assert!(BRINGING.contains(&point.as_str()), "no test kills the service at {point}");
        }
    }
}

/// The points at which the service dies while it brings a layer to a bucket.
const KEEPING: &[&str] = &["archive.keep.part", "archive.keep.sent"];
/// The same while the memory comes from there to another host than the one that had it.
const FETCHING: &[&str] = &["archive.fetch.taken", "memory.bring.done"];

/// The guest in a data folder: its manifest, kernel and initrd.
fn guest(data: &Path) -> Option<[Vec<u8>; 3]> {
    let read = |name: &str| std::fs::read(data.join("sandbox/guest").join(name)).ok();
    Some([read("guest.json")?, read("vmlinux")?, read("initrd")?])
}

/// What lies in a data folder of guests but the one that machines boot.
fn strays(data: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(data.join("sandbox")).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(".guest")).collect()
}

/// Puts another guest than the service's into a host's folder: one with another manifest.
fn put_another(service: &Service, host: &HostProcess) {
    let [manifest, kernel, initrd] = guest(service.dir.path()).expect("a guest");
    let dir = host.dir.path().join("sandbox/guest");
    std::fs::create_dir_all(&dir).expect("a folder");
    let other = [("guest.json", [&manifest[..], b" "].concat()), ("vmlinux", kernel), ("initrd", initrd)];
    for (name, bytes) in other {
        std::fs::write(dir.join(name), bytes).expect("a file");
    }
}

/// Builds a template of a file alone, and waits until it is ready.
async fn template(admin: &Caller, name: &str) {
    let dockerfile = "FROM scratch\nWORKDIR /data\nCOPY <<EOF kept.txt\nkept\nEOF\n";
    let body = json!({"name": name, "dockerfile": dockerfile, "vcpu": 1, "memory_mb": 256, "disk_gb": 1});
    assert_eq!(admin.post("/sandbox_templates", body).await.status, 201);
    let path = format!("/sandbox_templates/{name}");
    let is_over = |status: Option<&str>| matches!(status, Some("ready" | "failed"));
    admin.until("its end", async |admin| is_over(admin.get(&path).await.body["status"].as_str())).await;
    let built = admin.get(&path).await.body;
    assert_eq!(built["status"], "ready", "{built}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_sandboxes_boot_comes_to_a_machine_that_joined_and_they_run_there() {
    let mut service = Service::new(BERTH, &[]).with_sandboxes();
    service.configure("[sandbox]\nwarm_machines = 0\n");
    service.start();
    let admin = service.admin().await;
    // What the platform brings along is made here first.
    let is_ready = async |admin: Caller| admin.get("/sandbox_templates/base").await.body["status"] == "ready";
    admin.until("the template", async |admin| is_ready(admin).await).await;
    let mut host = HostProcess::new(BERTH);
    // The host dies when the new guest is there, and not yet in the place of the old one.
    put_another(&service, &host);
    let old = guest(host.dir.path());
    host.fault = "guest.travel.half=kill";
    host.join(&added(&service, &admin));
    host.died();
    assert!(old.is_some(), "there was one");
    assert_eq!((guest(host.dir.path()), strays(host.dir.path()).len()), (old, 1), "{}", host.log());
    // The service dies in the middle of the next try; the host will when it has a layer of the service's own.
    host.fault = "layer.travel.received=kill";
    host.start(&["host", "serve"]);
    service.kill();
    service.start_and_die_at("guest.travel.taken");
    service.start();
    let admin = service.admin().await;
    let sent = guest(service.dir.path()).expect("a guest");
    eventually("the guest", 180, || guest(host.dir.path()).filter(|came| *came == sent).map(drop));
    eventually("nothing else", 60, || strays(host.dir.path()).is_empty().then_some(()));
    let found = reaches(&service, &admin, "ready");
    // The service's own host takes no more.
    let all = admin.get("/api/v1/admin/hosts").await.body;
    let all = all["data"].as_array().expect("hosts");
    let own = all.iter().find(|host| host["id"] != found["id"]).expect("another one");
    assert_eq!(admin.act(&of(&own["id"], "cordon")).await.status, 202);
    template(&admin, "there").await;
    let id = admin.create_sandbox(json!({"template_id": "there"})).await;
    let ready = admin.sandbox_reaches(&id, "Ready").await;
    assert_eq!(ready["host_id"], found["id"]);
    let read = admin.get(&format!("/sandbox/{id}/files/content?path=kept.txt")).await;
    assert_eq!((read.status, read.body.as_str()), (200, Some("kept\n")), "{read:?}");
    let machines = std::fs::read_dir(host.dir.path().join("sandbox/machines")).expect("a folder").count();
    assert!(machines > 0, "it runs there");
    begins_elsewhere(&mut service, &mut host, &found["id"]).await;
}

/// Has the layers of a template of the service's own host come to another one, while both die; a sandbox runs on them there.
async fn begins_elsewhere(service: &mut Service, host: &mut HostProcess, id: &Value) {
    let made = service.admin().await.create_sandbox(json!({"template_id": "base"})).await;
    host.died();
    host.fault = "";
    host.start(&["host", "serve"]);
    service.kill();
    for point in BRINGING {
        service.start_and_die_at(point);
    }
    service.start();
    let admin = service.admin().await;
    let ready = admin.sandbox_reaches(&made, "Ready").await;
    assert_eq!((&ready["host_id"], &ready["message"]), (id, &Value::Null));
    assert_eq!(shell(&admin, &made, "echo kept >there && cat there").await, "kept\n");
    // Each is there once, as it is where it was made.
    let layers = |data: &Path| -> BTreeSet<String> {
        let entries = std::fs::read_dir(data.join("sandbox/layers")).expect("layers").flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    };
    let (here, there) = (layers(service.dir.path()), layers(host.dir.path()));
    assert!(here.is_subset(&there) && !here.is_empty(), "{here:?} {there:?}");
    for name in &here {
        let [one, other] =
            [service.dir.path(), host.dir.path()].map(|data| std::fs::read(data.join("sandbox/layers").join(name)));
        assert!(one.expect("a layer") == other.expect("a layer"), "{name}");
    }
    outlives(service, host, (&made, id)).await;
}

/// Has a sandbox that is paused there go on here once that host is gone, with what ran in it; the service dies while its memory comes.
async fn outlives(service: &mut Service, host: &mut HostProcess, (made, id): (&str, &Value)) {
    let admin = service.admin().await;
    let all = admin.get("/api/v1/admin/hosts").await.body["data"].as_array().expect("hosts").clone();
    let own = all.iter().map(|host| &host["id"]).find(|other| *other != id).expect("the service's own");
    assert_eq!(admin.act(&of(own, "uncordon")).await.status, 202);
    shell(&admin, made, "setsid sleep 100000 >/dev/null 2>&1 </dev/null & echo $! >pid").await;
    let path = format!("/sandboxes/{made}");
    service.add_faults("memory.bring.intent=kill");
    let paused = admin.post(&format!("{path}/pause"), json!({"durable": true})).await;
    assert_eq!(paused.status, 202, "{paused:?}");
    service.died_at("memory.bring.intent");
    service.start_and_die_at("memory.bring.done");
    service.start();
    let admin = service.admin().await;
    admin.until("a second host", async |admin| admin.get(&path).await.body["copied_at"].is_string()).await;
    host.kill();
    reaches(service, &admin, "lost");
    admin.until("it is here", async |admin| admin.get(&path).await.body["host_id"] == *own).await;
    assert_eq!(admin.act(&format!("{path}/resume")).await.status, 202);
    let ready = admin.sandbox_reaches(made, "Ready").await;
    assert_eq!((&ready["message"], &ready["durable"]), (&Value::Null, &json!(false)));
    assert_eq!(shell(&admin, made, "kill -0 $(cat pid) && cat there && echo alive").await, "kept\nalive\n");
    host.start(&["host", "serve"]);
    reaches(service, &admin, "ready");
    assert_eq!(shell(&admin, made, "kill -0 $(cat pid) && echo alive").await, "alive\n");
    assert_eq!(admin.delete(&path).await.status, 202);
    admin.sandbox_reaches(made, "Deleted").await;
    outlives_in_a_bucket(service, host, (own, id)).await;
}

/// The same from a bucket, of which no other host has anything: a layer and the memory come there, and from there to the host that goes
/// on. The service dies at each step.
async fn outlives_in_a_bucket(service: &mut Service, host: &mut HostProcess, (own, id): (&Value, &Value)) {
    let bucket = Server::start().await;
    bucket.trusts_everybody().await;
    service.kill();
    service.configure(&format!("durable_in = \"backups\"\n{}", bucket.configuration()));
    service.start();
    let admin = service.admin().await;
    reaches(service, &admin, "ready");
    assert_eq!(admin.act(&of(own, "cordon")).await.status, 202);
    let made = admin.create_sandbox(json!({"template_id": "base"})).await;
    let path = format!("/sandboxes/{made}");
    assert_eq!(admin.sandbox_reaches(&made, "Ready").await["host_id"], *id);
    assert_eq!(admin.act(&of(own, "uncordon")).await.status, 202);
    shell(&admin, &made, "setsid sleep 100000 >/dev/null 2>&1 </dev/null & echo $! >pid; echo kept >there").await;
    service.add_faults("archive.keep.begun=kill");
    assert_eq!(admin.post(&format!("{path}/pause"), json!({"durable": true})).await.status, 202);
    service.died_at("archive.keep.begun");
    for point in KEEPING {
        service.start_and_die_at(point);
    }
    service.start();
    let admin = service.admin().await;
    admin.until("a second copy", async |admin| admin.get(&path).await.body["copied_at"].is_string()).await;
    host.kill();
    service.add_faults("archive.fetch.expected=kill");
    service.died_at("archive.fetch.expected");
    for point in FETCHING {
        service.start_and_die_at(point);
    }
    service.start();
    let admin = service.admin().await;
    admin.until("it is here", async |admin| admin.get(&path).await.body["host_id"] == *own).await;
    // Its memory goes once it runs.
    let memories = async || bucket.objects().await.iter().filter(|name| name.contains("/memory-")).count();
    assert!(memories().await > 0, "{:?}", bucket.objects().await);
    service.add_faults("archive.clear.done=kill");
    assert_eq!(admin.act(&format!("{path}/resume")).await.status, 202);
    service.died_at("archive.clear.done");
    service.start();
    let admin = service.admin().await;
    let ready = admin.sandbox_reaches(&made, "Ready").await;
    assert_eq!((&ready["message"], &ready["durable"]), (&Value::Null, &json!(false)));
    assert_eq!(shell(&admin, &made, "kill -0 $(cat pid) && cat there && echo alive").await, "kept\nalive\n");
    admin.until("no memory in the bucket", async |_| memories().await == 0).await;
}
