//! A gateway between a real guest's stack and real sockets.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may end with a panic")]

mod beside;
mod dhcp;
mod dns;
mod echo;
mod firewall;
mod forwards;
mod guest;
mod hostile;
mod ipv6;
mod limits;
mod link;
mod namespace;
mod networks;
mod networks6;
mod program;
mod rules;
mod switch;
mod tcp;
mod udp;
mod world;
