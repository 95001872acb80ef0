//! An engine with a folder of its own and a machine, for the tests of this crate.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use berth_domain::firewall::Rules;
use berth_domain::ids::{DiskId, MachineId};
use berth_domain::vm::InboundPort;
use berth_domain::vm::inbound::SSH;
use berth_domain::vm::plan::Machine;
use berth_egress::program::process::Executable;
use berth_host::clock::Clock;
use berth_host::network::Switches;
use berth_host::vm::qemu::{CapturedBoots, QemuEngine, Settings};
use berth_host::vm::{Engine, MachineSpec, VmNetwork};
use berth_host::{HostSettings, Machines};
use berth_qemu::{accel, launch, machine};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use uuid::Uuid;

/// What starts machines, and carries their networks.
const ALONE: &str = env!("CARGO_BIN_EXE_host-alone");

/// A host with one machine.
pub struct Host {
    pub dir: TempDir,
    pub engine: QemuEngine,
    pub spec: MachineSpec,
}

impl Host {
    /// A host with the image `micro` and no machine, which is told of one with this root disk.
    pub fn new(id: MachineId, root_disk: DiskId, key: &str) -> Self {
        launch::use_program(Path::new(ALONE));
        let dir = tempfile::Builder::new().prefix("berth-move-").tempdir_in("/var/tmp").expect("a folder");
        let to = dir.path().join("images/micro");
        std::fs::create_dir_all(&to).expect("a folder");
        for entry in std::fs::read_dir(images().join("micro")).expect("an image").flatten() {
            let to = to.join(entry.file_name());
            std::fs::hard_link(entry.path(), &to)
                .or_else(|_| std::fs::copy(entry.path(), &to).map(drop))
                .expect("a file");
        }
        let engine = engine_in(dir.path());
        let port = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port");
        let spec = MachineSpec {
            id,
            generation: 1,
            name: "web".into(),
            vcpu: 1,
            memory_mb: 256,
            image_id: "micro".into(),
            root_disk,
            data_disks: Vec::new(),
            disk_places: 2,
            ssh_keys: vec![key.to_owned()],
            user_data: None,
            address: Ipv4Addr::LOCALHOST,
            slot: 1,
            is_bridged: false,
            ports: vec![InboundPort { to: SSH, at: port }],
            networks: Vec::new(),
            rules: Rules::default(),
            goes_on: false,
            gpus: Vec::new(),
            rescue: None,
            store: None,
        };
        Self { dir, engine, spec }
    }

    pub fn folder(&self) -> PathBuf {
        self.dir.path().join("machines").join(self.spec.id.to_string())
    }

    pub fn pid(&self) -> Option<i32> {
        machine::find(&self.folder(), self.spec.id.0)
    }

    pub async fn is(&self, state: Machine) {
        assert_eq!(self.engine.observe(self.spec.id).await.expect("a look"), state);
    }

    pub async fn start(&self) {
        self.engine.start(&self.spec).await.expect("a start").expect("it did not run");
        until("the guest is ready", async || self.engine.guest_ready(self.spec.id).await).await;
    }

    fn at(&self) -> SocketAddr {
        self.spec.ports[0].at
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let served = std::fs::read_dir(self.dir.path().join("served")).into_iter().flatten().flatten();
        let served: Vec<_> = served.map(|entry| entry.path()).collect();
        let programs = served.iter().map(|dir| dir.join("process.json"));
        let programs = programs.chain(["process.json", "egress.json"].map(|note| self.folder().join(note)));
        let notes = programs.filter_map(|note| std::fs::read(note).ok());
        let notes = notes.filter_map(|note| serde_json::from_slice::<serde_json::Value>(&note).ok());
        for pid in notes.filter_map(|note| note["pid"].as_i64()).filter_map(|pid| Pid::from_raw(pid.try_into().ok()?)) {
            let _ = kill_process(pid, Signal::KILL);
        }
        let served = served.iter().filter_map(|dir| dir.file_name()?.to_str()?.parse().ok());
        for id in served.chain([self.spec.id.0]) {
            remove_groups(id);
        }
    }
}

fn remove_groups(id: Uuid) {
    for _ in 0..100 {
        if berth_qemu::groups::remove_empty(id) {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// An engine over a data folder.
pub fn engine_in(data: &Path) -> QemuEngine {
    let host = HostSettings {
        data: data.to_owned(),
        qemu: None,
        acceleration: accel::Request::Tcg,
        machines: Machines::default(),
        memory_reserve_mb: 0,
    };
    let switches = Switches::open(&host);
    let settings = Settings {
        host,
        cpu_overcommit: 1.0,
        memory_overcommit: 1.0,
        disk_overcommit: 1.0,
        disk_reserve_gb: 0,
        image_file_gb: 1,
        image_virtual_gb: 1,
        image_seconds: 60,
        captured_boots: CapturedBoots::Never,
        translated_mb: machine::TRANSLATED_MB,
        network: VmNetwork::default(),
    };
    QemuEngine::open(settings, Clock::default(), switches).with_program(Executable::at(ALONE))
}

fn images() -> PathBuf {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let dir = std::env::var_os("BERTH_TEST_IMAGES").map_or_else(|| repository.join(".berth/images"), PathBuf::from);
    assert!(dir.join("micro/image.json").is_file(), "no images in {}; type: script/test", dir.display());
    dir
}

/// Repeats a check until it holds.
pub async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    let began = Instant::now();
    while !holds().await {
        assert!(began.elapsed() < Duration::from_mins(2), "{what}: not within two minutes");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A key that guests let in.
pub struct Key(TempDir);

impl Key {
    pub fn new() -> Self {
        let key = TempDir::new().expect("a folder");
        let mut command = Command::new("ssh-keygen");
        command.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(key.path().join("key"));
        assert!(command.status().expect("ssh-keygen").success());
        Self(key)
    }

    /// The line of it that a guest is given.
    pub fn public(&self) -> String {
        std::fs::read_to_string(self.0.path().join("key.pub")).expect("a key").trim().to_owned()
    }

    fn ssh(&self, host: &Host, command: &str) -> Output {
        let mut program = Command::new("ssh");
        program.args(["-F", "none", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "-o", "LogLevel=ERROR"]);
        program.args(["-o", "UserKnownHostsFile=/dev/null", "-o", "ConnectTimeout=20"]);
        program.args(["-p", &host.at().port().to_string(), "-l", "root", &host.at().ip().to_string()]);
        program.arg("-i").arg(self.0.path().join("key")).arg(command).output().expect("ssh")
    }

    /// What a command says in the guest, once that lets it in.
    pub async fn says(&self, host: &Host, command: &str) -> String {
        let began = Instant::now();
        loop {
            let output = tokio::task::block_in_place(|| self.ssh(host, command));
            // 255 is ssh's own failure: the guest is not there yet.
            if output.status.code() != Some(255) {
                assert!(output.status.success(), "{command}: {output:?}");
                return String::from_utf8_lossy(&output.stdout).trim().to_owned();
            }
            assert!(began.elapsed() < Duration::from_mins(2), "{command}: {output:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}
