//! The program beside a machine: its network, in a process of its own that outlives the service as the machine does.
//!
//! It holds the guest's connections and the sockets of its ports, so neither a restart of the service nor its end
//! touches them. It knows nothing of the host but what it is given: [`process`] starts it with two sockets and nothing
//! else, it [confines](confine) itself, and over a [`Control`] connection it is told what to do ([`protocol`]).
//! Whatever needs a right is done by the service, which passes on the open descriptor: the ports, which may be below
//! 1024 and taken, and the connection to the machine's network card.
//!
//! ```text
//!   service ── spawn ──► program                 fd 0: the first control connection, fd 1: the socket to listen on
//!      │── note: who it is (pid, start time) in the machine's folder
//!      │── set_rules, set_forwards, set_link ──►  from here on it lives as long as the link does
//!      ╳   (the service ends; another one comes)
//!   service ── connect to egress.sock ──► status, set_rules, set_forwards, …
//! ```
//!
//! A program that has no link yet ends with its last control connection: a service that dies between any two of these
//! steps leaves nothing behind. One that has a link ends with it, since the other end is QEMU's; nobody has to remember
//! to end it. Until it was told rules, it lets nothing out.

mod begin;
mod channel;
mod confine;
mod control;
mod conversation;
mod given;
pub mod process;
mod protocol;
mod serve;
pub mod switch;

pub use begin::main;
pub use confine::confine_to;
pub use control::Control;
pub use protocol::{InNetwork, Port, Protocol, Status, VERSION};

pub use crate::message::pair;

/// The word by which the `berth` program becomes this one.
pub const VERB: &str = "egress";
/// The word by which it becomes the [switch] of a network instead of the program of a machine.
const SWITCH: &str = "switch";
