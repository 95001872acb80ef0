//! The program that answers the guests of a bridge: DHCP of IPv4 and IPv6, who their router is, and names, at the gateway's
//! addresses.
//!
//! It is a process of its own, one for all guests, and outlives the service. It is given a folder, reads there what is
//! wanted, and again whenever that was replaced, so nobody has to tell it of a change. It binds its sockets to the bridge's
//! device, gives up its rights, and has then no file but those that say who the resolvers and the machines are.
//!
//! Guests are hostile. A lease follows from the list of machines by the link address that a guest asks from, which the
//! bridge's rules have checked; nothing is remembered of who asked. Questions under way are bounded, for all guests and for
//! one, and so are connections.

mod dhcp;
mod names;
mod process;
mod router;
mod serve;
mod told;

pub use process::{end, find, start};
pub use serve::main;

/// The word by which the `berth` program becomes this one.
pub const VERB: &str = "bridge";
