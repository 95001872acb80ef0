//! Packets of IPv4.

use std::net::{IpAddr, SocketAddr};

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{Icmpv4Packet, Icmpv4Repr, IpProtocol, Ipv4Packet, Ipv4Repr};

use super::inbound::{Inbound, is_unicast};
use super::{Key, is_own, transport};
use crate::GUEST;
use crate::fragments::{Id, Piece};

/// Reads a packet of the guest.
pub(super) fn parse(bytes: &[u8]) -> Option<Inbound<'_>> {
    let packet = Ipv4Packet::new_checked(bytes).ok()?;
    // The library's own reading of a header takes no pieces.
    let (from, to, protocol) = (packet.src_addr(), packet.dst_addr(), packet.next_header());
    // Who has no address yet asks everybody for one.
    let nobody = from.is_unspecified() && to.is_broadcast() && protocol == IpProtocol::Udp;
    let from_guest = from == GUEST || nobody;
    if packet.version() != 4 || !packet.verify_checksum() || !from_guest || to == GUEST {
        return None;
    }
    let whole = bytes.get(..usize::from(packet.total_len()))?;
    let payload = whole.get(usize::from(packet.header_len())..)?;
    let (from, to) = (IpAddr::V4(from), IpAddr::V4(to));
    if packet.more_frags() || packet.frag_offset() != 0 {
        let id = Id { from: from.into(), to: to.into(), protocol, ident: packet.ident().into() };
        let (offset, last) = (packet.frag_offset().into(), !packet.more_frags());
        return (!nobody).then_some(Inbound::Piece(Piece { id, offset, last, data: payload }));
    }
    match protocol {
        IpProtocol::Tcp => transport::tcp(from, to, whole, payload),
        IpProtocol::Udp => transport::udp(from, to, payload),
        IpProtocol::Icmp => icmp(from, to, payload),
        _ => None,
    }
}

fn icmp(from: IpAddr, to: IpAddr, payload: &[u8]) -> Option<Inbound<'_>> {
    let packet = Icmpv4Packet::new_checked(payload).ok()?;
    match Icmpv4Repr::parse(&packet, &ChecksumCapabilities::default()).ok()? {
        Icmpv4Repr::EchoRequest { ident, seq_no, data } if is_unicast(to) => {
            Some(Inbound::Echo { key: Key::pings(from, to, ident), seq_no, data })
        }
        Icmpv4Repr::DstUnreachable { header, data, .. } if is_own(to) => unreachable(&header, data),
        _ => None,
    }
}

/// Which connection the guest's error speaks of: it quotes a segment that was sent to it.
fn unreachable(quoted: &Ipv4Repr, data: &[u8]) -> Option<Inbound<'static>> {
    let [from_high, from_low, to_high, to_low, ..] = *data else { return None };
    let to = SocketAddr::new(quoted.src_addr.into(), u16::from_be_bytes([from_high, from_low]));
    let guest = SocketAddr::new(GUEST.into(), u16::from_be_bytes([to_high, to_low]));
    let fits = quoted.dst_addr == GUEST && quoted.next_header == IpProtocol::Tcp;
    fits.then_some(Inbound::Unreachable { key: Key { guest, to } })
}
