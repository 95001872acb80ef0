//! Packets: what a frame of the guest says, and what goes back. Pure.

use std::net::{Ipv4Addr, SocketAddrV4};

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol, Icmpv4DstUnreachable,
    Icmpv4Packet, Icmpv4Repr, IpAddress, IpProtocol, Ipv4Packet, Ipv4Repr, TcpControl, TcpPacket, TcpRepr,
    TcpSeqNumber, UdpPacket, UdpRepr,
};

use crate::fragments::{Id, Piece};
use crate::{GATEWAY, GUEST, RESOLVER, dhcp};

/// Hop limit of packets made here.
const HOPS: u8 = 64;
/// Bytes of an Ethernet header.
pub(crate) const ETHERNET: usize = 14;
/// Bytes of an IPv4 header without options, and of a UDP header.
const IPV4: usize = 20;
const UDP: usize = 8;
/// Largest packet there is, and largest datagram that fits into one.
const LARGEST: usize = 65_535;
pub(crate) const MAX_DATAGRAM: usize = LARGEST - IPV4 - UDP;
/// Bytes of a packet's payload that an ICMP error quotes.
const QUOTE: usize = 8;

/// A connection as the guest sees it: its own port, and where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) port: u16,
    pub(crate) to: SocketAddrV4,
}

/// What a frame is about.
#[derive(Debug)]
pub(crate) enum Inbound<'a> {
    /// Somebody looks for an address of the gateway.
    Arp { wanted: Ipv4Addr, sender: (EthernetAddress, Ipv4Addr) },
    /// The guest says where it is.
    Announced,
    /// A part of a packet.
    Piece(Piece<'a>),
    /// The guest asks for its address.
    Dhcp { message: &'a [u8] },
    /// A segment, with the packet around it.
    Tcp { key: Key, segment: TcpPacket<&'a [u8]>, packet: &'a [u8] },
    /// A datagram.
    Udp { key: Key, payload: &'a [u8], unicast: bool },
    /// The guest says that a connection, as it sees it, cannot be.
    Unreachable { key: Key },
    /// A ping.
    Echo { to: Ipv4Addr, ident: u16, seq_no: u16, data: &'a [u8] },
}

/// The link address of an address of the gateway.
pub(crate) fn hardware(address: Ipv4Addr) -> EthernetAddress {
    let [a, b, c, d] = address.octets();
    EthernetAddress([0x52, 0x55, a, b, c, d])
}

/// Reads a frame; `None` for everything this link does not carry. The sender's link address comes along.
pub(crate) fn parse(frame: &[u8]) -> Option<(EthernetAddress, Inbound<'_>)> {
    let frame = EthernetFrame::new_checked(frame).ok()?;
    let (from, to) = (frame.src_addr(), frame.dst_addr());
    let ours = to.is_broadcast() || [GATEWAY, RESOLVER].map(hardware).contains(&to);
    if !ours || !from.is_unicast() {
        return None;
    }
    let inbound = match frame.ethertype() {
        EthernetProtocol::Arp => arp(frame.payload()),
        EthernetProtocol::Ipv4 => ipv4(frame.payload()),
        _ => None,
    }?;
    Some((from, inbound))
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

/// Reads an IPv4 packet.
pub(crate) fn ipv4(bytes: &[u8]) -> Option<Inbound<'_>> {
    let packet = Ipv4Packet::new_checked(bytes).ok()?;
    // The library's own reading of a header takes no pieces.
    if packet.version() != 4 || !packet.verify_checksum() {
        return None;
    }
    let header = header(packet.src_addr(), packet.dst_addr(), packet.next_header(), 0);
    // Who has no address yet asks everybody for one.
    let nobody = header.src_addr.is_unspecified() && header.dst_addr.is_broadcast();
    let from_guest = header.src_addr == GUEST || (nobody && header.next_header == IpProtocol::Udp);
    if !from_guest || header.dst_addr == GUEST {
        return None;
    }
    let whole = bytes.get(..usize::from(packet.total_len()))?;
    let payload = whole.get(usize::from(packet.header_len())..)?;
    if packet.more_frags() || packet.frag_offset() != 0 {
        let (from, to) = (IpAddress::Ipv4(header.src_addr), IpAddress::Ipv4(header.dst_addr));
        let id = Id { from, to, protocol: header.next_header, ident: packet.ident().into() };
        let (offset, last) = (packet.frag_offset().into(), !packet.more_frags());
        return (header.src_addr == GUEST).then_some(Inbound::Piece(Piece { id, offset, last, data: payload }));
    }
    match header.next_header {
        IpProtocol::Tcp => tcp(header, whole, payload),
        IpProtocol::Udp => udp(header, payload),
        IpProtocol::Icmp => icmp(header, payload),
        _ => None,
    }
}

fn tcp<'a>(header: Ipv4Repr, packet: &'a [u8], payload: &'a [u8]) -> Option<Inbound<'a>> {
    let segment = TcpPacket::new_checked(payload).ok()?;
    let key = Key { port: segment.src_port(), to: SocketAddrV4::new(header.dst_addr, segment.dst_port()) };
    (key.port != 0 && key.to.port() != 0).then_some(Inbound::Tcp { key, segment, packet })
}

fn udp(header: Ipv4Repr, payload: &[u8]) -> Option<Inbound<'_>> {
    let datagram = UdpPacket::new_checked(payload).ok()?;
    let checks = ChecksumCapabilities::default();
    let (from, to) = (IpAddress::Ipv4(header.src_addr), IpAddress::Ipv4(header.dst_addr));
    UdpRepr::parse(&datagram, &from, &to, &checks).ok()?;
    if datagram.dst_port() == dhcp::SERVER && (header.dst_addr.is_broadcast() || header.dst_addr == GATEWAY) {
        return Some(Inbound::Dhcp { message: datagram.payload() });
    }
    if header.src_addr != GUEST {
        return None;
    }
    let key = Key { port: datagram.src_port(), to: SocketAddrV4::new(header.dst_addr, datagram.dst_port()) };
    let unicast = is_unicast(header.dst_addr);
    (key.port != 0).then_some(Inbound::Udp { key, payload: datagram.payload(), unicast })
}

/// Whether an address is nobody else's than one machine's, as far as that can be told.
fn is_unicast(address: Ipv4Addr) -> bool {
    !address.is_multicast() && !address.is_broadcast() && address.octets()[3] != 255
}

fn icmp(header: Ipv4Repr, payload: &[u8]) -> Option<Inbound<'_>> {
    let packet = Icmpv4Packet::new_checked(payload).ok()?;
    let ours = [GATEWAY, RESOLVER].contains(&header.dst_addr);
    match Icmpv4Repr::parse(&packet, &ChecksumCapabilities::default()).ok()? {
        Icmpv4Repr::EchoRequest { ident, seq_no, data } if ours || is_unicast(header.dst_addr) => {
            Some(Inbound::Echo { to: header.dst_addr, ident, seq_no, data })
        }
        Icmpv4Repr::DstUnreachable { header, data, .. } if ours => unreachable(&header, data),
        _ => None,
    }
}

/// Which connection the guest's error speaks of: it quotes a segment that was sent to it.
fn unreachable(quoted: &Ipv4Repr, data: &[u8]) -> Option<Inbound<'static>> {
    let [from_high, from_low, to_high, to_low, ..] = *data else { return None };
    let from = SocketAddrV4::new(quoted.src_addr, u16::from_be_bytes([from_high, from_low]));
    let key = Key { port: u16::from_be_bytes([to_high, to_low]), to: from };
    (quoted.dst_addr == GUEST && quoted.next_header == IpProtocol::Tcp).then_some(Inbound::Unreachable { key })
}

/// Reads a segment's header in full, with its checksum.
pub(crate) fn segment<'a>(key: Key, segment: &TcpPacket<&'a [u8]>) -> Option<TcpRepr<'a>> {
    let (from, to) = (IpAddress::Ipv4(GUEST), IpAddress::Ipv4(*key.to.ip()));
    TcpRepr::parse(segment, &from, &to, &ChecksumCapabilities::default()).ok()
}

/// A packet to the guest.
#[derive(Debug)]
pub(crate) struct Outbound<'a> {
    from: Ipv4Addr,
    to: Ipv4Addr,
    payload: Payload<'a>,
}

#[derive(Debug)]
enum Payload<'a> {
    Tcp(TcpRepr<'a>),
    Udp(UdpRepr, &'a [u8]),
    Icmp(Icmpv4Repr<'a>),
}

/// What an ICMP error quotes: the header of the guest's packet and the first bytes behind it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quote {
    header: Ipv4Repr,
    data: [u8; QUOTE],
}

impl Quote {
    /// Quotes a datagram of the guest.
    pub(crate) fn datagram(key: Key, len: usize) -> Self {
        let len = u16::try_from(UDP + len).unwrap_or(u16::MAX);
        let header = header(GUEST, *key.to.ip(), IpProtocol::Udp, len.into());
        let mut data = [0; QUOTE];
        let mut datagram = UdpPacket::new_unchecked(&mut data);
        datagram.set_src_port(key.port);
        datagram.set_dst_port(key.to.port());
        datagram.set_len(len);
        Self { header, data }
    }

    /// Quotes a segment of the guest.
    pub(crate) fn segment(key: Key, segment: &TcpPacket<&[u8]>) -> Self {
        let bytes = segment.as_ref();
        let header = header(GUEST, *key.to.ip(), IpProtocol::Tcp, bytes.len());
        let mut data = [0; QUOTE];
        data.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        Self { header, data }
    }
}

impl<'a> Outbound<'a> {
    /// A datagram to the guest.
    pub(crate) fn datagram(key: Key, payload: &'a [u8]) -> Self {
        let udp = UdpRepr { src_port: key.to.port(), dst_port: key.port };
        Self { from: *key.to.ip(), to: GUEST, payload: Payload::Udp(udp, payload) }
    }

    /// An answer of DHCP.
    pub(crate) fn dhcp(answer: &'a dhcp::Answer) -> Self {
        let udp = UdpRepr { src_port: dhcp::SERVER, dst_port: dhcp::CLIENT };
        Self { from: GATEWAY, to: answer.to, payload: Payload::Udp(udp, &answer.bytes) }
    }

    /// The answer to a ping.
    pub(crate) fn pong(from: Ipv4Addr, ident: u16, seq_no: u16, data: &'a [u8]) -> Self {
        Self { from, to: GUEST, payload: Payload::Icmp(Icmpv4Repr::EchoReply { ident, seq_no, data }) }
    }

    /// The error that a destination cannot be reached.
    pub(crate) fn unreachable(reason: Icmpv4DstUnreachable, quote: &'a Quote) -> Self {
        let error = Icmpv4Repr::DstUnreachable { reason, header: quote.header, data: &quote.data };
        Self { from: GATEWAY, to: GUEST, payload: Payload::Icmp(error) }
    }

    /// The reset that answers a segment (RFC 9293, 3.5.2); none answers a reset.
    pub(crate) fn reset(key: Key, segment: &TcpRepr<'_>) -> Option<Self> {
        let (seq_number, ack_number) = match (segment.control, segment.ack_number) {
            (TcpControl::Rst, _) => return None,
            (_, Some(ack)) => (ack, None),
            (_, None) => (TcpSeqNumber(0), Some(segment.seq_number + segment.segment_len())),
        };
        let reset = TcpRepr {
            src_port: key.to.port(),
            dst_port: key.port,
            control: TcpControl::Rst,
            seq_number,
            ack_number,
            window_len: 0,
            window_scale: None,
            max_seg_size: None,
            sack_permitted: false,
            sack_ranges: [None; 3],
            timestamp: None,
            payload: &[],
        };
        Some(Self { from: *key.to.ip(), to: GUEST, payload: Payload::Tcp(reset) })
    }

    /// Bytes of the packet; `None` where there are none so large.
    pub(crate) fn len(&self) -> Option<usize> {
        let len = IPV4 + self.payload_len();
        (len <= LARGEST).then_some(len)
    }

    /// Writes the packet into a buffer of its length.
    pub(crate) fn emit(&self, buffer: &mut [u8]) {
        let checks = ChecksumCapabilities::default();
        let mut packet = Ipv4Packet::new_unchecked(buffer);
        header(self.from, self.to, self.protocol(), self.payload_len()).emit(&mut packet, &checks);
        let (from, to) = (IpAddress::Ipv4(self.from), IpAddress::Ipv4(self.to));
        let body = packet.payload_mut();
        match &self.payload {
            Payload::Tcp(tcp) => tcp.emit(&mut TcpPacket::new_unchecked(body), &from, &to, &checks),
            Payload::Icmp(icmp) => icmp.emit(&mut Icmpv4Packet::new_unchecked(body), &checks),
            Payload::Udp(udp, data) => {
                let fill = |buffer: &mut [u8]| buffer.copy_from_slice(data);
                udp.emit(&mut UdpPacket::new_unchecked(body), &from, &to, data.len(), fill, &checks);
            }
        }
    }

    fn payload_len(&self) -> usize {
        match &self.payload {
            Payload::Tcp(tcp) => tcp.buffer_len(),
            Payload::Udp(_, data) => UDP + data.len(),
            Payload::Icmp(icmp) => icmp.buffer_len(),
        }
    }

    const fn protocol(&self) -> IpProtocol {
        match &self.payload {
            Payload::Tcp(_) => IpProtocol::Tcp,
            Payload::Udp(..) => IpProtocol::Udp,
            Payload::Icmp(_) => IpProtocol::Icmp,
        }
    }
}

const fn header(src_addr: Ipv4Addr, dst_addr: Ipv4Addr, next_header: IpProtocol, payload_len: usize) -> Ipv4Repr {
    Ipv4Repr { src_addr, dst_addr, next_header, payload_len, hop_limit: HOPS }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_parse_or_do_not(mut bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0_u8..3) {
            if bytes.len() > 34 && kind > 0 {
                bytes[..6].copy_from_slice(hardware(GATEWAY).as_bytes());
                bytes[6] &= 0xfe;
                bytes[12..15].copy_from_slice(&[8, if kind == 1 { 6 } else { 0 }, 0x45]);
            }
            let _ = parse(&bytes);
        }
    }
}
