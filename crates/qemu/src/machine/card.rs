//! The screen of a machine: a graphics card that every guest knows, and VNC on a socket of the machine's folder.
//!
//! The card is the standard VGA of QEMU. Firmware, boot loaders and kernels without a driver write text to it, which they do
//! to no other (`bochs-display` and `virtio-gpu` show nothing before a driver of the guest's does). Beside a machine without
//! one it takes some 5 MiB, and a boot no longer. Its memory bounds what a guest makes of it: 1920 by 1080 points of
//! 32 bits, or a few times as many of fewer colours.

use super::files::SCREEN;
use super::spec::Spec;

/// What QEMU calls the card.
pub(super) const CARD: &str = "screen";
/// The card's memory, in MiB: 1920 by 1080 points of 4 bytes.
const CARD_MB: u32 = 8;
/// Where the card is on the machine's bus: behind all that stands there in order, so that nothing has another address for it.
const ADDRESS: &str = "0x1e";
/// How many may look at once: more are refused.
pub const MOST_VIEWERS: usize = 8;

/// What QEMU is told of the screen, behind all its other devices. A machine that goes on with a memory has the devices that
/// this knows.
pub(super) fn options(spec: &Spec) -> Vec<(&'static str, String)> {
    if spec.memory.as_ref().is_some_and(|fits| !fits.has_screen) {
        return Vec::new();
    }
    vec![
        ("-device", format!("VGA,id={CARD},bus=pcie.0,addr={ADDRESS},vgamem_mb={CARD_MB}")),
        // Nobody who comes makes the others go, whatever they ask for.
        ("-vnc", format!("unix:{SCREEN},share=ignore,connections={MOST_VIEWERS}")),
    ]
}
