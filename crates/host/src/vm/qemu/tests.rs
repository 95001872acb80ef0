//! What the engine does with files alone, without a machine.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;

use berth_domain::ids::{DiskId, MachineId};
use berth_qemu::machine::{self, Boot, Drive};
use berth_qemu::seed::Mac;
use berth_qemu::{accel, image};
use serde_json::json;
use uuid::Uuid;

use super::{CapturedBoots, DiskSpec, QemuEngine, Settings};
use crate::clock::Clock;
use crate::network::Switches;
use crate::vm::{DiskSource, VmNetwork};
use crate::{EngineError, HostSettings, Machines};

/// An engine over a folder that has an image, and keeps back so many GiB.
pub(super) fn engine(data: &Path, disk_reserve_gb: i64) -> QemuEngine {
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
        image_seconds: 60,
        captured_boots: CapturedBoots::Never,
        translated_mb: machine::TRANSLATED_MB,
        network: VmNetwork::default(),
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

#[tokio::test]
async fn a_rescue_system_takes_no_room_that_is_kept_back() {
    let data = tempfile::tempdir().expect("a folder");
    for (reserve, refused) in [(1 << 30, true), (0, false)] {
        let engine = engine(data.path(), reserve);
        let id = MachineId(Uuid::now_v7());
        let dir = engine.machine(id);
        std::fs::create_dir_all(&dir).expect("a folder");
        let root =
            Drive { path: dir.join("own.qcow2"), format: "qcow2", bases: Vec::new(), serial: DiskId(id.0).serial() };
        let own = machine::Spec {
            id: id.0,
            name: "web".into(),
            seed: dir.join("seed.iso"),
            dir: dir.clone(),
            vcpus: 1,
            memory_mb: 512,
            boot: Boot::Bios,
            root,
            drives: Vec::new(),
            served: Vec::new(),
            places: 0,
            assigned: machine::Assigned::default(),
            mac: Mac::of(id.0),
            link: machine::Link::Socket,
            mtu: berth_egress::MTU,
            accel: machine::Accel::Tcg,
            translated_mb: machine::TRANSLATED_MB,
            jail: Machines::default().of_vm(Ipv4Addr::LOCALHOST),
            memory: None,
            mapped: None,
            qemu: dir.join("qemu"),
        };
        let made = engine.rescuing(own, "micro").await;
        match made {
            Err(EngineError::NoCapacity(text)) => {
                assert!(refused && text.contains("no room for a rescue system"), "{text}");
            }
            _ => assert!(!refused),
        }
        assert_eq!(data.path().join("bases").exists(), !refused, "nothing is made before");
    }
}
