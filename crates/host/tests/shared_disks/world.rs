//! A store, hosts that reach it, and a machine whose disks lie there.

use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use berth_domain::ids::{DiskId, MachineId};
use berth_host::vm::{DataDisk, DiskSource, DiskSpec, Engine, MachineSpec, Store};
use berth_testkit::Ceph;
use uuid::Uuid;

use crate::host::{Host, Key, until};

/// The store of the tests that run now.
pub fn ceph() -> Arc<Ceph> {
    static NOW: Mutex<Weak<Ceph>> = Mutex::new(Weak::new());
    // What a store said stands in the log alone.
    let _ = tracing_subscriber::fmt().with_env_filter("info").with_test_writer().try_init();
    let mut now = NOW.lock().unwrap_or_else(PoisonError::into_inner);
    now.upgrade().unwrap_or_else(|| {
        let ceph = Arc::new(Ceph::started());
        *now = Arc::downgrade(&ceph);
        ceph
    })
}

/// A machine, and the host that is to have it.
pub struct World {
    pub host: Host,
    pub key: Arc<Key>,
    pub store: Store,
    pub ceph: Arc<Ceph>,
}

impl World {
    /// A host that reaches a store, with a machine that has a root disk and a data disk with files to be made there.
    pub fn new(ceph: Arc<Ceph>) -> Self {
        let (key, store) = (Arc::new(Key::new()), ceph.store());
        let mut host = Host::new(MachineId(Uuid::now_v7()), DiskId(Uuid::now_v7()), &key.public());
        let data = DataDisk { id: DiskId(Uuid::now_v7()), mount: Some("/mnt/data".into()) };
        host.spec = MachineSpec { data_disks: vec![data], store: Some(store.clone()), ..host.spec.clone() };
        Self { host, key, store, ceph }
    }

    /// The disks of the machine as they are to be made.
    pub fn disks(&self) -> [DiskSpec; 2] {
        let spec = &self.host.spec;
        let root = DiskSpec { id: spec.root_disk, source: DiskSource::Image("micro".into()), size_gb: 20 };
        let files = DiskSource::Filesystem("data".into());
        [root, DiskSpec { id: spec.data_disks[0].id, source: files, size_gb: 1 }]
    }

    pub async fn make(&self) {
        for disk in self.disks() {
            self.host.engine.make_shared_disk(&disk, &self.store).await.expect("a disk");
        }
    }

    pub async fn says(&self, command: &str) -> String {
        self.key.says(&self.host, command).await
    }

    /// Starts the machine after something that served a disk was ended by force, which the store knows for half a minute.
    pub async fn start_late(&self) {
        let (engine, spec) = (&self.host.engine, &self.host.spec);
        until("it starts", async || match engine.start(spec).await {
            Ok(_) => true,
            Err(error) => {
                assert!(!error.is_final(), "{error}");
                false
            }
        })
        .await;
        until("the guest is ready", async || engine.guest_ready(spec.id).await).await;
    }

    pub async fn end(&mut self) {
        self.host.engine.power_off(self.host.spec.aim()).await.expect("an end");
        self.host.spec.generation += 1;
    }

    /// What lies in the folder of what serves disks.
    pub fn served(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.host.dir.path().join("served")).into_iter().flatten().flatten();
        let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// The process that serves a disk.
    pub fn server(&self, disk: DiskId) -> Option<i32> {
        berth_qemu::machine::find(&self.host.dir.path().join("served").join(disk.to_string()), disk.0)
    }

    /// Asserts that the store's key stands in no file of the host and on no command line, and that nobody else looks into the
    /// folders of what has it.
    pub fn hides_the_key(&self) {
        let key = self.store.key.reveal();
        let mut folders = vec![self.host.dir.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).expect("a folder").flatten() {
                let kind = entry.file_type().expect("a kind");
                if kind.is_dir() {
                    folders.push(entry.path());
                } else if kind.is_file() && entry.metadata().expect("a file").len() < 1 << 20 {
                    let content = std::fs::read(entry.path()).expect("a file");
                    assert!(!String::from_utf8_lossy(&content).contains(key), "{}", entry.path().display());
                }
            }
        }
        for entry in std::fs::read_dir("/proc").expect("processes").flatten() {
            for what in ["cmdline", "environ"] {
                let said = std::fs::read(entry.path().join(what)).unwrap_or_default();
                assert!(!String::from_utf8_lossy(&said).contains(key), "{}", entry.path().display());
            }
        }
        for disk in self.disks() {
            let folder = self.host.dir.path().join("served").join(disk.id.to_string());
            assert_eq!(std::fs::metadata(folder).expect("a folder").permissions().mode() & 0o777, 0o700);
        }
    }
}
