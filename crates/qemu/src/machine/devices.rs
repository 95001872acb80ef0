//! Devices of the host that a machine has for itself.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::arguments::Args;
use super::spec::{Boot, Spec};

/// What of its memory a machine with devices locks beside its guest's, in MiB: the firmware's and the screen's. libvirt's
/// figure (`src/qemu/qemu_domain.c`, `qemuDomainGetMemLockLimitBytes`).
const BESIDE_MB: u64 = 1024;
/// How long the kernel may take to clear and lock a GiB of a guest's memory before QEMU answers: several times what it
/// does on one core.
const LOCKED: Duration = Duration::from_secs(2);

/// A function of a device of the host, which has the driver `vfio-pci`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostDevice {
    /// Where it is on the host's buses: `0000:01:00.0`.
    pub address: String,
    /// Its IOMMU group.
    pub group: u32,
}

impl HostDevice {
    /// The device, without the function.
    fn slot(&self) -> &str {
        self.address.split_once('.').map_or(self.address.as_str(), |(slot, _)| slot)
    }
}

/// Devices of the host that a machine has for itself, and what it has to be told for their sake.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assigned {
    /// The functions, in the order of the host's buses.
    pub devices: Vec<HostDevice>,
    /// Whether the guest is not told that it is one.
    pub hides_hypervisor: bool,
    /// How much room UEFI firmware is told to have for them above 4 GiB, in MiB.
    pub window_mb: Option<u64>,
}

impl Assigned {
    /// Files by which QEMU reaches them (Linux, `Documentation/driver-api/vfio.rst`).
    pub(super) fn files(&self) -> Vec<PathBuf> {
        let mut groups: Vec<_> = self.devices.iter().map(|device| device.group).collect();
        groups.sort_unstable();
        groups.dedup();
        let own = groups.into_iter().map(|group| PathBuf::from(format!("/dev/vfio/{group}")));
        if self.devices.is_empty() {
            Vec::new()
        } else {
            [PathBuf::from("/dev/vfio/vfio")].into_iter().chain(own).collect()
        }
    }

    /// Folders by which QEMU finds out the group of each.
    pub(super) fn folders(&self) -> Vec<PathBuf> {
        let all = Path::new("/sys/bus/pci/devices");
        self.devices.iter().map(|device| all.join(&device.address)).collect()
    }
}

/// How many bytes a machine locks, since its devices write to them at any time; none of one without devices.
pub(super) fn locked_bytes(spec: &Spec) -> Option<u64> {
    (!spec.assigned.devices.is_empty()).then(|| (u64::from(spec.memory_mb) + BESIDE_MB) << 20)
}

/// How much longer a machine may take to its first answer.
pub(super) fn patience(spec: &Spec) -> Duration {
    locked_bytes(spec).map_or(Duration::ZERO, |bytes| LOCKED * u32::try_from(bytes >> 30).unwrap_or(u32::MAX))
}

/// The part of the command line. Each device is behind a port of its own, as in a computer (QEMU, `docs/pcie.txt`), with
/// its functions beside each other.
pub(super) fn arguments(args: &mut Args, spec: &Spec) {
    let devices = spec.assigned.devices.as_slice();
    for (index, functions) in devices.chunk_by(|one, other| one.slot() == other.slot()).enumerate() {
        let port = index + 1;
        args.pair("-device", format!("pcie-root-port,id=gpu{port},bus=pcie.0,chassis={port},slot={port}"));
        for (number, function) in functions.iter().enumerate() {
            let more = if number == 0 && functions.len() > 1 { ",multifunction=on" } else { "" };
            let address = &function.address;
            args.pair("-device", format!("vfio-pci,host={address},bus=gpu{port},addr=0.{number}{more}"));
        }
    }
    if let (Boot::Uefi, Some(window)) = (&spec.boot, spec.assigned.window_mb) {
        args.pair("-fw_cfg", format!("name=opt/ovmf/X-PciMmio64Mb,string={window}"));
    }
}
