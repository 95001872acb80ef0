//! The network of machines in the kernel, for a service that is root: a tap for each machine, a bridge, and rules.
//!
//! ```text
//!   guest ═ virtio ═ QEMU ═ fd ═ tap berth0-7 ─┐ isolated, spoofing refused (table bridge berth0)
//!   guest ═ virtio ═ QEMU ═ fd ═ tap berth0-8 ─┴─ berth0 10.127.0.1 ─ routing ─ judged (table inet berth0) ─ masquerade ─► out
//!                                                   │                                 ▲
//!                                                   └ berth-bridge: DHCP, RA, names    └─ exposed ports: dnat ◄─ others
//! ```
//!
//! What is wanted is a value ([`Wanted`]); which rules follow is pure ([`ruleset`]); [`Bridge`] makes the host so. It writes
//! what is wanted to its folder first, and each step can be repeated, so that a crash at any instant is made up when the
//! bridge is opened again. Rules change as a whole: one transaction of `nft` for each change, of a few lines for one machine
//! among a thousand. Connections are the kernel's and outlive the service, as taps do.
//!
//! A machine reaches the outside world and nothing else: not its host, by none of its addresses, no other machine, nothing
//! private, and then what its own firewall rules leave of that. From outside it is reached at the ports that lead to it. The
//! same holds in the mode `user`, where a program beside each machine decides it ([`berth_egress`]).
//!
//! **What the host has to have**: `nft`, `/dev/net/tun`, and forwarding. The bridge's own device forwards by its own settings
//! (`net.ipv4.conf.berth0.forwarding`), which [`Bridge::open`] sets; what answers comes in by another device, which is the
//! operator's: [`lacks`] says what to type there (`net.ipv4.conf.eth0.forwarding=1`; or `net.ipv4.ip_forward=1`, which is the
//! same for all devices; of IPv6 `net.ipv6.conf.all.forwarding=1`, since there one device alone forwards only from Linux 6.17
//! on). Nothing global is changed, and no table but the two that are named after the bridge. A packet passes
//! where all tables let it, so one of the host's that drops what it does not know has to know the bridge; [`lacks`] says that,
//! too. Where bridged packets pass rules of IP as well (`bridge-nf-call-iptables`), they come out the same: ports are isolated,
//! and nothing is bridged between machines.

mod bridge;
mod claim;
mod conntrack;
mod error;
mod folder;
mod host;
mod link;
mod look;
mod mac;
mod machine;
mod nft;
pub mod program;
pub mod ruleset;
mod settings;
mod stands;
mod tap;

pub use bridge::{Bridge, Watch, close};
pub use error::{Error, Result};
pub use link::Device;
pub use look::{Present, lacks, present};
pub use mac::Mac;
pub use machine::{Machine, Wanted};
pub use settings::Settings;
pub use stands::noted;
pub use tap::{open_tap, open_vhost};

/// The link address of the gateway, on every bridge: links of two of them never meet.
pub const GATEWAY_MAC: Mac = Mac([0x52, 0x54, 0x00, 0x62, 0x00, 0x00]);
