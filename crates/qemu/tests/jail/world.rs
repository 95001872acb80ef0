//! A machine whose QEMU is the hostile one, in a folder of its own; it ends with the test.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use berth_qemu::launch::{self, Part};
use berth_qemu::machine::{self, Accel, Boot, Drive, Jail, Link};
use berth_qemu::sandbox::{self, Begin, Layer, create_layer};
use berth_qemu::seed::Mac;
use berth_qemu::{confinement, groups};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use uuid::Uuid;

const MAC: Mac = Mac([0x52, 0x54, 0, 1, 2, 3]);
/// A user that no machine of a service has.
const USER: u32 = 0x7fff_0001;

/// A machine, and where it lies.
pub struct World {
    pub root: TempDir,
    pub id: Uuid,
    pub dir: PathBuf,
}

impl World {
    pub fn new() -> Self {
        launch::use_program(Path::new(env!("CARGO_BIN_EXE_berth-launch")));
        let root = tempfile::Builder::new().prefix("berth-jail-").tempdir_in("/var/tmp").expect("a folder");
        let id = Uuid::now_v7();
        let dir = root.path().join(id.to_string());
        // As the service makes it, whose files nobody else may read.
        std::fs::DirBuilder::new().mode(0o700).create(&dir).expect("a folder");
        create_layer(&root.path().join("root.qcow2"), "", 1 << 30).expect("a disk");
        std::fs::write(dir.join("seed.iso"), "seed").expect("a seed");
        // What belongs to others, beside it.
        std::fs::write(root.path().join("others"), "a secret").expect("a file");
        Self { root, id, dir }
    }

    /// A file beside the machine that is none of its.
    pub fn others(&self) -> String {
        self.root.path().join("others").display().to_string()
    }

    /// Whether machines have something to themselves on this host. As root, they have everything.
    pub async fn has(&self, part: Part) -> bool {
        let found = confinement::of_host(self.root.path()).await.expect("an answer");
        let has = found.parts().contains(&part);
        assert!(has || !rustix::process::geteuid().is_root(), "{:?}", found.missing());
        has
    }

    /// What the hostile QEMU is to try, a line each.
    pub fn plan(&self, lines: &[&str]) {
        std::fs::write(self.dir.join("plan"), lines.join("\n")).expect("a plan");
    }

    /// A VM's machine.
    pub fn vm(&self) -> machine::Spec {
        let path = self.root.path().join("root.qcow2");
        machine::Spec {
            id: self.id,
            name: "hostile".into(),
            dir: self.dir.clone(),
            vcpus: 1,
            memory_mb: 64,
            boot: Boot::Bios,
            root: Drive { path, format: "qcow2", bases: Vec::new(), serial: "root".into() },
            seed: self.dir.join("seed.iso"),
            assigned: machine::Assigned::default(),
            drives: Vec::new(),
            served: Vec::new(),
            places: 0,
            mac: MAC,
            link: Link::Socket,
            mtu: 1500,
            accel: Accel::Tcg,
            translated_mb: machine::TRANSLATED_MB,
            jail: Self::jail(),
            memory: None,
            mapped: None,
            qemu: env!("CARGO_BIN_EXE_berth-hostile").into(),
        }
    }

    /// A sandbox's machine.
    pub fn sandbox(&self) -> sandbox::Spec {
        let kernel = self.root.path().join("kernel");
        std::fs::write(&kernel, "a kernel").expect("a kernel");
        sandbox::Spec {
            assigned: machine::Assigned::default(),
            id: self.id,
            dir: self.dir.clone(),
            vcpus: 1,
            memory_mb: 64,
            disk: vec![Layer { path: self.root.path().join("root.qcow2"), id: self.id }],
            mac: MAC,
            begin: Begin::Boot { initrd: kernel.clone(), kernel, cmdline: String::new() },
            accel: Accel::Tcg,
            jail: Self::jail(),
            reads_memory: true,
            qemu: env!("CARGO_BIN_EXE_berth-hostile").into(),
        }
    }

    /// A sandbox's machine that begins with a memory, and whose QEMU opens that to write to it.
    pub fn loaded(&self) -> sandbox::Spec {
        let [memory, state] = ["template", "state"].map(|name| self.root.path().join(name));
        std::fs::write(&memory, "a memory").expect("a memory");
        std::fs::write(&state, "a state").expect("a state");
        sandbox::Spec { begin: Begin::Load { memory, state }, reads_memory: false, ..self.sandbox() }
    }

    fn jail() -> Jail {
        Jail { user: rustix::process::geteuid().is_root().then_some(USER), required: false }
    }

    /// Starts a sandbox's machine that does what it was told to. What it says of each line.
    pub async fn play(&self, lines: &[&str]) -> Vec<String> {
        self.plan(lines);
        let started = sandbox::start(&self.sandbox(), || Ok(())).await;
        started.unwrap_or_else(|error| panic!("{error}\n{}", self.log()));
        let log = self.log();
        let said: Vec<String> = log.lines().take_while(|line| *line != "played").map(str::to_owned).collect();
        assert_eq!(said.len(), lines.len(), "{log}");
        said
    }

    /// Has it try what must not succeed.
    pub async fn in_vain(&self, lines: &[&str]) {
        for said in self.play(lines).await {
            assert!(said.starts_with("refused ") && !said.contains("nobody knows how"), "{said}");
        }
    }

    pub async fn start_vm(&self) {
        let started = machine::start(&self.vm()).await;
        started.unwrap_or_else(|error| panic!("{error}\n{}", self.log()));
    }

    /// What the machine's process said.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("qemu.log")).unwrap_or_default()
    }

    pub fn pid(&self) -> Option<i32> {
        machine::find(&self.dir, self.id)
    }

    /// The machine's process, which is there.
    pub fn process(&self) -> i32 {
        self.pid().expect("a process")
    }

    pub async fn end(&self) {
        machine::end(&self.dir, self.id).await.expect("an end");
        assert_eq!(self.pid(), None);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(pid) = self.pid().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
        // Its groups go, too, once nobody is in them; a test that went well has removed them.
        for _ in 0..100 {
            if groups::remove_empty(self.id) {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}
