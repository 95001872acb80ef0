//! What a packet of the guest is about.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smoltcp::wire::{EthernetAddress, TcpPacket};

use super::Key;
use crate::fragments::Piece;

/// What a frame is about.
#[derive(Debug)]
pub(crate) enum Inbound<'a> {
    /// Somebody looks for an address of the gateway.
    Arp { wanted: Ipv4Addr, sender: (EthernetAddress, Ipv4Addr) },
    /// The guest says where it is.
    Announced,
    /// Somebody looks for an IPv6 address of the gateway.
    Neighbour { wanted: Ipv6Addr, sender: Ipv6Addr },
    /// The guest looks for a router.
    Router { sender: Ipv6Addr },
    /// A part of a packet.
    Piece(Piece<'a>),
    /// The guest asks for its address.
    Dhcp { message: &'a [u8] },
    /// The guest asks for its IPv6 address.
    Dhcp6 { message: &'a [u8], sender: Ipv6Addr },
    /// A segment, with the packet around it.
    Tcp { key: Key, segment: TcpPacket<&'a [u8]>, packet: &'a [u8] },
    /// A datagram.
    Udp { key: Key, payload: &'a [u8], unicast: bool },
    /// The guest says that a connection, as it sees it, cannot be.
    Unreachable { key: Key },
    /// A ping; the port of the guest's end is its identifier.
    Echo { key: Key, seq_no: u16, data: &'a [u8] },
}

/// Whether an address is nobody else's than one machine's, as far as that can be told.
pub(super) fn is_unicast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !address.is_multicast() && !address.is_broadcast() && address.octets()[3] != 255,
        IpAddr::V6(address) => !address.is_multicast(),
    }
}
