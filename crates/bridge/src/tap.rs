//! Taps (Linux, `Documentation/networking/tuntap.rst`): network cards whose other end is a descriptor.
//!
//! One that persists stays when nobody holds its descriptor, and somebody else attaches to it later: a machine that starts
//! again has the same. A frame has a header of virtio before it (`IFF_VNET_HDR`), so that guests hand over what the host's own
//! card, or nobody, cuts and sums up.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::error::{Error, Result};

const TUN: &str = "/dev/net/tun";
const VHOST: &str = "/dev/vhost-net";
/// Bytes of a device's name with its end (`IFNAMSIZ`), and of what the kernel is told with it (`struct ifreq`).
const NAME: usize = 16;
const REQUEST: usize = 40;

/// What the kernel is told of a device: its name and flags.
#[repr(C, align(8))]
struct Request([u8; REQUEST]);

/// Attaches to a tap that persists, by its name, in the caller's network namespace. The descriptor may go anywhere: to QEMU
/// as `-netdev tap,fd=N`, which needs no right then. Root may, and the tap's owner. It is closed by `exec`.
///
/// # Errors
/// There is no such tap, somebody is attached to it, or the caller may not.
pub fn open_tap(name: &str) -> Result<OwnedFd> {
    if !crate::link::exists(name) {
        return Err(Error::Missing(format!(
            "there is no tap {name}; the bridge makes it when it is told of its machine"
        )));
    }
    attach(name).map_err(|error| match error.raw_os_error() {
        Some(libc::EBUSY) => {
            Error::Device { what: format!("the tap {name}"), why: "another process is attached to it".into() }
        }
        _ => Error::io(format!("the tap {name} cannot be attached to"))(error),
    })
}

/// A descriptor by which the kernel moves a tap's frames itself (`vhostfd=N`); none where the host has no vhost-net, or the
/// caller may not use it. QEMU does the same without, for more of the processor.
pub fn open_vhost() -> Option<OwnedFd> {
    File::options().read(true).write(true).open(VHOST).ok().map(Into::into)
}

/// Makes a tap of root's that persists. One that a process is attached to stays as it is.
pub(crate) fn make(name: &str) -> Result<()> {
    let failed = |error| Error::io(format!("the tap {name} cannot be made"))(error);
    let tap = match attach(name) {
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => return Ok(()),
        tap => tap.map_err(failed)?,
    };
    // One that is nobody's is everybody's.
    tell(&tap, libc::TUNSETOWNER, 0).map_err(failed)?;
    tell(&tap, libc::TUNSETPERSIST, 1).map_err(failed)
}

fn attach(name: &str) -> io::Result<OwnedFd> {
    if name.len() >= NAME || name.contains('\0') {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = u16::try_from(libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR).map_err(io::Error::other)?;
    let mut request = Request([0; REQUEST]);
    for (place, byte) in request.0.iter_mut().zip(name.bytes()) {
        *place = byte;
    }
    for (place, byte) in request.0.iter_mut().skip(NAME).zip(flags.to_ne_bytes()) {
        *place = byte;
    }
    let tap = OwnedFd::from(File::options().read(true).write(true).open(TUN)?);
    #[expect(unsafe_code, reason = "no library attaches to a tap without making decisions of its own about it")]
    // SAFETY: the kernel reads and writes a `struct ifreq`, which the request is as large as.
    let outcome = unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    if outcome == 0 { Ok(tap) } else { Err(io::Error::last_os_error()) }
}

fn tell(tap: &OwnedFd, what: libc::Ioctl, value: libc::c_ulong) -> io::Result<()> {
    #[expect(unsafe_code, reason = "the same")]
    // SAFETY: these take a number and no address.
    let outcome = unsafe { libc::ioctl(tap.as_raw_fd(), what, value) };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
