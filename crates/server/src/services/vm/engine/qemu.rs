//! QEMU on this machine.
//!
//! Everything lies below the data folder and is named after its row's id:
//!
//! ```text
//! images/<image id>/            what can be cloned now
//! bases/<image id>-<version>/   what was cloned from: hard links, so that a rebuilt image changes nothing
//! disks/<disk id>.qcow2|.raw    root and data disks; <disk id>.base names a root disk's base
//! machines/<vm id>/             process, seed, console
//! ```
//!
//! A root disk keeps the kernel it was cloned with, because the modules on it belong to that kernel.

mod findings;

use std::collections::HashSet;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use berth_domain::ids::{DiskId, VmId};
use berth_domain::vm::plan::Machine;
use berth_domain::vm::{DiskType, ExposedPort, Protocol};
use berth_qemu::image::Manifest;
use berth_qemu::machine::{self, Drive, Forward, Observed, Watch};
use berth_qemu::seed::{Mac, Mount, Seed, generic_vendor_data};
use berth_qemu::{accel, disk, host, image};
use tokio::sync::{OnceCell, broadcast};

use super::integrity::Integrity;
use super::{
    Capacity, Console, DataDisk, DiskSource, DiskSpec, Engine, EngineError, Found, ImageImport, ImageInfo, MachineSpec,
    Result, Started, Usage,
};
use crate::config::{Acceleration, Vm};

/// Bytes of a GiB.
const GIB: u64 = 1 << 30;
/// Port of SSH in the guest, and outside where it may be bound.
const SSH: u16 = 22;
/// Port of SSH outside where 22 may not be bound.
const HIGH_SSH: u16 = 2222;
/// Age below which a base is left alone.
const YOUNG: Duration = Duration::from_mins(10);
/// How long a process may take to end once it has left its sockets.
const ENDING: Duration = Duration::from_secs(30);
/// Happenings kept for a slow watcher before it has to look at every machine.
const HAPPENINGS: usize = 1024;

/// The engine of this machine.
pub struct QemuEngine {
    data: PathBuf,
    config: Vm,
    request: accel::Request,
    ssh_port: u16,
    happenings: broadcast::Sender<VmId>,
    watched: Arc<Mutex<HashSet<VmId>>>,
    probed: OnceCell<accel::Decision>,
    integrity: Integrity,
}

impl From<berth_qemu::Error> for EngineError {
    fn from(error: berth_qemu::Error) -> Self {
        use berth_qemu::Error as E;
        match error {
            E::NoMemory => Self::Permanent("insufficient_capacity: the host has not enough memory".into()),
            E::NoSpace => Self::Permanent("insufficient_capacity: the host's disk is full".into()),
            // A path of the host is nothing for the owner of a VM; the log has it.
            E::Damaged(reason) => {
                tracing::error!(reason, "a disk or image is damaged");
                Self::Permanent("a disk or image of the VM is damaged; ask the operator".into())
            }
            E::Missing { .. } | E::Invalid(_) => Self::Permanent(error.to_string()),
            E::PortTaken(_) | E::Timeout(_) | E::Qemu(_) | E::Io { .. } => Self::Transient(error.to_string()),
        }
    }
}

fn transient(error: impl std::fmt::Display) -> EngineError {
    EngineError::Transient(error.to_string())
}

impl QemuEngine {
    /// The engine over a data folder. What is missing on the host is told by [`Engine::ready`].
    pub fn open(data: &Path, config: &Vm, acceleration: Acceleration) -> Self {
        Self {
            data: data.to_path_buf(),
            config: config.clone(),
            request: acceleration.request(),
            ssh_port: if host::can_bind_low_ports() { SSH } else { HIGH_SSH },
            happenings: broadcast::channel(HAPPENINGS).0,
            watched: Arc::default(),
            probed: OnceCell::new(),
            integrity: Integrity::default(),
        }
    }

    fn machine(&self, id: VmId) -> PathBuf {
        self.data.join("machines").join(id.to_string())
    }

    fn disks(&self) -> PathBuf {
        self.data.join("disks")
    }

    fn images_dir(&self) -> PathBuf {
        self.data.join("images")
    }

    fn disk_file(&self, id: DiskId, root: bool) -> PathBuf {
        self.disks().join(format!("{id}.{}", if root { "qcow2" } else { "raw" }))
    }

    fn base_note(&self, id: DiskId) -> PathBuf {
        self.disks().join(format!("{id}.base"))
    }

    fn qemu(&self) -> Result<PathBuf> {
        Ok(host::qemu(self.config.qemu.as_deref())?)
    }

    /// The folder a root disk is cloned from: the image as it is now, kept for as long as it is needed.
    async fn base(&self, image: &str) -> Result<PathBuf> {
        let from = self.images_dir().join(image);
        let manifest = Manifest::load(&from)?;
        self.integrity.check(&from, &manifest).await?;
        let to = self.data.join("bases").join(format!("{image}-{}", manifest.version));
        if to.join(image::MANIFEST).is_file() {
            return Ok(to);
        }
        std::fs::create_dir_all(&to).map_err(transient)?;
        // The manifest comes last: where it is, the folder is whole.
        for name in manifest.files().into_iter().chain([image::MANIFEST]) {
            match std::fs::hard_link(from.join(name), to.join(name)) {
                Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
                    return Err(transient(e));
                }
                _ => {}
            }
        }
        Ok(to)
    }

    /// Removes bases that no disk builds on. A young one may belong to a clone that is being made.
    fn forget_bases(&self) {
        let entries = |dir: PathBuf| std::fs::read_dir(dir).into_iter().flatten().flatten();
        let notes = entries(self.disks()).filter(|e| e.path().extension().is_some_and(|x| x == "base"));
        let used: HashSet<String> =
            notes.filter_map(|e| Some(std::fs::read_to_string(e.path()).ok()?.trim().to_owned())).collect();
        for entry in entries(self.data.join("bases")) {
            let age = entry.metadata().and_then(|m| m.modified()).ok().and_then(|at| at.elapsed().ok());
            if !used.contains(&*entry.file_name().to_string_lossy()) && age.is_some_and(|age| age > YOUNG) {
                tracing::info!(base = %entry.file_name().to_string_lossy(), "removing a base that no disk builds on");
                // Another try comes with the next search.
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
    }

    /// The folder that a root disk was cloned from.
    fn base_of(&self, disk: DiskId) -> Result<PathBuf> {
        let name = std::fs::read_to_string(self.base_note(disk)).map_err(|_| {
            EngineError::Permanent("the root disk is not whole; delete the VM and create it again".into())
        })?;
        Ok(self.data.join("bases").join(name.trim()))
    }

    async fn clone_root(&self, spec: &DiskSpec, image: &str) -> Result<()> {
        let base = self.base(image).await?;
        let manifest = Manifest::load(&base)?;
        let name = base.file_name().unwrap_or_default().to_string_lossy().into_owned();
        std::fs::write(self.base_note(spec.id), name).map_err(transient)?;
        let size = gib(spec.size_gb).max(manifest.virtual_size_bytes);
        Ok(disk::clone_image(&base.join(&manifest.disk), &self.disk_file(spec.id, true), size).await?)
    }

    async fn acceleration(&self, probe: Option<accel::Probe>, qemu: &Path) -> accel::Decision {
        if let Some(decision) = self.probed.get() {
            return decision.clone();
        }
        let cache = self.data.join("accel.json");
        let decision = accel::decide(self.request, probe.as_ref(), &cache, qemu).await;
        if !decision.provisional {
            tracing::info!(accel = ?decision.accel, reason = decision.reason, "acceleration decided");
            // Somebody may have decided the same meanwhile.
            let _ = self.probed.set(decision.clone());
        }
        decision
    }

    async fn qemu_spec(&self, spec: &MachineSpec, ports: &[ExposedPort]) -> Result<machine::Spec> {
        let dir = self.machine(spec.id);
        let base = self.base_of(spec.root_disk)?;
        let manifest = Manifest::load(&base)?;
        self.integrity.check(&base, &manifest).await?;
        let qemu = self.qemu()?;
        let boot = manifest.boot(&base);
        let probe = match &boot {
            machine::Boot::Kernel { kernel, initrd, .. } => {
                Some(accel::Probe { kernel: kernel.clone(), initrd: initrd.clone() })
            }
            _ => None,
        };
        let data = |d: &DataDisk| Drive { path: self.disk_file(d.id, false), format: "raw", serial: d.id.serial() };
        Ok(machine::Spec {
            id: spec.id.0,
            name: spec.name.clone(),
            seed: dir.join("seed.iso"),
            dir,
            vcpus: u32::try_from(spec.vcpu).unwrap_or(1),
            memory_mb: u32::try_from(spec.memory_mb).unwrap_or(512),
            boot,
            root: Drive {
                path: self.disk_file(spec.root_disk, true),
                format: "qcow2",
                serial: spec.root_disk.serial(),
            },
            drives: spec.data_disks.iter().map(data).collect(),
            mac: Mac::of(spec.id.0),
            forwards: forwards(spec, ports),
            accel: self.acceleration(probe, &qemu).await.accel,
            qemu,
        })
    }

    /// Which of a machine's ports may be bound here, and which not.
    fn sort_ports(&self, spec: &MachineSpec) -> (Vec<ExposedPort>, Vec<ExposedPort>) {
        let low = self.ssh_port == SSH;
        spec.ports.iter().partition(|p| low || p.port >= 1024)
    }

    /// Watches a machine that runs, once.
    fn attend(&self, id: VmId) {
        if !self.watched.lock().unwrap_or_else(PoisonError::into_inner).insert(id) {
            return;
        }
        let (dir, happenings, watched) = (self.machine(id), self.happenings.clone(), self.watched.clone());
        tokio::spawn(async move {
            if let Ok(mut watch) = Watch::begin(&dir).await {
                while watch.next().await {
                    // Nobody listening is fine: whoever comes looks at the machine itself.
                    let _ = happenings.send(id);
                }
            }
            watched.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
            let _ = happenings.send(id);
            // A machine that ends leaves its sockets first, and who looks at it then still sees it run.
            let _ = tokio::time::timeout(ENDING, machine::ended(&dir, id.0)).await;
            let _ = happenings.send(id);
        });
    }
}

fn gib(size_gb: i64) -> u64 {
    u64::try_from(size_gb).unwrap_or_default() * GIB
}

fn forward(address: Ipv4Addr, port: ExposedPort) -> Forward {
    let protocol = match port.protocol {
        Protocol::Tcp => machine::Protocol::Tcp,
        Protocol::Udp => machine::Protocol::Udp,
    };
    Forward { protocol, address, host_port: port.port, guest_port: port.port }
}

fn forwards(spec: &MachineSpec, ports: &[ExposedPort]) -> Vec<Forward> {
    let ssh =
        Forward { protocol: machine::Protocol::Tcp, address: spec.address, host_port: spec.ssh_port, guest_port: SSH };
    std::iter::once(ssh).chain(ports.iter().map(|p| forward(spec.address, *p))).collect()
}

fn info(manifest: Manifest) -> ImageInfo {
    ImageInfo {
        id: manifest.id,
        name: manifest.name,
        os: manifest.os,
        version: manifest.version,
        login_user: manifest.login_user,
        virtual_size: i64::try_from(manifest.virtual_size_bytes).unwrap_or(i64::MAX),
        min_memory_mb: i64::try_from(manifest.min_memory_mb).unwrap_or(i64::MAX),
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "capacities are far below 2^52")]
fn scaled(amount: u64, factor: f64) -> i64 {
    (amount as f64 * factor) as i64
}

fn write_seed(spec: &MachineSpec, seed: &Path, foreign: bool) -> Result<()> {
    let filesystems = spec.data_disks.iter().filter(|d| d.kind == DiskType::Filesystem);
    let seed_of = Seed {
        instance_id: spec.id.0,
        hostname: spec.name.clone(),
        ssh_keys: spec.ssh_keys.clone(),
        user_data: spec.user_data.clone(),
        vendor_data: foreign.then(generic_vendor_data),
        mac: Mac::of(spec.id.0),
        mounts: filesystems.map(|d| Mount { serial: d.id.serial(), name: d.name.clone() }).collect(),
    };
    Ok(seed_of.write(seed)?)
}

#[async_trait]
impl Engine for QemuEngine {
    fn ready(&self) -> std::result::Result<(), String> {
        host::qemu(self.config.qemu.as_deref()).map(drop).map_err(|e| e.to_string())
    }

    async fn capacity(&self) -> Result<Capacity> {
        let (total, free) = host::disk(&self.data)?;
        let reserve = u64::try_from(self.config.memory_reserve_mb).unwrap_or_default();
        Ok(Capacity {
            vcpu: scaled(host::cores(), self.config.cpu_overcommit),
            memory_mb: scaled(host::memory_mb().saturating_sub(reserve), self.config.memory_overcommit),
            disk_gb: scaled(total / GIB, self.config.disk_overcommit),
            disk_free: free >= gib(self.config.disk_reserve_gb),
        })
    }

    fn ssh_port(&self) -> u16 {
        self.ssh_port
    }

    async fn address_free(&self, address: Ipv4Addr) -> bool {
        TcpListener::bind((address, self.ssh_port)).is_ok()
    }

    fn host_boot(&self) -> String {
        host::boot_id()
    }

    async fn make_disk(&self, spec: &DiskSpec) -> Result<()> {
        std::fs::create_dir_all(self.disks()).map_err(transient)?;
        let size = gib(spec.size_gb);
        match &spec.source {
            DiskSource::Image(image) => self.clone_root(spec, image).await,
            DiskSource::Empty => Ok(disk::create_block(&self.disk_file(spec.id, false), size).await?),
            DiskSource::Filesystem(name) => {
                Ok(disk::create_filesystem(&self.disk_file(spec.id, false), size, name).await?)
            }
        }
    }

    async fn remove_disk(&self, id: DiskId) -> Result<()> {
        for file in [self.disk_file(id, true), self.disk_file(id, false), self.base_note(id)] {
            disk::remove(&file).await?;
        }
        Ok(())
    }

    async fn observe(&self, id: VmId) -> Result<Machine> {
        let seen = machine::observe(&self.machine(id), id.0).await;
        if seen != Observed::Absent {
            self.attend(id);
        }
        Ok(match seen {
            Observed::Absent => Machine::Absent,
            Observed::Running => Machine::Running,
            Observed::Paused => Machine::Paused,
            Observed::PoweredOff => Machine::PoweredOff,
            Observed::Panicked => Machine::Panicked,
            Observed::Unresponsive => Machine::Unresponsive,
        })
    }

    async fn guest_ready(&self, id: VmId) -> bool {
        machine::is_ready(&self.machine(id), id.0)
    }

    async fn start(&self, spec: &MachineSpec) -> Result<Started> {
        let (open, refused_ports) = self.sort_ports(spec);
        let dir = self.machine(spec.id);
        std::fs::create_dir_all(&dir).map_err(transient)?;
        let machine = self.qemu_spec(spec, &open).await?;
        if machine::find(&dir, spec.id.0).is_none() {
            let foreign = !matches!(machine.boot, machine::Boot::Kernel { .. });
            write_seed(spec, &machine.seed, foreign)?;
        }
        machine::start(&machine).await?;
        self.attend(spec.id);
        Ok(Started { refused_ports })
    }

    async fn resume(&self, id: VmId) -> Result<()> {
        Ok(machine::resume(&self.machine(id)).await?)
    }

    async fn press_power(&self, id: VmId) -> Result<()> {
        Ok(machine::press_power(&self.machine(id)).await?)
    }

    async fn power_off(&self, id: VmId) -> Result<()> {
        Ok(machine::end(&self.machine(id), id.0).await?)
    }

    async fn discard(&self, id: VmId) -> Result<()> {
        match tokio::fs::remove_dir_all(self.machine(id)).await {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(transient(e)),
            _ => Ok(()),
        }
    }

    async fn set_ports(&self, spec: &MachineSpec, before: &[ExposedPort]) -> Result<Started> {
        let (open, refused_ports) = self.sort_ports(spec);
        let add: Vec<_> = open.iter().filter(|p| !before.contains(p)).map(|p| forward(spec.address, *p)).collect();
        let gone: Vec<_> = before.iter().filter(|p| !open.contains(p)).map(|p| forward(spec.address, *p)).collect();
        // What is to be added is removed first: an earlier try may have come half way.
        let remove: Vec<_> = gone.into_iter().chain(add.iter().copied()).collect();
        machine::set_forwards(&self.machine(spec.id), &add, &remove).await?;
        Ok(Started { refused_ports })
    }

    async fn console_log(&self, id: VmId, bytes: usize) -> Result<Vec<u8>> {
        Ok(machine::console_tail(&self.machine(id), bytes)?)
    }

    async fn console(&self, id: VmId) -> Result<Box<dyn Console>> {
        Ok(Box::new(machine::console_connect(&self.machine(id)).await?))
    }

    async fn usage(&self, id: VmId) -> Option<Usage> {
        let usage = machine::usage(&self.machine(id), id.0)?;
        Some(Usage { cpu_seconds: usage.cpu_seconds, memory_bytes: usage.rss_bytes })
    }

    async fn images(&self) -> Result<Vec<ImageInfo>> {
        Ok(image::list(&self.images_dir()).into_iter().map(|(_, manifest)| info(manifest)).collect())
    }

    async fn image(&self, id: &str) -> Result<Option<ImageInfo>> {
        let dir = self.images_dir().join(id);
        let Ok(manifest) = Manifest::load(&dir) else { return Ok(None) };
        let whole = manifest.id == id && self.integrity.check(&dir, &manifest).await.is_ok();
        Ok(whole.then(|| info(manifest)))
    }

    async fn staging(&self) -> Result<PathBuf> {
        let dir = self.data.join("staging");
        tokio::fs::create_dir_all(&dir).await.map_err(transient)?;
        Ok(dir)
    }

    async fn import_image(&self, file: &Path, import: &ImageImport) -> Result<ImageInfo> {
        let import = image::Import {
            id: import.id.clone(),
            name: import.name.clone(),
            login_user: import.login_user.clone(),
            sha256: import.sha256.clone(),
            uefi: import.uefi,
        };
        tokio::fs::create_dir_all(self.images_dir()).await.map_err(transient)?;
        Ok(info(image::import(file, &self.images_dir(), &import).await?))
    }

    async fn remove_image(&self, id: &str) -> Result<()> {
        match tokio::fs::remove_dir_all(self.images_dir().join(id)).await {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(transient(e)),
            _ => Ok(()),
        }
    }

    async fn scan(&self) -> Result<Found> {
        self.forget_bases();
        let machines = machine::scan(&self.data.join("machines"));
        let disks: HashSet<DiskId> = std::fs::read_dir(self.disks())
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.split('.').next()?.parse().ok())
            .collect();
        Ok(Found {
            machines: machines.into_iter().map(|found| VmId(found.id)).collect(),
            disks: disks.into_iter().collect(),
        })
    }

    async fn tidy(&self) {
        for found in machine::scan(&self.data.join("machines")) {
            if let Err(error) = machine::bound_logs(&found.dir) {
                tracing::debug!(%error, "a machine's logs cannot be bounded now");
            }
        }
    }

    fn watch(&self) -> broadcast::Receiver<VmId> {
        self.happenings.subscribe()
    }
}
