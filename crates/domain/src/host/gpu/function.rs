//! What sysfs says of PCI functions, of what their drivers make, and of a host.

use std::collections::BTreeSet;

use super::names::{AMD, NVIDIA};
use super::{KindId, Part, PciAddress};

/// The driver that hands a device to a program (Linux, `Documentation/driver-api/vfio.rst`).
pub const VFIO: &str = "vfio-pci";

/// What sysfs says of a PCI function (Linux, `Documentation/ABI/testing/sysfs-bus-pci`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Where it is.
    pub address: PciAddress,
    /// What it is: class, subclass and interface, a byte each.
    pub class: u32,
    /// Its maker.
    pub vendor: u16,
    /// Its model, by its maker's counting.
    pub device: u16,
    /// The maker of the card, and the card.
    pub subsystem: (u16, u16),
    /// Its IOMMU group.
    pub group: Option<u32>,
    /// Its node of memory and processors.
    pub numa_node: Option<u32>,
    /// The driver that it has.
    pub driver: Option<String>,
    /// Whether the firmware showed the host's start on it (`boot_vga`).
    pub is_boot_screen: bool,
    /// The function that it is a part of, and that made it (SR-IOV).
    pub physical: Option<PciAddress>,
    /// How many parts it is divided into (SR-IOV).
    pub virtual_functions: u32,
    /// Whether the kernel knows how to reset it.
    pub has_reset: bool,
    /// Bytes of its memory that lie above 4 GiB in a machine's address space.
    pub large_bytes: u64,
    /// Kinds of parts that its driver makes.
    pub offers: Vec<Offer>,
    /// How many MIG instances it has that programs of the host use.
    pub mig_instances: u32,
}

/// What there is on a host to hand devices out by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Whether there are IOMMU groups.
    pub has_iommu: bool,
    /// Whether the kernel has [`VFIO`] at hand.
    pub has_vfio: bool,
    /// Whether the service may give devices another driver.
    pub may_bind: bool,
    /// Groups of which the service may open the device file, `/dev/vfio/<group>`.
    pub opened: BTreeSet<u32>,
    /// Parts of GPUs that the service had made, and that are there.
    pub parts: Vec<Part>,
}

/// Makers of the screens of servers' controllers and of virtual machines (pci-ids.ucw.cz): ASPEED, Matrox, QEMU (by two
/// numbers), virtio, Cirrus, VMware, Microsoft, VirtualBox. They compute nothing.
const SCREENS: [u16; 9] = [0x1a03, 0x102b, 0x1234, 0x1b36, 0x1af4, 0x1013, 0x15ad, 0x1414, 0x80ee];
/// Bridges between buses, by class and subclass. They stay with the host, whatever their group (Linux,
/// `vfio_dev_viable`).
const BRIDGES: [u32; 2] = [0x0604, 0x0609];

impl Function {
    /// Whether it is a GPU: one with a screen, a 3D controller, another display controller, or what AMD's newer ones call
    /// themselves, a processing accelerator.
    pub fn is_gpu(&self) -> bool {
        match self.class >> 8 {
            _ if SCREENS.contains(&self.vendor) => false,
            0x0300 | 0x0302 | 0x0380 => true,
            0x1200 => self.vendor == AMD,
            _ => false,
        }
    }

    pub(super) fn is_bridge(&self) -> bool {
        BRIDGES.contains(&(self.class >> 8))
    }

    /// Whether it is nothing by itself: NVIDIA's virtual functions are parts of their GPU once its driver makes them such.
    pub(super) fn is_mere_place(&self, all: &[Self]) -> bool {
        self.vendor == NVIDIA
            && self.physical.is_some_and(|physical| all.iter().any(|function| function.address == physical))
    }

    /// The driver by which the host uses it.
    pub(super) fn used_by(&self) -> Option<&str> {
        self.driver.as_deref().filter(|driver| *driver != VFIO)
    }
}

/// What a driver says of a kind that it makes at a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// What the driver calls it.
    pub kind: KindId,
    /// What people call it: `NVIDIA A100-1-5C`.
    pub name: String,
    /// Whether it is a mediated device.
    pub is_mediated: bool,
    /// How many more it would make now.
    pub free: u32,
    /// How many a GPU has room for in all, if that is told.
    pub most: Option<u32>,
    /// Whether the service may ask for one.
    pub may_make: bool,
}
