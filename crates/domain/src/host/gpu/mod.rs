//! GPUs of a host that a machine gets for itself, whole or a part.
//!
//! [`inventory`] makes a list of GPUs of what sysfs says of a host's PCI functions, and says of each that cannot be handed
//! out why. [`choose`] finds those for a machine. What the IOMMU cannot tell apart goes to one machine: all
//! GPUs of a group, with the functions beside them (sound, USB), are handed out and taken back together. A virtual function
//! (SR-IOV) that works by itself is a GPU like others. A GPU whose driver makes parts of it is handed out in parts alone: each
//! [`Kind`] is a model of its own.

mod address;
mod choice;
mod device;
mod function;
mod inventory;
mod kinds;
mod names;
mod quirks;

use serde::{Deserialize, Serialize};

pub use address::PciAddress;
pub use choice::{choose, shortage};
pub use device::{Device, KindId, Part};
pub use function::{Facts, Function, Offer, VFIO};
pub use inventory::inventory;
pub use kinds::{Kind, Place};
pub use names::named;
pub use quirks::{Quirks, quirks};

/// A GPU of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// Where it is on the host's buses.
    pub address: PciAddress,
    /// Its model: the id of the size of machines that has it. Lower-case letters, digits and hyphens, at most 40.
    pub model: String,
    /// Its model for people.
    pub name: String,
    /// What its maker calls it, and the card's maker the card, in hexadecimal: `10de:2330 10de:16c1`.
    pub ids: String,
    /// Its IOMMU group, if it has one.
    pub group: Option<u32>,
    /// The node of memory and processors that it is nearest to, if the host tells nodes apart.
    pub numa_node: Option<u32>,
    /// All functions that a machine gets with it, itself among them, in the order of the buses.
    pub functions: Vec<PciAddress>,
    /// The driver that it has now.
    pub driver: Option<String>,
    /// Why no machine can have it whole; none of one that can be handed out.
    pub unavailable: Option<String>,
    /// What it is a part of, if it is a virtual function.
    #[serde(default)]
    pub part_of: Option<Whole>,
    /// Kinds of parts that machines can have of it; none of one that is handed out whole, or not at all.
    #[serde(default)]
    pub kinds: Vec<Kind>,
    /// Parts of it that the service had made, and that are there.
    #[serde(default)]
    pub parts: Vec<Part>,
}

impl Gpu {
    /// Whether it is of a model, or has parts of it.
    pub fn is_of(&self, model: &str) -> bool {
        self.model == model || self.kinds.iter().any(|kind| kind.model == model)
    }
}

/// A GPU that is divided into virtual functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Whole {
    /// Where it is.
    pub address: PciAddress,
    /// How many functions it is divided into, at least one.
    pub parts: u32,
}

impl Gpu {
    /// Whether it is of a model, by its id or its name.
    pub fn is_a(&self, model: &str) -> bool {
        self.model == model || self.name == model
    }

    /// Whether machines can have it, whole or in parts.
    pub const fn can_be_had(&self) -> bool {
        self.unavailable.is_none() || !self.kinds.is_empty()
    }

    /// Kinds of which a machine can have one, now or once another of its parts is free.
    pub fn offered(&self) -> impl Iterator<Item = &Kind> {
        self.kinds.iter().filter(|kind| !kind.places.is_empty() || !self.parts.is_empty())
    }
}

#[cfg(test)]
mod parts_tests;
#[cfg(test)]
mod tests;
