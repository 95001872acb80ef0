//! What the network card of a machine ends in.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::files::NETWORK;
use crate::launch::FIRST;

/// What a machine's network card ends in.
#[derive(Clone, Debug)]
pub enum Link {
    /// A socket of the machine's folder: whoever carries its network [connects](super::connect_network) there, and may do so
    /// again.
    Socket,
    /// A network device of the host.
    Tap(Tap),
}

/// A network device of the host, opened by whoever may. The machine has it in whatever network it is itself.
#[derive(Clone, Debug)]
pub struct Tap {
    /// The device (Linux, `Documentation/networking/tuntap.rst`): Ethernet frames, each behind virtio's header
    /// (`IFF_TAP`, `IFF_NO_PI`, `IFF_VNET_HDR`).
    pub device: Arc<OwnedFd>,
    /// `/dev/vhost-net`, where the host's kernel moves the frames between the device and the guest.
    pub vhost: Option<Arc<OwnedFd>>,
}

impl Link {
    /// The descriptors that QEMU is given for it, in the order of their numbers.
    pub(super) fn given(&self) -> Vec<Arc<OwnedFd>> {
        match self {
            Self::Socket => Vec::new(),
            Self::Tap(tap) => std::iter::once(&tap.device).chain(&tap.vhost).cloned().collect(),
        }
    }

    /// What QEMU is told of it.
    pub(super) fn option(&self) -> String {
        match self {
            Self::Socket => format!("stream,id=n0,server=on,addr.type=unix,addr.path={NETWORK}"),
            Self::Tap(Tap { vhost: None, .. }) => format!("tap,id=n0,fd={FIRST}"),
            Self::Tap(Tap { vhost: Some(_), .. }) => {
                format!("tap,id=n0,fd={FIRST},vhost=on,vhostfd={}", FIRST + 1)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_named_by_the_number_that_qemu_has_it_under() {
        let open = || Arc::new(OwnedFd::from(std::fs::File::open("/dev/null").unwrap()));
        let alone = Link::Tap(Tap { device: open(), vhost: None });
        assert_eq!((alone.option().as_str(), alone.given().len()), ("tap,id=n0,fd=3", 1));
        let helped = Link::Tap(Tap { device: open(), vhost: Some(open()) });
        assert_eq!((helped.option().as_str(), helped.given().len()), ("tap,id=n0,fd=3,vhost=on,vhostfd=4", 2));
        assert!(Link::Socket.given().is_empty());
    }
}
