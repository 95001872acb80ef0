//! Neighbours and routers of IPv6 (RFC 4861): tells the guest where the gateway is and which network it is in, so that it
//! makes itself an address. Pure.
//!
//! The network is one of those for local use (RFC 4193): the guest's address is nobody's outside, where everything it sends
//! comes from this host. Programs that choose between IPv4 and IPv6 prefer IPv4 then, and take IPv6 where a name has
//! nothing else (RFC 6724, 2.1).

use std::net::Ipv6Addr;
use std::time::Duration;

use smoltcp::wire::Icmpv6Packet;

use crate::packet::hardware;
use crate::{GATEWAY, GUEST6, NETWORK6, PREFIX6, RESOLVER6, ROUTER6};

/// Everybody on the link.
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// How long the guest may believe that the router is there, in seconds: as long as can be said (RFC 8319).
const LIFETIME: u16 = u16::MAX;
/// After how long it is told so again, so that a message may get lost.
pub(crate) const AGAIN: Duration = Duration::from_hours(6);

/// Messages and options, by their numbers (RFC 4861, 4; RFC 8106, 5.1).
const ROUTER_ADVERTISEMENT: u8 = 134;
const NEIGHBOUR_SOLICITATION: u8 = 135;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const SOURCE_LINK_ADDRESS: u8 = 1;
const TARGET_LINK_ADDRESS: u8 = 2;
const PREFIX_INFORMATION: u8 = 3;
const RESOLVERS: u8 = 25;
/// The number of ICMPv6 in a header, where that has its sender, and its length; where a message has its target.
const ICMPV6: u8 = 58;
const SENDER: usize = 8;
const HEADER: usize = 40;
const TARGET: usize = 8;
/// Flag of who tells the network: addresses are to be had by DHCP.
const MANAGED: u8 = 0x80;
/// Flags: what says so is a router, was asked, and overrides what was known; a prefix is of this link, and may be made an
/// address of.
const IS_ROUTER: u8 = 0x80;
const WAS_ASKED: u8 = 0x40;
const OVERRIDES: u8 = 0x20;
const ON_LINK_AND_AUTONOMOUS: u8 = 0xc0;
/// Hop limit that the guest is to use.
const HOPS: u8 = 64;
/// A time without an end, and none.
const FOREVER: [u8; 4] = [0xff; 4];
const NEVER: [u8; 4] = [0; 4];

/// A message, and from where to where it goes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) from: Ipv6Addr,
    pub(crate) to: Ipv6Addr,
    pub(crate) bytes: Vec<u8>,
}

/// Says where an own address is, to who has asked.
pub(crate) fn neighbour(wanted: Ipv6Addr, sender: Ipv6Addr) -> Message {
    let (to, asked) = if sender.is_unspecified() { (ALL_NODES, 0) } else { (sender, WAS_ASKED) };
    let router = if wanted == RESOLVER6 { 0 } else { IS_ROUTER };
    let head = [NEIGHBOUR_ADVERTISEMENT, 0, 0, 0, router | asked | OVERRIDES, 0, 0, 0];
    message(wanted, to, [&head[..], &wanted.octets(), &link_address(TARGET_LINK_ADDRESS)].concat())
}

/// Asks the guest whether it has its address.
pub(crate) fn question() -> Message {
    let head = [NEIGHBOUR_SOLICITATION, 0, 0, 0, 0, 0, 0, 0];
    message(ROUTER6, GUEST6, [&head[..], &GUEST6.octets(), &link_address(SOURCE_LINK_ADDRESS)].concat())
}

/// Whether the guest says by a packet that it has its address: one from there, or that it asks whether somebody else has it,
/// or tells so.
pub(crate) fn is_heard(packet: &[u8]) -> bool {
    const ABOUT: [u8; 2] = [NEIGHBOUR_SOLICITATION, NEIGHBOUR_ADVERTISEMENT];
    let own = GUEST6.octets();
    let has = |at: usize| packet.get(at..).is_some_and(|rest| rest.starts_with(&own));
    let is_about = packet.get(6) == Some(&ICMPV6) && packet.get(HEADER).is_some_and(|kind| ABOUT.contains(kind));
    has(SENDER) || is_about && has(HEADER + TARGET)
}

/// Says which network this is, to who has asked, or to everybody. Where the guest is to have the address that is `managed`, those
/// that it makes itself are for what finds no other (RFC 4862, 5.5.4): a guest that knows no DHCP goes on with them.
pub(crate) fn router(sender: Ipv6Addr, managed: bool) -> Message {
    let to = if sender.is_unspecified() { ALL_NODES } else { sender };
    let [high, low] = LIFETIME.to_be_bytes();
    // Times of 0 are not said, nor is the size of packets, which is that of the card.
    let (flags, preferred) = if managed { (MANAGED, NEVER) } else { (0, FOREVER) };
    let head = [ROUTER_ADVERTISEMENT, 0, 0, 0, HOPS, flags, high, low, 0, 0, 0, 0, 0, 0, 0, 0];
    let prefix = [PREFIX_INFORMATION, 4, PREFIX6, ON_LINK_AND_AUTONOMOUS];
    let resolvers = [RESOLVERS, 3, 0, 0];
    let bytes = [
        &head[..],
        &link_address(SOURCE_LINK_ADDRESS),
        &prefix,
        &FOREVER,
        &preferred,
        &[0; 4],
        &NETWORK6.octets(),
        &resolvers,
        &FOREVER,
        &RESOLVER6.octets(),
    ];
    message(ROUTER6, to, bytes.concat())
}

/// Says so to everybody, though nobody has asked.
pub(crate) fn router_again(managed: bool) -> Message {
    router(Ipv6Addr::UNSPECIFIED, managed)
}

fn link_address(option: u8) -> [u8; 8] {
    let [a, b, c, d, e, f] = hardware(GATEWAY).0;
    [option, 1, a, b, c, d, e, f]
}

fn message(from: Ipv6Addr, to: Ipv6Addr, mut bytes: Vec<u8>) -> Message {
    Icmpv6Packet::new_unchecked(&mut bytes[..]).fill_checksum(&from, &to);
    Message { from, to, bytes }
}

#[cfg(test)]
mod tests {
    use smoltcp::phy::ChecksumCapabilities;
    use smoltcp::wire::{Icmpv6Repr, NdiscNeighborFlags, NdiscRepr};

    use super::*;
    use crate::GATEWAY6;

    fn read(message: &Message) -> NdiscRepr<'_> {
        let packet = Icmpv6Packet::new_checked(&message.bytes[..]).unwrap();
        let Icmpv6Repr::Ndisc(read) =
            Icmpv6Repr::parse(&message.from, &message.to, &packet, &ChecksumCapabilities::default()).unwrap()
        else {
            panic!("another message")
        };
        read
    }

    #[test]
    fn the_network_is_told() {
        let guest = "fe80::5".parse().unwrap();
        let told = router(guest, false);
        assert_eq!((told.from, told.to, router_again(false).to), (ROUTER6, guest, ALL_NODES));
        let NdiscRepr::RouterAdvert { flags, router_lifetime, lladdr, mtu, prefix_info, .. } = read(&told) else {
            panic!("another message")
        };
        let prefix = prefix_info.unwrap();
        assert_eq!((prefix.prefix, prefix.prefix_len), (NETWORK6, PREFIX6));
        assert!(flags.is_empty() && lladdr.unwrap().as_bytes() == hardware(GATEWAY).0 && mtu.is_none());
        assert!(Duration::from(router_lifetime) > 2 * AGAIN);
        assert!(told.bytes.ends_with(&[&[25, 3, 0, 0, 255, 255, 255, 255][..], &RESOLVER6.octets()].concat()));
    }

    #[test]
    fn neighbours_are_told_where_they_are() {
        let guest = "fd62:6572:7468::5".parse().unwrap();
        for (wanted, sender, to, flags) in [
            (GATEWAY6, guest, guest, IS_ROUTER | WAS_ASKED | OVERRIDES),
            (RESOLVER6, guest, guest, WAS_ASKED | OVERRIDES),
            (ROUTER6, Ipv6Addr::UNSPECIFIED, ALL_NODES, IS_ROUTER | OVERRIDES),
        ] {
            let told = neighbour(wanted, sender);
            let lladdr = Some(hardware(GATEWAY).into());
            let flags = NdiscNeighborFlags::from_bits_truncate(flags);
            assert_eq!(read(&told), NdiscRepr::NeighborAdvert { flags, target_addr: wanted, lladdr });
            assert_eq!((told.from, told.to), (wanted, to));
        }
    }
}
