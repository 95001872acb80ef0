//! What runs sandboxes, behind a trait: QEMU on this machine today, a cluster beside it tomorrow.
//!
//! An engine is told, it does not decide. Every call may be repeated after a crash, and names things by
//! the ids of their rows, so that a scan of the host finds what no row owns.

pub mod agent;
pub mod build;
pub mod qemu;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use berth_domain::Timestamp;
use berth_domain::ids::{LayerId, MachineId, MemoryId, TemplateId, UploadId};
use berth_domain::sandbox::dockerfile::{Dockerfile, ImageConfig};
use berth_domain::sandbox::network::Network;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

pub use berth_domain::sandbox::plan::Machine as Observed;

use agent::Connection;
use build::Log;

use crate::{EngineError, Result};

/// What a host has to give to sandboxes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Memory, in MiB.
    pub memory_mb: i64,
    /// Bytes that are free on its disk at this moment, but for those that are kept back: the database lies there, too.
    pub disk_bytes: i64,
}

/// Why nothing new is begun on a host whose disk is full.
pub const DISK_FULL: &str =
    "the host's disk is almost full; delete snapshots, templates or sandboxes, or tell its operator";

impl Capacity {
    /// Whether there is room for one more layer and so many MiB.
    pub fn has_room(&self, mib: i64) -> bool {
        self.disk_bytes > mib.saturating_mul(1 << 20)
    }
}

/// A template that the platform brings along.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlatformTemplate {
    /// Its name, such as `base`.
    pub name: String,
    /// What it was made from: another one needs another layer.
    pub version: String,
    /// Virtual CPUs of its sandboxes.
    pub vcpu: i64,
    /// Memory of its sandboxes, in MiB.
    pub memory_mb: i64,
    /// Size of its disk, in GiB.
    pub disk_gb: i64,
    /// Who its commands run as.
    pub user: String,
}

/// What a machine begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// Its disk alone.
    Disk,
    /// A captured memory that fits its disk.
    Memory(MemoryId),
}

/// A machine to start.
#[derive(Clone, Debug)]
pub struct StartSpec {
    /// Its id: what it is called on the host.
    pub id: MachineId,
    /// What its guest is told that it is: the id of what owns the machine.
    pub guest: String,
    /// Counts its starts.
    pub generation: i64,
    /// A small number that no other machine of the host has: its user there.
    pub slot: i64,
    /// Host name of the guest.
    pub hostname: String,
    /// Virtual CPUs.
    pub vcpu: i64,
    /// Memory, in MiB.
    pub memory_mb: i64,
    /// Its disk, the top layer first.
    pub layers: Vec<LayerId>,
    /// What it begins with.
    pub from: From,
    /// Whether it becomes somebody else: after a fork, a restore, a creation. Else it keeps its machine-id.
    pub fresh: bool,
    /// Environment of every command.
    pub env: BTreeMap<String, String>,
    /// Who commands run as.
    pub user: String,
    /// The workspace, if it is not the user's home.
    pub workdir: Option<String>,
    /// What it may reach.
    pub network: Network,
}

/// How a start went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Started {
    /// Whether its processes go on where they were captured.
    pub from_memory: bool,
    /// Whether the memory that it was to begin with cannot be loaded, though it never ran on this disk: not for others
    /// either, then.
    pub unloadable: bool,
    /// What its owner should know.
    pub note: Option<String>,
}

/// A cut: the top layer stays as it is from now on, and the sandbox goes on in a new one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Whose disk.
    pub machine: MachineId,
    /// Its top layer.
    pub top: LayerId,
    /// The new top layer.
    pub next: LayerId,
    /// Where its memory goes, if it is wanted.
    pub memory: Option<MemoryId>,
}

/// How a cut went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CutDone {
    /// What the frozen layer takes on the host, in bytes.
    pub disk_bytes: i64,
    /// What the memory takes, in bytes, if it was captured.
    pub memory_bytes: Option<i64>,
}

/// How a pause went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Paused {
    /// What the kept memory takes, in bytes; none where it was not wanted or could not be kept.
    pub memory_bytes: Option<i64>,
}

/// A template that is to be kept in memory: booted once, its start command run.
#[derive(Clone, Debug)]
pub struct Warming {
    /// The machine that does it. Its disk's top layer becomes the template's.
    pub machine: StartSpec,
    /// Where the memory goes.
    pub memory: MemoryId,
    /// What its sandboxes find running.
    pub start_command: Option<String>,
    /// What succeeds when that is ready.
    pub ready_command: Option<String>,
    /// How long it may take from its boot until that is so.
    pub patience: Duration,
}

/// A template to be built from an image or a Dockerfile.
#[derive(Clone, Debug)]
pub struct Build {
    /// What its folder is called on the host.
    pub id: TemplateId,
    /// Host name of its machines.
    pub hostname: String,
    /// Virtual CPUs of its machines.
    pub vcpu: i64,
    /// Memory of its machines, in MiB.
    pub memory_mb: i64,
    /// The machines that it may have: as many at a time.
    pub machines: Vec<Stage>,
    /// What to do.
    pub dockerfile: Dockerfile,
    /// What the images in it mean; one that is not here is a registry's.
    pub images: BTreeMap<String, Named>,
    /// The files that were sent with it.
    pub context: Option<UploadId>,
    /// The layer that it becomes.
    pub layer: LayerId,
    /// Size of its disk, in GiB. It is as large as its beginning at least.
    pub disk_gb: i64,
    /// How long it may take.
    pub patience: Duration,
    /// Where it is told what is done.
    pub log: Log,
    /// Calls it off.
    pub cancel: CancellationToken,
}

/// A machine that builds stages, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage {
    /// The machine.
    pub machine: MachineId,
    /// A small number that no other machine of the host has: its user there.
    pub slot: i64,
}

/// What an image in a Dockerfile means.
#[derive(Clone, Debug)]
pub enum Named {
    /// A template.
    Template {
        /// Its disk, the top layer first.
        layers: Vec<LayerId>,
        /// What it says about its programs.
        config: ImageConfig,
        /// Who commands of its sandboxes run as.
        user: String,
    },
    /// An archive that was sent.
    Upload(UploadId),
}

/// What a build came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Built {
    /// Environment of the image.
    pub env: BTreeMap<String, String>,
    /// Who its commands run as.
    pub user: String,
    /// Its working directory.
    pub workdir: Option<String>,
    /// What it runs when nobody says otherwise.
    pub start_command: Option<String>,
    /// What the layer lies on.
    pub parent: Option<LayerId>,
    /// Size of its disk, in GiB.
    pub disk_gb: i64,
}

/// How a sandbox is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// Requests, streams and terminals that are open.
    pub open: u32,
    /// Commands and processes that run; none where that is not known yet, and is being asked.
    pub running: Option<u32>,
    /// When the last request began or ended; none since this service began.
    pub last_used: Option<Timestamp>,
}

/// What a sandbox uses: counters since its start, the rest as it is now.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// Seconds of CPU.
    pub cpu_seconds: f64,
    /// Memory in use, in bytes.
    pub memory_bytes: i64,
    /// Disk in use, in bytes.
    pub disk_bytes: i64,
    /// Bytes received.
    pub rx_bytes: i64,
    /// Bytes sent.
    pub tx_bytes: i64,
    /// Processes of its users.
    pub processes: i64,
}

/// What the host keeps of sandboxes beside their machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// A layer.
    Layer(LayerId),
    /// A memory.
    Memory(MemoryId),
    /// An upload.
    Upload(UploadId),
}

impl Kept {
    /// The folder of what of its kind was set aside.
    pub const fn folder(self) -> &'static str {
        match self {
            Self::Layer(_) => "layers",
            Self::Memory(_) => "memories",
            Self::Upload(_) => "uploads",
        }
    }
}

/// What the host has of sandboxes.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Machines, running or only their folders.
    pub machines: Vec<MachineId>,
    /// Templates of which there is a build, running or only its folder.
    pub builds: Vec<TemplateId>,
    /// Layers.
    pub layers: Vec<LayerId>,
    /// Memories.
    pub memories: Vec<MemoryId>,
    /// Uploads.
    pub uploads: Vec<UploadId>,
}

/// What runs sandboxes.
#[async_trait]
pub trait SandboxEngine: Send + Sync + 'static {
    /// Whether it can work; the sentence says what is missing.
    fn ready(&self) -> std::result::Result<(), String>;

    /// What it has to give in total.
    async fn capacity(&self) -> Result<Capacity>;

    /// Identifies the host's present boot.
    async fn host_boot(&self) -> String;

    /// The templates that the platform brings along.
    async fn templates(&self) -> Result<Vec<PlatformTemplate>>;

    /// Makes a layer of a platform template's disk. Repeatable.
    async fn adopt_template(&self, name: &str, layer: LayerId) -> Result<()>;

    /// Makes an empty layer on another one. Repeatable.
    async fn make_layer(&self, id: LayerId, parent: LayerId) -> Result<()>;

    /// Removes a layer; fine where there is none.
    async fn remove_layer(&self, id: LayerId) -> Result<()>;

    /// What a layer takes on the host, in bytes.
    async fn layer_bytes(&self, id: LayerId) -> Result<i64>;

    /// Removes a memory; fine where there is none.
    async fn remove_memory(&self, id: MemoryId) -> Result<()>;

    /// Moves a layer, a memory or an upload into a folder; fine where there is none.
    async fn set_aside(&self, kept: Kept, into: &Path) -> Result<()>;

    /// Looks at a machine.
    async fn observe(&self, id: MachineId) -> Result<Observed>;

    /// Starts a machine, or finds that it runs already; returns when its agent has its identity. A memory is
    /// loaded onto a disk at most once, and never one that does not fit: then it starts from its disk.
    async fn start(&self, spec: &StartSpec) -> Result<Started>;

    /// Cuts the disk of a running machine, which goes on. A cut that was made already is found made. After a
    /// permanent error the machine writes to the old top, and will not go over to the new one.
    async fn cut(&self, cut: &Cut) -> Result<CutDone>;

    /// Cuts the disk of a sandbox without a machine. A new layer that is there already is left as it is: the
    /// machine had gone on in it before it ended. A memory is part of the answer only if it was captured then.
    async fn cut_cold(&self, cut: &Cut) -> Result<CutDone>;

    /// Ends a machine in good order, its disk consistent, and keeps its memory if it is wanted. Without a machine
    /// it answers what was kept before.
    async fn pause(&self, id: MachineId, memory: Option<MemoryId>) -> Result<Paused>;

    /// Ends a machine's process; fine where there is none. Afterwards none is missed: it is absent.
    async fn end(&self, id: MachineId) -> Result<()>;

    /// Removes everything a machine left on the host, but for its layers and memories.
    async fn discard(&self, id: MachineId) -> Result<()>;

    /// Changes what a running machine may reach.
    async fn set_network(&self, id: MachineId, network: &Network) -> Result<()>;

    /// Where an upload is received; its folder is there.
    async fn upload(&self, id: UploadId) -> Result<PathBuf>;

    /// Removes an upload; fine where there is none.
    async fn remove_upload(&self, id: UploadId) -> Result<()>;

    /// Ends what is left of a template's build, and removes it; fine where there is none.
    async fn clear_build(&self, id: TemplateId) -> Result<()>;

    /// Builds the disk of a template. What an earlier, interrupted build left is thrown away.
    async fn build_template(&self, build: &Build) -> Result<Built>;

    /// Boots a template once and keeps its memory; answers what that takes, in bytes. The machine is gone
    /// afterwards. Whoever drops the call ends the machine.
    async fn warm_template(&self, warming: &Warming) -> Result<i64>;

    /// Reaches a running machine's agent, for what its users ask of it.
    async fn connect(&self, id: MachineId) -> Result<Connection>;

    /// How a sandbox is used, as far as is known: a guest that says nothing keeps nobody waiting. Where more has to be
    /// asked, that is begun, and [`Self::watch`] tells when it is known. One that does not answer runs nothing.
    fn activity(&self, id: MachineId) -> Activity;

    /// What a sandbox uses, if it runs.
    async fn sample(&self, id: MachineId) -> Option<Sample>;

    /// Machines since the service began that run without the limits that this host could set.
    fn unlimited(&self) -> u64 {
        0
    }

    /// What the host has of sandboxes.
    async fn scan(&self) -> Result<Found>;

    /// How many machines it keeps at most that nobody owns yet.
    fn most_warm(&self) -> usize {
        0
    }

    /// Starts a machine that nobody owns yet with the memory that it is to begin with, and has it do once what is slow the
    /// first time, while nobody else needs the host. [`Self::start`] makes it somebody's.
    async fn warm_up(&self, spec: &StartSpec) -> Result<()> {
        Err(EngineError::Permanent(format!("{} cannot be started ahead of its owner", spec.id)))
    }

    /// Whether a machine that was started by [`Self::warm_up`] still runs, and nobody's.
    async fn is_warm(&self, id: MachineId) -> Result<bool> {
        let _ = id;
        Ok(false)
    }

    /// What it does of its own accord, until told to stop.
    async fn tend(&self, stop: CancellationToken) {
        stop.cancelled().await;
    }

    /// Sandboxes that something happened to.
    fn watch(&self) -> broadcast::Receiver<MachineId>;
}
