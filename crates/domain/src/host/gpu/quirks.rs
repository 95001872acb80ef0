//! What a machine needs to be told for the sake of its GPUs.

use super::Function;
use super::names::NVIDIA;

/// What UEFI firmware finds room for above 4 GiB unless it is told otherwise, in MiB (edk2,
/// `OvmfPkg/Library/PlatformInitLib/MemDetect.c`: 32 GiB).
const WINDOW: u64 = 32 << 10;
/// The class of what has a screen: of NVIDIA's, those that are sold to people rather than to data centers.
const WITH_SCREEN: u32 = 0x0300;

/// What a machine is made with beside its GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quirks {
    /// Whether the guest is not told that it is one. NVIDIA's drivers before R465 refuse to work with its cards for people
    /// where they see a hypervisor (error 43; NVIDIA's answer 5173, "GeForce GPU Passthrough for Windows Virtual
    /// Machine"). It costs the guest the clocks and calls that it would have of KVM, so no other one is made so.
    pub hides_hypervisor: bool,
    /// How much room UEFI firmware is told to have above 4 GiB, in MiB, where its own would be too small (the variable
    /// `opt/ovmf/X-PciMmio64Mb`, in the same file of edk2). BIOS firmware looks itself.
    pub window_mb: Option<u64>,
}

/// What a machine with these functions is made with. QEMU's `x-no-mmap` is not among it: it has each access to a device go
/// through QEMU, for debugging, and none of these makers asks for it.
pub fn quirks<'a>(functions: impl IntoIterator<Item = &'a Function>) -> Quirks {
    let mut quirks = Quirks::default();
    let mut bytes = 0_u64;
    for function in functions {
        quirks.hides_hypervisor |= function.vendor == NVIDIA && function.class >> 8 == WITH_SCREEN;
        bytes = bytes.saturating_add(function.large_bytes);
    }
    // Each region begins at a multiple of its size, so that up to as much again lies between them.
    let window = bytes.saturating_mul(2).div_ceil(1 << 20).next_power_of_two();
    quirks.window_mb = Some(window).filter(|window| *window > WINDOW);
    quirks
}
