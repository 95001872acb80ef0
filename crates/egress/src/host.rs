//! The host's own addresses.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::config::HostAddresses;

/// How old what was read may be.
const FRESH: Duration = Duration::from_secs(3);

/// The addresses, shared by all gateways of a service.
pub(crate) struct Host {
    source: HostAddresses,
    read: Mutex<Option<(Instant, Arc<HashSet<IpAddr>>)>>,
}

impl Host {
    pub(crate) fn new(source: HostAddresses) -> Self {
        Self { source, read: Mutex::new(None) }
    }

    /// Whether an address is the host's. If the addresses were never read, every one may be.
    pub(crate) fn has(&self, address: IpAddr) -> bool {
        if address.is_loopback() || address.is_unspecified() {
            return true;
        }
        match &self.source {
            HostAddresses::Fixed(addresses) => addresses.contains(&address),
            HostAddresses::System => self.current().is_none_or(|addresses| addresses.contains(&address)),
        }
    }

    fn current(&self) -> Option<Arc<HashSet<IpAddr>>> {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let fresh = read.as_ref().is_some_and(|(when, _)| now.duration_since(*when) < FRESH);
        if !fresh {
            match interfaces() {
                Ok(addresses) => *read = Some((now, Arc::new(addresses))),
                Err(error) => tracing::warn!(%error, "the host's addresses cannot be read"),
            }
        }
        read.as_ref().map(|(_, addresses)| Arc::clone(addresses))
    }
}

fn interfaces() -> nix::Result<HashSet<IpAddr>> {
    let addresses = nix::ifaddrs::getifaddrs()?.filter_map(|interface| interface.address);
    let ip = |address: nix::sys::socket::SockaddrStorage| {
        let v4 = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))
    };
    Ok(addresses.filter_map(ip).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_knows_its_interfaces() {
        assert!(interfaces().unwrap().contains(&IpAddr::from([127, 0, 0, 1])));
        let host = Host::new(HostAddresses::System);
        assert!(host.has([127, 0, 0, 1].into()) && host.has([127, 64, 3, 9].into()) && host.has([0, 0, 0, 0].into()));
        assert!(!host.has([198, 51, 100, 77].into()));
        let fixed = Host::new(HostAddresses::Fixed(vec![[198, 51, 100, 77].into()]));
        assert!(fixed.has([198, 51, 100, 77].into()) && !fixed.has([198, 51, 100, 78].into()));
    }
}
