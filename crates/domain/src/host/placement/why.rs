//! Why a host does not take a machine, for who asked for it and for who runs the platform.

use std::borrow::Cow;
use std::fmt;

use super::super::sandbox::DISK_FULL;
use super::wish::{Disk, Kind};

/// The first filter that a host does not pass. The later ones come nearer to a host that takes the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// The machine's disk is on another host.
    Elsewhere,
    /// Another service has its machines, or it does not answer.
    Lost,
    /// It has not joined yet.
    Joining,
    /// It does not say what it has: it is away, or was not asked.
    Silent,
    /// It belongs to other regions.
    Region(String),
    /// It lacks a label, as `key=value`.
    Label(String),
    /// It does not reach the store that the machine's disks lie in.
    Store {
        /// The store's name.
        name: String,
        /// Why it does not; none where it was not asked yet.
        why: Option<String>,
    },
    /// What the machine begins with is on another host: a disk, a snapshot, the other machines of its networks.
    Tied,
    /// The layers that the machine begins with are on other hosts.
    Layers,
    /// The image that the machine begins with is not there yet; of a sandbox, what all of them boot.
    Image(Kind),
    /// It keeps what it has, and takes no more.
    Draining,
    /// An operator said that it takes no more.
    Cordoned,
    /// It has no address, or no ports, for the machine, or is not like the host that the machine runs on.
    Lacks(String),
    /// Virtual CPUs.
    Vcpu(Amount),
    /// Memory, in MiB.
    Memory(Kind, Amount),
    /// It has as many sandboxes as it takes.
    Sandboxes(i64),
    /// Its disk is almost full.
    DiskFull(Kind),
    /// Disk, in GiB.
    Disk(Amount),
    /// GPUs.
    Gpus(String),
}

/// What a host has of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amount {
    /// In all.
    pub offered: i64,
    /// Of that, what others have.
    pub held: i64,
    /// What is wanted.
    pub wanted: i64,
}

impl Amount {
    /// The same, if it is more than there is.
    pub fn lacking(offered: i64, held: i64, wanted: i64) -> Option<Self> {
        (held.saturating_add(wanted) > offered).then_some(Self { offered, held, wanted })
    }

    const fn needed(self) -> i64 {
        self.held.saturating_add(self.wanted)
    }

    fn left(self) -> i64 {
        self.offered.saturating_sub(self.held).max(0)
    }
}

impl Why {
    /// How many filters were passed before.
    pub(super) const fn passed(&self) -> u8 {
        match self {
            Self::Elsewhere => 0,
            Self::Lost | Self::Joining => 1,
            Self::Silent => 2,
            Self::Region(_) => 3,
            Self::Label(_) => 4,
            Self::Store { .. } => 5,
            Self::Tied => 6,
            Self::Layers => 7,
            Self::Image(_) => 8,
            Self::Draining => 9,
            Self::Cordoned => 10,
            Self::Lacks(_) => 11,
            Self::Vcpu(_) => 12,
            Self::Memory(..) => 13,
            Self::Sandboxes(_) => 14,
            Self::DiskFull(_) => 15,
            Self::Disk(_) => 16,
            Self::Gpus(_) => 17,
        }
    }

    /// The sentence for who asked for the machine, which names no host.
    pub fn for_owner(&self) -> String {
        let region_has = |amount: &Amount, unit: &str, what: &str| {
            let (have, need) = (amount.offered, amount.needed());
            format!("this region has {have}{unit} of {what}, and {need}{unit} would be needed")
        };
        match self {
            Self::Elsewhere | Self::Lost | Self::Joining | Self::Silent => {
                "the host that it would be on is not there; ask an operator".into()
            }
            Self::Region(region) => format!("no host belongs to the region {region}; choose another one"),
            Self::Label(label) => format!("no host has the label {label}; ask for another one"),
            Self::Store { name, .. } => {
                format!(
                    "no host reaches the store {name} now, in which its disks lie; try again later, or ask an operator"
                )
            }
            Self::Tied => {
                "what it begins with lies on a host that is not there; wait until it is, or ask an operator".into()
            }
            Self::Image(Kind::Vm) => "no host that could take it has its image yet; try again in a minute".into(),
            Self::Image(Kind::Sandbox) => "no host that could take it has what sandboxes boot yet; try again in a \
                 minute, or ask the operator, who types script/quickstart"
                .into(),
            Self::Layers => "no host has the layers that it begins with; make it of something else".into(),
            Self::Draining | Self::Cordoned => {
                "no host takes new machines now, for maintenance; try again later, or ask an operator".into()
            }
            Self::Vcpu(amount) => region_has(amount, "", "virtual CPUs"),
            Self::Memory(Kind::Vm, amount) => region_has(amount, " MiB", "memory"),
            Self::Memory(Kind::Sandbox, amount) => format!(
                "this host offers {} MiB of memory to sandboxes, and {} MiB would be needed",
                amount.offered,
                amount.needed()
            ),
            Self::Sandboxes(most) => format!("this host runs at most {most} sandboxes"),
            Self::DiskFull(Kind::Vm) => "the host's disk is almost full".into(),
            Self::DiskFull(Kind::Sandbox) => DISK_FULL.into(),
            Self::Disk(amount) => region_has(amount, " GiB", "disk"),
            Self::Lacks(missing) | Self::Gpus(missing) => missing.clone(),
        }
    }

    /// The words for who runs the platform, to go behind the host's name, and what that person types where that is enough.
    pub fn for_operator(&self, host: &str) -> String {
        match self {
            Self::Cordoned => format!("{self}; to lift it: berth admin host uncordon {}", argument(host)),
            _ => self.to_string(),
        }
    }
}

/// A name as a shell takes it for one word.
fn argument(name: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
    if name.chars().all(is_plain) { name.into() } else { format!("'{}'", name.replace('\'', r"'\''")).into() }
}

/// The words for who runs the platform, to go behind the host's name.
impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let left = |f: &mut fmt::Formatter<'_>, amount: &Amount, unit: &str| {
            write!(f, "{} of {} {unit} left, {} wanted", amount.left(), amount.offered, amount.wanted)
        };
        match self {
            Self::Elsewhere => f.write_str("the machine's disk is on another host"),
            Self::Lost => f.write_str("lost"),
            Self::Joining => f.write_str("has not joined yet"),
            Self::Silent => f.write_str("it does not say what it has"),
            Self::Tied => f.write_str("what the machine begins with is on another host"),
            Self::Image(Kind::Vm) => f.write_str("without the image that the machine begins with, so far"),
            Self::Image(Kind::Sandbox) => f.write_str("without what sandboxes boot, so far"),
            Self::Region(region) => write!(f, "not in the region {region}"),
            Self::Label(label) => write!(f, "without the label {label}"),
            Self::Store { name, why } => {
                let why = why.as_deref().unwrap_or("it was not asked yet");
                write!(f, "it does not reach the store {name}: {why}")
            }
            Self::Layers => f.write_str("without the layers that the machine begins with"),
            Self::Draining => f.write_str("draining"),
            Self::Cordoned => f.write_str("cordoned"),
            Self::Vcpu(amount) => left(f, amount, "virtual CPUs"),
            Self::Memory(_, amount) => left(f, amount, "MiB"),
            Self::Sandboxes(most) => write!(f, "it has the {most} sandboxes that it takes at most"),
            Self::DiskFull(_) => f.write_str("its disk is almost full"),
            Self::Disk(amount) => left(f, amount, "GiB of disk"),
            Self::Lacks(missing) | Self::Gpus(missing) => f.write_str(missing),
        }
    }
}

impl Disk {
    /// What a disk lacks for so many GiB more.
    pub fn lacks(self, kind: Kind, wanted_gb: i64) -> Option<Why> {
        if self.is_full {
            return Some(Why::DiskFull(kind));
        }
        self.sizes.and_then(|(offered, placed)| Amount::lacking(offered, placed, wanted_gb)).map(Why::Disk)
    }
}
