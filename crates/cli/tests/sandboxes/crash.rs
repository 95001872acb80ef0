//! SIGKILL of the service at every step: nothing acknowledged is lost, nothing is left over.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use berth_testkit::{Caller, Service, eventually};
use reqwest::Method;
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};

use crate::harness::{
    act, base_ready, content, decided, delete, fork, gone, nothing_left, put, run, service, shell, snapshot,
    template_ready,
};
use crate::{BERTH, points};

/// Tells the names and the contents of a world's files.
const WHOLE: &str = "echo tree/* tree/a/*; cat tree/a/put.bin tree/seq tree/linked | sha256sum";

/// A service that is killed, and a sandbox of it with files, and with a process that knows something.
pub struct World {
    pub service: Service,
    pub caller: Caller,
    pub id: String,
    pub pid: Value,
    pub tree: String,
    /// Faults that come before the next death of the service, and settings that it has until then.
    pub until_then: (String, String),
}

impl World {
    pub async fn new() -> Self {
        let (service, caller) = service().await;
        let (id, pid, tree) = Self::of(&caller).await;
        Self { service, caller, id, pid, tree, until_then: Default::default() }
    }

    /// A sandbox, its process and its files.
    pub async fn of(caller: &Caller) -> (String, Value, String) {
        let id = caller.ready_sandbox().await;
        assert_eq!(put(caller, &id, "tree/a/put.bin", vec![7; 100_000]).await.status, 201);
        let line = format!("seq 5000 >tree/seq; ln tree/seq tree/linked; mkdir tree/empty; sync; {WHOLE}");
        let tree = shell(caller, &id, &line).await;
        let pid = caller.post(&format!("/sandbox/{id}/processes"), json!({"argv": ["sleep", "100000"]})).await;
        (id, pid.body["pid"].clone(), tree)
    }

    /// The service dies at a point that a request leads to, and comes back.
    async fn dies_at(&mut self, point: &str, method: Method, path: &str, body: Value) {
        let status = match (&method, path.rsplit('/').next()) {
            (&Method::PATCH, _) => 200,
            (&Method::POST, Some("fork" | "snapshots" | "sandboxes")) => 201,
            (&Method::DELETE, _) if path.starts_with("/sandbox_uploads") => 204,
            _ => 202,
        };
        self.dies_by(point, async |caller| drop(caller.ask(method, path, body, status).await)).await;
    }

    /// The service dies at a point that something leads to, and comes back. The point has to have been reached.
    pub async fn dies_by(&mut self, point: &str, something: impl AsyncFnOnce(&Caller)) {
        let (faults, settings) = std::mem::take(&mut self.until_then);
        let config = self.service.dir.path().join("berth.toml");
        let usual = std::fs::read(&config).expect("a file");
        let faults = format!("{faults},{point}=kill");
        // What nobody waits for may still be removed of what was there before.
        if settings.is_empty() && !["layer.", "memory.", "upload."].iter().any(|kind| point.starts_with(kind)) {
            self.service.add_faults(&faults);
        } else {
            self.service.stop();
            self.service.configure(&settings);
            self.service.set("BERTH_FAULT", &faults);
            self.service.start();
        }
        something(&self.caller).await;
        self.service.died_at(point);
        std::fs::write(config, usual).expect("a file");
        if point == "sandbox.capture.frozen" {
            // As if it had died a moment later.
            stop_processor(&self.service, &self.id);
        }
        self.service.start();
    }

    /// A step fails once the machine has gone over to its new layer: the step is done again, and the machine stays
    /// there.
    async fn fails_behind_a_checkpoint(&mut self) {
        self.service.add_faults("sandbox.capture.declare=fail");
        let path = format!("/sandboxes/{}/snapshots", self.id);
        self.caller.ask(Method::POST, &path, json!({"include_memory": true}), 201).await;
        let taken = self.others("/snapshots", "").await.pop().expect("a snapshot");
        let taken = decided(&self.caller, &taken).await;
        assert_eq!(taken["status"], "Ready", "{taken}");
        assert_eq!(self.service.reached("sandbox.capture.declare", "fail"), 1);
        self.is_whole(&self.id, true).await;
    }

    async fn does_at(&mut self, point: &str, verb: &str, body: Value) {
        let path = format!("/sandboxes/{}/{verb}", self.id);
        self.dies_at(point, Method::POST, &path, body).await;
    }

    /// What there is of a kind, without one of them.
    async fn others(&self, kind: &str, but: &str) -> Vec<String> {
        let all = self.caller.get(kind).await.body["data"].as_array().expect("a list").clone();
        let ids = all.iter().map(|one| one["id"].as_str().expect("an id").to_owned());
        ids.filter(|id| id != but).collect()
    }

    /// A sandbox is ready and has the files; whether it has the process, too.
    pub async fn is_whole(&self, id: &str, with_process: bool) {
        let ready = self.caller.sandbox_reaches(id, "Ready").await;
        // In one shell: each program is emulated anew in a new machine.
        let told = shell(&self.caller, id, &format!("{WHOLE}; echo >>written && sync")).await;
        assert_eq!(told, self.tree, "{ready}");
        let process = self.caller.get(&format!("/sandbox/{id}/processes/{}", self.pid)).await;
        assert_eq!(process.body["state"] == "running", with_process, "{ready} {process:?}");
    }

    pub async fn end(self) {
        for id in self.others("/snapshots", "").await {
            assert_eq!(self.caller.delete(&format!("/snapshots/{id}")).await.status, 202);
        }
        for id in self.others("/sandboxes", "").await {
            delete(&self.caller, &id).await;
        }
        nothing_left(&self.service);
    }
}

/// Stops a machine's processor, as a capture does for a moment.
fn stop_processor(service: &Service, id: &str) {
    let folder = service.sandbox_machine(id).expect("a machine");
    let mut qemu = UnixStream::connect(folder.join("qmp.sock")).expect("QEMU");
    let mut answers = BufReader::new(qemu.try_clone().expect("a socket")).lines();
    for command in ["qmp_capabilities", "stop"] {
        writeln!(qemu, "{}", json!({"execute": command})).expect("sent");
    }
    assert!(answers.any(|line| line.expect("an answer").contains("\"STOP\"")));
}

#[tokio::test(flavor = "multi_thread")]
async fn cuts_of_a_running_sandbox_survive() {
    let mut world = World::new().await;
    for memory in [false, true] {
        for point in points::CHECKPOINT {
            world.does_at(point, "snapshots", json!({"include_memory": memory})).await;
            let id = world.others("/snapshots", "").await.pop().expect("a snapshot");
            let path = format!("/snapshots/{id}");
            let taken = decided(&world.caller, &id).await;
            assert_eq!(taken["status"], "Ready", "{point}: {taken}");
            world.is_whole(&world.id, true).await;
            let made = world.caller.create_sandbox(json!({"snapshot_id": id})).await;
            world.is_whole(&made, memory).await;
            delete(&world.caller, &made).await;
            assert_eq!(world.caller.delete(&path).await.status, 202);
            gone(&world.caller, &path).await;
        }
    }
    world.fails_behind_a_checkpoint().await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn forks_survive() {
    let mut world = World::new().await;
    for point in points::FORK {
        world.does_at(point, "fork", json!({"count": 2, "include_memory": true})).await;
        let forks = world.others("/sandboxes", &world.id).await;
        assert_eq!(forks.len(), 2, "{point}");
        for id in &forks {
            world.is_whole(id, true).await;
            delete(&world.caller, id).await;
        }
        world.is_whole(&world.id, true).await;
    }
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pauses_and_resumptions_survive() {
    let mut world = World::new().await;
    for (point, then) in points::PAUSE.iter().zip(points::RESUMPTION) {
        world.does_at(point, "pause", Value::Null).await;
        world.caller.sandbox_reaches(&world.id, "Paused").await;
        assert!(world.service.sandbox(&world.id).is_none(), "{point}");
        world.does_at(then, "resume", Value::Null).await;
        world.is_whole(&world.id, true).await;
    }
    // Without memory, and snapshots of what is paused.
    for point in points::CHECKPOINT_COLD {
        world.does_at("sandbox.pause.done", "pause", json!({"include_memory": false})).await;
        world.caller.sandbox_reaches(&world.id, "Paused").await;
        world.does_at(point, "snapshots", json!({})).await;
        let id = world.others("/snapshots", "").await.remove(0);
        assert_eq!(decided(&world.caller, &id).await["status"], "Ready", "{point}");
        act(&world.caller, &world.id, "resume", Value::Null).await;
        world.is_whole(&world.id, false).await;
    }
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn restores_rules_and_removals_survive() {
    let mut world = World::new().await;
    let kept = snapshot(&world.caller, &world.id, json!({"include_memory": true})).await;
    for point in points::RESTORE {
        shell(&world.caller, &world.id, "rm -r tree").await;
        world.does_at(point, "restore", json!({"snapshot_id": kept})).await;
        world.is_whole(&world.id, true).await;
    }
    for (number, point) in points::NETWORK.iter().enumerate() {
        let network = json!({"network": {"egress": "deny", "allow": [format!("192.0.2.{number}/32")]}});
        let path = format!("/sandboxes/{}", world.id);
        world.dies_at(point, Method::PATCH, &path, network).await;
        world.is_whole(&world.id, true).await;
    }
    let denied = run(&world.caller, &world.id, json!({"cmd": "curl -sS -m 60 http://denied.example.net/"})).await;
    assert!(denied.stderr.contains("resolve"), "{denied:?}");
    for point in points::DELETION {
        let forked = fork(&world.caller, &world.id, json!({"count": 1})).await.remove(0);
        world.dies_at(point, Method::DELETE, &format!("/sandboxes/{forked}"), Value::Null).await;
        gone(&world.caller, &format!("/sandboxes/{forked}")).await;
    }
    for point in points::REMOVAL {
        let made = snapshot(&world.caller, &world.id, json!({"include_memory": true})).await;
        if point.starts_with("layer.") {
            // What lay on the snapshot's layer is gone with the restore.
            act(&world.caller, &world.id, "restore", json!({"snapshot_id": kept})).await;
            world.is_whole(&world.id, true).await;
        }
        let path = format!("/snapshots/{made}");
        world.dies_at(point, Method::DELETE, &path, Value::Null).await;
        gone(&world.caller, &path).await;
        world.is_whole(&world.id, true).await;
    }
    for point in points::UPLOAD {
        let sent = world.caller.send(world.caller.request(Method::POST, "/sandbox_uploads").body("archive")).await;
        assert_eq!(sent.status, 201, "{sent:?}");
        let path = format!("/sandbox_uploads/{}", sent.id());
        world.dies_at(point, Method::DELETE, &path, Value::Null).await;
        eventually("an empty folder", 120, || world.service.files("sandbox/uploads").is_empty().then_some(()));
    }
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_death_is_dealt_with() {
    let mut world = World::new().await;
    for point in points::DEATH {
        let machine = world.service.sandbox(&world.id).expect("a machine");
        world.dies_by(point, async |_| kill_process(machine, Signal::KILL).expect("it runs")).await;
        eventually("another machine", 60, || world.service.sandbox(&world.id).filter(|pid| *pid != machine));
        world.is_whole(&world.id, false).await;
    }
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deadlines_that_passed_are_dealt_with() {
    let mut world = World::new().await;
    for point in points::RETRY.iter().chain(points::FAILURE) {
        world.until_then = ("sandbox.start.before=fails".into(), "provisioning_seconds = 2\n".into());
        world.dies_by(point, async |caller| drop(caller.create_sandbox(json!({})).await)).await;
        let made = world.others("/sandboxes", &world.id).await.remove(0);
        let end = if *point == "sandbox.fail.after" { "Failed" } else { "Ready" };
        world.caller.sandbox_reaches(&made, end).await;
        delete(&world.caller, &made).await;
    }
    for (point, end) in points::GIVEN_UP_CHECKPOINT.iter().zip(["Ready", "Failed"]) {
        world.until_then = ("sandbox.checkpoint.intent=fails".into(), "snapshot_seconds = 1\n".into());
        world.does_at(point, "snapshots", json!({})).await;
        let taken = world.others("/snapshots", "").await.pop().expect("a snapshot");
        assert_eq!(decided(&world.caller, &taken).await["status"], end, "{point}");
        world.is_whole(&world.id, true).await;
        assert_eq!(world.caller.delete(&format!("/snapshots/{taken}")).await.status, 202);
        gone(&world.caller, &format!("/snapshots/{taken}")).await;
    }
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn creations_survive() {
    let mut world = World::new().await;
    for step in points::CREATION {
        world.dies_at(step, Method::POST, "/sandboxes", json!({"env": {"A": "b"}})).await;
        let made = world.others("/sandboxes", &world.id).await.remove(0);
        let ready = world.caller.sandbox_reaches(&made, "Ready").await;
        assert_eq!(ready["message"], Value::Null, "{step}: a template's memory is there after a crash, too");
        assert_eq!(shell(&world.caller, &made, "echo $A; cat tree/a/* | wc -c").await, "b\n0\n");
        delete(&world.caller, &made).await;
    }
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ends_of_life_survive() {
    let mut world = World::new().await;
    let first = world.id.clone();
    for point in points::EXPIRY {
        for on_timeout in ["pause", "delete"] {
            let one = fork(&world.caller, &first, json!({"count": 1, "include_memory": true})).await.remove(0);
            world.is_whole(&one, true).await;
            let path = format!("/sandboxes/{one}");
            let ends = json!({"timeout_seconds": 5, "on_timeout": on_timeout});
            world.dies_at(point, Method::PATCH, &path, ends).await;
            if on_timeout == "pause" {
                world.caller.sandbox_reaches(&one, "Paused").await;
                let longer = world.caller.request(Method::PATCH, &path).json(&json!({"timeout_seconds": 3600}));
                assert_eq!(world.caller.send(longer).await.status, 200);
                act(&world.caller, &one, "resume", Value::Null).await;
                world.is_whole(&one, true).await;
                delete(&world.caller, &one).await;
            } else {
                gone(&world.caller, &path).await;
            }
        }
    }
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn templates_survive() {
    let mut service = Service::new(BERTH, &[]).with_sandboxes();
    service.configure("[sandbox]\nwarm_machines = 0\n");
    for point in points::TEMPLATE {
        service.start_and_die_at(point);
    }
    service.start();
    let caller = service.admin().await;
    base_ready(&caller).await;
    let id = caller.ready_sandbox().await;
    assert_eq!(put(&caller, &id, "own", b"own".to_vec()).await.status, 201);
    let kept = snapshot(&caller, &id, json!({})).await;
    delete(&caller, &id).await;
    for (number, point) in points::TEMPLATE_REMOVAL.iter().enumerate() {
        let body = json!({"name": format!("own-{number}"), "from_snapshot": kept});
        let made = caller.post("/sandbox_templates", body).await;
        assert_eq!(made.status, 201, "{made:?}");
        let path = format!("/sandbox_templates/{}", made.id());
        template_ready(&caller, &made.id()).await;
        let made = caller.create_sandbox(json!({"template_id": format!("own-{number}")})).await;
        caller.sandbox_reaches(&made, "Ready").await;
        assert_eq!(content(&caller, &made, "own").await, b"own");
        service.add_faults(&format!("{point}=kill"));
        caller.ask(Method::DELETE, &path, Value::Null, 204).await;
        service.died_at(point);
        service.start();
        gone(&caller, &path).await;
        // What was made of it goes on.
        assert_eq!(content(&caller, &made, "own").await, b"own");
        delete(&caller, &made).await;
    }
    let config = service.dir.path().join("berth.toml");
    let before = std::fs::read(&config).expect("a file");
    for (point, end) in points::TEMPLATE_LATE.iter().zip(["ready", "failed"]) {
        service.stop();
        service.configure("build_seconds = 1\nready_seconds = 1\ntemplate_seconds = 1\n");
        service.set("BERTH_FAULT", &format!("template.make_disk.before=fails,template.warm.before=fails,{point}=kill"));
        service.start();
        let made = caller.post("/sandbox_templates", json!({"name": "late", "from_snapshot": kept})).await;
        assert_eq!(made.status, 201, "{made:?}");
        service.died_at(point);
        std::fs::write(&config, &before).expect("a file");
        service.start();
        let path = format!("/sandbox_templates/{}", made.id());
        let ended = async |caller: Caller| caller.get(&path).await.body["status"] == end;
        caller.until("its end", ended).await;
        assert_eq!(caller.delete(&path).await.status, 204);
        gone(&caller, &path).await;
    }
    assert_eq!(caller.delete(&format!("/snapshots/{kept}")).await.status, 202);
    nothing_left(&service);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_comes_back_finds_its_sandboxes() {
    let mut world = World::new().await;
    let machine = world.service.sandbox(&world.id).expect("a machine");
    world.service.kill();
    world.service.start();
    world.is_whole(&world.id, true).await;
    assert_eq!(world.service.sandbox(&world.id), Some(machine), "the machine went on");
    world.end().await;
}
