//! What runs sandboxes, behind a trait: QEMU on this machine today, a cluster beside it tomorrow.
//!
//! An engine is told, it does not decide. What was decided for an older generation of a machine than it has acted on is
//! refused ([`Aim`]). Every call may be repeated after a crash, and names things by
//! the ids of their rows, so that a scan of the host finds what no row owns.

pub mod agent;
pub mod build;
pub mod qemu;
pub mod travel;

use std::path::{Path, PathBuf};

use async_trait::async_trait;
use berth_domain::ids::{LayerId, MachineId, MemoryId, TemplateId, UploadId};
use berth_domain::sandbox::network_policy::NetworkPolicy;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

pub use berth_domain::host::Aim;
pub use berth_domain::host::gpu::{Device, Gpu};
pub use berth_domain::host::guest::GuestArrival;
pub use berth_domain::host::image::ImageFile;
pub use berth_domain::host::sandbox::{
    Activity, Capacity, Checkpoint, CheckpointDone, DISK_FULL, Found, From, Kept, Paused, Sample, StartSpec, Started,
};
pub use berth_domain::host::template::{BuildSpec, Built, Named, PlatformTemplate, Stage, Warming};
pub use berth_domain::sandbox::plan::Machine as Observed;

use agent::Connection;
use build::Log;

use crate::vm::Content;
use crate::{EngineError, Result};

/// A build under way: what is built, and how its owner follows it and calls it off.
#[derive(Clone, Debug)]
pub struct Build {
    /// What to build.
    pub spec: BuildSpec,
    /// Where it is told what is done.
    pub log: Log,
    /// Calls it off.
    pub cancel: CancellationToken,
}

/// What runs sandboxes.
#[async_trait]
pub trait SandboxEngine: Send + Sync + 'static {
    /// Whether it can work; the sentence says what is missing.
    fn ready(&self) -> std::result::Result<(), String>;

    /// What it has to give in total.
    async fn capacity(&self) -> Result<Capacity>;

    /// The GPUs of the host, whether a machine has them or not, and why some cannot be handed out.
    async fn gpus(&self) -> Result<Vec<Gpu>>;

    /// Identifies the host's present boot.
    fn host_boot(&self) -> String;

    /// What its machines boot: the SHA-256 of the guest's manifest; none where it has none that is whole.
    async fn guest(&self) -> Result<Option<String>>;

    /// What a guest consists of, if it is whole and still the one that machines boot.
    async fn guest_files(&self, version: &str) -> Result<Vec<ImageFile>>;

    /// Opens a file of that guest, one of [`SandboxEngine::guest_files`]. Whoever reads fewer bytes than it has knows that it
    /// broke off.
    async fn guest_file(&self, version: &str, file: &ImageFile) -> Result<Box<dyn Content>>;

    /// Makes room for a guest that comes from another host. What came in an earlier try goes, and who is at that is refused
    /// from then on.
    async fn expect_guest(&self, arrival: &GuestArrival) -> Result<()>;

    /// Takes a file of a guest that is expected, if all of it comes and hashes to what it is to. Nobody sees it yet. Bytes that
    /// do not come for half a minute are given up.
    async fn take_guest_file(&self, travel: Uuid, file: &ImageFile, content: Box<dyn Content>) -> Result<()>;

    /// Has machines that start from now on boot what came, whole or not at all; fine where they do already. Those that run keep
    /// what they booted.
    async fn adopt_guest(&self, arrival: &GuestArrival) -> Result<()>;

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

    /// The file of a layer to which nobody writes any more: its length, and what it hashes to.
    async fn layer_file(&self, id: LayerId) -> Result<ImageFile>;

    /// Opens the file of a layer ([`SandboxEngine::layer_file`]). Whoever reads fewer bytes than it has knows that it broke off.
    async fn read_layer(&self, id: LayerId, file: &ImageFile) -> Result<Box<dyn Content>>;

    /// Makes room for a layer that comes from another host; false where it is there already. What came in an earlier try goes,
    /// and who is at that is refused from then on.
    async fn expect_layer(&self, id: LayerId, file: &ImageFile) -> Result<bool>;

    /// Takes the file of a layer that is expected, whole or not at all: if all of it comes and hashes to what it is to. Bytes that
    /// do not come for half a minute are given up.
    async fn take_layer(&self, id: LayerId, file: &ImageFile, content: Box<dyn Content>) -> Result<()>;

    /// Removes a memory; fine where there is none.
    async fn remove_memory(&self, id: MemoryId) -> Result<()>;

    /// What is sent of a memory that goes to another host: its length, and what it hashes to.
    async fn memory_file(&self, id: MemoryId) -> Result<ImageFile>;

    /// Reads a memory as it is sent ([`SandboxEngine::memory_file`]). Whoever reads fewer bytes than it has knows that it broke
    /// off.
    async fn read_memory(&self, id: MemoryId, file: &ImageFile) -> Result<Box<dyn Content>>;

    /// Makes room for a memory that comes from another host; false where it is there already. What came in an earlier try goes,
    /// and who is at that is refused from then on.
    async fn expect_memory(&self, id: MemoryId, file: &ImageFile) -> Result<bool>;

    /// Takes a memory that is expected, whole or not at all, if its machines can load it: what was captured of another guest, by
    /// another QEMU or on another processor is refused for good.
    async fn take_memory(&self, id: MemoryId, file: &ImageFile, content: Box<dyn Content>) -> Result<()>;

    /// Moves a layer, a memory or an upload into a folder; fine where there is none.
    async fn set_aside(&self, kept: Kept, into: &Path) -> Result<()>;

    /// Looks at a machine.
    async fn observe(&self, id: MachineId) -> Result<Observed>;

    /// Starts a machine, or finds that it runs already; returns when its agent has its identity. A memory is
    /// loaded onto a disk at most once, and never one that does not fit: then it starts from its disk.
    async fn start(&self, spec: &StartSpec) -> Result<Started>;

    /// Checkpoints the disk of a running machine, which goes on. A checkpoint that was made already is found made.
    /// After a permanent error the machine writes to the old top, and will not go over to the new one.
    async fn checkpoint(&self, checkpoint: &Checkpoint) -> Result<CheckpointDone>;

    /// Checkpoints the disk of a sandbox without a machine. A new layer that is there already is left as it is: the
    /// machine had gone on in it before it ended. A memory is part of the answer only if it was captured then.
    async fn checkpoint_cold(&self, checkpoint: &Checkpoint) -> Result<CheckpointDone>;

    /// Ends a machine in good order, its disk consistent, and keeps its memory if it is wanted. Without a machine
    /// it answers what was kept before.
    async fn pause(&self, aim: Aim, memory: Option<MemoryId>) -> Result<Paused>;

    /// Ends a machine's process; fine where there is none. Afterwards none is missed: it is absent.
    async fn end(&self, aim: Aim) -> Result<()>;

    /// Removes everything a machine left on the host, but for its layers and memories.
    async fn discard(&self, aim: Aim) -> Result<()>;

    /// Changes what a running machine may reach.
    async fn set_network(&self, aim: Aim, network: &NetworkPolicy) -> Result<()>;

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

    /// Starts a machine that nobody owns yet with the memory that it is to begin with, and has it do once what is slow
    /// the first time, while nobody else needs the host. [`Self::start`] makes it somebody's.
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
