//! Snapshots that a running machine makes of its disks: what was there at the moment, and nothing of it left behind.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use berth_qemu::machine::snapshot::{self, Progress};
use berth_qemu::machine::{self, Drive};
use berth_qemu::qmp::Qmp;
use berth_qemu::{disk, host, sandbox};
use serde_json::json;

use crate::world::World;

const COMMANDS: &str = "qmp.sock";
/// How much the tests write, in MiB: more than QEMU copies between two commands.
const WRITTEN: u32 = 128;

/// A machine that runs, with a root disk on a base and a data disk.
struct Running {
    world: World,
    root: Drive,
    data: Drive,
}

impl Running {
    async fn start() -> Self {
        let world = World::new();
        let place = |name: &str| world.root.path().join(name);
        let images = place("image-1");
        std::fs::create_dir(&images).expect("a folder");
        let (base, root, data) = (images.join("disk.qcow2"), place("clone.qcow2"), place("data.raw"));
        sandbox::create_layer(&base, "", 1 << 30).expect("a base");
        disk::clone_image(&base, &root, 2 << 30).await.expect("a clone");
        File::create(&data).and_then(|file| file.set_len(1 << 30)).expect("a data disk");
        let root = Drive { path: root, format: "qcow2", bases: vec![base], serial: "root".into() };
        let data = Drive { path: data, format: "raw", bases: Vec::new(), serial: "data".into() };
        let spec = machine::Spec {
            root: root.clone(),
            drives: vec![data.clone()],
            qemu: host::qemu(None).expect("QEMU"),
            ..world.vm()
        };
        machine::start(&spec).await.unwrap_or_else(|error| panic!("{error}\n{}", world.log()));
        Self { world, root, data }
    }

    async fn qmp(&self) -> Qmp {
        Qmp::connect(&self.world.dir, COMMANDS).await.expect("a connection")
    }

    /// Writes to a disk as its guest does.
    async fn write(&self, disk: &Drive, byte: u8) {
        let mut qmp = self.qmp().await;
        qmp.wait_longer(std::time::Duration::from_mins(1));
        let disks = qmp.execute("query-block", json!({})).await.expect("disks");
        let mut device = String::new();
        for found in disks.as_array().into_iter().flatten().filter_map(|found| found["qdev"].as_str()) {
            let asked = json!({"path": found, "property": "serial"});
            if qmp.execute("qom-get", asked).await.is_ok_and(|serial| serial == json!(disk.serial)) {
                found.clone_into(&mut device);
            }
        }
        let said = qmp.monitor(&format!("qemu-io -d {device} \"write -P {byte} 0 {WRITTEN}M\"")).await;
        let said = said.expect("a write");
        assert!(!said.contains("rror") && !said.contains("failed"), "{said}");
    }

    async fn take(&self, disk: &Drive, file: &Path) -> Progress {
        snapshot::take(&self.world.dir, disk, "one", file).await.expect("a copy")
    }

    /// Waits until a copy is whole.
    async fn whole(&self, disk: &Drive, file: &Path) {
        while self.take(disk, file).await == Progress::Underway {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        assert_eq!(self.take(disk, file).await, Progress::Whole, "it says so until it is told to forget it");
    }

    /// Asserts that nothing of a snapshot is with the machine.
    async fn has_forgotten(&self) {
        let mut qmp = self.qmp().await;
        assert_eq!(qmp.execute("query-jobs", json!({})).await.expect("jobs"), json!([]));
        assert_eq!(qmp.execute("query-fdsets", json!({})).await.expect("files"), json!([]));
        let nodes = qmp.execute("query-named-block-nodes", json!({"flat": true})).await.expect("nodes").to_string();
        assert!(!nodes.contains("snap-"), "{nodes}");
    }

    fn file(&self, name: &str) -> PathBuf {
        self.world.root.path().join(name)
    }
}

/// Asserts what a snapshot has where a test wrote.
async fn holds(copy: &Path, disk: &Drive, byte: u8) {
    let flat = copy.with_extension("flat");
    let bases = disk.bases.clone();
    let drive = Drive { path: copy.to_owned(), format: "qcow2", bases, serial: String::new() };
    snapshot::flatten(&drive, &flat).await.expect("all of it");
    let mut command = Command::new("qemu-io");
    let read = command.args(["-f", "qcow2", "-c", &format!("read -P {byte} 0 {WRITTEN}M")]).arg(&flat);
    let said = read.output().expect("a reading");
    assert!(said.status.success() && !String::from_utf8_lossy(&said.stdout).contains("failed"), "{said:?}");
}

#[tokio::test]
async fn a_snapshot_has_what_was_there_when_it_began() {
    let running = Running::start().await;
    for disk in [&running.root, &running.data] {
        let file = running.file(&format!("{}.snapshot", disk.serial));
        running.write(disk, 1).await;
        assert_eq!(running.take(disk, &file).await, Progress::Underway);
        running.write(disk, 2).await;
        running.whole(disk, &file).await;
        snapshot::forget(&running.world.dir, "one").await.expect("it is forgotten");
        running.has_forgotten().await;
        holds(&file, disk, 1).await;
        let found = disk::info(&file, "qcow2").await.expect("a disk");
        let base = disk.bases.first().map(|base| base.canonicalize().expect("a base"));
        assert_eq!(found.backing, base, "it lies on what its disk lies on");
        assert!(found.actual_size < 2 << 27, "{found:?}");
        // A later one of the same machine has what is there now.
        let later = running.file(&format!("{}.later", disk.serial));
        running.whole(disk, &later).await;
        snapshot::forget(&running.world.dir, "one").await.expect("it is forgotten");
        holds(&later, disk, 2).await;
    }
    running.world.end().await;
}

#[tokio::test]
async fn one_that_is_under_way_is_given_up() {
    let running = Running::start().await;
    let (disk, file) = (&running.root, running.file("copy"));
    running.write(disk, 1).await;
    for all in [false, true] {
        assert_eq!(running.take(disk, &file).await, Progress::Underway);
        // Where it is over by now, it is forgotten instead.
        let slow = json!({"device": "snap-one", "speed": 1});
        let _ = running.qmp().await.execute("block-job-set-speed", slow).await;
        if all {
            snapshot::give_up_all(&running.world.dir).await.expect("an end");
        } else {
            snapshot::forget(&running.world.dir, "one").await.expect("an end");
        }
        running.has_forgotten().await;
        running.write(disk, 2).await;
    }
    snapshot::forget(&running.world.dir, "one").await.expect("there is nothing");
    running.whole(disk, &file).await;
    holds(&file, disk, 2).await;
    running.world.end().await;
}

#[tokio::test]
async fn a_disk_that_the_machine_does_not_have_is_not_copied_by_it() {
    let running = Running::start().await;
    let (other, file) = (Drive { serial: "other".into(), ..running.data.clone() }, running.file("copy"));
    assert_eq!(running.take(&other, &file).await, Progress::NotHeld);
    assert!(!file.exists());
    running.has_forgotten().await;
    running.world.end().await;
}
