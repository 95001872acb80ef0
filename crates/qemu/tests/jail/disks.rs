//! A machine's disks: what their headers say of other files is not followed, and what it shares it cannot write to.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use berth_qemu::machine::{self, Drive, Observed};
use berth_qemu::{Error, host, sandbox};

use crate::world::World;

/// Where a header says that the data lie in another file: its incompatible features.
const FEATURES: u64 = 76;
const EXTERNAL: [u8; 4] = [0, 0, 0, 4];

#[tokio::test]
async fn a_machine_whose_disk_names_a_file_does_not_start() {
    let world = World::new();
    let disk = File::options().write(true).open(world.root.path().join("root.qcow2")).expect("a disk");
    disk.write_all_at(&EXTERNAL, FEATURES).expect("a header");
    let vm = machine::start(&world.vm()).await;
    assert!(matches!(vm, Err(Error::Damaged(_))), "{vm:?}");
    let sandbox = sandbox::start(&world.sandbox(), || Ok(())).await;
    assert!(matches!(sandbox, Err(Error::Damaged(_))), "{sandbox:?}");
    assert_eq!(world.pid(), None);
}

/// How the process has a file open, by its descriptors: the access modes (0 to read, 2 to read and write).
fn modes(pid: i32, path: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("descriptors").flatten();
    let of_file = entries.filter(|entry| std::fs::read_link(entry.path()).is_ok_and(|target| target == path));
    let mode = |number: std::ffi::OsString| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/fdinfo/{}", number.display())).expect("a descriptor");
        let flags = text.lines().find_map(|line| line.strip_prefix("flags:")).expect("flags").trim().to_owned();
        flags.chars().last().expect("a mode").to_string()
    };
    of_file.map(|entry| mode(entry.file_name())).collect()
}

#[tokio::test]
async fn qemu_runs_in_its_jail_and_cannot_write_to_its_base() {
    let world = World::new();
    let images = world.root.path().join("image-1");
    std::fs::create_dir(&images).expect("a folder");
    let (base, root) = (images.join("disk.qcow2"), world.root.path().join("clone.qcow2"));
    sandbox::create_layer(&base, "", 1 << 30).expect("a base");
    sandbox::create_layer(&root, &base.display().to_string(), 1 << 30).expect("a clone");
    let (data, vm) = (world.root.path().join("data.raw"), world.vm());
    File::create(&data).and_then(|file| file.set_len(1 << 20)).expect("a data disk");
    let spec = machine::Spec {
        root: Drive { path: root.clone(), format: "qcow2", bases: vec![base.clone()], serial: "root".into() },
        drives: vec![Drive { path: data.clone(), format: "raw", bases: Vec::new(), serial: "data".into() }],
        qemu: host::qemu(None).expect("QEMU"),
        ..vm
    };
    machine::start(&spec).await.unwrap_or_else(|error| panic!("{error}\n{}", world.log()));
    assert_eq!(machine::observe(&world.dir, world.id).await, Observed::Running);
    let pid = world.process();
    assert_eq!(modes(pid, &base), ["0"]);
    for written in [&root, &data] {
        assert_eq!(modes(pid, written), ["2"], "{}", written.display());
    }
    assert!(machine::usage(&world.dir, world.id).is_some_and(|usage| usage.rss_bytes > 0));
    world.end().await;
}
