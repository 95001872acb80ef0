//! From the guest's own address to its address in a network, and back. Pure.
//!
//! ```text
//!   guest: 10.0.2.15 ─► peer        ══ outward ══►  own ─► peer        network
//!          peer ─► 10.0.2.15        ◄═ inward ═══   peer ─► own
//! ```
//!
//! In IPv6 the guest's is the one that it was given, and not those that it may have made itself beside that one: they would
//! be several, of which only a table could tell which is meant.
//!
//! One address stands for one other, so nothing is remembered: a packet says all that its translation needs, and a
//! guest that goes on elsewhere with its memory is at its new address with its next packet. Checksums are changed by
//! what changes (RFC 1624, eqn. 3) and not made anew: what was wrong stays wrong, and who it is for finds out. An ICMP
//! error quotes the packet that it is about, whose addresses are the other side's, and is translated with what it
//! quotes.

use std::net::IpAddr;

use berth_domain::network::{resolver, resolver6};
use ipnet::IpNet;
use smoltcp::wire::IpProtocol;

use super::header::{CHECKSUM, Header, Quote, Side, UDP, address, is_ipv6, place, word};
use crate::{GUEST, GUEST6};

/// Where a segment, a datagram and a message of ICMP have their checksums.
const OF_TCP: usize = 16;
const OF_UDP: usize = 6;
const OF_ICMP: usize = 2;
/// Bytes of an ICMP error before the packet that it quotes, and those of the packet that every error quotes (RFC 792).
const ERROR: usize = 8;
const QUOTED: usize = 8;
/// Messages of ICMP (RFC 792) and of ICMPv6 (RFC 4443): pings, and errors. A redirect is no error: it would have a guest
/// take another way.
const PINGS: [u8; 2] = [0, 8];
const ERRORS: [u8; 3] = [3, 11, 12];
const PINGS6: [u8; 2] = [128, 129];
const ERRORS6: [u8; 4] = [1, 2, 3, 4];
/// A datagram's checksum that says that there is none, and what stands for that number.
const NO_CHECKSUM: u16 = 0;
const ZERO: u16 = 0xffff;

/// Where a machine is in a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The network's addresses, of one kind.
    pub(crate) cidr: IpNet,
    /// The machine's.
    pub(crate) own: IpAddr,
}

/// Where a packet that was translated goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// To others of the network.
    Network,
    /// Back to the guest, which speaks to itself.
    Guest,
}

impl Place {
    /// Where the network's names are asked for.
    pub(crate) fn resolver(&self) -> IpAddr {
        match self.cidr {
            IpNet::V4(cidr) => resolver(cidr).into(),
            IpNet::V6(cidr) => resolver6(cidr).into(),
        }
    }

    /// The guest's own address of this kind.
    const fn guest(&self) -> IpAddr {
        match self.own {
            IpAddr::V4(_) => IpAddr::V4(GUEST),
            IpAddr::V6(_) => IpAddr::V6(GUEST6),
        }
    }

    /// Translates a packet of the guest to this network, and says where it goes; `None` where it goes nowhere.
    pub(crate) fn outward(&self, packet: &mut [u8]) -> Option<Way> {
        let header = Header::read(packet)?;
        let guest = self.guest();
        if header.from != guest || !is_member(self.cidr, header.to) {
            return None;
        }
        check(packet, &header)?;
        quoted(packet, &header, Side::Destination, guest, self.own)?;
        replace(packet, &header, Side::Source, self.own);
        if header.to != self.own {
            return Some(Way::Network);
        }
        quoted(packet, &header, Side::Source, self.own, guest)?;
        replace(packet, &header, Side::Destination, guest);
        Some(Way::Guest)
    }

    /// Translates a packet of the network to the guest; `None` where it is not for this machine, or from nobody of the
    /// network.
    pub(crate) fn inward(&self, packet: &mut [u8]) -> Option<Header> {
        let header = Header::read(packet)?;
        if header.to != self.own || header.from == self.own || !is_member(self.cidr, header.from) {
            return None;
        }
        check(packet, &header)?;
        quoted(packet, &header, Side::Source, self.own, self.guest())?;
        replace(packet, &header, Side::Destination, self.guest());
        Some(header)
    }
}

/// Whether an address is one that somebody in a network may have: not the network's own, which in IPv6 is its routers'
/// (RFC 4291, 2.6.1), nor everybody's.
pub(crate) fn is_member(cidr: IpNet, address: IpAddr) -> bool {
    let is_everybodys = cidr.addr().is_ipv4() && address == cidr.broadcast();
    cidr.contains(&address) && address != cidr.network() && !is_everybodys
}

/// Whether what a packet carries is all there as far as it has to be changed, and is something that goes between
/// machines.
fn check(packet: &[u8], header: &Header) -> Option<()> {
    if !header.is_first {
        return Some(());
    }
    let has = |bytes: usize| packet.len() >= header.body + bytes;
    let fits = match header.protocol {
        IpProtocol::Tcp => has(OF_TCP + 2),
        // Port 0 is no program's: what comes from there and goes there is between this program and the switch.
        IpProtocol::Udp => has(UDP) && word(packet, header.body)? != 0,
        IpProtocol::Icmpv6 => has(ERROR) && [&PINGS6[..], &ERRORS6].concat().contains(packet.get(header.body)?),
        _ => has(ERROR) && [&PINGS[..], &ERRORS].concat().contains(packet.get(header.body)?),
    };
    fits.then_some(())
}

/// Translates one of the addresses of a packet, and the checksums that it is part of.
fn replace(packet: &mut [u8], header: &Header, side: Side, by: IpAddr) {
    let Some(before) = address(packet, side) else { return };
    let at = place(packet, side);
    put(packet, at, by);
    if by.is_ipv4() {
        adjust(packet, CHECKSUM, before, by);
    }
    if header.is_first {
        adjust_carried(packet, header.protocol, header.body, before, by);
    }
}

/// Changes the checksum of what a packet carries by an address that is counted in it.
fn adjust_carried(packet: &mut [u8], protocol: IpProtocol, body: usize, before: IpAddr, by: IpAddr) {
    match sum_of(protocol) {
        Some(sum) if protocol == IpProtocol::Udp => adjust_datagram(packet, body + sum, before, by),
        Some(sum) => adjust(packet, body + sum, before, by),
        None => {}
    }
}

/// Where what is carried has its checksum, where that counts in who it goes to: a message of ICMP has one that does not.
const fn sum_of(protocol: IpProtocol) -> Option<usize> {
    match protocol {
        IpProtocol::Tcp => Some(OF_TCP),
        IpProtocol::Udp => Some(OF_UDP),
        IpProtocol::Icmpv6 => Some(OF_ICMP),
        _ => None,
    }
}

/// Translates the packet that an error quotes, where it has this address there; `None` where that is no packet of ours.
fn quoted(packet: &mut [u8], header: &Header, side: Side, address_before: IpAddr, by: IpAddr) -> Option<()> {
    if !is_error(packet, header)? {
        return Some(());
    }
    // The whole of it is needed where its checksum counts: no error is longer than one packet.
    let start = header.body + ERROR;
    let bytes = packet.get(start..)?;
    let quote = Quote::read(bytes)?;
    let is_short = bytes.len() < quote.body + QUOTED;
    if !header.is_whole || is_short || is_ipv6(bytes) != by.is_ipv6() || address(bytes, side)? != address_before {
        return None;
    }
    let at = start + place(bytes, side);
    let sum = sum_of(quote.protocol).map(|sum| start + quote.body + sum);
    let sum = sum.filter(|sum| quote.is_first && packet.len() >= sum + 2);
    put(packet, at, by);
    let of_error = header.body + OF_ICMP;
    adjust(packet, of_error, address_before, by);
    // Each checksum that changes is part of the error's, too.
    if by.is_ipv4() {
        counted(packet, start + CHECKSUM, of_error, |packet| adjust(packet, start + CHECKSUM, address_before, by));
    }
    if let Some(sum) = sum {
        let body = start + quote.body;
        counted(packet, sum, of_error, |packet| adjust_carried(packet, quote.protocol, body, address_before, by));
    }
    Some(())
}

/// Whether a packet is an error of ICMP.
fn is_error(packet: &[u8], header: &Header) -> Option<bool> {
    let kind = packet.get(header.body)?;
    Some(
        header.is_first
            && match header.protocol {
                IpProtocol::Icmp => ERRORS.contains(kind),
                IpProtocol::Icmpv6 => ERRORS6.contains(kind),
                _ => false,
            },
    )
}

/// Changes a word, and the checksum that it is part of by as much.
fn counted(packet: &mut [u8], at: usize, sum: usize, change: impl FnOnce(&mut [u8])) {
    let before = word(packet, at);
    change(packet);
    if let (Some(before), Some(after), Some(of)) = (before, word(packet, at), word(packet, sum)) {
        put_word(packet, sum, updated(of, before, after));
    }
}

/// Writes an address.
fn put(packet: &mut [u8], at: usize, by: IpAddr) {
    let (four, sixteen);
    let bytes: &[u8] = match by {
        IpAddr::V4(by) => {
            four = by.octets();
            &four
        }
        IpAddr::V6(by) => {
            sixteen = by.octets();
            &sixteen
        }
    };
    if let Some(place) = packet.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}

fn put_word(packet: &mut [u8], at: usize, word: u16) {
    if let Some(bytes) = packet.get_mut(at..at + 2) {
        bytes.copy_from_slice(&word.to_be_bytes());
    }
}

/// Changes a checksum by an address that is counted in it.
fn adjust(packet: &mut [u8], sum: usize, before: IpAddr, after: IpAddr) {
    let Some(mut checksum) = word(packet, sum) else { return };
    for (before, after) in words(before).into_iter().zip(words(after)).filter(|(before, after)| before != after) {
        checksum = updated(checksum, before, after);
    }
    put_word(packet, sum, checksum);
}

/// An address as what a checksum counts, behind zeros, which count nothing.
fn words(address: IpAddr) -> [u16; 8] {
    match address {
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            [0, 0, 0, 0, 0, 0, u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])]
        }
        IpAddr::V6(address) => address.segments(),
    }
}

/// The same for a datagram, which may have none.
fn adjust_datagram(packet: &mut [u8], sum: usize, before: IpAddr, after: IpAddr) {
    if word(packet, sum) == Some(NO_CHECKSUM) {
        return;
    }
    adjust(packet, sum, before, after);
    if word(packet, sum) == Some(NO_CHECKSUM) {
        put_word(packet, sum, ZERO);
    }
}

/// A checksum after one of its words has changed (RFC 1624, eqn. 3).
fn updated(checksum: u16, before: u16, after: u16) -> u16 {
    let sum = u32::from(!checksum) + u32::from(!before) + u32::from(after);
    let folded = (sum & 0xffff) + (sum >> 16);
    let [_, _, high, low] = ((folded & 0xffff) + (folded >> 16)).to_be_bytes();
    !u16::from_be_bytes([high, low])
}

#[cfg(test)]
#[path = "translate_tests.rs"]
mod tests;
