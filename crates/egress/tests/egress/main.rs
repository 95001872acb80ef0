//! A gateway between a real guest's stack and real sockets.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may end with a panic")]

mod dhcp;
mod dns;
mod echo;
mod forwards;
mod guest;
mod hostile;
mod ipv6;
mod limits;
mod link;
mod namespace;
mod program;
mod rules;
mod tcp;
mod udp;
mod world;
