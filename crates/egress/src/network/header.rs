//! What a packet between machines has to look like, and where what matters in it lies. Pure.
//!
//! Between machines go whole packets of IPv4 whose header says what is true: no options, which would say by which way a
//! packet goes, and nothing behind its end. Of protocols there are TCP, UDP, and of ICMP pings and errors: what can be
//! translated, and what no network between machines needs more than.

use std::net::Ipv4Addr;

use smoltcp::wire::{IpProtocol, Ipv4Packet};

/// Bytes of a header without options.
pub(crate) const IPV4: usize = 20;
/// Where a header has its checksum and its addresses.
pub(crate) const CHECKSUM: usize = 10;
pub(crate) const SOURCE: usize = 12;
pub(crate) const DESTINATION: usize = 16;
/// Bytes of a datagram before its data.
pub(crate) const UDP: usize = 8;

/// What a header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) from: Ipv4Addr,
    pub(crate) to: Ipv4Addr,
    pub(crate) protocol: IpProtocol,
    /// Whether it is the packet's first piece, or all of it: what begins here is a segment, a datagram or a message.
    pub(crate) is_first: bool,
    /// Whether it is all of a packet.
    pub(crate) is_whole: bool,
}

impl Header {
    /// Reads the header of a packet; `None` unless it is one that goes between machines.
    pub(crate) fn read(packet: &[u8]) -> Option<Self> {
        let ip = Ipv4Packet::new_checked(packet).ok()?;
        let is_plain = ip.version() == 4 && usize::from(ip.header_len()) == IPV4;
        if !is_plain || usize::from(ip.total_len()) != packet.len() || !ip.verify_checksum() {
            return None;
        }
        let known = [IpProtocol::Tcp, IpProtocol::Udp, IpProtocol::Icmp].contains(&ip.next_header());
        let is_first = ip.frag_offset() == 0;
        known.then_some(Self {
            from: ip.src_addr(),
            to: ip.dst_addr(),
            protocol: ip.next_header(),
            is_first,
            is_whole: is_first && !ip.more_frags(),
        })
    }
}

/// Two bytes of a packet as a number.
pub(crate) fn word(packet: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*packet.get(at..)?.first_chunk()?))
}

/// Four bytes of a packet as an address.
pub(crate) fn address(packet: &[u8], at: usize) -> Option<Ipv4Addr> {
    Some(Ipv4Addr::from(*packet.get(at..)?.first_chunk::<4>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet() -> Vec<u8> {
        let mut packet = vec![0; IPV4 + 8];
        packet[0] = 0x45;
        packet[3] = 28;
        packet[8..10].copy_from_slice(&[64, 17]);
        packet[SOURCE..IPV4].copy_from_slice(&[10, 0, 2, 15, 10, 128, 0, 3]);
        Ipv4Packet::new_unchecked(&mut packet[..]).fill_checksum();
        packet
    }

    #[test]
    fn only_plain_packets_are_read() {
        let read = Header::read(&packet()).unwrap();
        assert_eq!((read.from, read.to), ([10, 0, 2, 15].into(), [10, 128, 0, 3].into()));
        assert!(read.is_first && read.is_whole && read.protocol == IpProtocol::Udp);
        // Each with a checksum that is right: another version, options, another length, another protocol.
        for (at, byte) in [(0, 0x55), (0, 0x46), (3, 27), (3, 29), (9, 47), (9, 2), (9, 132)] {
            let mut other = packet();
            other[at] = byte;
            Ipv4Packet::new_unchecked(&mut other[..]).fill_checksum();
            assert_eq!(Header::read(&other), None, "{at}: {byte}");
        }
        let mut wrong = packet();
        wrong[CHECKSUM] ^= 1;
        assert_eq!(Header::read(&wrong), None);
        assert_eq!(Header::read(&packet()[..27]), None);
        assert_eq!(Header::read(&[]), None);
    }

    #[test]
    fn pieces_are_told_from_wholes() {
        for (high, low, is_first, is_whole) in
            [(0x40, 0, true, true), (0x20, 0, true, false), (0x20, 1, false, false), (0, 1, false, false)]
        {
            let mut piece = packet();
            piece[6..8].copy_from_slice(&[high, low]);
            Ipv4Packet::new_unchecked(&mut piece[..]).fill_checksum();
            let read = Header::read(&piece).unwrap();
            assert_eq!((read.is_first, read.is_whole), (is_first, is_whole));
        }
    }
}
