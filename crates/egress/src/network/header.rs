//! What a packet between machines has to look like, and where what matters in it lies. Pure.
//!
//! Between machines go whole packets whose header says what is true: no options, which would say by which way a packet
//! goes, and nothing behind its end. Of IPv6 there is one further header, that of a piece. Of protocols there are TCP, UDP,
//! and of ICMP pings and errors: what can be translated, and what no network between machines needs more than. What is said
//! of neighbours and routers is for one link, and goes to no other.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{Icmpv6Packet, IpProtocol, IpRepr, Ipv4Packet, Ipv6Packet};

/// Bytes of a header without options, and of one of IPv6.
pub(crate) const IPV4: usize = 20;
pub(crate) const IPV6: usize = 40;
/// Bytes of the header of a piece.
const FRAGMENT: usize = 8;
/// Where a header of IPv4 has its checksum.
pub(crate) const CHECKSUM: usize = 10;
/// Bytes of a datagram before its data.
pub(crate) const UDP: usize = 8;
/// Hop limit of an error, and bytes of a packet that it quotes, so that it fits into the least that every link carries
/// (RFC 4443, 2.4).
const HOPS: u8 = 64;
const QUOTED: usize = 1280 - IPV6 - 8;
/// Bits of a header's word that say which piece of a packet it is; all are zero in the first. In IPv6 they are the upper ones.
const OFFSET_BITS: u32 = 13;
/// Bytes of the largest packet of IPv4, and of what the largest one of IPv6 carries (RFC 791, 3.1; RFC 8200, 4.5).
const LARGEST: usize = 65_535;

/// What a header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) from: IpAddr,
    pub(crate) to: IpAddr,
    pub(crate) protocol: IpProtocol,
    /// The number that the pieces of one packet have in common.
    pub(crate) ident: u32,
    /// Whether it is the packet's first piece, or all of it: what begins here is a segment, a datagram or a message.
    pub(crate) is_first: bool,
    /// Whether it is all of a packet.
    pub(crate) is_whole: bool,
    /// Where it ends.
    pub(crate) body: usize,
}

/// One of the two addresses of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Source,
    Destination,
}

impl Header {
    /// Reads the header of a packet; `None` unless it is one that goes between machines.
    pub(crate) fn read(packet: &[u8]) -> Option<Self> {
        if is_ipv6(packet) { Self::read6(packet) } else { Self::read4(packet) }
    }

    fn read4(packet: &[u8]) -> Option<Self> {
        let ip = Ipv4Packet::new_checked(packet).ok()?;
        let is_plain = ip.version() == 4 && usize::from(ip.header_len()) == IPV4;
        if !is_plain || usize::from(ip.total_len()) != packet.len() || !ip.verify_checksum() {
            return None;
        }
        let known = [IpProtocol::Tcp, IpProtocol::Udp, IpProtocol::Icmp].contains(&ip.next_header());
        let is_first = ip.frag_offset() == 0;
        // What lies beyond the end of the largest packet is of none.
        let fits = usize::from(ip.frag_offset()) + packet.len() <= LARGEST;
        (known && fits).then_some(Self {
            from: ip.src_addr().into(),
            to: ip.dst_addr().into(),
            protocol: ip.next_header(),
            ident: ip.ident().into(),
            is_first,
            is_whole: is_first && !ip.more_frags(),
            body: IPV4,
        })
    }

    fn read6(packet: &[u8]) -> Option<Self> {
        let ip = Ipv6Packet::new_checked(packet).ok()?;
        if ip.total_len() != packet.len() {
            return None;
        }
        let (from, to) = (ip.src_addr().into(), ip.dst_addr().into());
        let (protocol, body, word, ident) = carried6(packet, ip.next_header())?;
        let is_first = word >> (u16::BITS - OFFSET_BITS) == 0;
        let known = [IpProtocol::Tcp, IpProtocol::Udp, IpProtocol::Icmpv6].contains(&protocol);
        let is_whole = is_first && word & 1 == 0;
        // The upper bits count in eights.
        let fits = usize::from(word >> (u16::BITS - OFFSET_BITS)) * 8 + (packet.len() - body) <= LARGEST;
        (known && fits).then_some(Self { from, to, protocol, ident, is_first, is_whole, body })
    }
}

/// What a packet of IPv6 carries, and where, and what a further header says of pieces: offset and whether more follow, and a
/// number.
fn carried6(packet: &[u8], next: IpProtocol) -> Option<(IpProtocol, usize, u16, u32)> {
    if next != IpProtocol::Ipv6Frag {
        return Some((next, IPV6, 0, 0));
    }
    let head = packet.get(IPV6..)?.first_chunk::<FRAGMENT>()?;
    let [protocol, _, high, low, ident @ ..] = *head;
    Some((protocol.into(), IPV6 + FRAGMENT, u16::from_be_bytes([high, low]), u32::from_be_bytes(ident)))
}

/// A packet that an error quotes, as far as it is quoted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quote {
    pub(crate) from: IpAddr,
    pub(crate) to: IpAddr,
    pub(crate) protocol: IpProtocol,
    /// Whether what begins behind its header is a segment, a datagram or a message.
    pub(crate) is_first: bool,
    /// Where its header ends.
    pub(crate) body: usize,
}

impl Quote {
    /// Reads the header of what is quoted.
    pub(crate) fn read(quote: &[u8]) -> Option<Self> {
        let (from, to) = (address(quote, Side::Source)?, address(quote, Side::Destination)?);
        if is_ipv6(quote) {
            let (protocol, body, word, _) = carried6(quote, IpProtocol::from(*quote.get(6)?))?;
            let is_first = word >> (u16::BITS - OFFSET_BITS) == 0;
            return Some(Self { from, to, protocol, is_first, body });
        }
        let is_first = word(quote, 6)?.trailing_zeros() >= OFFSET_BITS;
        let protocol = IpProtocol::from(*quote.get(9)?);
        (*quote.first()? == 0x45).then_some(Self { from, to, protocol, is_first, body: IPV4 })
    }
}

/// Whether a packet says that it is one of IPv6.
pub(crate) fn is_ipv6(packet: &[u8]) -> bool {
    packet.first().is_some_and(|first| first >> 4 == 6)
}

/// Two bytes of a packet as a number.
pub(crate) fn word(packet: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*packet.get(at..)?.first_chunk()?))
}

/// Where a header has one of its addresses.
pub(crate) fn place(packet: &[u8], side: Side) -> usize {
    match (is_ipv6(packet), side) {
        (false, Side::Source) => 12,
        (false, Side::Destination) => 16,
        (true, Side::Source) => 8,
        (true, Side::Destination) => 24,
    }
}

/// An address of a packet.
pub(crate) fn address(packet: &[u8], side: Side) -> Option<IpAddr> {
    let bytes = packet.get(place(packet, side)..)?;
    if is_ipv6(packet) {
        return Some(Ipv6Addr::from(*bytes.first_chunk::<16>()?).into());
    }
    Some(Ipv4Addr::from(*bytes.first_chunk::<4>()?).into())
}

/// The error that whom a packet of IPv6 is for has not its address, as from there (RFC 4443, 3.1); none answers an error.
pub(crate) fn unreachable(packet: &[u8]) -> Option<Vec<u8>> {
    const HEAD: [u8; 8] = [1, 3, 0, 0, 0, 0, 0, 0];
    const PING: u8 = 128;
    let header = Header::read(packet)?;
    let is_error = header.protocol == IpProtocol::Icmpv6 && packet.get(header.body) != Some(&PING);
    let (IpAddr::V6(from), IpAddr::V6(to)) = (header.to, header.from) else { return None };
    if is_error || !header.is_first {
        return None;
    }
    let quote = packet.get(..packet.len().min(QUOTED))?;
    let mut error = vec![0; IPV6 + HEAD.len()];
    error.extend(quote);
    let length = HEAD.len() + quote.len();
    IpRepr::new(from.into(), to.into(), IpProtocol::Icmpv6, length, HOPS)
        .emit(&mut error, &ChecksumCapabilities::default());
    let message = error.get_mut(IPV6..)?;
    message.get_mut(..HEAD.len())?.copy_from_slice(&HEAD);
    Icmpv6Packet::new_unchecked(message).fill_checksum(&from, &to);
    Some(error)
}

#[cfg(test)]
#[path = "header_tests.rs"]
mod tests;
