//! Addresses that are not the outside world (RFC 6890 and IANA's registries of special-purpose addresses).
//!
//! The registries list a few anycast addresses within these blocks as globally reachable. They are not taken
//! out: nothing a sandbox needs is there. Ranges that carry IPv4 addresses in IPv6 (NAT64, 6to4, Teredo) are
//! special as a whole, so that they are no detour.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::fmt;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// What a special address is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Special {
    /// This network, or no address at all.
    ThisNetwork,
    /// Private networks and unique local addresses.
    Private,
    /// Shared between a provider and its customers.
    CarrierGrade,
    /// The machine itself.
    Loopback,
    /// Reachable on the link only.
    LinkLocal,
    /// Services that clouds offer to their machines.
    Metadata,
    /// Assignments of the IETF to protocols.
    Protocol,
    /// Documentation.
    Documentation,
    /// Measuring devices.
    Benchmarking,
    /// IPv4 within IPv6.
    Translation,
    /// Groups.
    Multicast,
    /// Everybody on the link.
    Broadcast,
    /// Reserved or discarded.
    Reserved,
}

impl Special {
    /// What an address is for; `None` for the outside world.
    pub fn of(address: IpAddr) -> Option<Self> {
        blocks().find(|(network, _)| network.contains(&address)).map(|(_, special)| special)
    }
}

impl fmt::Display for Special {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ThisNetwork => "this network",
            Self::Private => "private",
            Self::CarrierGrade => "carrier-grade NAT",
            Self::Loopback => "loopback",
            Self::LinkLocal => "link-local",
            Self::Metadata => "metadata",
            Self::Protocol => "IETF protocol assignments",
            Self::Documentation => "documentation",
            Self::Benchmarking => "benchmarking",
            Self::Translation => "IPv4 within IPv6",
            Self::Multicast => "multicast",
            Self::Broadcast => "broadcast",
            Self::Reserved => "reserved",
        })
    }
}

/// Whether a rule's network names a special address: it contains the address, and nothing outside its block.
pub(super) fn named(address: IpAddr, rule: &IpNet) -> bool {
    rule.contains(&address) && blocks().any(|(block, _)| block.contains(&address) && block.contains(rule))
}

/// Every block, the more exact ones first.
pub fn blocks() -> impl Iterator<Item = (IpNet, Special)> {
    let v4 = V4.iter().map(|(a, prefix, special)| {
        (Ipv4Net::new_assert(Ipv4Addr::new(a[0], a[1], a[2], a[3]), *prefix).into(), *special)
    });
    let v6 =
        V6.iter().map(|(bits, prefix, special)| (Ipv6Net::new_assert(Ipv6Addr::from(*bits), *prefix).into(), *special));
    v4.chain(v6)
}

const V4: &[([u8; 4], u8, Special)] = &[
    ([255, 255, 255, 255], 32, Special::Broadcast),
    ([169, 254, 169, 254], 32, Special::Metadata),
    ([168, 63, 129, 16], 32, Special::Metadata), // Azure's, in the midst of the public range
    ([0, 0, 0, 0], 8, Special::ThisNetwork),
    ([10, 0, 0, 0], 8, Special::Private),
    ([100, 64, 0, 0], 10, Special::CarrierGrade),
    ([127, 0, 0, 0], 8, Special::Loopback),
    ([169, 254, 0, 0], 16, Special::LinkLocal),
    ([172, 16, 0, 0], 12, Special::Private),
    ([192, 0, 0, 0], 24, Special::Protocol),
    ([192, 0, 2, 0], 24, Special::Documentation),
    ([192, 88, 99, 0], 24, Special::Translation),
    ([192, 168, 0, 0], 16, Special::Private),
    ([198, 18, 0, 0], 15, Special::Benchmarking),
    ([198, 51, 100, 0], 24, Special::Documentation),
    ([203, 0, 113, 0], 24, Special::Documentation),
    ([224, 0, 0, 0], 4, Special::Multicast),
    ([240, 0, 0, 0], 4, Special::Reserved),
];

const V6: &[(u128, u8, Special)] = &[
    (0, 128, Special::ThisNetwork),
    (1, 128, Special::Loopback),
    (0, 96, Special::Translation),
    (0xffff_0000_0000, 96, Special::Translation),
    (0x0064_ff9b << 96, 96, Special::Translation),
    (0x0064_ff9b_0001 << 80, 48, Special::Translation),
    (0x0100 << 112, 64, Special::Reserved),
    (0x0100_0000_0000_0001 << 64, 64, Special::Reserved),
    (0x2001 << 112, 32, Special::Translation),
    (0x2001_0002 << 96, 48, Special::Benchmarking),
    (0x2001 << 112, 23, Special::Protocol),
    (0x2001_0db8 << 96, 32, Special::Documentation),
    (0x2002 << 112, 16, Special::Translation),
    (0x3fff << 112, 20, Special::Documentation),
    (0x5f00 << 112, 16, Special::Reserved),
    (0xfc00 << 112, 7, Special::Private),
    (0xfe80 << 112, 10, Special::LinkLocal),
    (0xfec0 << 112, 10, Special::Private),
    (0xff00 << 112, 8, Special::Multicast),
];
