//! The switch of a network on a host, a program of its own beside those of the network's machines.
//!
//! It is made, told and found again as [the program of a machine](super) is, has no more than links, each of which the
//! service made for one member, and knows who is in the network. It outlives the service. As long as it has a link it
//! is there; it ends with the last of its links and of its conversations, so nobody has to remember to end it.
//!
//! ```text
//!   service ── set ──────────► switch              the network's addresses, name and members
//!      │────── link {address} ──► switch           one end of a pair of sockets; the other end goes to the member's program
//!      ╳   (the service ends; another one comes)
//!   service ── connect to egress.sock ──► status, set, link, …
//! ```

mod control;
mod protocol;
mod serve;

pub use control::Control;
pub use protocol::{Linked, Status, VERSION};
pub(super) use serve::run;
