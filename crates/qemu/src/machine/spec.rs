//! What a machine is made of.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use uuid::Uuid;

use super::link::Link;
use crate::seed::Mac;

/// How the guest's processor is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accel {
    /// By the host's.
    Kvm,
    /// By translation.
    Tcg,
}

/// How a machine boots.
#[derive(Clone, Debug)]
pub enum Boot {
    /// A kernel from the host: no boot loader, no firmware menu.
    Kernel {
        /// The unpacked kernel.
        kernel: PathBuf,
        /// Its initrd.
        initrd: PathBuf,
        /// Its command line.
        cmdline: String,
    },
    /// The disk's own boot loader, by BIOS.
    Bios,
    /// The disk's own boot loader, by UEFI.
    Uefi,
}

/// How a machine's process is confined, beside what every machine's is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Jail {
    /// The user and group of its own that it runs as, where the service may choose.
    pub user: Option<u32>,
    /// Whether it does not start where the host lacks something of its confinement.
    pub required: bool,
}

/// What a machine is like: a memory that it saved is loaded by another one that is like that.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fits {
    /// Its processor, and how that is made.
    pub processor: String,
    /// The release of its QEMU, whose machines differ from release to release.
    pub qemu: (u32, u32),
    /// The place of each of its data disks, by what the guest knows the disk by: one that came while it ran has any.
    pub places: BTreeMap<String, usize>,
    /// Whether it has a screen. An earlier version's had none.
    #[serde(default)]
    pub has_screen: bool,
    /// Whether it has a port for the guest's agent. An earlier version's had none.
    #[serde(default)]
    pub has_guest_port: bool,
    /// Each of its disks as it was then, by the name of its file: bytes, and nanoseconds from 1970 to its last change.
    pub disks: BTreeMap<String, (u64, i128)>,
}

/// A machine's memory that is a file of its folder.
#[derive(Clone, Debug)]
pub enum Mapped {
    /// It writes to the file, since it is to be captured.
    Written,
    /// The file is others', too: it begins with what was captured.
    Captured(Captured),
}

/// What was captured of a machine, for others to begin with.
#[derive(Clone, Debug)]
pub struct Captured {
    /// Its memory.
    pub memory: PathBuf,
    /// The state of its devices.
    pub state: PathBuf,
    /// How large the root disk of the machine is that begins with it, in bytes: at least as large as that one's.
    pub root_bytes: u64,
}

/// A disk of a machine.
#[derive(Clone, Debug)]
pub struct Drive {
    /// Its file; of one that is [served](super::SERVED) nothing.
    pub path: PathBuf,
    /// `qcow2`, `raw`, or [`SERVED`](super::SERVED).
    pub format: &'static str,
    /// What it is a clone of, and what that lies on: qcow2, the nearest first, and never written to.
    pub bases: Vec<PathBuf>,
    /// What the guest knows it by, at most 20 characters.
    pub serial: String,
}

/// A device of the host, which programs reach by VFIO.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostDevice {
    /// A function, by where it is on the host's buses: `0000:01:00.0`.
    Function(String),
    /// A virtual function (SR-IOV), which is a device of its own, by the same.
    Virtual(String),
    /// A mediated device, by its folder in sysfs (Linux, `Documentation/driver-api/vfio-mediated-device.rst`).
    Mediated(PathBuf),
}

/// Devices of the host that a machine has for itself, and what it has to be told for their sake.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assigned {
    /// The functions, in the order of the host's buses.
    pub devices: Vec<HostDevice>,
    /// Files by which QEMU reaches them: `/dev/vfio/vfio`, and one for each group (Linux,
    /// `Documentation/driver-api/vfio.rst`).
    pub files: Vec<PathBuf>,
    /// Folders of sysfs by which QEMU finds out the group of each.
    pub folders: Vec<PathBuf>,
    /// Whether the guest is not told that it is one.
    pub hides_hypervisor: bool,
    /// How much room UEFI firmware is told to have for them above 4 GiB, in MiB.
    pub window_mb: Option<u64>,
}

/// MiB of translated code that an emulated machine keeps at most, unless the operator says another number; an idle one never
/// gives them back. QEMU's own default is a GiB. A first boot of Debian with cloud-init takes as long as with twice as much, a
/// twentieth longer with 96 and a quarter with 64.
pub const TRANSLATED_MB: u32 = 128;

/// A machine to start.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Its id.
    pub id: Uuid,
    /// Name for people.
    pub name: String,
    /// Its folder, which must exist.
    pub dir: PathBuf,
    /// Virtual CPUs.
    pub vcpus: u32,
    /// Memory, in MiB.
    pub memory_mb: u32,
    /// How it boots.
    pub boot: Boot,
    /// Its root disk.
    pub root: Drive,
    /// Its seed image.
    pub seed: PathBuf,
    /// Its data disks, in order.
    pub drives: Vec<Drive>,
    /// A connection to each of its disks that is served, the root disk's first.
    pub served: Vec<Arc<OwnedFd>>,
    /// For how many data disks it has places, those from its start on among them.
    pub places: usize,
    /// Devices of the host that it has for itself.
    pub assigned: Assigned,
    /// Its network card.
    pub mac: Mac,
    /// What that ends in.
    pub link: Link,
    /// The largest packet that its card takes and that the other end of its link does, in bytes.
    pub mtu: usize,
    /// How its processor is made.
    pub accel: Accel,
    /// MiB of translated code that it keeps at most where it is emulated ([`TRANSLATED_MB`]).
    pub translated_mb: u32,
    /// How its process is confined.
    pub jail: Jail,
    /// What the memory in its folder fits, if it goes on with that.
    pub memory: Option<Fits>,
    /// Its memory where that is a file; none where it is its process' own.
    pub mapped: Option<Mapped>,
    /// QEMU's binary.
    pub qemu: PathBuf,
}
