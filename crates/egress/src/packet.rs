//! Packets: what a frame of the guest says, and what goes back. Pure.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use smoltcp::wire::EthernetAddress;

use crate::{GATEWAY, GATEWAY6, RESOLVER, RESOLVER6, ROUTER6};

mod ethernet;
mod inbound;
mod ipv4;
mod ipv6;
mod outbound;
mod transport;

pub(crate) use ethernet::{has_address, is_heard, is_translated, parse, to_network, whole};
pub(crate) use inbound::Inbound;
pub(crate) use outbound::{Outbound, Quote, Reason};
pub(crate) use transport::segment;

/// Bytes of an Ethernet header.
pub(crate) const ETHERNET: usize = 14;
/// Bytes of an IPv4 header without options, of an IPv6 header, and of a UDP header.
const IPV4: usize = 20;
const IPV6: usize = 40;
const UDP: usize = 8;
/// Largest packet there is, and largest datagram that fits into one.
const LARGEST: usize = 65_535;
pub(crate) const MAX_DATAGRAM: usize = LARGEST - IPV4 - UDP;

/// A connection as the guest sees it: its own end, and where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) guest: SocketAddr,
    pub(crate) to: SocketAddr,
}

impl Key {
    /// The pings of an identifier, which stands for the guest's port.
    const fn pings(guest: IpAddr, to: IpAddr, ident: u16) -> Self {
        Self { guest: SocketAddr::new(guest, ident), to: SocketAddr::new(to, 0) }
    }
}

/// The link address of an address of the gateway.
pub(crate) fn hardware(address: Ipv4Addr) -> EthernetAddress {
    let [a, b, c, d] = address.octets();
    EthernetAddress([0x52, 0x55, a, b, c, d])
}

/// Whether an address is one of the gateway's or the resolver's.
pub(crate) fn is_own(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => [GATEWAY, RESOLVER].contains(&address),
        IpAddr::V6(address) => [GATEWAY6, RESOLVER6, ROUTER6].contains(&address),
    }
}
