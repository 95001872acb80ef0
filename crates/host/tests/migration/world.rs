//! Two engines, each with a folder of its own, and what a service does between them.

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
use berth_host::vm::{Channel, DataDisk, DiskSource, DiskSpec, Engine, MachineSpec, VmNetwork};
use berth_host::{HostSettings, Machines, Result};
use berth_qemu::{accel, launch, machine};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::task::JoinHandle;
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
    fn new(id: MachineId, root_disk: DiskId, key: &str) -> Self {
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
        let host = HostSettings {
            data: dir.path().to_owned(),
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
        let engine = QemuEngine::open(settings, Clock::default(), switches).with_program(Executable::at(ALONE));
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

    pub async fn attach(&mut self) -> DiskId {
        let id = DiskId(Uuid::now_v7());
        let disk = DiskSpec { id, source: DiskSource::Empty, size_gb: 1 };
        self.engine.make_disk(&disk).await.expect("a disk");
        self.engine.attach_disk(self.spec.aim(), id).await.expect("a disk");
        self.spec.data_disks.push(DataDisk { id, mount: None });
        id
    }

    fn at(&self) -> SocketAddr {
        self.spec.ports[0].at
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let programs = [self.folder().join("process.json"), self.folder().join("egress.json")];
        let notes = programs.iter().filter_map(|note| std::fs::read(note).ok());
        let notes = notes.filter_map(|note| serde_json::from_slice::<serde_json::Value>(&note).ok());
        for pid in notes.filter_map(|note| note["pid"].as_i64()).filter_map(|pid| Pid::from_raw(pid.try_into().ok()?)) {
            let _ = kill_process(pid, Signal::KILL);
        }
        for _ in 0..100 {
            if berth_qemu::groups::remove_empty(self.spec.id.0) {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
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

/// A machine that runs on the first of two hosts, and has two data disks, one of them since it runs.
pub struct World {
    pub from: Host,
    pub to: Host,
    key: TempDir,
}

impl World {
    pub async fn new() -> Self {
        let key = TempDir::new().expect("a folder");
        let mut command = Command::new("ssh-keygen");
        command.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(key.path().join("key"));
        assert!(command.status().expect("ssh-keygen").success());
        let public = std::fs::read_to_string(key.path().join("key.pub")).expect("a key");
        let (id, root) = (MachineId(Uuid::now_v7()), DiskId(Uuid::now_v7()));
        let [mut from, mut to] = [(); 2].map(|()| Host::new(id, root, public.trim()));
        let disk = DiskSpec { id: root, source: DiskSource::Image("micro".into()), size_gb: 20 };
        from.engine.make_disk(&disk).await.expect("a disk");
        from.start().await;
        for _ in 0..2 {
            from.attach().await;
        }
        to.spec.data_disks.clone_from(&from.spec.data_disks);
        Self { from, to, key }
    }

    fn ssh(&self, host: &Host, command: &str) -> Output {
        let mut program = Command::new("ssh");
        program.args(["-F", "none", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "-o", "LogLevel=ERROR"]);
        program.args(["-o", "UserKnownHostsFile=/dev/null", "-o", "ConnectTimeout=20"]);
        program.args(["-p", &host.at().port().to_string(), "-l", "root", &host.at().ip().to_string()]);
        program.arg("-i").arg(self.key.path().join("key")).arg(command).output().expect("ssh")
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

    /// Asserts that the guest goes on, on this host.
    pub async fn counts(&self, host: &Host) {
        let count = "n=$(cat /tmp/count); for i in $(seq 200); do [ \"$(cat /tmp/count)\" -gt \"$n\" ] && exit; sleep 0.05; done; exit 1";
        self.says(host, count).await;
    }

    /// Has a machine wait on the other host.
    pub async fn expect(&self) -> Result<()> {
        let likeness = self.from.engine.likeness(&self.from.spec).await?;
        self.to.engine.expect_machine(&self.to.spec, &likeness).await.map(drop)
    }

    /// Carries a channel from the one host to the other.
    pub async fn carry(&self, channel: Channel) -> Result<JoinHandle<()>> {
        let mut from = self.from.engine.send_machine(self.from.spec.aim(), channel).await?;
        let mut to = self.to.engine.fill_machine(self.to.spec.aim(), channel).await?;
        Ok(tokio::spawn(async move {
            let _ = tokio::io::copy_bidirectional(&mut from, &mut to).await;
        }))
    }

    /// Has a machine wait on the other host, and its disks be mirrored there.
    pub async fn mirror(&self) -> Result<Vec<JoinHandle<()>>> {
        self.expect().await?;
        let mut carried = Vec::new();
        let data = self.from.spec.data_disks.iter().map(|disk| disk.id);
        for id in std::iter::once(self.from.spec.root_disk).chain(data) {
            carried.push(self.carry(Channel::Disk(id)).await?);
        }
        self.from.engine.mirrored(self.from.spec.aim()).await.map(|()| carried)
    }

    /// Has the machine go on on the other host.
    pub async fn go(&self) -> Result<()> {
        let began = Instant::now();
        let mut carried = self.mirror().await?;
        let mirrored = began.elapsed();
        carried.push(self.carry(Channel::Memory).await?);
        self.from.engine.hand_over(self.from.spec.aim()).await?;
        let handed = began.elapsed();
        self.to.engine.taken(self.to.spec.aim()).await?;
        self.to.engine.resume(self.to.spec.aim()).await?;
        println!("mirrored after {mirrored:?}, handed over after {handed:?}, goes on after {:?}", began.elapsed());
        Ok(())
    }
}
