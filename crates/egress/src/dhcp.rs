//! DHCP (RFC 2131): tells the guest its address, and what else a network has. Pure.
//!
//! Whoever asks has one lease, which is theirs for good, so nothing is remembered and nothing can be used up. Behind a card of
//! its own that is the guest; a bridge of many tells them by their link addresses ([`client`]).

use std::net::Ipv4Addr;

use smoltcp::wire::{DhcpFlags, DhcpMessageType, DhcpOption, DhcpPacket, DhcpRepr, Ipv4Cidr};

use crate::{GATEWAY, GUEST, MTU, PREFIX, RESOLVER};

/// What a guest is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Its address.
    pub guest: Ipv4Addr,
    /// Bits of the network part of that.
    pub prefix: u8,
    /// Its gateway, which answers.
    pub gateway: Ipv4Addr,
    /// Its resolver.
    pub resolver: Ipv4Addr,
    /// Largest packet of its link, in bytes.
    pub mtu: u16,
}

impl Lease {
    /// That of a guest which is alone behind its card.
    #[expect(clippy::cast_possible_truncation, reason = "it is below the largest")]
    pub(crate) const ALONE: Self =
        Self { guest: GUEST, prefix: PREFIX, gateway: GATEWAY, resolver: RESOLVER, mtu: MTU as u16 };
}

/// The port of who answers.
pub const SERVER: u16 = 67;
/// The port of who asks.
pub const CLIENT: u16 = 68;
/// How long the guest may keep its address, in seconds: thirty days. What a guest that was away for longer loses is what
/// it gets back.
const LEASE: u32 = 30 * 24 * 60 * 60;
/// Smallest message that every client takes for one, since BOOTP had no shorter ones (RFC 1542, 2.1).
const SMALLEST: usize = 300;
/// Bytes of a message before its options.
const HEADER: usize = 240;
/// Largest identifier of a client that is sent back, which is as large as an option can be.
const MOST_IDENTIFIER: usize = 255;
/// Options, by their numbers (RFC 2132; RFC 6842 has the identifier sent back).
const REQUESTED: u8 = 50;
const MESSAGE_TYPE: u8 = 53;
const SERVER_IDENTIFIER: u8 = 54;
const CLIENT_IDENTIFIER: u8 = 61;
const INTERFACE_MTU: u8 = 26;

/// An answer, and to whom it goes.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    /// To whom: the guest, by its address or as everybody.
    pub to: Ipv4Addr,
    /// The message.
    pub bytes: Vec<u8>,
}

/// What is read of a message.
struct Question<'a> {
    packet: &'a DhcpPacket<&'a [u8]>,
    kind: DhcpMessageType,
    requested: Option<Ipv4Addr>,
    server: Option<Ipv4Addr>,
    identifier: Option<&'a [u8]>,
}

/// Answers a message of a guest; `None` where nothing answers it.
pub fn answer(bytes: &[u8], lease: &Lease) -> Option<Answer> {
    let packet = DhcpPacket::new_checked(bytes).ok()?;
    let question = Question::parse(&packet, bytes)?;
    let kind = question.judge(lease)?;
    question.answer(kind, lease)
}

/// The link address of who asks by a message, as it says itself.
pub fn client(bytes: &[u8]) -> Option<[u8; 6]> {
    let packet = DhcpPacket::new_checked(bytes).ok()?;
    Question::parse(&packet, bytes).map(|question| question.packet.client_hardware_address().0)
}

impl<'a> Question<'a> {
    fn parse(packet: &'a DhcpPacket<&'a [u8]>, bytes: &[u8]) -> Option<Self> {
        const REQUEST: u8 = 1;
        const ETHERNET: (u8, u8) = (1, 6);
        let is_ours = bytes.len() > HEADER
            && bytes.get(..3)? == [REQUEST, ETHERNET.0, ETHERNET.1]
            && packet.magic_number() == 0x6382_5363
            && packet.relay_agent_ip().is_unspecified();
        let (mut kind, mut requested, mut server, mut identifier) = (None, None, None, None);
        for DhcpOption { kind: option, data } in packet.options() {
            match option {
                MESSAGE_TYPE => kind = data.first().map(|kind| DhcpMessageType::from(*kind)),
                REQUESTED => requested = address(data),
                SERVER_IDENTIFIER => server = address(data),
                CLIENT_IDENTIFIER if data.len() <= MOST_IDENTIFIER => identifier = Some(data),
                _ => {}
            }
        }
        is_ours.then_some(Self { packet, kind: kind?, requested, server, identifier })
    }

    /// What the answer is (RFC 2131, 4.3).
    fn judge(&self, lease: &Lease) -> Option<DhcpMessageType> {
        let wanted = self.requested.unwrap_or(self.packet.client_ip());
        match self.kind {
            DhcpMessageType::Discover => Some(DhcpMessageType::Offer),
            // It has chosen another server.
            DhcpMessageType::Request if self.server.is_some_and(|server| server != lease.gateway) => None,
            DhcpMessageType::Request if wanted == lease.guest => Some(DhcpMessageType::Ack),
            DhcpMessageType::Request => Some(DhcpMessageType::Nak),
            DhcpMessageType::Inform => Some(DhcpMessageType::Ack),
            // A release and a refusal of the address change nothing: there is no other.
            _ => None,
        }
    }

    fn answer(&self, kind: DhcpMessageType, lease: &Lease) -> Option<Answer> {
        let refused = kind == DhcpMessageType::Nak;
        let (lends, tells) = (!refused && self.kind != DhcpMessageType::Inform, !refused);
        let mtu = lease.mtu.to_be_bytes();
        let mut others = Vec::new();
        others.extend(tells.then_some(DhcpOption { kind: INTERFACE_MTU, data: &mtu }));
        others.extend(self.identifier.map(|data| DhcpOption { kind: CLIENT_IDENTIFIER, data }));
        let asked_from = if refused { Ipv4Addr::UNSPECIFIED } else { self.packet.client_ip() };
        let broadcast = self.packet.flags().contains(DhcpFlags::BROADCAST);
        let message = DhcpRepr {
            message_type: kind,
            transaction_id: self.packet.transaction_id(),
            secs: 0,
            client_hardware_address: self.packet.client_hardware_address(),
            client_ip: asked_from,
            your_ip: if lends { lease.guest } else { Ipv4Addr::UNSPECIFIED },
            server_ip: if tells { lease.gateway } else { Ipv4Addr::UNSPECIFIED },
            router: tells.then_some(lease.gateway),
            subnet_mask: tells.then(|| Ipv4Cidr::new(lease.guest, lease.prefix).netmask()),
            relay_agent_ip: Ipv4Addr::UNSPECIFIED,
            broadcast,
            requested_ip: None,
            client_identifier: None,
            server_identifier: Some(lease.gateway),
            parameter_request_list: None,
            dns_servers: tells.then(|| std::iter::once(lease.resolver).collect()),
            max_size: None,
            lease_duration: lends.then_some(LEASE),
            renew_duration: None,
            rebind_duration: None,
            additional_options: &others,
        };
        let mut bytes = vec![0; message.buffer_len().max(SMALLEST)];
        message.emit(&mut DhcpPacket::new_unchecked(&mut bytes)).ok()?;
        let to = match (asked_from.is_unspecified(), refused || broadcast) {
            // It can take nothing yet that goes to its address.
            (true, true) => Ipv4Addr::BROADCAST,
            _ => lease.guest,
        };
        Some(Answer { to, bytes })
    }
}

fn address(data: &[u8]) -> Option<Ipv4Addr> {
    <[u8; 4]>::try_from(data).ok().map(Ipv4Addr::from)
}

#[cfg(test)]
#[path = "dhcp_tests.rs"]
mod tests;
