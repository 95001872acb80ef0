//! From the guest's own address to its address in a network, and back. Pure.
//!
//! ```text
//!   guest: 10.0.2.15 ─► peer        ══ outward ══►  own ─► peer        network
//!          peer ─► 10.0.2.15        ◄═ inward ═══   peer ─► own
//! ```
//!
//! One address stands for one other, so nothing is remembered: a packet says all that its translation needs, and a
//! guest that goes on elsewhere with its memory is at its new address with its next packet. Checksums are changed by
//! what changes (RFC 1624, eqn. 3) and not made anew: what was wrong stays wrong, and who it is for finds out. An ICMP
//! error quotes the packet that it is about, whose addresses are the other side's, and is translated with what it
//! quotes.

use std::net::Ipv4Addr;

use berth_domain::network::resolver;
use ipnet::Ipv4Net;
use smoltcp::wire::IpProtocol;

use super::header::{CHECKSUM, DESTINATION, Header, IPV4, SOURCE, UDP, address, word};
use crate::GUEST;

/// Where a segment, a datagram and a message of ICMP have their checksums.
const OF_TCP: usize = 16;
const OF_UDP: usize = 6;
const OF_ICMP: usize = 2;
/// Bytes of an ICMP error before the packet that it quotes, and those of the packet that every error quotes (RFC 792).
const ERROR: usize = 8;
const QUOTED: usize = 8;
/// Messages of ICMP (RFC 792): pings, and errors. A redirect is no error: it would have a guest take another way.
const PINGS: [u8; 2] = [0, 8];
const ERRORS: [u8; 3] = [3, 11, 12];
/// A datagram's checksum that says that there is none, and what stands for that number.
const NO_CHECKSUM: u16 = 0;
const ZERO: u16 = 0xffff;

/// Where a machine is in a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The network's addresses.
    pub(crate) cidr: Ipv4Net,
    /// The machine's.
    pub(crate) own: Ipv4Addr,
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
    pub(crate) fn resolver(&self) -> Ipv4Addr {
        resolver(self.cidr)
    }

    /// Translates a packet of the guest to this network, and says where it goes; `None` where it goes nowhere.
    pub(crate) fn outward(&self, packet: &mut [u8]) -> Option<Way> {
        let header = Header::read(packet)?;
        if header.from != GUEST || !is_member(self.cidr, header.to) {
            return None;
        }
        check(packet, &header)?;
        quoted(packet, &header, DESTINATION, GUEST, self.own)?;
        replace(packet, &header, SOURCE, self.own);
        if header.to != self.own {
            return Some(Way::Network);
        }
        quoted(packet, &header, SOURCE, self.own, GUEST)?;
        replace(packet, &header, DESTINATION, GUEST);
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
        quoted(packet, &header, SOURCE, self.own, GUEST)?;
        replace(packet, &header, DESTINATION, GUEST);
        Some(header)
    }
}

/// Whether an address is one that somebody in a network may have: not the network's own, nor everybody's.
pub(crate) fn is_member(cidr: Ipv4Net, address: Ipv4Addr) -> bool {
    cidr.contains(&address) && address != cidr.network() && address != cidr.broadcast()
}

/// Whether what a packet carries is all there as far as it has to be changed, and is something that goes between
/// machines.
fn check(packet: &[u8], header: &Header) -> Option<()> {
    if !header.is_first {
        return Some(());
    }
    let has = |bytes: usize| packet.len() >= IPV4 + bytes;
    let fits = match header.protocol {
        IpProtocol::Tcp => has(OF_TCP + 2),
        // Port 0 is no program's: what comes from there and goes there is between this program and the switch.
        IpProtocol::Udp => has(UDP) && word(packet, IPV4)? != 0,
        _ => has(ERROR) && [&PINGS[..], &ERRORS].concat().contains(packet.get(IPV4)?),
    };
    fits.then_some(())
}

/// Translates one of the addresses of a packet, and the checksums that it is part of.
fn replace(packet: &mut [u8], header: &Header, at: usize, by: Ipv4Addr) {
    let Some(before) = put(packet, at, by) else { return };
    adjust(packet, CHECKSUM, before, by);
    match header.protocol {
        IpProtocol::Tcp if header.is_first => adjust(packet, IPV4 + OF_TCP, before, by),
        IpProtocol::Udp if header.is_first => adjust_datagram(packet, IPV4 + OF_UDP, before, by),
        // A message of ICMP does not count in who it goes to.
        _ => {}
    }
}

/// Translates the packet that an error quotes, where it has this address there; `None` where that is no packet of ours.
fn quoted(packet: &mut [u8], header: &Header, at: usize, address_before: Ipv4Addr, by: Ipv4Addr) -> Option<()> {
    const QUOTE: usize = IPV4 + ERROR;
    let is_error = header.protocol == IpProtocol::Icmp && header.is_first && ERRORS.contains(packet.get(IPV4)?);
    if !is_error {
        return Some(());
    }
    // The whole of it is needed where its checksum counts: no error is longer than one packet.
    let quote = packet.get(QUOTE..)?;
    if !header.is_whole
        || quote.len() < IPV4 + QUOTED
        || *quote.first()? != 0x45
        || address(quote, at)? != address_before
    {
        return None;
    }
    let (protocol, offset) = (IpProtocol::from(*quote.get(9)?), word(quote, 6)? & 0x1fff);
    let sum = match protocol {
        IpProtocol::Tcp => Some(OF_TCP),
        IpProtocol::Udp => Some(OF_UDP),
        _ => None,
    };
    let sum = sum.map(|sum| QUOTE + IPV4 + sum).filter(|sum| offset == 0 && packet.len() >= sum + 2);
    put(packet, QUOTE + at, by)?;
    let of_error = IPV4 + OF_ICMP;
    adjust(packet, of_error, address_before, by);
    // Each checksum that changes is part of the error's, too.
    counted(packet, QUOTE + CHECKSUM, of_error, |packet| adjust(packet, QUOTE + CHECKSUM, address_before, by));
    match sum {
        Some(sum) if protocol == IpProtocol::Udp => {
            counted(packet, sum, of_error, |packet| adjust_datagram(packet, sum, address_before, by));
        }
        Some(sum) => counted(packet, sum, of_error, |packet| adjust(packet, sum, address_before, by)),
        None => {}
    }
    Some(())
}

/// Changes a word, and the checksum that it is part of by as much.
fn counted(packet: &mut [u8], at: usize, sum: usize, change: impl FnOnce(&mut [u8])) {
    let before = word(packet, at);
    change(packet);
    if let (Some(before), Some(after), Some(of)) = (before, word(packet, at), word(packet, sum)) {
        put_word(packet, sum, updated(of, before, after));
    }
}

/// Writes an address; the one that stood there.
fn put(packet: &mut [u8], at: usize, by: Ipv4Addr) -> Option<Ipv4Addr> {
    let before = address(packet, at)?;
    packet.get_mut(at..at + 4)?.copy_from_slice(&by.octets());
    Some(before)
}

fn put_word(packet: &mut [u8], at: usize, word: u16) {
    if let Some(bytes) = packet.get_mut(at..at + 2) {
        bytes.copy_from_slice(&word.to_be_bytes());
    }
}

/// Changes a checksum by an address that is counted in it.
fn adjust(packet: &mut [u8], sum: usize, before: Ipv4Addr, after: Ipv4Addr) {
    let Some(mut checksum) = word(packet, sum) else { return };
    let halves = |address: Ipv4Addr| {
        let [a, b, c, d] = address.octets();
        [u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])]
    };
    for (before, after) in halves(before).into_iter().zip(halves(after)) {
        checksum = updated(checksum, before, after);
    }
    put_word(packet, sum, checksum);
}

/// The same for a datagram, which may have none.
fn adjust_datagram(packet: &mut [u8], sum: usize, before: Ipv4Addr, after: Ipv4Addr) {
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
