//! Packets of IPv6, without headers between the first one and what is carried, but for that of a piece.

use std::net::{IpAddr, Ipv6Addr};

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{Icmpv6Packet, Icmpv6Repr, IpProtocol, Ipv6FragmentHeader, Ipv6Packet, Ipv6Repr, NdiscRepr};

use super::inbound::Inbound;
use super::{IPV6, Key, is_own, transport};
use crate::NETWORK6;
use crate::fragments::{Id, Piece};

/// Bytes of the header of a piece.
const FRAGMENT: usize = 8;
/// Hop limit of what comes from this very link (RFC 4861, 3.1).
const NEAR: u8 = 255;

/// Whether an address is the guest's: it makes its own, in its network and for the link.
fn is_guest(address: Ipv6Addr) -> bool {
    let in_network = address.segments()[..4] == NETWORK6.segments()[..4];
    (in_network || address.is_unicast_link_local()) && !is_own(address.into())
}

/// Reads a packet of the guest.
pub(super) fn parse(bytes: &[u8]) -> Option<Inbound<'_>> {
    let packet = Ipv6Packet::new_checked(bytes).ok()?;
    let header = Ipv6Repr::parse(&packet).ok()?;
    let payload = bytes.get(IPV6..packet.total_len())?;
    let whole = bytes.get(..packet.total_len())?;
    let (from, to) = (IpAddr::V6(header.src_addr), IpAddr::V6(header.dst_addr));
    if header.next_header == IpProtocol::Icmpv6
        && header.hop_limit == NEAR
        && let Some(inbound) = neighbour(&header, payload)
    {
        return Some(inbound);
    }
    if !is_guest(header.src_addr) || header.dst_addr == header.src_addr {
        return None;
    }
    match header.next_header {
        IpProtocol::Tcp => transport::tcp(from, to, whole, payload),
        IpProtocol::Udp => transport::udp(from, to, payload),
        IpProtocol::Icmpv6 => icmp(&header, payload),
        IpProtocol::Ipv6Frag => piece(&header, payload),
        _ => None,
    }
}

/// Reads a question for neighbours or routers, which may be of somebody who has no address yet.
fn neighbour(header: &Ipv6Repr, payload: &[u8]) -> Option<Inbound<'static>> {
    let sender = header.src_addr;
    if !is_guest(sender) && !sender.is_unspecified() {
        return None;
    }
    let packet = Icmpv6Packet::new_checked(payload).ok()?;
    let checks = ChecksumCapabilities::default();
    match Icmpv6Repr::parse(&sender, &header.dst_addr, &packet, &checks).ok()? {
        Icmpv6Repr::Ndisc(NdiscRepr::NeighborSolicit { target_addr: wanted, .. }) if is_own(wanted.into()) => {
            Some(Inbound::Neighbour { wanted, sender })
        }
        Icmpv6Repr::Ndisc(NdiscRepr::RouterSolicit { .. }) => Some(Inbound::Router { sender }),
        _ => None,
    }
}

fn icmp<'a>(header: &Ipv6Repr, payload: &'a [u8]) -> Option<Inbound<'a>> {
    let packet = Icmpv6Packet::new_checked(payload).ok()?;
    let (from, to) = (header.src_addr, header.dst_addr);
    match Icmpv6Repr::parse(&from, &to, &packet, &ChecksumCapabilities::default()).ok()? {
        Icmpv6Repr::EchoRequest { ident, seq_no, data } if !to.is_multicast() => {
            Some(Inbound::Echo { key: Key::pings(from.into(), to.into(), ident), seq_no, data })
        }
        _ => None,
    }
}

fn piece<'a>(header: &Ipv6Repr, payload: &'a [u8]) -> Option<Inbound<'a>> {
    let (head, data) = payload.split_at_checked(FRAGMENT)?;
    let protocol = IpProtocol::from(*head.first()?);
    let fragment = Ipv6FragmentHeader::new_checked(head.get(2..)?).ok()?;
    let id = Id { from: header.src_addr.into(), to: header.dst_addr.into(), protocol, ident: fragment.ident() };
    // The offset counts in eights.
    let (offset, last) = (usize::from(fragment.frag_offset()) * 8, !fragment.more_frags());
    // Nothing but a whole segment, datagram or ping is read of what was put together.
    (protocol != IpProtocol::Ipv6Frag).then_some(Inbound::Piece(Piece { id, offset, last, data }))
}
