//! What packets of both kinds carry.

use std::net::{IpAddr, SocketAddr};

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{TcpPacket, TcpRepr, UdpPacket, UdpRepr};

use super::Key;
use super::inbound::{Inbound, is_unicast};
use crate::{GATEWAY, dhcp, dhcp6};

/// Reads a segment of the guest.
pub(super) fn tcp<'a>(from: IpAddr, to: IpAddr, packet: &'a [u8], payload: &'a [u8]) -> Option<Inbound<'a>> {
    let segment = TcpPacket::new_checked(payload).ok()?;
    let (from, to) = (SocketAddr::new(from, segment.src_port()), SocketAddr::new(to, segment.dst_port()));
    (from.port() != 0 && to.port() != 0).then_some(Inbound::Tcp { key: Key { guest: from, to }, segment, packet })
}

/// Reads a datagram of the guest, or of somebody who has no address yet.
pub(super) fn udp(from: IpAddr, to: IpAddr, payload: &[u8]) -> Option<Inbound<'_>> {
    let datagram = UdpPacket::new_checked(payload).ok()?;
    UdpRepr::parse(&datagram, &from.into(), &to.into(), &ChecksumCapabilities::default()).ok()?;
    let everybody = matches!(to, IpAddr::V4(to) if to.is_broadcast());
    if datagram.dst_port() == dhcp::SERVER && (everybody || to == GATEWAY) {
        return Some(Inbound::Dhcp { message: datagram.payload() });
    }
    if let (IpAddr::V6(sender), IpAddr::V6(to)) = (from, to)
        && datagram.dst_port() == dhcp6::SERVER
        && (to == dhcp6::SERVERS || super::is_own(to.into()))
    {
        return Some(Inbound::Dhcp6 { message: datagram.payload(), sender });
    }
    let key = Key { guest: SocketAddr::new(from, datagram.src_port()), to: SocketAddr::new(to, datagram.dst_port()) };
    let known = key.guest.port() != 0 && !from.is_unspecified();
    known.then_some(Inbound::Udp { key, payload: datagram.payload(), unicast: is_unicast(to) })
}

/// Reads a segment's header in full, with its checksum.
pub(crate) fn segment<'a>(key: Key, segment: &TcpPacket<&'a [u8]>) -> Option<TcpRepr<'a>> {
    let (from, to) = (key.guest.ip().into(), key.to.ip().into());
    TcpRepr::parse(segment, &from, &to, &ChecksumCapabilities::default()).ok()
}
