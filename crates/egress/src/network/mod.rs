//! Networks of projects, in which machines reach each other.
//!
//! ```text
//!   guest ══ its program ── link ── switch ── link ── its program ══ guest
//!            (translate)           (table, names)     (translate)
//! ```
//!
//! A network has a switch on each host, a program of its own ([`program::switch`](crate::program::switch)). The program
//! beside a machine has a link to the switch of each network that the machine belongs to ([`Memberships`]): a pair of
//! sockets over which a message is a packet. What the guest sends to an address of a network goes there with
//! the machine's address in that network for its own ([`translate`](self::translate)), whatever rules say of the
//! outside; what comes from there comes to the guest's own address. So a guest sees nothing of networks, and goes on in
//! others without a change. Of IPv6 it is the same, in networks that have such addresses.
//!
//! Neither side believes the other. A switch takes from a link only what is from the address that the link was made
//! for, and gives it only what is for that address ([`table`](self::table)). A machine's program takes from a switch
//! only what is for its machine and from the network.
//!
//! Firewall rules ([`filter`](self::filter)) hold where a packet passes anyway: those of a network at its switch, for all
//! its members, and those of a machine at its own program, for it alone.

mod filter;
mod header;
mod member;
mod names;
mod roster;
mod table;
mod translate;

pub(crate) use filter::Filter;
pub(crate) use member::Joined;
pub use member::{At, Memberships};
pub use roster::{Member, Roster};
pub(crate) use table::{Decision, Table};
pub(crate) use translate::is_member;

/// The port at which names are asked for.
pub(crate) const DNS: u16 = 53;
/// The port from which a machine's own program asks. No guest's packet is from or to it.
pub(crate) const OWN: u16 = 0;
