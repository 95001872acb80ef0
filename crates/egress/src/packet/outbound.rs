//! What goes to the guest.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    Icmpv4DstUnreachable, Icmpv4Packet, Icmpv4Repr, Icmpv6DstUnreachable, Icmpv6Packet, Icmpv6Repr, IpProtocol, IpRepr,
    TcpControl, TcpPacket, TcpRepr, TcpSeqNumber, UdpPacket, UdpRepr,
};

use super::{Key, LARGEST, UDP};
use crate::{GATEWAY, GATEWAY6, ROUTER6, dhcp, dhcp6};

/// Hop limit of packets made here, and of those that a guest believes of its own link only (RFC 4861, 3.1).
const HOPS: u8 = 64;
const NEAR: u8 = 255;
/// Bytes of a packet's payload that an ICMP error quotes.
const QUOTE: usize = 8;

/// A packet to the guest.
#[derive(Debug)]
pub(crate) struct Outbound<'a> {
    from: IpAddr,
    to: IpAddr,
    payload: Payload<'a>,
}

#[derive(Debug)]
enum Payload<'a> {
    Tcp(TcpRepr<'a>),
    Udp(UdpRepr, &'a [u8]),
    Icmp(Icmpv4Repr<'a>),
    Icmpv6(Icmpv6Repr<'a>),
    /// A message about neighbours, with its checksum.
    Neighbours(&'a [u8]),
}

/// Why a destination cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// There is no way to its network.
    Network,
    /// It does not answer.
    Host,
    /// Nobody listens there.
    Port,
    /// The rules do not let it out.
    Prohibited,
}

/// What an ICMP error quotes: the header of the guest's packet and the first bytes behind it.
#[derive(Clone, Debug)]
pub(crate) struct Quote {
    header: IpRepr,
    data: [u8; QUOTE],
}

impl Quote {
    /// Quotes a datagram of the guest.
    pub(crate) fn datagram(key: Key, len: usize) -> Self {
        let len = u16::try_from(UDP + len).unwrap_or(u16::MAX);
        let mut data = [0; QUOTE];
        let mut datagram = UdpPacket::new_unchecked(&mut data);
        datagram.set_src_port(key.guest.port());
        datagram.set_dst_port(key.to.port());
        datagram.set_len(len);
        Self { header: header(key.guest.ip(), key.to.ip(), IpProtocol::Udp, len.into(), HOPS), data }
    }

    /// Quotes a segment of the guest.
    pub(crate) fn segment(key: Key, segment: &TcpPacket<&[u8]>) -> Self {
        let bytes = segment.as_ref();
        let mut data = [0; QUOTE];
        data.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        Self { header: header(key.guest.ip(), key.to.ip(), IpProtocol::Tcp, bytes.len(), HOPS), data }
    }
}

impl<'a> Outbound<'a> {
    /// What answers over a connection.
    fn back(key: Key, payload: Payload<'a>) -> Self {
        Self { from: key.to.ip(), to: key.guest.ip(), payload }
    }

    /// A datagram to the guest.
    pub(crate) fn datagram(key: Key, payload: &'a [u8]) -> Self {
        Self::back(key, Payload::Udp(UdpRepr { src_port: key.to.port(), dst_port: key.guest.port() }, payload))
    }

    /// An answer of DHCP.
    pub(crate) fn dhcp(answer: &'a dhcp::Answer) -> Self {
        let udp = UdpRepr { src_port: dhcp::SERVER, dst_port: dhcp::CLIENT };
        Self { from: GATEWAY.into(), to: answer.to.into(), payload: Payload::Udp(udp, &answer.bytes) }
    }

    /// An answer of DHCP for IPv6.
    pub(crate) fn dhcp6(to: Ipv6Addr, answer: &'a [u8]) -> Self {
        let udp = UdpRepr { src_port: dhcp6::SERVER, dst_port: dhcp6::CLIENT };
        Self { from: ROUTER6.into(), to: to.into(), payload: Payload::Udp(udp, answer) }
    }

    /// A message about neighbours.
    pub(crate) fn neighbours(from: Ipv6Addr, to: Ipv6Addr, message: &'a [u8]) -> Self {
        Self { from: from.into(), to: to.into(), payload: Payload::Neighbours(message) }
    }

    /// The answer to a ping.
    pub(crate) fn pong(key: Key, seq_no: u16, data: &'a [u8]) -> Self {
        let ident = key.guest.port();
        let reply = match key.to.ip() {
            IpAddr::V4(_) => Payload::Icmp(Icmpv4Repr::EchoReply { ident, seq_no, data }),
            IpAddr::V6(_) => Payload::Icmpv6(Icmpv6Repr::EchoReply { ident, seq_no, data }),
        };
        Self::back(key, reply)
    }

    /// The error that a destination cannot be reached.
    pub(crate) fn unreachable(reason: Reason, quote: &'a Quote) -> Self {
        let data = &quote.data;
        let to = quote.header.src_addr().into();
        match &quote.header {
            IpRepr::Ipv4(header) => {
                let reason = match reason {
                    Reason::Network => Icmpv4DstUnreachable::NetUnreachable,
                    Reason::Host => Icmpv4DstUnreachable::HostUnreachable,
                    Reason::Port => Icmpv4DstUnreachable::PortUnreachable,
                    Reason::Prohibited => Icmpv4DstUnreachable::CommProhibited,
                };
                let error = Icmpv4Repr::DstUnreachable { reason, header: *header, data };
                Self { from: GATEWAY.into(), to, payload: Payload::Icmp(error) }
            }
            IpRepr::Ipv6(header) => {
                let reason = match reason {
                    Reason::Network => Icmpv6DstUnreachable::NoRoute,
                    Reason::Host => Icmpv6DstUnreachable::AddrUnreachable,
                    Reason::Port => Icmpv6DstUnreachable::PortUnreachable,
                    Reason::Prohibited => Icmpv6DstUnreachable::AdminProhibit,
                };
                let error = Icmpv6Repr::DstUnreachable { reason, header: *header, data };
                Self { from: GATEWAY6.into(), to, payload: Payload::Icmpv6(error) }
            }
        }
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
            dst_port: key.guest.port(),
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
        Some(Self::back(key, Payload::Tcp(reset)))
    }

    /// Bytes of the packet; `None` where there are none so large.
    pub(crate) fn len(&self) -> Option<usize> {
        let len = self.header().header_len() + self.payload_len();
        (len <= LARGEST).then_some(len)
    }

    /// Writes the packet into a buffer of its length.
    pub(crate) fn emit(&self, buffer: &mut [u8]) {
        let checks = ChecksumCapabilities::default();
        let header = self.header();
        header.emit(&mut *buffer, &checks);
        let (from, to) = (self.from.into(), self.to.into());
        let Some(body) = buffer.get_mut(header.header_len()..) else { return };
        match &self.payload {
            Payload::Tcp(tcp) => tcp.emit(&mut TcpPacket::new_unchecked(body), &from, &to, &checks),
            Payload::Icmp(icmp) => icmp.emit(&mut Icmpv4Packet::new_unchecked(body), &checks),
            Payload::Icmpv6(icmp) => {
                let (IpAddr::V6(from), IpAddr::V6(to)) = (self.from, self.to) else { return };
                icmp.emit(&from, &to, &mut Icmpv6Packet::new_unchecked(body), &checks);
            }
            Payload::Neighbours(message) => body.copy_from_slice(message),
            Payload::Udp(udp, data) => {
                let fill = |buffer: &mut [u8]| buffer.copy_from_slice(data);
                udp.emit(&mut UdpPacket::new_unchecked(body), &from, &to, data.len(), fill, &checks);
            }
        }
    }

    fn header(&self) -> IpRepr {
        let hops = if matches!(self.payload, Payload::Neighbours(_)) { NEAR } else { HOPS };
        header(self.from, self.to, self.protocol(), self.payload_len(), hops)
    }

    fn payload_len(&self) -> usize {
        match &self.payload {
            Payload::Tcp(tcp) => tcp.buffer_len(),
            Payload::Udp(_, data) => UDP + data.len(),
            Payload::Icmp(icmp) => icmp.buffer_len(),
            Payload::Icmpv6(icmp) => icmp.buffer_len(),
            Payload::Neighbours(message) => message.len(),
        }
    }

    const fn protocol(&self) -> IpProtocol {
        match &self.payload {
            Payload::Tcp(_) => IpProtocol::Tcp,
            Payload::Udp(..) => IpProtocol::Udp,
            Payload::Icmp(_) => IpProtocol::Icmp,
            Payload::Icmpv6(_) | Payload::Neighbours(_) => IpProtocol::Icmpv6,
        }
    }
}

fn header(from: IpAddr, to: IpAddr, protocol: IpProtocol, len: usize, hops: u8) -> IpRepr {
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => IpRepr::new(from.into(), to.into(), protocol, len, hops),
        (IpAddr::V6(from), IpAddr::V6(to)) => IpRepr::new(from.into(), to.into(), protocol, len, hops),
        // No connection is of both kinds.
        _ => IpRepr::new(Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into(), protocol, len, hops),
    }
}
