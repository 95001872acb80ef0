//! Machines of VMs, as a host is told of them and tells of them.

use core::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use super::Aim;
use super::gpu::Device;
use super::network::Membership;
use super::shared_disk::Store;
use crate::firewall::Rules;
use crate::ids::{DiskId, DiskSnapshotId, ImageId, MachineId};
use crate::vm::{ExposedPort, InboundPort};

/// A machine to be started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MachineSpec {
    /// Its id: what it is called on the host.
    pub id: MachineId,
    /// Counts its starts.
    pub generation: i64,
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
    /// How many data disks it may have while it runs.
    pub disk_places: usize,
    /// Keys of the login user.
    pub ssh_keys: Vec<String>,
    /// What cloud-init gets.
    pub user_data: Option<String>,
    /// Its own address.
    pub address: Ipv4Addr,
    /// Its place on the host: a small number, from 1, that no other machine of it has.
    #[serde(default)]
    pub slot: i64,
    /// Whether the host's bridge is to carry its network from its next boot on, instead of a program beside it.
    #[serde(default)]
    pub is_bridged: bool,
    /// Inbound ports, SSH's among them.
    pub ports: Vec<InboundPort>,
    /// The networks of its project that it belongs to.
    pub networks: Vec<Membership>,
    /// Its firewall rules.
    #[serde(default)]
    pub rules: Rules,
    /// Whether it goes on with the memory that it was suspended with.
    #[serde(default)]
    pub goes_on: bool,
    /// What it has for itself of the host's GPUs: functions, with what goes with them, and parts.
    #[serde(default)]
    pub gpus: Vec<Device>,
    /// The image whose system it boots instead of its own, to be repaired from there: on a disk that goes with it, beside
    /// which it has its root disk and its data disks, and with nothing of its user data.
    #[serde(default)]
    pub rescue: Option<String>,
    /// Where all its disks lie; files of the host, if nowhere else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<Store>,
}

impl MachineSpec {
    /// The machine as what is decided about it.
    pub const fn aim(&self) -> Aim {
        Aim::of(self.id, self.generation)
    }

    /// Whether others reach it: at an address that VMs share, or at one of its own that is not its host's alone.
    pub fn is_reached_by_others(&self) -> bool {
        self.ports.iter().any(|port| port.at.ip() != self.address)
    }
}

/// A data disk of a machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DataDisk {
    /// Its id.
    pub id: DiskId,
    /// Where its file system is mounted; none for a raw disk.
    pub mount: Option<String>,
}

/// SSH keys that a guest's agent is to give to a user.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GuestKeys {
    /// The user.
    pub user: String,
    /// The keys, each a line of `authorized_keys`.
    pub keys: Vec<String>,
    /// Those that it may have got before: what is not among `keys` goes.
    pub former: Vec<String>,
}

/// What a started machine is reachable by.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Started {
    /// Exposed ports that this host does not let the service bind, because they are below 1024.
    pub low_ports: Vec<ExposedPort>,
    /// Exposed ports that another program of the host has.
    pub taken_ports: Vec<ExposedPort>,
    /// Whether its firewall rules do not hold: an earlier Berth started it, and QEMU carries its network.
    #[serde(default)]
    pub is_without_rules: bool,
    /// Whether it is reached where it was, and not where it is to be: the bridge that it is on leads nothing there.
    #[serde(default)]
    pub is_reached_as_before: bool,
    /// Why it booted instead of going on with its memory.
    #[serde(default)]
    pub unloadable: Option<String>,
    /// Whether its guest takes SSH keys at its first boot alone, since its image was imported.
    #[serde(default)]
    pub takes_keys_once: bool,
    /// Why it booted instead of beginning with a captured boot.
    #[serde(default)]
    pub booted: Option<String>,
}

/// The inbound ports a running machine has, SSH's among them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Open {
    /// These, and no others.
    All(Vec<InboundPort>),
    /// Perhaps some of these, and no others: a change of them was not recorded.
    Some(Vec<InboundPort>),
}

impl Open {
    /// What is to be shut and what is to be opened, so that these are open and no others. Where it is not certain what
    /// is open, everything is opened anew.
    pub fn until(&self, wanted: &[InboundPort]) -> (Vec<InboundPort>, Vec<InboundPort>) {
        let (Self::All(before) | Self::Some(before)) = self;
        let is_open = |port: &&InboundPort| matches!(self, Self::All(_)) && before.contains(port);
        let shut = before.iter().filter(|port| !wanted.contains(port)).copied().collect();
        (shut, wanted.iter().filter(|port| !is_open(port)).copied().collect())
    }
}

/// How much a machine uses, as counters since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Seconds of CPU.
    pub cpu_seconds: f64,
    /// Resident memory, in bytes.
    pub memory_bytes: u64,
}

/// What a host has to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capacity {
    /// Virtual CPUs.
    pub vcpu: i64,
    /// Memory, in MiB.
    pub memory_mb: i64,
    /// Disk, in GiB, counted by the size disks have for their guests.
    pub disk_gb: i64,
    /// Whether there is room for one more disk at this moment.
    pub disk_free: bool,
    /// How many bytes can be written before what is kept back of the disk is touched.
    pub room_bytes: i64,
}

/// What the host has of us.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// Machines, running or only their folders.
    pub machines: Vec<MachineId>,
    /// Disks.
    pub disks: Vec<DiskId>,
    /// Snapshots of disks.
    #[serde(default)]
    pub snapshots: Vec<DiskSnapshotId>,
    /// Images of projects.
    #[serde(default)]
    pub images: Vec<ImageId>,
}
