//! GPUs of a host that a machine gets for itself, whole.
//!
//! [`inventory`] makes a list of GPUs of what sysfs says of a host's PCI functions, and says of each that cannot be handed
//! out why. [`choose`] finds those for a machine. What the IOMMU cannot tell apart goes to one machine: all
//! GPUs of a group, with the functions beside them (sound, USB), are handed out and taken back together.

mod address;
mod choice;
mod inventory;
mod names;
mod quirks;

use serde::{Deserialize, Serialize};

pub use address::PciAddress;
pub use choice::{choose, shortage};
pub use inventory::{Facts, Function, VFIO, inventory};
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
    /// Why no machine can have it; none of one that can be handed out.
    pub unavailable: Option<String>,
}

impl Gpu {
    /// Whether it is of a model, by its id or its name.
    pub fn is_a(&self, model: &str) -> bool {
        self.model == model || self.name == model
    }
}

#[cfg(test)]
mod tests;
