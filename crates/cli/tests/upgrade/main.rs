//! A service of an earlier version is followed by this one while its machines run.
//!
//! Wants what `script/upgrade` builds: the program of an earlier version (`BERTH_TEST_OLD`) and what its sandboxes boot
//! (`BERTH_TEST_GUEST`).

#![expect(clippy::expect_used, clippy::panic, reason = "a test may end with a panic")]

mod fleet;
#[path = "../machines/guest.rs"]
mod guest;

use std::net::TcpStream;

use berth_testkit::commands::shell;
use berth_testkit::{Caller, Service, eventually};
use guest::{ready, says, with_login};
use serde_json::{Value, json};

/// The program under test.
const BERTH: &str = env!("CARGO_BIN_EXE_berth");

/// A VM of the earlier service, and what is known of it.
struct OldVm {
    id: String,
    vm: Value,
    process: i32,
}

impl OldVm {
    async fn of(service: &Service, caller: &Caller) -> Self {
        let id = caller.create_vm(with_login(service)).await;
        let vm = ready(caller, &id).await;
        says(service, &vm, "echo kept > kept");
        Self { process: qemu(service, &format!("machines/{id}")).expect("a machine"), vm, id }
    }

    /// It runs, is reached, has its ports changed, and after a restart is a machine as this version makes them.
    async fn goes_on(&self, service: &Service, caller: &Caller) {
        let path = format!("/vms/{}", self.id);
        assert_eq!(caller.reaches(&self.id, "running").await["guest_ready"], true);
        let folder = format!("machines/{}", self.id);
        assert_eq!(qemu(service, &folder), Some(self.process), "the same process");
        assert_eq!(says(service, &self.vm, "cat kept"), "kept");
        let host = self.vm["public_ip"].as_str().expect("an address").to_owned();
        eventually("the port from before", 20, || TcpStream::connect((host.as_str(), 8000)).ok());
        let ports = json!({"exposed_ports": [{"port": 9000, "protocol": "tcp"}]});
        assert_eq!(caller.patch(&path, ports).await.status, 200);
        eventually("the open port", 20, || TcpStream::connect((host.as_str(), 9000)).ok());
        eventually("the shut port", 20, || TcpStream::connect((host.as_str(), 8000)).is_err().then_some(()));
        let log = caller.get(&format!("{path}/console")).await;
        assert!(log.status == 200 && log.body.to_string().contains("login"), "{log:?}");
        assert_eq!(caller.act(&format!("{path}/restart")).await.status, 202);
        eventually("another process", 120, || qemu(service, &folder).filter(|now| *now != self.process));
        ready(caller, &self.id).await;
        assert_eq!(says(service, &self.vm, "cat kept"), "kept");
        assert!(service.dir.path().join(folder).join("egress.json").exists(), "its network is carried beside it");
    }
}

/// A sandbox of the earlier service that runs, a paused one, and a snapshot.
struct OldSandboxes {
    running: String,
    process: i32,
    paused: String,
    snapshot: String,
}

impl OldSandboxes {
    async fn of(service: &Service, caller: &Caller) -> Self {
        let running = caller.ready_sandbox().await;
        shell(caller, &running, "echo kept > kept; (while sleep 0.2; do date +%s.%N > beat; done) >/dev/null 2>&1 &")
            .await;
        let snapshot = caller.post(&format!("/sandboxes/{running}/snapshots"), json!({})).await.id();
        until(caller, &format!("/snapshots/{snapshot}"), "status", "Ready").await;
        let paused = caller.ready_sandbox().await;
        shell(caller, &paused, "echo paused > kept").await;
        assert_eq!(caller.act(&format!("/sandboxes/{paused}/pause")).await.status, 202);
        caller.sandbox_reaches(&paused, "Paused").await;
        Self { process: sandbox(service, &running).expect("a machine"), running, paused, snapshot }
    }

    async fn go_on(&self, service: &Service, caller: &Caller) {
        assert_eq!(caller.sandbox_reaches(&self.running, "Ready").await["message"], Value::Null);
        assert_eq!(shell(caller, &self.running, "cat kept").await, "kept\n");
        assert_eq!(sandbox(service, &self.running), Some(self.process), "the same process");
        let beat = shell(caller, &self.running, "cat beat").await;
        caller
            .until("its process to go on", |caller| {
                let before = beat.clone();
                async move { shell(&caller, &self.running, "cat beat").await != before }
            })
            .await;
        assert_eq!(caller.act(&format!("/sandboxes/{}/resume", self.paused)).await.status, 202);
        caller.sandbox_reaches(&self.paused, "Ready").await;
        assert_eq!(shell(caller, &self.paused, "cat kept").await, "paused\n");
        let restored = caller.create_sandbox(json!({"snapshot_id": self.snapshot})).await;
        caller.sandbox_reaches(&restored, "Ready").await;
        assert_eq!(shell(caller, &restored, "cat kept").await, "kept\n");
        let forks = caller.post(&format!("/sandboxes/{}/fork", self.running), json!({"count": 2})).await;
        assert_eq!(forks.status, 201, "{forks:?}");
        let forks = forks.body["data"].as_array().expect("forks").clone();
        for fork in forks.iter().map(|fork| fork["id"].as_str().expect("an id")) {
            caller.sandbox_reaches(fork, "Ready").await;
            assert_eq!(shell(caller, fork, "cat kept").await, "kept\n");
        }
    }
}

/// The process of a sandbox's machine. The earlier version may have called its folder by the sandbox.
fn sandbox(service: &Service, id: &str) -> Option<i32> {
    let folder = service.sandbox_machine(id).and_then(|folder| Some(folder.file_name()?.to_str()?.to_owned()));
    qemu(service, &format!("sandbox/machines/{}", folder.as_deref().unwrap_or(id)))
}

/// The process of the machine in a folder.
fn qemu(service: &Service, folder: &str) -> Option<i32> {
    qemu_among(service.processes(folder))
}

/// The one of these processes that is a machine.
fn qemu_among(processes: Vec<i32>) -> Option<i32> {
    let program = |pid: &i32| std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    processes.into_iter().find(|pid| program(pid).to_string_lossy().contains("qemu"))
}

/// Waits until something has a value.
async fn until(caller: &Caller, path: &str, name: &str, value: &str) {
    caller.until(path, |caller| async move { caller.get(path).await.body[name] == value }).await;
}

/// Deletes everything, and waits until it is gone.
async fn delete_all(service: &Service, caller: &Caller) {
    for kind in ["vms", "sandboxes"] {
        let all = caller.get(&format!("/{kind}?limit=100")).await.body;
        for id in all["data"].as_array().expect("a list").iter().map(|one| one["id"].as_str().expect("an id")) {
            let path = format!("/{kind}/{id}");
            assert_eq!(caller.delete(&path).await.status, 202);
            caller
                .until("its end", |caller| {
                    let path = path.clone();
                    async move { caller.get(&path).await.status == 404 }
                })
                .await;
        }
    }
    for folder in ["machines", "sandbox/machines"] {
        eventually("the end of the processes", 60, || service.processes(folder).is_empty().then_some(()));
        eventually("the end of the folders", 30, || service.files(folder).is_empty().then_some(()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_of_an_earlier_version_go_on() {
    let old = std::env::var("BERTH_TEST_OLD").expect("the program of an earlier version; type: script/upgrade");
    let mut service = Service::new(&old, &["micro"]).with_sandboxes();
    service.start();
    let caller = service.admin().await;
    until(&caller, "/sandbox_templates/base", "status", "ready").await;
    let vm = OldVm::of(&service, &caller).await;
    let sandboxes = OldSandboxes::of(&service, &caller).await;
    assert_eq!(service.stop(), Some(0));
    service.upgrade(BERTH);
    service.start();
    sandboxes.go_on(&service, &caller).await;
    vm.goes_on(&service, &caller).await;
    // What it took over is as much its own as what it made.
    service.kill();
    service.start();
    assert_eq!(caller.sandbox_reaches(&sandboxes.running, "Ready").await["message"], Value::Null);
    assert_eq!(says(&service, &vm.vm, "cat kept"), "kept");
    delete_all(&service, &caller).await;
}
