//! The network of a sandbox: a gateway in user space, without root and without a change to the host's network.
//!
//! A sandbox's only network card is a unix socket of its QEMU, over which Ethernet frames go, each preceded by
//! its length. [`Egress::attach`] takes that socket and is the whole other end of the link: it answers ARP
//! and DHCP, ends the guest's TCP connections, carries its datagrams, and asks the platform's resolvers on its behalf.
//! What it lets out it makes anew as an ordinary socket of this process, after
//! [`Network::decide`](berth_domain::sandbox::network::Network::decide) agreed.
//!
//! ```text
//!  guest ══ unix socket ══► frames ─► switch ─┬─ ARP, DHCP, own echo ────► answered here
//!                             ▲               ├─ TCP ─► decide ─► connect ─► flow (smoltcp) ◄─► TcpStream
//!                             │               ├─ UDP, echo ─► decide ───► flow ◄────────────► UdpSocket
//!                             │               ├─ DNS ─► resolves ──────► the platform's resolvers
//!                    wire ◄───┴── packets ────┴─ call ◄─ room? ◄─ forwards ◄───────────── who comes from outside
//! ```
//!
//! Packets have up to [`MTU`] bytes, if the guest wants that: segments go to it as large as it says that it takes them, and
//! datagrams above 1,500 bytes in pieces. Pieces of the guest are put together before they are judged.
//!
//! What comes in comes by a [`Forward`], whose socket the caller bound. To the guest everybody from outside has the
//! gateway's address and a port of their own. Rules speak of what goes out only.
//!
//! The guest is hostile. Every frame is parsed by types that check it; what does not parse is dropped; every
//! table, queue and wait is bounded ([`Limits`]). Each sandbox has its own gateway task and its own link, so
//! that guests never see each other. All links share the service's sockets: a link takes no more than it leaves free, so
//! that one sandbox cannot keep the others, or the service, from theirs. A link without connections has no timer and is
//! woken by nothing.
//!
//! Not carried: IPv6, ICMP but for echo.

mod config;
mod counters;
mod dhcp;
mod dns;
mod echo;
mod egress;
mod forward;
mod fragments;
mod frame;
mod host;
mod link;
mod names;
mod outside;
mod packet;
mod pool;
mod queue;
mod switch;
mod tcp;
mod udp;
mod wire;

use std::net::Ipv4Addr;

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
/// Largest IP packet on the link, in bytes, which DHCP offers: larger packets are fewer, and what a packet costs in an
/// emulated machine decides how fast it is. The guest need not take it.
pub const MTU: usize = 65_520;
