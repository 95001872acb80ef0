//! Frames of Ethernet, and what is in them.

use std::net::IpAddr;

use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol, IpVersion, Ipv4Packet,
    Ipv6Packet,
};

use super::inbound::Inbound;
use super::{hardware, ipv4, ipv6};
use crate::{GATEWAY, GUEST, GUEST6, RESOLVER, ndp};

/// Reads a frame; `None` for everything this link does not carry. The sender's link address comes along.
pub(crate) fn parse(frame: &[u8]) -> Option<(EthernetAddress, Inbound<'_>)> {
    let frame = EthernetFrame::new_checked(frame).ok()?;
    let (from, to) = (frame.src_addr(), frame.dst_addr());
    let is_ipv6_group = to.as_bytes().starts_with(&[0x33, 0x33]);
    let ours = to.is_broadcast() || is_ipv6_group || [GATEWAY, RESOLVER].map(hardware).contains(&to);
    if !ours || !from.is_unicast() {
        return None;
    }
    let inbound = match frame.ethertype() {
        EthernetProtocol::Arp => arp(frame.payload()),
        EthernetProtocol::Ipv4 if !is_ipv6_group => ipv4::parse(frame.payload()),
        EthernetProtocol::Ipv6 => ipv6::parse(frame.payload()),
        _ => None,
    }?;
    Some((from, inbound))
}

/// The packet of a frame that goes to an address that somebody is `found` at, and the sender's link address. Whether
/// anything is right with it, is for who is found to say.
pub(crate) fn to_network<T>(
    frame: &[u8],
    found: impl FnOnce(IpAddr) -> Option<T>,
) -> Option<(EthernetAddress, &[u8], T)> {
    let frame = EthernetFrame::new_checked(frame).ok()?;
    let from = frame.src_addr();
    if !from.is_unicast() || frame.dst_addr() != hardware(GATEWAY) {
        return None;
    }
    let packet = frame.payload();
    let (to, length) = match frame.ethertype() {
        EthernetProtocol::Ipv4 => {
            let ip = Ipv4Packet::new_checked(packet).ok()?;
            (ip.dst_addr().into(), usize::from(ip.total_len()))
        }
        EthernetProtocol::Ipv6 => {
            let ip = Ipv6Packet::new_checked(packet).ok()?;
            (ip.dst_addr().into(), ip.total_len())
        }
        _ => return None,
    };
    let found = found(to)?;
    // A short packet is filled up to the least of Ethernet.
    Some((from, packet.get(..length)?, found))
}

/// Whether the guest says by a frame that it has its IPv6 address.
pub(crate) fn is_heard(frame: &[u8]) -> bool {
    let frame = EthernetFrame::new_checked(frame).ok().filter(|frame| frame.ethertype() == EthernetProtocol::Ipv6);
    frame.is_some_and(|frame| ndp::is_heard(frame.payload()))
}

/// Whether the guest has its IPv4 address, where a frame tells: it speaks from it, or from none.
pub(crate) fn has_address(frame: &[u8]) -> Option<bool> {
    let frame = EthernetFrame::new_checked(frame).ok()?;
    let from = match frame.ethertype() {
        EthernetProtocol::Arp => {
            let ArpRepr::EthernetIpv4 { source_protocol_addr, .. } =
                ArpRepr::parse(&ArpPacket::new_checked(frame.payload()).ok()?).ok()?
            else {
                return None;
            };
            source_protocol_addr
        }
        EthernetProtocol::Ipv4 => Ipv4Packet::new_checked(frame.payload()).ok()?.src_addr(),
        _ => return None,
    };
    (from == GUEST || from.is_unspecified()).then_some(from == GUEST)
}

/// Whether a packet is from the guest's address of IPv6 that has others in networks, or of IPv4.
pub(crate) fn is_translated(packet: &[u8]) -> bool {
    Ipv6Packet::new_checked(packet).map_or(true, |ip| ip.version() != 6 || ip.src_addr() == GUEST6)
}

/// Reads a packet that was put together of its pieces.
pub(crate) fn whole(packet: &[u8]) -> Option<Inbound<'_>> {
    match IpVersion::of_packet(packet).ok()? {
        IpVersion::Ipv4 => ipv4::parse(packet),
        IpVersion::Ipv6 => ipv6::parse(packet),
    }
}

fn arp(bytes: &[u8]) -> Option<Inbound<'static>> {
    let ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr,
        source_protocol_addr,
        target_protocol_addr: wanted,
        ..
    } = ArpRepr::parse(&ArpPacket::new_checked(bytes).ok()?).ok()?
    else {
        return None;
    };
    let known = [GATEWAY, RESOLVER].contains(&wanted) && source_hardware_addr.is_unicast();
    match operation {
        ArpOperation::Request if known => {
            Some(Inbound::Arp { wanted, sender: (source_hardware_addr, source_protocol_addr) })
        }
        ArpOperation::Reply if known && source_protocol_addr == GUEST => Some(Inbound::Announced),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_parse_or_do_not(mut bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0_u8..5) {
            if bytes.len() > 54 && kind > 0 {
                bytes[..6].copy_from_slice(hardware(GATEWAY).as_bytes());
                bytes[6] &= 0xfe;
                let head = [[8, 0, 0x45], [8, 6, 0x45], [0x86, 0xdd, 0x60], [0x86, 0xdd, 0x60]];
                bytes[12..15].copy_from_slice(&head[usize::from(kind - 1)]);
                if kind == 4 {
                    let len = u16::try_from(bytes.len() - 54).unwrap();
                    bytes[18..20].copy_from_slice(&len.to_be_bytes());
                    bytes[20] = [6, 17, 58, 44][usize::from(bytes[20] % 4)];
                    bytes[21] = 255;
                    bytes[22..30].copy_from_slice(&crate::NETWORK6.octets()[..8]);
                }
            }
            let _ = parse(&bytes);
        }
    }
}
