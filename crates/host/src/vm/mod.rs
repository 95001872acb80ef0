//! What runs machines, behind a trait: QEMU on this machine today, a cluster beside it tomorrow.
//!
//! An engine is told, it does not decide. Every call may be repeated after a crash, and names things by
//! the ids of their rows, so that a scan of the host finds what no row owns.

mod integrity;
pub mod qemu;

use std::net::Ipv4Addr;
use std::path::Path;

use async_trait::async_trait;
use berth_domain::ids::{DiskId, MachineId};
use berth_domain::vm::image::Import;
use berth_domain::vm::plan::Machine;
use berth_domain::vm::{ExposedPort, Protocol};
use tokio::sync::broadcast;

use crate::Result;

/// What a host has to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Virtual CPUs.
    pub vcpu: i64,
    /// Memory, in MiB.
    pub memory_mb: i64,
    /// Disk, in GiB, counted by the size disks have for their guests.
    pub disk_gb: i64,
    /// Whether there is room for one more disk at this moment.
    pub disk_free: bool,
}

/// A disk to be made.
#[derive(Clone, Debug)]
pub struct DiskSpec {
    /// Its id: what it is called on the host.
    pub id: DiskId,
    /// Where its content comes from.
    pub source: DiskSource,
    /// Its size, in GiB.
    pub size_gb: i64,
}

/// Where a disk's content comes from.
#[derive(Clone, Debug)]
pub enum DiskSource {
    /// A clone of an image.
    Image(String),
    /// Empty.
    Empty,
    /// A file system with this name.
    Filesystem(String),
}

/// A machine to be started.
#[derive(Clone, Debug)]
pub struct MachineSpec {
    /// Its id: what it is called on the host.
    pub id: MachineId,
    /// Host name of the guest.
    pub name: String,
    /// Virtual CPUs.
    pub vcpu: i64,
    /// Memory, in MiB.
    pub memory_mb: i64,
    /// The image its root disk was cloned from: kernel, firmware, login user.
    pub image_id: String,
    /// Its root disk.
    pub root_disk: DiskId,
    /// Its data disks in order.
    pub data_disks: Vec<DataDisk>,
    /// Keys of the login user.
    pub ssh_keys: Vec<String>,
    /// What cloud-init gets.
    pub user_data: Option<String>,
    /// Its own address.
    pub address: Ipv4Addr,
    /// Where SSH answers on that address.
    pub ssh_port: u16,
    /// Inbound ports.
    pub ports: Vec<ExposedPort>,
}

impl MachineSpec {
    /// The port of the host at which SSH answers, as one of the inbound ports.
    pub const fn ssh(&self) -> ExposedPort {
        ssh_at(self.ssh_port)
    }
}

/// A port at which SSH answers, as one of the inbound ports.
pub const fn ssh_at(port: u16) -> ExposedPort {
    ExposedPort { port, protocol: Protocol::Tcp }
}

/// A data disk of a machine.
#[derive(Clone, Debug)]
pub struct DataDisk {
    /// Its id.
    pub id: DiskId,
    /// Where its file system is mounted; none for a raw disk.
    pub mount: Option<String>,
}

/// What a started machine is reachable by.
#[derive(Clone, Debug, Default)]
pub struct Started {
    /// Exposed ports that this host does not let the service bind, because they are below 1024.
    pub low_ports: Vec<ExposedPort>,
    /// Exposed ports that another program of the host has.
    pub taken_ports: Vec<ExposedPort>,
}

/// The inbound ports a running machine has, SSH's among them.
#[derive(Clone, Debug)]
pub enum Open {
    /// These, and no others.
    All(Vec<ExposedPort>),
    /// Perhaps some of these, and no others: a change of them was not recorded.
    Some(Vec<ExposedPort>),
}

impl Open {
    /// What is to be shut and what is to be opened, so that these are open and no others. Where it is not certain what
    /// is open, everything is opened anew.
    pub fn until(&self, wanted: &[ExposedPort]) -> (Vec<ExposedPort>, Vec<ExposedPort>) {
        let (Self::All(before) | Self::Some(before)) = self;
        let is_open = |port: &&ExposedPort| matches!(self, Self::All(_)) && before.contains(port);
        let shut = before.iter().filter(|port| !wanted.contains(port)).copied().collect();
        (shut, wanted.iter().filter(|port| !is_open(port)).copied().collect())
    }
}

/// What the host has of us.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Machines, running or only their folders.
    pub machines: Vec<MachineId>,
    /// Disks.
    pub disks: Vec<DiskId>,
}

/// How much a machine uses, as counters since its start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Seconds of CPU.
    pub cpu_seconds: f64,
    /// Resident memory, in bytes.
    pub memory_bytes: u64,
}

/// An image as the engine has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageInfo {
    /// Its id.
    pub id: String,
    /// Name for people.
    pub name: String,
    /// Operating system.
    pub os: String,
    /// Content hash of what it was made from.
    pub version: String,
    /// The user that SSH keys are installed for.
    pub login_user: String,
    /// Size its disk has for a guest, in bytes.
    pub virtual_size: i64,
    /// Least memory it boots with, in MiB.
    pub min_memory_mb: i64,
}

/// A foreign image to take in.
#[derive(Clone, Debug)]
pub struct ImageImport {
    /// The id it gets.
    pub id: String,
    /// Name for people.
    pub name: String,
    /// The user that SSH keys are installed for.
    pub login_user: String,
    /// What its content has to hash to, in hexadecimal.
    pub sha256: Option<String>,
    /// Whether it boots by UEFI rather than BIOS.
    pub uefi: bool,
}

impl From<&Import> for ImageImport {
    fn from(import: &Import) -> Self {
        Self {
            id: import.id.clone(),
            name: import.name.clone(),
            login_user: import.login_user.clone(),
            sha256: import.sha256.clone(),
            uefi: import.uefi,
        }
    }
}

/// A stream of bytes to a serial console.
pub trait Console: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin {}
impl<T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin> Console for T {}

/// What runs machines.
#[async_trait]
pub trait Engine: Send + Sync + 'static {
    /// Whether it can work; the sentence says what is missing.
    fn ready(&self) -> std::result::Result<(), String>;

    /// What it has to give in total.
    async fn capacity(&self) -> Result<Capacity>;

    /// The port on which a machine's SSH can answer here: 22 where it may be bound.
    fn ssh_port(&self) -> u16;

    /// Whether nobody else on this host answers on an address.
    async fn address_free(&self, address: Ipv4Addr) -> bool;

    /// Identifies the host's present boot.
    fn host_boot(&self) -> String;

    /// Makes a disk, whole or not at all.
    async fn make_disk(&self, disk: &DiskSpec) -> Result<()>;

    /// Removes a disk; fine where there is none.
    async fn remove_disk(&self, id: DiskId) -> Result<()>;

    /// Moves the files of a disk into a folder; fine where there are none.
    async fn set_aside_disk(&self, id: DiskId, into: &Path) -> Result<()>;

    /// Looks at a machine.
    async fn observe(&self, id: MachineId) -> Result<Machine>;

    /// Whether the guest of the present boot said that it finished booting.
    async fn guest_ready(&self, id: MachineId) -> bool;

    /// Whether somebody carries the network of a running machine; if not, [`Engine::set_ports`] has it carried again.
    async fn has_network(&self, id: MachineId) -> bool;

    /// Starts a machine; none if it runs already, with whatever ports an earlier start gave it.
    async fn start(&self, spec: &MachineSpec) -> Result<Option<Started>>;

    /// Lets a paused machine go on.
    async fn resume(&self, id: MachineId) -> Result<()>;

    /// Presses the power button.
    async fn press_power(&self, id: MachineId) -> Result<()>;

    /// Ends a machine's process; fine where there is none.
    async fn power_off(&self, id: MachineId) -> Result<()>;

    /// Removes everything a machine left on the host, but for its disks.
    async fn discard(&self, id: MachineId) -> Result<()>;

    /// Changes the inbound ports of a running machine.
    async fn set_ports(&self, spec: &MachineSpec, before: Open) -> Result<Started>;

    /// The last bytes a machine wrote to its console.
    async fn console_log(&self, id: MachineId, bytes: usize) -> Result<Vec<u8>>;

    /// A connection to the serial console of a running machine.
    async fn console(&self, id: MachineId) -> Result<Box<dyn Console>>;

    /// What a running machine uses.
    async fn usage(&self, id: MachineId) -> Option<Usage>;

    /// The images at hand, by what they say of themselves.
    async fn images(&self) -> Result<Vec<ImageInfo>>;

    /// An image, if it is at hand and whole.
    async fn image(&self, id: &str) -> Result<Option<ImageInfo>>;

    /// Where a file can be put that is about to be imported.
    async fn staging(&self) -> Result<std::path::PathBuf>;

    /// Takes in a foreign image, qcow2 or raw; nothing in it is executed.
    async fn import_image(&self, file: &std::path::Path, import: &ImageImport) -> Result<ImageInfo>;

    /// Removes an image; fine where there is none.
    async fn remove_image(&self, id: &str) -> Result<()>;

    /// What the host has of us.
    async fn scan(&self) -> Result<Found>;

    /// Keeps logs within their bounds; called every few seconds.
    async fn tidy(&self);

    /// Machines that something happened to.
    fn watch(&self) -> broadcast::Receiver<MachineId>;
}
