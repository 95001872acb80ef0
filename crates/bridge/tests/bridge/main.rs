//! Bridges of real kernels, in network namespaces that the tests make, with real packets.
//!
//! ```text
//!   guest (namespace) eth0 ═ pump ═ tap ─ bridge ─ host (namespace of the test's thread) ─ up0 ═ up1 ─ internet (namespace)
//! ```
//!
//! A guest is a namespace whose card is a tap, and a thread that carries frames between that tap and the machine's, as QEMU
//! does. Only root may make all that; where somebody else runs the tests, they say so and try nothing.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may end with a panic")]

mod crash;
mod dhcp;
mod forwards;
mod guest;
mod host;
mod many;
mod packets;
mod place;
mod reach;
mod rules;
mod spoof;
mod world;
