//! What the engine does with files alone, without a machine.

use std::path::Path;
use std::sync::Arc;

use berth_domain::ids::{DiskId, MachineId};
use berth_qemu::{accel, image};
use serde_json::json;
use uuid::Uuid;

use super::{DiskSource, DiskSpec, QemuEngine, Settings};
use crate::clock::Clock;
use crate::network::Switches;
use crate::{HostSettings, Machines};

/// An engine over a folder that has an image, and keeps back so many GiB.
fn engine(data: &Path, disk_reserve_gb: i64) -> QemuEngine {
    let folder = data.join("images/micro");
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join("disk.qcow2"), "a disk").expect("a file");
    let manifest = json!({
        "id": "micro", "name": "micro", "os": "linux", "version": "2", "login_user": "root", "disk": "disk.qcow2",
        "boot": {"kind": "firmware", "firmware": "bios"}, "virtual_size_bytes": 1 << 20, "min_memory_mb": 96,
    });
    std::fs::write(folder.join(image::MANIFEST), manifest.to_string()).expect("a file");
    let host = HostSettings {
        data: data.to_owned(),
        qemu: None,
        acceleration: accel::Request::Tcg,
        machines: Machines::default(),
        memory_reserve_mb: 0,
    };
    let switches: Arc<Switches> = Switches::open(&host);
    let settings = Settings {
        host,
        cpu_overcommit: 1.0,
        memory_overcommit: 1.0,
        disk_overcommit: 1.0,
        disk_reserve_gb,
        image_file_gb: 1,
        image_virtual_gb: 1,
        image_seconds: 1,
        captured_boots: false,
    };
    QemuEngine::open(settings, Clock::default(), switches)
}

#[tokio::test]
async fn a_root_disk_that_cannot_be_made_anew_keeps_its_base() {
    let data = tempfile::tempdir().expect("a folder");
    let engine = engine(data.path(), 0);
    let (machine, id) = (MachineId(Uuid::now_v7()), DiskId(Uuid::now_v7()));
    let note = engine.base_note(id);
    // What is in its way cannot be removed.
    std::fs::create_dir_all(engine.disks().join(format!("{id}.qcow2.tmp/in"))).expect("a folder");
    std::fs::write(&note, "micro-1").expect("a file");
    let spec = DiskSpec { id, source: DiskSource::Image("micro".into()), size_gb: 20 };
    engine.remake(machine, &spec).await.expect_err("a failure");
    assert_eq!(std::fs::read_to_string(&note).expect("a note"), "micro-1");
    // The base that it is to have is there still, though no note names it.
    engine.forget_bases();
    assert!(data.path().join("bases/micro-2").exists());
}
