//! The host's own addresses, and its neighbours'.
//!
//! Besides the addresses of its interfaces a host may have whole networks by a route (`ip route add local`), as those are
//! that VMs have one of each: the kernel knows.
//!
//! In IPv6 machines of a local network have addresses like any others. So who shares a network with one of the host's
//! interfaces is treated as the host is.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::socket::SockaddrStorage;

use crate::config::HostAddresses;

/// How old what was read may be.
const FRESH: Duration = Duration::from_secs(3);
/// A port to which nothing is sent: a connection has one.
const SOME_PORT: u16 = 9;

/// What the host is known by.
pub(crate) struct Host {
    source: HostAddresses,
    read: Mutex<Option<(Instant, Arc<Interfaces>)>>,
}

/// Addresses, and networks of IPv6 by an address and a mask.
#[derive(Debug, Default)]
struct Interfaces {
    addresses: HashSet<IpAddr>,
    networks: Vec<(Ipv6Addr, Ipv6Addr)>,
}

impl Interfaces {
    fn have(&self, address: IpAddr) -> bool {
        let near = |address: Ipv6Addr| {
            let (address, mut networks) = (address.to_bits(), self.networks.iter());
            networks.any(|(own, mask)| (own.to_bits() ^ address) & mask.to_bits() == 0)
        };
        self.addresses.contains(&address) || matches!(address, IpAddr::V6(address) if near(address))
    }
}

impl Host {
    pub(crate) fn new(source: HostAddresses) -> Self {
        Self { source, read: Mutex::new(None) }
    }

    /// Whether an address is the host's, or a neighbour's in IPv6. If the addresses were never read, every one may be.
    pub(crate) fn has(&self, address: IpAddr) -> bool {
        if address.is_loopback() || address.is_unspecified() {
            return true;
        }
        match &self.source {
            HostAddresses::Fixed(addresses) => addresses.contains(&address),
            HostAddresses::System => self.current().is_none_or(|known| known.have(address)) || is_routed_here(address),
        }
    }

    fn current(&self) -> Option<Arc<Interfaces>> {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let fresh = read.as_ref().is_some_and(|(when, _)| now.duration_since(*when) < FRESH);
        if !fresh {
            match interfaces() {
                Ok(known) => *read = Some((now, Arc::new(known))),
                Err(error) => tracing::warn!(%error, "the host's addresses cannot be read"),
            }
        }
        read.as_ref().map(|(_, known)| Arc::clone(known))
    }
}

/// Whether the kernel takes what goes to an address for the host's own: then it goes from there, too. Connecting sends
/// nothing. What cannot be found out is taken for the host's.
fn is_routed_here(address: IpAddr) -> bool {
    let any: IpAddr = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let Ok(socket) = UdpSocket::bind((any, 0)) else { return true };
    // Where nobody is reached, nobody has to be refused.
    let is_reached = socket.connect((address, SOME_PORT)).is_ok();
    is_reached && socket.local_addr().is_ok_and(|own| own.ip() == address)
}

fn interfaces() -> nix::Result<Interfaces> {
    let mut known = Interfaces::default();
    for interface in nix::ifaddrs::getifaddrs()? {
        let v4 = interface.address.as_ref().and_then(|address| address.as_sockaddr_in());
        known.addresses.extend(v4.map(|address| IpAddr::V4(address.ip())));
        let v6 = |address: &Option<SockaddrStorage>| Some(address.as_ref()?.as_sockaddr_in6()?.ip());
        let (own, mask) = (v6(&interface.address), v6(&interface.netmask));
        known.addresses.extend(own.map(IpAddr::V6));
        // A mask of nothing would make everybody a neighbour.
        known.networks.extend(own.zip(mask).filter(|(_, mask)| !mask.is_unspecified()));
    }
    Ok(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_knows_its_interfaces() {
        assert!(interfaces().unwrap().have([127, 0, 0, 1].into()));
        let host = Host::new(HostAddresses::System);
        assert!(host.has([127, 0, 0, 1].into()) && host.has([127, 64, 3, 9].into()) && host.has([0, 0, 0, 0].into()));
        assert!(!host.has([198, 51, 100, 77].into()));
        let fixed = Host::new(HostAddresses::Fixed(vec![[198, 51, 100, 77].into()]));
        assert!(fixed.has([198, 51, 100, 77].into()) && !fixed.has([198, 51, 100, 78].into()));
    }

    #[test]
    fn neighbours_are_those_of_the_same_network() {
        let address = |text: &str| text.parse::<Ipv6Addr>().unwrap();
        let networks = vec![(address("2600:1:2:3::9"), address("ffff:ffff:ffff:ffff::"))];
        let known = Interfaces { networks, ..Interfaces::default() };
        for (text, expected) in [
            ("2600:1:2:3::1", true),
            ("2600:1:2:3:ffff:ffff:ffff:ffff", true),
            ("2600:1:2:4::", false),
            ("2600:1:2:2:ffff:ffff:ffff:ffff", false),
        ] {
            assert_eq!(known.have(address(text).into()), expected, "{text}");
        }
        assert!(!known.have([8, 8, 8, 8].into()) && !Interfaces::default().have(address("2600::1").into()));
    }
}
