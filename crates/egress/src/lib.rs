//! The network of a machine: a gateway in user space, without root and without a change to the host's network.
//!
//! A machine's only network card is a unix socket of its QEMU, over which Ethernet frames go, each preceded by its
//! length. [`Egress::attach`] takes that socket and is the whole other end of the link: it answers ARP, NDP and DHCP,
//! ends the guest's TCP connections, carries its datagrams, and asks the platform's resolvers on its behalf. What it
//! lets out it makes anew as an ordinary socket of this process, after
//! [`NetworkPolicy::decide`](berth_domain::sandbox::network_policy::NetworkPolicy::decide) agreed.
//!
//! ```text
//!  guest ══ unix socket ══► frames ─► flows ──┬─ ARP, NDP, DHCP, own echo ► answered here
//!                             ▲               ├─ TCP ─► decide ─► connect ─► flow (smoltcp) ◄─► TcpStream
//!                             │               ├─ UDP, echo ─► decide ───► flow ◄────────────► UdpSocket
//!                             │               ├─ DNS ─► resolves ──────► the platform's resolvers
//!                    wire ◄───┴── packets ────┴─ call ◄─ room? ◄─ forwards ◄───────────── who comes from outside
//! ```
//!
//! Packets have up to [`MTU`] bytes, if the guest wants that: segments go to it as large as it says that it takes them,
//! and datagrams above 1,500 bytes in pieces. Pieces of the guest are put together before they are judged.
//!
//! The guest has an IPv6 address, too, whether the host has one or not; where there is no way to a destination, it is
//! told at once, so that programs take IPv4 without a wait. IPv4 addresses in disguise (`::ffff:0:0/96`) are refused.
//!
//! Packets to the addresses of a project's networks leave by a link to the network's switch, and come from there
//! ([`network`]); the policy does not speak of those.
//!
//! What comes in comes by a [`Forward`], whose socket the caller bound. To the guest everybody from outside has the
//! gateway's address and a port of their own. The policy speaks of what goes out only,
//! firewall rules of all of it.
//!
//! The guest is hostile. Every frame is parsed by types that check it; what does not parse is dropped; every table,
//! queue and wait is bounded ([`Limits`]). Each machine has its own process with one link ([`program`]), so that guests
//! never see each other, and none can take sockets or memory that another one, or the service, needs. A link without
//! connections has no timer and is woken by nothing, but for one every few hours that tells the guest that its IPv6
//! router is still there.
//!
//! Not carried: ICMP but for echo, IPv6 packets with further headers, IPv6 by a [`Forward`].

mod config;
mod counters;
pub mod dhcp;
pub mod dhcp6;
pub mod dns;
mod echo;
mod egress;
mod flows;
mod forward;
mod fragments;
mod frame;
mod host;
mod link;
mod message;
mod names;
mod ndp;
pub mod network;
mod outside;
mod packet;
mod pool;
mod presence;
pub mod program;
mod queue;

mod tcp;
mod udp;
mod wire;

use std::net::{Ipv4Addr, Ipv6Addr};

pub use config::{Config, HostAddresses, Limits, Resolvers};
pub use counters::Counters;
pub use egress::Egress;
pub use forward::{Forward, ForwardSocket};
pub use outside::{Connection, Outside, RealOutside};

/// The guest's address.
pub const GUEST: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);
/// Bits of the network part of the guest's address.
pub const PREFIX: u8 = 24;
/// The gateway's address; with [`Config::host_loopback`] and an `allow` rule, the host's loopback.
pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
/// The resolver's address.
pub const RESOLVER: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 3);
/// The guest's IPv6 network, of those for local use: it makes itself addresses in it.
pub const NETWORK6: Ipv6Addr = Ipv6Addr::new(0xfd62, 0x6572, 0x7468, 0, 0, 0, 0, 0);
/// Bits of the network part of the guest's IPv6 addresses.
pub const PREFIX6: u8 = 64;
/// The gateway's address in that network, and what it is as a router; with [`Config::host_loopback`] and an `allow`
/// rule, the first is the host's loopback.
pub const GATEWAY6: Ipv6Addr = Ipv6Addr::new(0xfd62, 0x6572, 0x7468, 0, 0, 0, 0, 2);
/// The guest's own one there, where it belongs to networks of IPv6: a VM's is given it by DHCP, a sandbox's by its agent.
pub const GUEST6: Ipv6Addr = Ipv6Addr::new(0xfd62, 0x6572, 0x7468, 0, 0, 0, 0, 0x15);
/// The router's address on the link.
pub const ROUTER6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);
/// The resolver's IPv6 address.
pub const RESOLVER6: Ipv6Addr = Ipv6Addr::new(0xfd62, 0x6572, 0x7468, 0, 0, 0, 0, 3);
/// Largest IP packet on the link, in bytes, which DHCP offers: larger packets are fewer, and what a packet costs in an
/// emulated machine decides how fast it is. The guest need not take it.
pub const MTU: usize = 65_520;

#[cfg(test)]
mod tests {
    use berth_domain::network::{GUESTS, GUESTS6};

    use super::*;

    #[test]
    fn no_network_of_a_project_hides_what_a_guest_has_behind_its_card() {
        assert_eq!(GUESTS.prefix_len(), PREFIX);
        assert!([GUEST, GATEWAY, RESOLVER].iter().all(|address| GUESTS.contains(address)));
        assert!([NETWORK6, GUEST6, GATEWAY6, RESOLVER6].iter().all(|address| GUESTS6.contains(address)));
    }
}
