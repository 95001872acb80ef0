//! Devices of the host that a machine has for itself.

use std::borrow::Cow;
use std::time::Duration;

use super::spec::{Assigned, Boot, HostDevice, Spec};

/// What of its memory a machine with devices locks beside its guest's, in MiB: the firmware's and the screen's. libvirt's
/// figure (`src/qemu/qemu_domain.c`, `qemuDomainGetMemLockLimitBytes`).
const BESIDE_MB: u64 = 1024;
/// How long the kernel may take to clear and lock a GiB of a guest's memory before QEMU answers: several times what it
/// does on one core.
const LOCKED: Duration = Duration::from_secs(2);

/// Chassis and slot numbers of the PCIe ports of devices begin above this; those of data disks' are below.
const PORTS: usize = 100;

/// How many bytes a machine locks, since its devices write to them at any time; none of one without devices.
pub(crate) fn locked_bytes(assigned: &Assigned, memory_mb: u32) -> Option<u64> {
    (!assigned.devices.is_empty()).then(|| (u64::from(memory_mb) + BESIDE_MB) << 20)
}

/// How much longer a machine may take to its first answer.
pub(crate) fn patience(assigned: &Assigned, memory_mb: u32) -> Duration {
    locked_bytes(assigned, memory_mb)
        .map_or(Duration::ZERO, |bytes| LOCKED * u32::try_from(bytes >> 30).unwrap_or(u32::MAX))
}

/// The options of a VM's command line.
pub(super) fn options(spec: &Spec) -> Vec<(&'static str, String)> {
    let mut options = behind_ports(&spec.assigned);
    if let (Boot::Uefi, Some(window)) = (&spec.boot, spec.assigned.window_mb) {
        options.push(("-fw_cfg", format!("name=opt/ovmf/X-PciMmio64Mb,string={window}")));
    }
    options
}

/// Devices, as options of a command line. Each device is behind a port of its own, as in a computer (QEMU, `docs/pcie.txt`),
/// with its functions beside each other.
pub(crate) fn behind_ports(assigned: &Assigned) -> Vec<(&'static str, String)> {
    let mut options = Vec::new();
    for (index, functions) in assigned.devices.chunk_by(|one, other| slot(one) == slot(other)).enumerate() {
        let port = index + 1;
        let number = PORTS + port;
        options.push(("-device", format!("pcie-root-port,id=gpu{port},bus=pcie.0,chassis={number},slot={number}")));
        for (number, function) in functions.iter().enumerate() {
            let more = if number == 0 && functions.len() > 1 { ",multifunction=on" } else { "" };
            let which = named(function);
            options.push(("-device", format!("vfio-pci,{which},bus=gpu{port},addr=0.{number}{more}")));
        }
    }
    options
}

/// How QEMU is told which it is.
fn named(device: &HostDevice) -> String {
    match device {
        HostDevice::Function(address) | HostDevice::Virtual(address) => format!("host={address}"),
        // A comma would end the value.
        HostDevice::Mediated(folder) => format!("sysfsdev={}", folder.to_string_lossy().replace(',', ",,")),
    }
}

/// What two functions of one device have in common: its address, without the function. A part of a GPU has it alone.
fn slot(device: &HostDevice) -> Cow<'_, str> {
    match device {
        HostDevice::Function(address) => address.split_once('.').map_or(address.as_str(), |(slot, _)| slot).into(),
        HostDevice::Virtual(address) => address.into(),
        HostDevice::Mediated(folder) => folder.to_string_lossy(),
    }
}
