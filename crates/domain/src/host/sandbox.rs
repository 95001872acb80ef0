//! Machines of sandboxes and what they are made of, as a host is told of them and tells of them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Aim;
use super::gpu::Device;
use super::network::Membership;
use crate::Timestamp;
use crate::ids::{LayerId, MachineId, MemoryId, TemplateId, UploadId};
use crate::sandbox::network_policy::NetworkPolicy;

/// What a machine begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum From {
    /// Its disk alone.
    Disk,
    /// A captured memory that fits its disk.
    Memory(MemoryId),
}

/// A machine to start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    pub network: NetworkPolicy,
    /// The networks of its project that it belongs to, and reaches whatever else it may.
    pub networks: Vec<Membership>,
    /// What it has for itself of the host's GPUs. One that has any boots, whatever it is to begin with.
    #[serde(default)]
    pub gpus: Vec<Device>,
    /// What it runs while it is nobody's, though programs of its template run in it. Without, those stand still until it is
    /// somebody's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rehearsal: Option<String>,
}

impl StartSpec {
    /// The machine as what is decided about it.
    pub const fn aim(&self) -> Aim {
        Aim::of(self.id, self.generation)
    }
}

/// How a start went.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    /// Whether its processes go on where they were captured.
    pub from_memory: bool,
    /// Whether the memory that it was to begin with cannot be loaded, though it never ran on this disk: not for others
    /// either, then.
    pub unloadable: bool,
    /// What its owner should know.
    pub note: Option<String>,
}

/// A checkpoint: the top layer stays as it is from now on, and the sandbox goes on in a new one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Whose disk.
    pub machine: MachineId,
    /// How many starts of that its row counts.
    pub generation: i64,
    /// Its top layer.
    pub top: LayerId,
    /// The new top layer.
    pub next: LayerId,
    /// Where its memory goes, if it is wanted.
    pub memory: Option<MemoryId>,
}

impl Checkpoint {
    /// The machine as what is decided about it.
    pub const fn aim(&self) -> Aim {
        Aim::of(self.machine, self.generation)
    }
}

/// How a checkpoint went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointDone {
    /// What the frozen layer takes on the host, in bytes.
    pub disk_bytes: i64,
    /// What the memory takes, in bytes, if it was captured.
    pub memory_bytes: Option<i64>,
}

/// How a pause went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paused {
    /// What the kept memory takes, in bytes; none where it was not wanted or could not be kept.
    pub memory_bytes: Option<i64>,
}

/// How a sandbox is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activity {
    /// Requests, streams and terminals that are open.
    pub open: u32,
    /// Commands and processes that run; none where that is not known yet, and is being asked.
    pub running: Option<u32>,
    /// When the last request began or ended; none since this service began.
    pub last_used: Option<Timestamp>,
}

/// What a sandbox uses: counters since its start, the rest as it is now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
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

/// What a host has to give to sandboxes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capacity {
    /// Memory, in MiB.
    pub memory_mb: i64,
    /// Bytes that are free on its disk at this moment, but for those that are kept back: the database lies there, too.
    pub disk_bytes: i64,
    /// Whether it has what machines of sandboxes boot.
    pub has_guest: bool,
}

impl Capacity {
    /// Whether there is room for one more layer and so many MiB.
    pub fn has_room(&self, mib: i64) -> bool {
        self.disk_bytes > mib.saturating_mul(1 << 20)
    }
}

/// Why nothing new is begun on a host whose disk is full.
pub const DISK_FULL: &str =
    "the host's disk is almost full; delete snapshots, templates or sandboxes, or tell its operator";

/// What the host keeps of sandboxes beside their machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
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
