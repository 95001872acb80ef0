//! What is wished, and hosts as they stand.

use std::collections::{BTreeMap, BTreeSet};

use super::super::gpu::{Device, Gpu};
use super::super::model::State;
use crate::ids::HostId;

/// What a machine is counted as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A VM: of processors and memory that are offered to VMs.
    Vm,
    /// A sandbox, or a machine that works for a template: of memory that is offered to sandboxes.
    Sandbox,
}

/// Where machines go that several hosts could take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Where the largest share is free afterwards.
    #[default]
    Spread,
    /// Where the smallest share is free afterwards, so that others stay free for large machines.
    Pack,
}

/// What a machine is to have.
#[derive(Clone, Copy, Debug)]
pub struct Wish<'a> {
    /// What it is counted as.
    pub kind: Kind,
    /// Virtual CPUs.
    pub vcpu: i64,
    /// Memory, in MiB.
    pub memory_mb: i64,
    /// So many alike on one host, or as many as it has memory for; at least one.
    pub most: i64,
    /// GiB of its disks that are still to be made; none where nothing is.
    pub disk_gb: Option<i64>,
    /// GPUs.
    pub gpus: Option<WishedGpus<'a>>,
    /// The region that it is to be in.
    pub region: Option<&'a str>,
    /// Labels that its host is to have.
    pub labels: Option<&'a BTreeMap<String, String>>,
    /// What its host has to have of what it begins with.
    pub needs: AtHand,
    /// The host that has what it begins with, where that is on one already: a disk, a snapshot, its networks.
    pub tied: Option<HostId>,
    /// The host that it is on already, with its disk.
    pub on: Option<HostId>,
    /// The store that its disks lie in, where that is none of a host.
    pub store: Option<&'a str>,
}

/// Names of stores of disks, each with the sentence that says why a host does not reach it; none where it does. One that is not
/// among them the host was not asked about yet.
pub type Stores = BTreeMap<String, Option<String>>;

/// So many GPUs of a model.
#[derive(Clone, Copy, Debug)]
pub struct WishedGpus<'a> {
    /// Its id or name.
    pub model: &'a str,
    /// How many, at least one.
    pub count: usize,
}

/// A host as it stands.
#[derive(Clone, Debug)]
pub struct Host<'a> {
    /// Its id.
    pub id: HostId,
    /// Its name.
    pub name: &'a str,
    /// What becomes of its machines.
    pub state: State,
    /// Whether it said just now what it has.
    pub says: bool,
    /// Ids of the regions that it belongs to.
    pub regions: &'a [String],
    /// Its labels.
    pub labels: &'a BTreeMap<String, String>,
    /// Which stores of disks it reaches.
    pub stores: &'a Stores,
    /// Virtual CPUs that it offers to machines of the wished kind; none where they are not counted.
    pub vcpu: Option<i64>,
    /// MiB that it offers to machines of the wished kind, as often as each is promised.
    pub memory_mb: i64,
    /// How many sandboxes it takes at most; none where they are not counted.
    pub most_sandboxes: Option<i64>,
    /// How often each MiB is promised.
    pub overcommit: Overcommit,
    /// What is promised of it.
    pub promised: Promised,
    /// What there is of its disk.
    pub disk: Disk,
    /// Its GPUs.
    pub gpus: &'a [Gpu],
    /// Devices of them that machines have.
    pub held_gpus: &'a BTreeSet<Device>,
    /// What it lacks of addresses and ports, or of what the machine is like, as a sentence.
    pub lacks: Option<&'a str>,
    /// What it has of what the machine begins with.
    pub at_hand: AtHand,
}

/// How often each MiB of a host is promised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Overcommit {
    /// To VMs.
    pub vm: f64,
    /// To sandboxes and the machines that make their templates.
    pub sandbox: f64,
}

/// What machines of a kind hold of a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// How many there are.
    pub machines: i64,
    /// Virtual CPUs.
    pub vcpu: i64,
    /// Memory, in MiB.
    pub memory_mb: i64,
}

/// What machines hold of a host, by what owns them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Promised {
    /// Those of VMs.
    pub vms: Sum,
    /// Those of sandboxes.
    pub sandboxes: Sum,
    /// Those that work for templates.
    pub templates: Sum,
    /// Those that nobody owns yet, which give way.
    pub warm: Sum,
}

impl Promised {
    /// All of them together.
    pub fn total(self) -> Sum {
        [self.vms, self.sandboxes, self.templates, self.warm].into_iter().fold(Sum::default(), |all, one| Sum {
            machines: all.machines + one.machines,
            vcpu: all.vcpu + one.vcpu,
            memory_mb: all.memory_mb + one.memory_mb,
        })
    }
}

/// What there is of a host's disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    /// Whether it is almost full at this moment.
    pub is_full: bool,
    /// GiB that it offers, and GiB of those that have their places, where sizes are counted.
    pub sizes: Option<(i64, i64)>,
}

/// What a host has of what a machine begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AtHand {
    /// Nothing: it would have to be fetched.
    Nothing,
    /// Its image.
    Image,
    /// Its layers.
    Layers,
    /// A machine that runs already and waits for an owner.
    Warm,
}

/// Where there is room for machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// Beside all others.
    Beside,
    /// Only in the place of warm machines.
    Instead,
}
